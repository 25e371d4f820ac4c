"""Hamiltonian Monte Carlo: a chain that rolls through the landscape and is tested at the end of each roll."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from conca.energy.chain import Info
from conca.energy.draws import by_row, chance, norm, normal, positive, weighed, whole
from conca.energy.energy import Energy, squares
from conca.energy.langevin import WeighedPlace

__all__ = ["HMC", "Rolling", "hmc"]


class Rolling(NamedTuple):
    """A place and a momentum."""

    place: WeighedPlace
    momentum: Tensor
    """(B, ...)"""


@dataclass(frozen=True)
class HMC:
    """Leapfrog steps with a fresh momentum, accepted or rejected row by row. Made by `hmc`."""

    size: float
    leapfrog: int = 10
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.size)
        whole(self.leapfrog, "leapfrog steps of hmc")

    @classmethod
    def samples(cls) -> tuple[HMC, ...]:
        """Small instances, for laws and tests."""
        return cls(0.25, 3), cls(0.6, 1)

    def init(self, energy: Energy, x: Tensor, /) -> WeighedPlace:
        return WeighedPlace(x, *weighed(energy, "hmc", "use ula").evaluate(x))

    def step(
        self, energy: Energy, state: WeighedPlace, generator: torch.Generator | None, /
    ) -> tuple[WeighedPlace, Info]:
        momentum = normal(state.x, generator)
        if energy.parts():
            momentum = torch.where(energy.free(state.x), momentum, 0)
        end = self.roll(energy, Rolling(state, momentum))
        gain = state.energy - end.place.energy + (squares(momentum) - squares(end.momentum)) / 2
        accepted = chance(state.x, generator) < gain  # not where it is NaN: rejected
        new = WeighedPlace(*by_row(accepted, end.place, state))
        return new, {"accepted": accepted, "energy": new.energy, "slope": norm(new.score)}

    def roll(self, energy: Energy, start: Rolling) -> Rolling:
        """`leapfrog` steps of size `size`: reversible (turn the momentum at the end, roll again), and volume stays.

        Coordinates that are known must have no momentum.
        """
        place, momentum = start
        momentum = torch.add(momentum, place.score, alpha=self.size / 2)
        for left in reversed(range(self.leapfrog)):
            x = energy.clamp(torch.add(place.x, momentum, alpha=self.size))
            place = WeighedPlace(x, *energy.evaluate(x))
            momentum = torch.add(momentum, place.score, alpha=self.size if left else self.size / 2)
        return Rolling(place, momentum)


def hmc(step: float, leapfrog: int = 10) -> HMC:
    """Hamiltonian Monte Carlo: each step draws a momentum, rolls `leapfrog` leapfrog steps of size `step`, and is tested.

    exp(-E) is exactly stationary. `mala(s)` is `hmc(sqrt(2 s), 1)`. A roll that leaves the finite numbers is rejected.
    Under `given` known coordinates have no momentum. Info: "accepted", "energy", "slope". Raises TypeError on a landscape
    that knows only its slope, BadInput where the step is not positive and finite or leapfrog not 1 or more.

    Source: Duane et al. 1987; Neal 2011, "MCMC using Hamiltonian dynamics" (best near an acceptance of 0.65).
    """
    return HMC(step, leapfrog)
