"""Parallel tempering: hot chains cross the barriers, and hand what they find down to the cold one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from conca.energy.chain import Info, Kernel
from conca.energy.draws import by_row, chance, norm, positive, weighed
from conca.energy.energy import Energy
from conca.energy.langevin import MALA, WeighedPlace
from conca.types import BadInput

__all__ = ["Tempered", "Tempering", "tempering"]


class Tempered(NamedTuple):
    """Chains at several temperatures, and what the landscape itself says where they are."""

    x: Tensor
    """(B, ...), where the coldest is"""
    replicas: tuple[WeighedPlace, ...]
    """one per temperature, the coldest first; energies and slopes are those of the landscape, undivided"""
    turn: Tensor
    """(B,), whether the next exchange begins with the second pair"""


@dataclass(frozen=True)
class Tempering:
    """A kernel at each temperature, then an exchange of neighbours. Made by `tempering`."""

    kernels: tuple[Kernel[Any, Any], ...]
    temperatures: tuple[float, ...]
    exact: ClassVar[bool] = False
    """Stationary are all chains together, each at its temperature; those that begin at one place have to warm up."""
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise BadInput("tempering needs at least one temperature, such as (1.0, 2.0, 4.0)")
        for temperature in self.temperatures:
            positive(temperature, "a temperature")
        if list(self.temperatures) != sorted(set(self.temperatures)):
            raise BadInput(f"temperatures rise, the coldest first, not {self.temperatures}")
        if len(self.kernels) != len(self.temperatures):
            count = f"{len(self.kernels)} kernels and {len(self.temperatures)} temperatures"
            raise BadInput(f"one kernel for all, or one for each temperature, not {count}")
        for kernel in self.kernels:
            if not getattr(kernel, "exact", False):
                raise BadInput(f"tempering compares energies, so its kernels must be exact (mala, hmc), not {kernel}")

    @classmethod
    def samples(cls) -> tuple[Tempering, ...]:
        """Small instances, for laws and tests."""
        return cls((MALA(0.2),) * 3, (1.0, 2.0, 4.0)), cls((MALA(0.2),), (1.0,))

    def init(self, energy: Energy, x: Tensor, /) -> Tempered:
        place = WeighedPlace(x, *weighed(energy, "tempering", "use ula").evaluate(x))
        if not isinstance(self.kernels[0].init(energy, x), WeighedPlace):
            raise BadInput(
                f"tempering walks with mala, hmc, or a kernel whose state is a WeighedPlace; not {self.kernels[0]}"
            )
        return Tempered(x, (place,) * len(self.temperatures), torch.zeros(len(x), dtype=torch.bool, device=x.device))

    def step(self, energy: Energy, state: Tempered, generator: torch.Generator | None, /) -> tuple[Tempered, Info]:
        moved, infos = [], []
        for kernel, temperature, place in zip(self.kernels, self.temperatures, state.replicas):
            there, info = kernel.step(energy / temperature, _scaled(place, 1 / temperature), generator)
            moved.append(_scaled(there, temperature))
            infos.append(info)
        swapped = self._exchange(moved, bool(state.turn.any()), generator)
        cold = moved[0]
        info = {"swapped": swapped, "energy": cold.energy, "slope": norm(cold.score)}
        events = {name: value for name, value in infos[0].items() if value.dtype == torch.bool}
        return Tempered(cold.x, tuple(moved), ~state.turn), {**events, **info}

    def _exchange(self, places: list[WeighedPlace], odd: bool, generator: torch.Generator | None) -> Tensor:
        """Neighbours change places where the test says so; (B,), whether the coldest took part."""
        swapped = torch.zeros(len(places[0].x), dtype=torch.bool, device=places[0].x.device)
        for i in range(odd, len(places) - 1, 2):
            colder, hotter = places[i], places[i + 1]
            gain = (1 / self.temperatures[i] - 1 / self.temperatures[i + 1]) * (colder.energy - hotter.energy)
            chosen = chance(colder.x, generator) < gain
            places[i] = WeighedPlace(*by_row(chosen, hotter, colder))
            places[i + 1] = WeighedPlace(*by_row(chosen, colder, hotter))
            swapped = chosen if i == 0 else swapped
        return swapped


def _scaled(place: WeighedPlace, factor: float) -> WeighedPlace:
    """The place in a landscape that is `factor` times as high."""
    return place if factor == 1 else WeighedPlace(place.x, place.energy * factor, place.score * factor)


def tempering(kernel: Kernel[Any, Any] | Sequence[Kernel[Any, Any]], temperatures: Sequence[float]) -> Tempering:
    """Parallel tempering: a chain at each temperature T walks E / T, and neighbours change places by an exact test.

    The coldest, `temperatures[0]`, is what comes out, as (B, ...); at temperature 1 its stationary density is exactly
    exp(-E). All begin at one place, so let them warm up. Pairs (1, 2), (3, 4) and (2, 3), (4, 5) take turns.

    Args:
        kernel: `mala(...)` or `hmc(...)` for all, or one for each temperature (hot ones may take larger steps).
        temperatures: rising, positive.

    Info: what the coldest chain reports, and "swapped", whether it changed places (on every second step it cannot).
    Raises BadInput for temperatures and kernels that do not fit, TypeError on a landscape that knows only its slope.

    Source: Swendsen & Wang 1986; Geyer 1991; Earl & Deem 2005, "Parallel tempering: theory, applications, and new
    perspectives".
    """
    temperatures = tuple(float(t) for t in temperatures)
    kernels = tuple(kernel) if isinstance(kernel, Sequence) else (kernel,) * len(temperatures)
    return Tempering(kernels, temperatures)
