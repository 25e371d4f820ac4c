"""Tensors as kernels see them: flat arrays of real numbers with the strides of row and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Rows", "array", "ragged", "rows"]

Array = NDArray[Any]


class Rows(NamedTuple):
    """A (B, T, E) tensor without copying where E is contiguous: element (b, t, e) is flat[b * row + t * time + e]."""

    flat: Array
    row: int
    time: int


def array(t: Tensor) -> Array:
    """A contiguous array, complex numbers as pairs on a last axis; shares memory where it can."""
    t = t.detach().resolve_conj().resolve_neg()
    t = torch.view_as_real(t) if t.is_complex() else t
    return np.asarray(t.contiguous().numpy())


def rows(t: Tensor) -> Rows:
    """The view of a tensor (B, T, E), expanded or cut out of a larger one; E counts real numbers."""
    t = t.detach().resolve_conj().resolve_neg()
    if t.stride(2) != 1 and t.shape[2] != 1:
        t = t.contiguous()
    scale = 2 if t.is_complex() else 1
    row, time = (0 if size == 1 else stride * scale for size, stride in zip(t.shape[:2], t.stride()[:2]))
    span = (t.shape[0] - 1) * row + (t.shape[1] - 1) * time + t.shape[2] * scale
    real = torch.view_as_real(t) if scale == 2 else t
    return Rows(real.as_strided((span,), (1,)).numpy(), row, time)


def ragged(shape: Sequence[int], lengths: Tensor | None, starts: Tensor | None) -> tuple[Array, Array]:
    """Lengths (B,) within 0..T of rows of a shape (B, T, ...), and starts (B, T), or (B, 0) where there are none."""
    B, T = shape[:2]
    ends = torch.full((B,), T) if lengths is None else lengths.to(torch.int64).clamp(0, T)
    return array(ends), array(torch.empty(B, 0, dtype=torch.bool) if starts is None else starts)
