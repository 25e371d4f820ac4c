"""Fading gradients: how much the first input still moves the last output, in plain and gated recurrent networks."""

from __future__ import annotations

import torch
from torch import nn

from conca.bench.stop import Claim, Stop
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["fading"]

LENGTHS = (1, 10, 20, 50, 100)
THEORY = {"RNN": (4.6e-01, 2.0e-03, 1.4e-05, 1.4e-11, 3.6e-21), "LSTM": (8.1e-02, 1.9e-02, 2.9e-03, 3.3e-05, 4.6e-08)}
"""Two digits each: state 32, freshly initialised, mean of 10 seeds."""
STATE, SEEDS, DIGITS = 32, 10, 0.04
"""How far a number of two digits may be from the measured one, as a share of it."""


def fading() -> Stop:
    """PyTorch's two networks, of which `conca.LSTM` is the second."""
    found = {name: [sensitivity(name, steps) for steps in LENGTHS] for name in THEORY}
    claims = [
        Claim(f"{name}, {steps} step{'s' * (steps > 1)}", value, measured, DIGITS * value)
        for name, values in THEORY.items()
        for steps, value, measured in zip(LENGTHS, values, found[name])
    ]
    ratio = found["LSTM"][-1] / found["RNN"][-1]
    factor = (found["RNN"][-1] / found["RNN"][0]) ** (1 / (LENGTHS[-1] - LENGTHS[0]))
    claims += [
        Claim("after 100 steps the RNN is weaker by", 1.3e13, ratio, DIGITS * 1.3e13),
        Claim("factor that the RNN loses in a step", 0.63, factor, 0.005),
    ]
    reading = (
        "The slope of the last output in the first input, freshly initialised, forget bias 1. It goes through one more product of "
        "weights with every step, so in a plain network it vanishes; along its cell, an LSTM keeps the product of its forget gates."
    )
    return Stop("What fades on the way back", reading, claims, picture(found))


def sensitivity(name: str, steps: int) -> float:
    """|d sum of the last output / d first input|, mean over seeds; the user's random state is left alone."""
    sizes = []
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            kind = nn.RNN if name == "RNN" else nn.LSTM
            network = kind(1, STATE, batch_first=True, dtype=torch.float32)
            if name == "LSTM":
                nn.init.ones_(dict(network.named_parameters())["bias_ih_l0"][STATE : 2 * STATE])
            x = torch.randn(1, steps, 1, dtype=torch.float32).requires_grad_()
            (slope,) = torch.autograd.grad(network(x)[0][:, -1].sum(), x)
            sizes.append(float(slope[0, 0].norm()))
    return sum(sizes) / SEEDS


def picture(found: dict[str, list[float]]) -> Picture:
    """Sensitivity over steps."""
    figure, (axes,) = canvas()
    for colour, (name, values) in zip((COLOURS[1], COLOURS[0]), found.items()):
        axes.semilogy(LENGTHS, values, "o-", color=colour, ms=4, lw=1.3, label=name)
    label(axes, "steps from the first input to the last output", "sensitivity")
    key(axes)
    words = f"After 100 steps {found['RNN'][-1]:.1e} is left in the plain network, {found['LSTM'][-1]:.1e} in the LSTM."
    return Picture(svg_of(figure, "fading"), f"Sensitivity over steps. {words}", words)
