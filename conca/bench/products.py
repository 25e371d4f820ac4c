"""Composition along a diffusion: the sum of noised scores is no noised product; chains at each level mend what that costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from conca.bench.noised import Noised, product
from conca.bench.stop import Claim, Stop
from conca.energy import (
    Energy,
    GaussianMixture,
    Kernel,
    Schedule,
    ddpm,
    hmc,
    mala,
    mixture,
    reverse_diffusion,
    ula,
)
from conca.report.drawing import COLOURS, INK, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["products"]

LEVELS, ROWS, CORRECTIONS = 40, 2000, 5
Corrector = Callable[[float], Kernel[Any, Any]]


def size(noise: float) -> float:
    """Of a Langevin step, by the noise of a level: what is walked there is about as narrow as noise, or as its bowls."""
    return 0.3 * (noise**2 + 0.1)


CHAINS: dict[str, tuple[Corrector | None, int]] = {
    "summed scores alone": (None, 1),
    "with ula on each level": (lambda s: ula(size(s)), CORRECTIONS),
    "with mala on each level": (lambda s: mala(size(s)), CORRECTIONS),
    "with hmc on each level": (lambda s: hmc(size(s) ** 0.5, 4), CORRECTIONS // 2),
}
ENOUGH = 5
"""How many times nearer to the truth a chain has to bring the samples."""


def products() -> Stop:
    """Products whose truth is known: of two bowls, of two mixtures; and a mixture, and a negation."""
    schedule = Schedule.linear(LEVELS)
    claims = [*formula(), *bowls(schedule)]
    left, right = sides()
    truth = product(left, right).draw(ROWS, torch.Generator().manual_seed(1))
    both = Noised(left, schedule) + Noised(right, schedule)
    found = {name: drawn(both, schedule, *chain) for name, chain in list(CHAINS.items())[:3]}
    far = {name: distance(x, truth) for name, x in found.items()}
    alone, *held = far
    claims += [
        Claim(
            f"two mixtures, {name}: a distance of {far[name]:.3f} to the truth is under a fifth of {far[alone]:.3f} (1: yes)",
            1.0,
            float(far[name] < far[alone] / ENOUGH),
            0.0,
        )
        for name in held
    ]
    reading = (
        "Two networks that tell noise are added to draw what both hold plausible. Noise does not commute with products: the sum of the "
        "noised scores belongs to another path, and a walk down it ends in the wrong place, here in the middle, where both paths begin. "
        "That path still leads to the right landscape, so some steps of a chain on each level are enough. Energies allow chains that test "
        f"their steps. Energy distance to draws of the truth: {', '.join(f'{name} {value:.3f}' for name, value in far.items())}."
    )
    return Stop("A product, noised", reading, claims, picture(found, product(left, right)))


def bowl(x: float) -> GaussianMixture:
    """N((x, 0), 1) in the plane."""
    return GaussianMixture(torch.tensor([[x, 0.0]], dtype=torch.float64))


def sides() -> tuple[GaussianMixture, GaussianMixture]:
    """Three bowls, mostly the left one, and mostly the right one: both allow left and right alike, the middle seldom."""
    means = torch.tensor([[-2.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    shares = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64)
    return GaussianMixture(means, 0.5, shares), GaussianMixture(means, 0.5, shares.flip(0))


def drawn(landscape: Energy, schedule: Schedule, corrector: Corrector | None, corrections: int) -> Tensor:
    """Samples (ROWS, 2) by ancestral steps, and such corrections."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(ROWS, 2, generator=draw, dtype=torch.float64)
    return reverse_diffusion(
        landscape, schedule, ddpm(), noise, corrector=corrector, corrections=corrections, generator=draw
    )


def formula() -> list[Claim]:
    """N(-1, 1) times N(1, 1) where a tenth of the variance is left, summed on a line."""
    schedule = Schedule.of_betas([0.9])
    line = torch.linspace(-10, 10, 2001, dtype=torch.float64)
    x = torch.stack([line, torch.zeros_like(line)], 1)

    def variance(energy: Energy) -> float:
        return float(torch.softmax(-energy(x), 0) @ line.square())

    noised = Noised(product(bowl(-1), bowl(1)), schedule).at(1)
    summed = (Noised(bowl(-1), schedule) + Noised(bowl(1), schedule)).at(1)
    return [
        Claim(
            "N(-1, 1) N(1, 1) = N(0, 1/2), noised to abar = 0.1: variance 1 - abar / 2", 0.95, variance(noised), 1e-9
        ),
        Claim("what the sum of the noised describes there: variance 1/2", 0.5, variance(summed), 1e-9),
    ]


def bowls(schedule: Schedule) -> list[Claim]:
    """Bowls, of which all variances are known: a product, a negation; and a mixture, where noise may come first."""
    one, other = Noised(bowl(-1), schedule), Noised(bowl(1), schedule)
    claims = [
        Claim(
            "a walk down summed scores, levels without end: variance 1/3",
            1 / 3,
            walked(Schedule.linear(1000), 0.5),
            1e-3,
        )
    ]
    expected = {"alone": walked(schedule, 0.5), "ula": walked(schedule, 0.5, CORRECTIONS)}
    for name, chain in CHAINS.items():
        exact = next((value for part, value in expected.items() if part in name), 0.5)
        route = "as by the recursion" if exact != 0.5 else "that of the product"
        found = float(drawn(one + other, schedule, *chain).var(0).mean())
        claims.append(Claim(f"{name}: variance, {route}", exact, found, 0.05 * exact))
    less = Noised(bowl(0), schedule) - other * 0.5
    for name, exact in (("alone", walked(schedule, 2.0)), ("hmc", 2.0)):
        chain = next(chain for full, chain in CHAINS.items() if name in full)
        found = float(drawn(less, schedule, *chain).var(0).mean())
        claims.append(
            Claim(f"N(0, 1) without half of N(1, 1), whose variance is 2: {name}", exact, found, 0.05 * exact)
        )
    x = torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(20, 2)
    joined = Noised(GaussianMixture(torch.cat([bowl(-1).means, bowl(1).means])), schedule)
    gap = max(float((mixture(one, other).at(t).score(x) - joined.at(t).score(x)).abs().max()) for t in (1, 20, LEVELS))
    return [*claims, Claim("a mixture of the noised less the noised mixture, slopes, at most", 0.0, gap, 1e-12)]


def walked(schedule: Schedule, variance: float, corrections: int = 0) -> float:
    """Variance in the end of ancestral steps, and of Langevin steps, on N(., variance) at each level: all of it is linear."""
    found = 1.0
    for t, before in pairwise([*schedule.levels(), 0]):
        move, noise = ddpm().move(schedule, t, before), schedule.level(before)[1]
        told = (1 - move.noise**2 / variance) / move.signal
        found = (move.keep + move.data * told) ** 2 * found + move.spread**2
        for _ in range(corrections if before else 0):
            found = (1 - size(noise) / variance) ** 2 * found + 2 * size(noise)
    return found


def distance(x: Tensor, y: Tensor) -> float:
    """Energy distance of two samples (Szekely & Rizzo 2013), without bias; 0 where it would fall below."""
    n, m = len(x), len(y)
    across, within, among = (torch.cdist(a, b).sum() for a, b in ((x, y), (x, x), (y, y)))
    return max(0.0, float(2 * across / (n * m) - within / (n * (n - 1)) - among / (m * (m - 1))))


def picture(found: dict[str, Tensor], truth: GaussianMixture) -> Picture:
    """Where samples lie along the first coordinate, beside the density of the product."""
    figure, (axes,) = canvas()
    line = torch.linspace(-3.5, 3.5, 281, dtype=torch.float64)
    each = torch.exp(-((line[:, None] - truth.means[:, 0]) / truth.scales).square() / 2) / truth.scales
    density = (each @ truth.log_weights.exp()) / (2 * torch.pi) ** 0.5
    for colour, name in zip((COLOURS[1], COLOURS[0]), list(found)[::2]):
        axes.hist(
            found[name][:, 0].numpy(), bins=56, range=(-3.5, 3.5), density=True, color=colour, alpha=0.45, label=name
        )
    axes.plot(line.tolist(), density.tolist(), color=INK, lw=1.3, label="the product")
    label(axes, "first coordinate", "density")
    key(axes)
    middle = {name: float((x[:, 0].abs() < 1).double().mean()) for name, x in found.items()}
    words = "Share in the middle: " + ", ".join(f"{name} {value:.2f}" for name, value in middle.items()) + "."
    return Picture(svg_of(figure, "products"), f"Samples of a product of two mixtures, and its density. {words}", words)
