"""Circulation: a network that tells noise pushes around a loop, its twin with one number for a landscape cannot."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from conca.bench.stop import Claim, Stop
from conca.energy import GaussianMixture, NoiseEnergy, NoiseScore, Schedule, Score, noise_loss
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["circulation"]

LEVELS, LEVEL = 100, 3
"""Of the schedule, and the one that is walked around: its noise is somewhat narrower than a bowl."""
STEPS, ROWS, RATE, HIDDEN = 300, 128, 3e-3, 64
Loop = tuple[float, float, float]
LOOPS: tuple[Loop, ...] = ((0.0, 0.0, 1.0), (0.0, 0.0, 2.0), (1.2, 0.0, 0.6), (-0.5, 1.0, 0.8), (0.7, -0.7, 1.2))
"""Circles: centre and radius."""
QUADRATURE = 256
"""Points of a circle; the rule converges faster than any power of them, the networks being smooth."""
VISIBLE = 0.02
"""Circulation of a slope that is nobody's, as a share of what it would be if all of it went around."""


def circulation() -> Stop:
    """Two twins, trained alike on eight bowls, and what their slopes add up to around circles."""
    schedule = Schedule.linear(LEVELS)
    score = trained(NoiseScore(net(), schedule), schedule)
    energy = trained(NoiseEnergy(net(), schedule), schedule)
    free = [around(score.at(LEVEL), loop) for loop in LOOPS]
    bound = [around(energy.at(LEVEL), loop) for loop in LOOPS]
    claims = [
        Claim(f"{name(loop)}, slope alone: by the curl within, around", curl(score.at(LEVEL), loop), found, 1e-9)
        for loop, (found, _) in zip(LOOPS, free)
    ]
    claims += [Claim(f"{name(loop)}, the energy: around", 0.0, found, 1e-9) for loop, (found, _) in zip(LOOPS, bound)]
    most = max(abs(found) / length for found, length in free)
    claims += [
        Claim(
            f"of the slope alone up to {most:.0%} go around, more than {VISIBLE:.0%} (1: yes)",
            1.0,
            float(most > VISIBLE),
            0.0,
        ),
        *(
            Claim(
                f"the noise that {who} leaves untold is under half of all (1: yes)",
                1.0,
                float(left(part, schedule) < 0.5),
                0.0,
            )
            for who, part in (("the slope alone", score), ("the energy", energy))
        ),
    ]
    reading = (
        "A network with two outputs may be any field of arrows, and training by samples does not make it the slope of a landscape: walked "
        "around a circle it adds up to something, so there is no height to compare and no exact chain. The slope of one number adds up to "
        "nothing, whatever was learnt."
    )
    return Stop("A slope of no landscape", reading, claims, picture(score.at(LEVEL), energy.at(LEVEL), LOOPS[3]))


class Net(nn.Module):
    """Tells noise in a plane; smooth, so that loops and curls are."""

    def __init__(self) -> None:
        super().__init__()
        first, second, last = (nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise((3, HIDDEN, HIDDEN, 2)))
        self.layers = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """(B, 2) and (B,) to (B, 2)."""
        return cast(Tensor, self.layers(torch.cat([x, level[:, None]], 1)))


def net() -> Net:
    """Always the same one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net()


def data(rows: int, draw: torch.Generator) -> Tensor:
    """Eight bowls on a circle, (rows, 2)."""
    angles = torch.arange(8, dtype=torch.float64) * (math.pi / 4)
    return GaussianMixture(1.4 * torch.stack([angles.cos(), angles.sin()], 1), 0.15).draw(rows, draw)


def trained(score: Score, schedule: Schedule) -> Score:
    """The same, trained to tell noise."""
    draw = torch.Generator().manual_seed(0)
    rule = torch.optim.Adam(score.parameters(), lr=RATE)
    for _ in range(STEPS):
        rule.zero_grad()
        torch.autograd.backward(noise_loss(score, schedule, data(ROWS, draw), generator=draw))
        rule.step()
    return score.requires_grad_(False).eval()


def left(score: Score, schedule: Schedule) -> float:
    """Mean square of what is not told of the noise, whose own is 1."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return float(noise_loss(score, schedule, data(2000, draw), generator=draw))


def around(score: Score, loop: Loop) -> tuple[float, float]:
    """The integral of the slope along a circle, against the clock, and that of its size."""
    pushes, sizes = pushed(score, loop)
    return float(pushes.sum()), float(sizes.sum())


def pushed(score: Score, loop: Loop) -> tuple[Tensor, Tensor]:
    """What the slope adds along each piece of a circle, and its size times the piece, (QUADRATURE,) each."""
    angles = torch.arange(QUADRATURE, dtype=torch.float64) * (2 * math.pi / QUADRATURE)
    away = torch.stack([angles.cos(), angles.sin()], 1)
    along = torch.stack([-angles.sin(), angles.cos()], 1)
    with torch.no_grad():
        slope = score.score(torch.tensor(loop[:2], dtype=torch.float64) + loop[2] * away)
    piece = loop[2] * 2 * math.pi / QUADRATURE
    return (slope * along).sum(1) * piece, slope.norm(dim=1) * piece


def curl(score: Score, loop: Loop, rings: int = 24) -> float:
    """The integral of d slope_2 / dx_1 - d slope_1 / dx_2 within the circle, which by Stokes is the circulation around it."""
    nodes, weights = legendre(rings)
    angles = torch.arange(QUADRATURE // 4, dtype=torch.float64) * (8 * math.pi / QUADRATURE)
    radii = loop[2] * (nodes + 1) / 2
    away = torch.stack([angles.cos(), angles.sin()], 1)
    x = (torch.tensor(loop[:2], dtype=torch.float64) + radii[:, None, None] * away).reshape(-1, 2).requires_grad_()
    slope = score.score(x)
    rows = [torch.autograd.grad(slope[:, i].sum(), x, retain_graph=True)[0] for i in (0, 1)]
    each = (rows[1][:, 0] - rows[0][:, 1]).reshape(rings, -1).mean(1)
    return float((each * radii * weights).sum() * loop[2] / 2 * 2 * math.pi)


def legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss-Legendre quadrature from -1 to 1, as eigenvalues (Golub & Welsch 1969)."""
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / (4 * k.square() - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return nodes, 2 * vectors[0].square()


def name(loop: Loop) -> str:
    """As it stands in the table."""
    return f"circle of {loop[2]:g} at ({loop[0]:g}, {loop[1]:g})"


def picture(score: Score, energy: Score, loop: Loop) -> Picture:
    """What adds up on the way around the circle, of both."""
    figure, (axes,) = canvas()
    degrees = [360 * k / QUADRATURE for k in range(QUADRATURE + 1)]
    ends = []
    for colour, who, slope in ((COLOURS[1], "slope alone", score), (COLOURS[0], "slope of an energy", energy)):
        climbed = [0.0, *pushed(slope, loop)[0].cumsum(0).tolist()]
        axes.plot(degrees, climbed, color=colour, lw=1.6, label=who)
        ends.append(climbed[-1])
    axes.axhline(0.0, color=SOFT, lw=1.0, ls="--")
    label(axes, "degrees around the circle", "sum of the slope so far")
    key(axes)
    words = f"Around the {name(loop)} the slope alone adds up to {ends[0]:.2f}, that of an energy to {ends[1]:.0e}."
    return Picture(svg_of(figure, "circulation"), words, words)
