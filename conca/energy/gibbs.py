"""Gibbs sampling: coordinate by coordinate, or block by block, each drawn anew given all others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from conca.energy.chain import Divergence, Info
from conca.energy.compose import BoundScore
from conca.energy.draws import asked, weighed
from conca.energy.energy import Energy
from conca.types import BadInput

__all__ = ["Gibbs", "GibbsPlace", "Redraws", "gibbs"]


@runtime_checkable
class Redraws(Protocol):
    """An energy that can draw a block of coordinates given the others; within a block these do not depend on each other."""

    def blocks(self) -> int:
        """How many blocks make up a point."""
        ...

    def redraw(self, x: Tensor, block: int, generator: torch.Generator) -> Tensor:
        """`x`, (B, ...), with the coordinates of a block drawn from exp(-E) given the rest; x is not changed."""
        ...


class GibbsPlace(NamedTuple):
    """Where chains are, and how high."""

    x: Tensor
    """(B, ...)"""
    energy: Tensor
    """(B,)"""


@dataclass(frozen=True)
class Gibbs:
    """One sweep over all blocks a step. Made by `gibbs`."""

    values: tuple[float, ...] | None = None
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.values is not None and (len(set(self.values)) < 2 or not all(map(math.isfinite, self.values))):
            raise BadInput(
                f"gibbs needs two values or more that a coordinate may take, such as (-1, 1), not {self.values}"
            )

    @classmethod
    def samples(cls) -> tuple[Gibbs, ...]:
        """Small instances, for laws and tests."""
        return (cls(),)

    def init(self, energy: Energy, x: Tensor, /) -> GibbsPlace:
        energy = weighed(energy, "gibbs", "use ula")
        if self.values is None:
            redrawing(energy)
        elif not bool((torch.isin(x, x.new_tensor(self.values)) | ~energy.free(x)).all()):
            raise BadInput(f"a chain of gibbs({self.values}) starts at these values alone")
        return GibbsPlace(x, energy(x))

    def step(self, energy: Energy, state: GibbsPlace, generator: torch.Generator | None, /) -> tuple[GibbsPlace, Info]:
        x, generator = state.x, asked(generator)
        if self.values is None:
            inner = redrawing(energy)
            for block in range(inner.blocks()):
                x = energy.clamp(inner.redraw(x, block, generator))
        else:
            x = self._swept(energy, x, generator)
        new = GibbsPlace(x, energy(x))
        return new, {"energy": new.energy}

    def _swept(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor:
        """Every coordinate drawn from its values by their energies, one after the other."""
        assert self.values is not None
        values = x.new_tensor(self.values)
        free, flat = (t.reshape(len(x), math.prod(x.shape[1:])) for t in (energy.free(x), x))
        for d in range(flat.shape[1] if len(x) else 0):
            flat, heights = flat.clone(), []
            for value in self.values:  # one batch of the rows for each, since conditions may be bound to rows
                flat[:, d] = torch.where(free[:, d], value, flat[:, d])
                heights.append(energy(flat.reshape(x.shape)))
            height = torch.stack(heights, 1)
            if bool((wrong := height.isnan().any(1)).any()):
                raise Divergence(0, float("nan"), float("nan"), int(wrong.sum()), len(x))
            chosen = torch.multinomial(torch.softmax(-height, 1), 1, generator=generator)[:, 0]
            flat[:, d] = torch.where(free[:, d], values[chosen], flat[:, d])
        return energy.clamp(flat.reshape(x.shape))


def redrawing(energy: Energy) -> Redraws:
    """What draws blocks of this energy: itself, or what it holds under conditions or known coordinates.

    Raises TypeError where there is no such thing.
    """
    found: object = energy
    while not isinstance(found, Redraws) and hasattr(found, "inner") and not isinstance(found, BoundScore):
        found = found.inner
    if not isinstance(found, Redraws):
        raise TypeError(
            f"{type(energy).__name__} cannot draw its coordinates given the others (blocks, redraw); "
            "name the values that they may take, gibbs(values=(-1, 1)), or use mala"
        )
    return found


def gibbs(values: tuple[float, ...] | None = None) -> Gibbs:
    """Gibbs sampling, one sweep over all coordinates a step: exactly exp(-E) is stationary, and nothing is rejected.

    Args:
        values: what each coordinate may take, for points of discrete values: each is drawn by the energies of these (heat
            bath), at the price of one energy per coordinate and value. None: the energy draws its own blocks (`Redraws`),
            as a Gaussian does.

    Known coordinates stay. Info: "energy". Raises TypeError where the energy cannot do it.

    Source: Geman & Geman 1984; Glauber 1963 for the heat bath.
    """
    return Gibbs(None if values is None else tuple(float(value) for value in values))
