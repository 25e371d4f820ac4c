"""A classifier with linear logits is an energy and no density: its log Z on growing boxes never settles."""

from __future__ import annotations

import math

import torch
from torch import nn

from conca.bench.stop import Claim, Stop
from conca.energy import ClassifierEnergy, Energy, Gaussian, log_z_grid
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["boxes"]

SIZES = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Half the side of each box."""
CELLS = 400
"""Of the grid along a side."""
WEIGHT = ((1.0, 0.5), (-0.75, 1.0), (0.25, -1.25))
BIAS = (0.0, 0.5, -0.5)


def boxes() -> Stop:
    """log Z of three linear logits of two coordinates, alone and held together by a wide bowl."""
    alone = linear()
    held = alone + Gaussian(torch.zeros(2, dtype=torch.float64), 4 * torch.eye(2, dtype=torch.float64))
    open_, closed = ([log_z(energy, size) for size in SIZES] for energy in (alone, held))
    steepest = max(sum(map(abs, row)) for row in WEIGHT)
    claims = [
        Claim(f"log Z in a box of half side {size:g}: in closed form, on a grid", exact(size), found, 0.01)
        for size, found in zip(SIZES, open_)
    ]
    claims += [
        Claim(
            "its growth per unit from 16 to 32: the largest sum of |w|",
            steepest,
            (open_[-1] - open_[-2]) / 16,
            0.005,
        ),
        Claim("with a bowl added: log Z", held_exact(), closed[-1], 1e-6),
        Claim("and its growth per unit from 16 to 32", 0.0, (closed[-1] - closed[-2]) / 16, 1e-9),
    ]
    reading = (
        "Any classifier gives an energy, the negative logsumexp of its logits. Whether exp(-E) can be divided by its integral is another "
        "question: where logits grow without end it cannot, larger boxes hold ever more of it, and the energy ranks but is no density. "
        "A bowl added to it, or training both readings, makes it one."
    )
    return Stop("An energy that is no density", reading, claims, picture(open_, closed))


def linear() -> ClassifierEnergy:
    """Three logits, linear in two coordinates."""
    net = nn.Linear(2, 3, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.tensor(WEIGHT))
        net.bias.copy_(torch.tensor(BIAS))
    return ClassifierEnergy(net, (2,))


def log_z(energy: Energy, size: float) -> float:
    """log of the integral of exp(-E) over the box from -size to size in both coordinates."""
    with torch.no_grad():
        return float(log_z_grid(energy, -size, size, CELLS))


def exact(size: float) -> float:
    """The same in closed form: a sum over the classes of products of 2 sinh(w size) / w."""
    parts = [
        bias + sum(math.log(2 * math.sinh(abs(w) * size) / abs(w)) for w in row) for row, bias in zip(WEIGHT, BIAS)
    ]
    return math.log(sum(map(math.exp, parts)))


def held_exact(variance: float = 4.0) -> float:
    """With the bowl, over the whole plane: a mean of exp(w x) under a normal distribution is exp(variance |w|^2 / 2)."""
    parts = [bias + variance * sum(w * w for w in row) / 2 for row, bias in zip(WEIGHT, BIAS)]
    return math.log(sum(map(math.exp, parts)))


def picture(open_: list[float], closed: list[float]) -> Picture:
    """log Z by the size of the box, alone and with the bowl."""
    figure, (axes,) = canvas()
    for colour, name, values in zip(COLOURS, ("linear logits", "with a bowl"), (open_, closed)):
        axes.plot(SIZES, values, "o-", color=colour, ms=4, lw=1.3, label=name)
    label(axes, "half side of the box", "log Z")
    key(axes)
    found = ", ".join(f"{value:.1f}" for value in open_)
    words = (
        f"log Z of linear logits in boxes of half side 2 to 32: {found}; with a bowl it settles at {closed[-1]:.3f}."
    )
    return Picture(svg_of(figure, "boxes"), words, words)
