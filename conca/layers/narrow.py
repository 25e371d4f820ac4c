"""What narrow weights have in common: int8 with a scale for each row, or bfloat16, which no cast and no file makes anything else.

    y = scale * (W x) + bias,    loss = mean of -log softmax(y)_target

Activations keep their type: with one row, or a few, reading W is the work, and rounding them would gain nothing. Many rows multiply
pieces of W that are widened for it. The weights are buffers: they are not trained, and gradients to the input pass through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from conca.ops.cross_entropy import Reduction
from conca.ops.narrow_cross_entropy import narrow_cross_entropy
from conca.ops.one_row import FEW, Matrix, one_row, one_row_plain, quantised_rows, row_pieces
from conca.types import BadInput, nearest

__all__ = ["DTYPES", "Narrow", "empty_rows", "rounded_rows"]

PIECE = 4096
"""Rows of the weights that are widened at once for many rows of x."""

DTYPES = {"int8": torch.int8, "bfloat16": torch.bfloat16}
"""What weights may be kept in."""


def _known(kind: str) -> None:
    if kind not in DTYPES:
        raise BadInput(f"narrowed: unknown kind {kind!r}; {nearest(kind, DTYPES)}")


def rounded_rows(weight: Matrix, kind: str) -> tuple[Tensor, Tensor | None]:
    """Weights (O, K) in int8 and scales (O,), or in bfloat16 and None; what is no tensor yet is asked for piece by piece.

    Raises BadInput for an unknown kind, and for weights that are not finite, or are not in bfloat16.
    """
    _known(kind)
    if kind == "int8":
        return quantised_rows(weight)
    if isinstance(weight, Tensor):
        narrow = weight.detach().bfloat16().contiguous()
    else:
        narrow = torch.empty(weight.shape, dtype=torch.bfloat16, device=weight.device)
        for rows in row_pieces(weight.shape):
            narrow[rows] = weight[rows]
    if not all(bool(narrow[rows].isfinite().all()) for rows in row_pieces(narrow.shape)):
        raise BadInput("weights that are not finite in bfloat16 are not kept; look for the step at which they diverged")
    return narrow, None


def empty_rows(like: Tensor, kind: str) -> tuple[Tensor, Tensor | None]:
    """What `rounded_rows` gives for weights of this size, without numbers, where they are. Raises BadInput for an unknown kind."""
    _known(kind)
    scale = torch.empty(len(like), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    return torch.empty(like.shape, dtype=DTYPES[kind], device=like.device), scale if kind == "int8" else None


class Narrow(nn.Module):
    """Weights (O, K), scales (O,) or none, and a bias (O,) or none."""

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @property
    def kind(self) -> str:
        """What the weights are kept in, "int8" or "bfloat16"."""
        return "bfloat16" if self.scale is None else "int8"

    def product(self, x: Tensor) -> Tensor:
        """y (..., O) of x (..., K), in the type of x. Raises ValueError for another width, and for integers."""
        rows, width = self.weight.shape
        if x.dim() < 1 or x.shape[-1] != width or not x.is_floating_point():
            name = type(self).__name__
            raise ValueError(f"{name}: expected numbers (..., {width}), got {x.dtype} {tuple(x.shape)}")
        flat = x.reshape(-1, width)
        few = len(flat) <= FEW and not (torch.is_grad_enabled() and x.requires_grad)
        y = one_row(flat, self.weight, self.bias, self.scale) if few else self._many(flat)
        return y.view(*x.shape[:-1], rows)

    def _many(self, x: Tensor) -> Tensor:
        scale, bias = self.scale, self.bias
        parts = [
            one_row_plain(x, self.weight[o], None if bias is None else bias[o], None if scale is None else scale[o])
            for o in (slice(i, i + PIECE) for i in range(0, len(self.weight), PIECE))
        ]
        return torch.cat(parts, -1)

    def loss(self, x: Tensor, target: Tensor, *, ignore: int = -100, reduction: Reduction = "mean") -> Tensor:
        """Cross entropy of the product with x (..., K) at the rows `target` (...); see `narrow_cross_entropy`."""
        args = x, self.weight, self.scale, self.bias, target
        return narrow_cross_entropy(*args, ignore=ignore, reduction=reduction)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        weight, scale = self.weight, self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.dtype != weight.dtype:  # what was rounded gains nothing by more bits
            self.weight = weight.to(self.weight.device)
        if scale is not None and self.scale is not None and self.scale.element_size() < 4:
            self.scale = scale.to(self.scale.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        given, errors = state_dict.get(f"{prefix}weight"), args[-1]
        if isinstance(given, Tensor) and given.dtype != self.weight.dtype:
            line = f"{prefix}weight is {given.dtype}, but the model keeps it in {self.weight.dtype}"
            errors.append(f"{line}; load the weights first, and narrow the model after")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)
