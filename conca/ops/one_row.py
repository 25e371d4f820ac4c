"""Products of a matrix with one row, or a few: what decoding does, one token after the other.

  y = scale (W x) + bias
W may be kept in fewer bits than x has: in bfloat16, or in int8 with a scale for each of its rows. PyTorch's products want many rows of
x; with one they reach half the rate at which memory can be read.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops import bodies
from conca.ops.doors import opened, traced
from conca.types import BadInput

__all__ = ["FEW", "Matrix", "one_row", "one_row_plain", "quantised_rows", "row_pieces"]

FEW = 8
"""Rows of x up to which the kernel is the faster one."""

PIECE = 1 << 18
"""Weights that are rounded at once."""

FULL = (torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.int8)


class Matrix(Protocol):
    """Weights (O, K): a tensor, or what reads rows when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """O and K."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the rows."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some of the rows."""


def one_row(x_BK: Tensor, w_OK: Tensor, bias_O: Tensor | None = None, scale_O: Tensor | None = None) -> Tensor:
    """y (B, O) of a few rows x (B, K) and weights (O, K) in the type of x, in bfloat16 or in int8; its type is that of x.

    Differentiable, by the plain body. Raises BadInput for shapes that do not fit.
    """
    rows, K = w_OK.shape if w_OK.ndim == 2 else (-1, -1)
    if x_BK.ndim != 2 or x_BK.shape[1] != K or any(t is not None and t.shape != (rows,) for t in (bias_O, scale_O)):
        shapes = [None if t is None else tuple(t.shape) for t in (x_BK, w_OK, bias_O, scale_O)]
        raise BadInput(
            f"one_row: expected x (B, K), weights (O, K), bias and scale (O,); got {', '.join(map(str, shapes))}"
        )
    wide = torch.promote_types(x_BK.dtype, torch.float32)
    bias, scale = (None if t is None else t.to(wide) for t in (bias_O, scale_O))
    args = x_BK.to(wide), w_OK, bias, scale
    body = bodies.kernel("one_row", x_BK.device.type) if _serves(*args) else None
    return one_row_plain(x_BK, w_OK, bias_O, scale_O) if body is None else cast(Tensor, body(*args)).to(x_BK.dtype)


def _serves(x: Tensor, w: Tensor, bias: Tensor | None, scale: Tensor | None) -> bool:
    """Whether the kernel takes these: contiguous, of its types, few rows, on one device, and nobody wants a gradient."""
    rest = [t for t in (bias, scale) if t is not None]
    alike = x.dtype in FULL and w.dtype in (x.dtype, *NARROW) and all(t.dtype == x.dtype for t in rest)
    return (
        alike
        and not traced()
        and 0 < x.shape[0] <= FEW
        and w.numel() > 0
        and not opened(x, w, *rest)
        and all(t.device == x.device and t.is_contiguous() for t in (x, w, *rest))
    )


def one_row_plain(x_BK: Tensor, w_OK: Tensor, bias_O: Tensor | None = None, scale_O: Tensor | None = None) -> Tensor:
    """`one_row` by PyTorch: the weights are widened first; in half precision the product is, and scale and bias are not."""
    y = F.linear(x_BK, w_OK.to(x_BK.dtype))
    y = y if scale_O is None else y * scale_O
    return (y if bias_O is None else y + bias_O).to(x_BK.dtype)


def row_pieces(shape: tuple[int, ...]) -> list[slice]:
    """The rows of weights (O, K) in pieces of about `PIECE` numbers, in order."""
    step = max(1, PIECE // max(1, shape[1]))
    return [slice(first, min(first + step, shape[0])) for first in range(0, shape[0], step)]


def quantised_rows(w_OK: Matrix) -> tuple[Tensor, Tensor]:
    """Weights as int8 (O, K) and a scale for each row (O,): the largest number of a row becomes 127. Not differentiable.

    Rows are asked for piece by piece. A row of zeros has scale 0. Raises BadInput if a weight is not finite.
    """
    wide, (count, K) = torch.promote_types(w_OK.dtype, torch.float32), w_OK.shape
    narrow_OK = torch.empty(count, K, dtype=torch.int8, device=w_OK.device)
    scale_O = torch.empty(count, dtype=wide, device=w_OK.device)
    for at in row_pieces(w_OK.shape):
        rows = w_OK[at].detach().to(wide)
        largest = rows.abs().amax(1) if K else rows.new_zeros(len(rows))
        if not bool(largest.isfinite().all()):
            raise BadInput(
                "weights that are not finite cannot be kept in int8; look for the step at which they diverged"
            )
        scale_O[at] = scale = largest / 127
        narrow_OK[at] = (rows / torch.where(scale > 0, scale, 1)[:, None]).round_().clamp_(-127, 127)
    return narrow_OK, scale_O
