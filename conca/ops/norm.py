"""Root mean square norm over the last axis, x / sqrt(mean(x^2) + eps) * weight, in one pass over memory each way.

Zhang and Sennrich, Root Mean Square Layer Normalization, 2019. With r = 1 / sqrt(mean(x^2) + eps) and p = g weight the gradients are
  dx = r (p - x r^2 mean(p x)),  dweight = sum over all places of g x r.
The plain body is PyTorch's; on a processor its backward is a chain of passes over all of x, and costs ten times the forward.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.doors import apply, has_kernel, opened, rows_of_all
from conca.types import BadInput

__all__ = ["rms_norm", "rms_norm_plain"]

Two = tuple[Tensor, Tensor]
FULL = (torch.float32, torch.float64)


def rms_norm(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x (..., D) divided by its root mean square over the last axis, times the weight (D,); shape and type are those of x.

    Where x and the weight are not both float32 or both float64, PyTorch's own runs. Raises BadInput for shapes that do not fit.
    """
    if x_D.ndim == 0 or weight_D.shape != x_D.shape[-1:]:
        raise BadInput(f"rms_norm: x {tuple(x_D.shape)} must be (..., D), weight {tuple(weight_D.shape)} (D,)")
    fits = x_D.dtype == weight_D.dtype and x_D.dtype in FULL and x_D.numel() > 0
    if not fits or not has_kernel("rms_norm", x_D.device.type):
        return rms_norm_plain(x_D, weight_D, eps)
    x_BTD = x_D.reshape(x_D.shape[0] if x_D.ndim > 2 else 1, -1, x_D.shape[-1])
    body = partial(apply, _RMSNorm) if opened(x_BTD, weight_D) else _rms_norm
    return cast(Tensor, body(x_BTD, weight_D, eps)).view(x_D.shape)


def rms_norm_plain(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`rms_norm` by PyTorch. Differentiable any number of times."""
    return F.rms_norm(x_D, weight_D.shape, weight_D, eps)


@torch.library.custom_op("conca::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of x (B, T, D), contiguous."""
    return cast(Tensor, bodies.required("rms_norm", x.device.type)(x, weight, eps))


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_rms_norm.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    def one(*args: Any) -> tuple[Tensor]:
        return (_rms_norm(*args),)

    (y,), (dim,) = rows_of_all(one, info.batch_size, dims, args, (1, 2))
    return y, dim


@torch.library.custom_op("conca::rms_norm_backward", mutates_args=())
def _rms_norm_backward(x: Tensor, weight: Tensor, eps: float, g: Tensor) -> Two:
    """Gradients to x, and to the weight by row (B, D)."""
    return cast(Two, bodies.required("rms_norm_backward", x.device.type)(x, weight, eps, g))


@_rms_norm_backward.register_fake
def _(x: Tensor, weight: Tensor, eps: float, g: Tensor) -> Two:
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape[0], x.shape[2])


@_rms_norm_backward.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return rows_of_all(_rms_norm_backward, info.batch_size, dims, args, (1, 2))


class _RMSNorm(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return cast(Tensor, _rms_norm(x, weight, eps))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.eps = inputs[2]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return *apply(_RMSNormBackward, *ctx.saved_tensors, ctx.eps, g), None


class _RMSNormBackward(Function):
    """The backward kernel; its own derivative is that of the plain body's vjp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float, g: Tensor) -> Two:
        dx, dweight = _rms_norm_backward(x, weight, eps, g)
        return dx, dweight.sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, Tensor], output: Two) -> None:
        x, weight, ctx.eps, g = inputs
        ctx.save_for_backward(x, weight, g)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def plain(x: Tensor, weight: Tensor) -> Tensor:
            return rms_norm_plain(x, weight, ctx.eps)

        def first(x: Tensor, weight: Tensor, g: Tensor) -> Two:
            return cast(Two, torch.func.vjp(plain, x, weight)[1](g))

        dx, dweight, dg = torch.func.vjp(first, *ctx.saved_tensors)[1](grads)
        return dx, dweight, None, dg
