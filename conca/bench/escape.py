"""Escape from a valley: how long a chain stays in one, by temperature; the logarithm of the time grows as barrier / temperature."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.energy import DoubleWell, sample, ula
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["escape"]

BARRIER = 1.0
COLDNESS = (2.0, 3.0, 4.0, 5.0, 6.0)
"""1 / temperature of each group of chains."""
CHAINS, STEP, BLOCK, MOST = 1000, 0.005, 200, 40_000
"""Chains of a group, the step on E / T, steps between two looks, steps at most."""
ENOUGH = 0.7
"""Share of each group that has to arrive; the others count with the time that they stayed."""


def escape() -> Stop:
    """Chains that begin at -1, until they reach +1, at five temperatures at once."""
    cold = torch.tensor(COLDNESS, dtype=torch.float64)
    times = walked(cold)
    exact = torch.tensor([passage(float(c)) for c in cold], dtype=torch.float64)
    claims = [
        Claim(
            f"log of the time from -1 to +1, 1 / temperature {c:g}: by quadrature, by chains",
            float(e.log()),
            float(t.log()),
            0.05 * float(e.log()),
        )
        for c, e, t in zip(cold, exact, times)
    ]
    claims += [
        Claim("its slope in 1 / temperature: by quadrature, by chains", slope(cold, exact), slope(cold, times), 0.045),
        Claim("where it is cold (1 / temperature 30 to 40) the slope is the barrier", BARRIER, far_slope(), 0.002),
    ]
    reading = (
        "A chain leaves a valley when noise happens to lift it over the barrier. Half the temperature squares the time that takes, so one "
        "begins hot, where valleys are open to each other, and cools: the idea behind annealing and diffusion."
    )
    return Stop("A way out of a valley", reading, claims, picture(cold, times, exact))


def walked(cold: Tensor) -> Tensor:
    """Mean time to +1 of each group; a chain that has not arrived is counted with the time it stayed (censored)."""
    groups, draw = len(cold), torch.Generator().manual_seed(0)
    landscape = DoubleWell(BARRIER) * cold.repeat_interleave(CHAINS)
    x = -torch.ones(groups * CHAINS, 1, dtype=torch.float64)
    away, stayed = torch.zeros(len(x), dtype=torch.bool), torch.zeros(len(x), dtype=torch.float64)
    for _ in range(MOST // BLOCK):
        chain, _ = sample(landscape, ula(STEP), x, BLOCK, generator=draw)
        x, there = chain[-1], chain[..., 0] >= 1
        left = there.any(0)
        stayed += torch.where(away, 0, torch.where(left, there.double().argmax(0) + 1, BLOCK))
        away |= left
        if bool((away.view(groups, CHAINS).double().mean(1) >= ENOUGH).all()):
            break
    arrived = away.view(groups, CHAINS).sum(1)
    return stayed.view(groups, CHAINS).sum(1) / arrived * STEP * cold


def passage(cold: float, low: float = -3.0, cells: int = 40_000) -> float:
    """Mean time of first passage from -1 to +1 of dx = -E'(x) dt + sqrt(2 T) dW, by quadrature (Gardiner 2009, 5.5)."""
    edges = torch.linspace(low, 1.0, cells + 1, dtype=torch.float64)
    width, x = edges[1] - edges[0], (edges[1:] + edges[:-1]) / 2
    height = DoubleWell(BARRIER)(x[:, None]) * cold
    before = torch.cumsum((-height).exp(), 0) * width
    return float(cold * (height.exp() * before)[x >= -1].sum() * width)


def slope(cold: Tensor, times: Tensor) -> float:
    """Of the line through the logarithms of the times, by least squares."""
    apart = cold - cold.mean()
    return float((apart * times.log()).sum() / apart.square().sum())


def far_slope() -> float:
    """The slope where it is cold: what is left of the bend is gone."""
    cold = torch.tensor([30.0, 40.0], dtype=torch.float64)
    return slope(cold, torch.tensor([passage(float(c)) for c in cold], dtype=torch.float64))


def picture(cold: Tensor, times: Tensor, exact: Tensor) -> Picture:
    """The times on a logarithmic axis, measured and by quadrature."""
    figure, (axes,) = canvas()
    axes.semilogy(cold.tolist(), exact.tolist(), color=COLOURS[1], lw=1.2, label="by quadrature")
    axes.semilogy(cold.tolist(), times.tolist(), "o", color=COLOURS[0], ms=5, label="chains")
    label(axes, "1 / temperature", "mean time from -1 to +1")
    key(axes)
    words = f"The logarithm of the time out of a valley grows by {slope(cold, times):.3f} per unit of 1 / temperature; the barrier is 1."
    return Picture(svg_of(figure, "escape"), words, words)
