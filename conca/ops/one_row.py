"""Products of a matrix with one row, or a few: what decoding does, one token after the other.

  y = scale (W x) + bias
W may be kept in fewer bits than x has: in bfloat16, or in int8 with a scale for each of its rows. PyTorch's products want many rows of
x; with one they reach half the rate at which memory can be read.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops import bodies
from conca.ops.doors import opened, traced
from conca.types import BadInput

__all__ = ["FEW", "one_row", "one_row_plain", "quantised_rows"]

FEW = 8
"""Rows of x up to which the kernel is the faster one."""

PIECE = 1024
"""Rows of weights that are rounded at once."""

FULL = (torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.int8)


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


def quantised_rows(w_OK: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as int8 (O, K) and a scale for each row (O,): the largest number of a row becomes 127. Not differentiable.

    A row of zeros has scale 0. Raises BadInput if a weight is not finite.
    """
    w_OK = w_OK.detach()
    wide = torch.promote_types(w_OK.dtype, torch.float32)
    narrow_OK, scale_O = torch.empty_like(w_OK, dtype=torch.int8, memory_format=torch.contiguous_format), []
    for rows, out in zip(torch.split(w_OK, PIECE), torch.split(narrow_OK, PIECE)):
        rows = rows.to(wide)
        largest = rows.abs().amax(1) if w_OK.shape[1] else rows.new_zeros(len(rows))
        if not bool(largest.isfinite().all()):
            raise BadInput(
                "weights that are not finite cannot be kept in int8; look for the step at which they diverged"
            )
        scale = largest / 127
        out.copy_((rows / torch.where(scale > 0, scale, 1)[:, None]).round_().clamp_(-127, 127))
        scale_O.append(scale)
    return narrow_OK, torch.cat(scale_O) if scale_O else w_OK.new_empty(0, dtype=wide)
