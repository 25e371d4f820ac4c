"""Kernels that follow the slope: plainly (`descent`), with noise (`ula`), with noise and an exact test (`mala`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from conca.energy.chain import Info
from conca.energy.draws import by_row, chance, norm, normal, positive, weighed
from conca.energy.energy import Energy, Score, squares

__all__ = ["MALA", "ULA", "Descent", "Place", "Standing", "WeighedPlace", "arrive", "descent", "mala", "ula"]


class Place(NamedTuple):
    """Where chains are, and what the landscape says there, so that it is asked once per step."""

    x: Tensor
    """(B, ...)"""
    energy: Tensor | None
    """(B,), or None where only a slope is known"""
    score: Tensor
    """(B, ...)"""


class Standing(NamedTuple):
    """Where chains are, under a kernel that asks the landscape in the course of a step."""

    x: Tensor
    """(B, ...)"""


class WeighedPlace(NamedTuple):
    """Where chains are, under a kernel that compares energies."""

    x: Tensor
    """(B, ...)"""
    energy: Tensor
    """(B,)"""
    score: Tensor
    """(B, ...)"""


@dataclass(frozen=True)
class Descent:
    """x <- clamp(x + size * score(x)). Made by `descent`."""

    size: float
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self.size)

    @classmethod
    def samples(cls) -> tuple[Descent, ...]:
        """Small instances, for laws and tests."""
        return (cls(0.1),)

    def init(self, energy: Score, x: Tensor, /) -> Place:
        return Place(x, *energy.evaluate(x))

    def step(self, energy: Score, state: Place, generator: torch.Generator | None, /) -> tuple[Place, Info]:
        return arrive(energy, torch.add(state.x, state.score, alpha=self.size))


@dataclass(frozen=True)
class ULA:
    """x <- clamp(x + size * score(x) + sqrt(2 size) * noise). Made by `ula`."""

    size: float
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self.size)

    @classmethod
    def samples(cls) -> tuple[ULA, ...]:
        """Small instances, for laws and tests."""
        return (cls(0.1),)

    def init(self, energy: Score, x: Tensor, /) -> Place:
        return Place(x, *energy.evaluate(x))

    def step(self, energy: Score, state: Place, generator: torch.Generator | None, /) -> tuple[Place, Info]:
        return arrive(energy, _proposed(state, self.size, generator))


@dataclass(frozen=True)
class MALA:
    """The move of `ula` as a proposal, accepted or rejected row by row. Made by `mala`."""

    size: float
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.size)

    @classmethod
    def samples(cls) -> tuple[MALA, ...]:
        """Small instances, for laws and tests."""
        return (cls(0.2),)

    def init(self, energy: Score, x: Tensor, /) -> WeighedPlace:
        energy = weighed(energy, "mala", "use ula")
        return WeighedPlace(x, *energy.evaluate(x))

    def step(
        self, energy: Energy, state: WeighedPlace, generator: torch.Generator | None, /
    ) -> tuple[WeighedPlace, Info]:
        x = energy.clamp(_proposed(state, self.size, generator))
        there = WeighedPlace(x, *energy.evaluate(x))
        accepted = chance(x, generator) < self.log_acceptance(energy, state, there)  # not where it is NaN: rejected
        new = WeighedPlace(*by_row(accepted, there, state))
        return new, {"accepted": accepted, "energy": new.energy, "slope": norm(new.score)}

    def log_acceptance(self, energy: Energy, here: WeighedPlace, there: WeighedPlace) -> Tensor:
        """Shape (B,): log p(there) q(there -> here) - log p(here) q(here -> there), over the free coordinates."""
        forth = there.x - energy.clamp(here.x + self.size * here.score)
        back = here.x - energy.clamp(there.x + self.size * there.score)
        return here.energy - there.energy + (squares(forth) - squares(back)) / (4 * self.size)


def descent(step: float) -> Descent:
    """Gradient descent: x <- x + step * score(x). Draws nothing and needs no generator.

    Retrieval from a memory, and the last polish of a sample. Info: "energy" (where known) and "slope", its norm.
    Raises BadInput where the step is not positive and finite, as `ula` and `mala` do.
    """
    return Descent(step)


def ula(step: float) -> ULA:
    """Unadjusted Langevin: x <- x + step * score(x) + sqrt(2 step) * noise.

    Its stationary density differs from exp(-E) by order `step`: on N(0, 1) its variance is 1 / (1 - step / 2). Where
    the slope grows faster than |x| a coarse step diverges. Info: "energy" (where known) and "slope".

    Source: Parisi 1981, "Correlation functions and computer simulations"; Roberts & Tweedie 1996.
    """
    return ULA(step)


def mala(step: float) -> MALA:
    """Metropolis-adjusted Langevin: the move of `ula`, accepted or rejected row by row: exactly exp(-E) is stationary.

    A proposal whose ratio is NaN is rejected. Under `given` only free coordinates move and count. Info: "accepted",
    "energy", "slope". Raises TypeError on a landscape that knows only its slope.

    Source: Besag 1994; Roberts & Tweedie 1996, "Exponential convergence of Langevin distributions and their discrete
    approximations" (best near an acceptance of 0.57, Roberts & Rosenthal 1998).
    """
    return MALA(step)


def _proposed(here: Place | WeighedPlace, size: float, generator: torch.Generator | None) -> Tensor:
    """x + size * score(x) + sqrt(2 size) * noise."""
    noise = normal(here.x, generator)
    return torch.add(here.x, here.score, alpha=size).add_(noise, alpha=math.sqrt(2 * size))


def arrive(energy: Score, x: Tensor) -> tuple[Place, Info]:
    """What the landscape says at `x`, clamped, and what a kernel reports of it: energy (where known) and slope."""
    x = energy.clamp(x)
    place = Place(x, *energy.evaluate(x))
    slope = {"slope": norm(place.score)}
    return place, slope if place.energy is None else {"energy": place.energy} | slope
