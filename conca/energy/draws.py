"""What kernels share: noise, norms, choices by row, and checks of their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

import torch
from torch import Tensor

from conca.energy.energy import Energy, Score, squares
from conca.types import BadInput

__all__ = ["asked", "by_row", "chance", "norm", "normal", "positive", "weighed", "whole"]


def positive(value: float, what: str = "a step") -> float:
    """The number; raises BadInput unless it is positive and finite."""
    if isinstance(value, bool) or not isinstance(value, (float, Real)) or not (value > 0 and math.isfinite(value)):
        raise BadInput(f"{what} must be positive and finite, not {value!r}")
    return float(value)


def whole(value: int, what: str) -> int:
    """The number; raises BadInput unless it is 1 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, Integral)) or value < 1:
        raise BadInput(f"{what} must be a whole number, 1 or more, not {value!r}")
    return int(value)


def asked(generator: torch.Generator | None) -> torch.Generator:
    """The generator; raises BadInput where there is none."""
    if generator is None:
        raise BadInput("this kernel draws random numbers: pass generator=torch.Generator(device).manual_seed(seed)")
    return generator


def normal(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers like x. Raises BadInput without a generator."""
    return torch.randn(x.shape, generator=asked(generator), dtype=x.dtype, device=x.device)


def chance(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Logarithms of numbers between 0 and 1, one per row of x, (B,), at least in float32: else one in 256 would be 0."""
    fine = torch.promote_types(x.dtype, torch.float32)
    return torch.rand(len(x), generator=asked(generator), dtype=fine, device=x.device).log()


def norm(x: Tensor) -> Tensor:
    """Of each row, (B, ...) to (B,)."""
    return squares(x).sqrt()


def by_row(chosen: Tensor, there: Sequence[Tensor], here: Sequence[Tensor]) -> list[Tensor]:
    """Rows of `there` where chosen (B,), else of `here`, tensor by tensor."""
    return [torch.where(_like(chosen, a), a, b) for a, b in zip(there, here)]


def _like(row: Tensor, x: Tensor) -> Tensor:
    """One per row for every coordinate; laid out, since a choice by what is not takes twice as long."""
    return row.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x).contiguous()


def weighed(energy: Score, kernel: str, instead: str) -> Energy:
    """The energy; raises TypeError where only a slope is known."""
    if not isinstance(energy, Energy):
        name = type(energy).__name__
        raise TypeError(f"{kernel} accepts by differences of energy, and this {name} knows only its slope; {instead}")
    return energy
