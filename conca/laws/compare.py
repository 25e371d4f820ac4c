"""When two results count as the same: one table of tolerances for the whole library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.layers.mixer import Mixer
from conca.layers.states import leaves
from conca.types import State

__all__ = ["TOLERANCES", "identical", "same", "whole"]

TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.float32: 2e-4,
    torch.bfloat16: 6e-2,
    torch.complex128: 1e-9,
    torch.complex64: 2e-4,
}
"""Absolute and relative, for each dtype."""


def same(got: State, expected: State, what: str, tolerance: float | None = None) -> None:
    """Raise AssertionError, naming `what`, unless the tensors agree in shape, dtype and value, within `tolerance` or the table's."""
    p, q = list(leaves(got)), list(leaves(expected))
    assert len(p) == len(q), f"{what}: {len(p)} tensors, expected {len(q)}"
    for place, (a, b) in enumerate(zip(p, q)):
        assert a.shape == b.shape, f"{what}: tensor {place} has shape {tuple(a.shape)}, expected {tuple(b.shape)}"
        assert a.dtype == b.dtype, f"{what}: tensor {place} is {a.dtype}, expected {b.dtype}"
        limit = TOLERANCES.get(a.dtype, 0.0) if tolerance is None else tolerance
        if not torch.allclose(a, b, rtol=limit, atol=limit):
            gap = (a.to(torch.complex128) - b.to(torch.complex128)).abs().nan_to_num(nan=float("inf")).max()
            raise AssertionError(f"{what}: tensor {place} differs by {gap.item():.1e}")


def identical(got: State, expected: State, what: str) -> None:
    """Raise AssertionError, naming `what`, unless the tensors have the same bits."""
    same(got, expected, what, tolerance=0.0)


def whole(mixer: Mixer[Any], result: tuple[Tensor, Any]) -> State:
    """Output and what counts of the state, as one tree."""
    return result[0], mixer.canonical(result[1])
