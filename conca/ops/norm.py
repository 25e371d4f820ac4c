"""Root mean square norm over the last axis, x / sqrt(mean(x^2) + eps) * weight, in one pass over memory each way.

Zhang and Sennrich, Root Mean Square Layer Normalization, 2019. With r = 1 / sqrt(mean(x^2) + eps) and p = g weight the gradients are
  dx = r (p - x r^2 mean(p x)),  dweight = sum over all places of g x r.
The plain body is PyTorch's; on a processor its backward is a chain of passes over all of x, and costs ten times the forward.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.doors import has_kernel
from conca.ops.operation import Operation
from conca.types import BadInput

__all__ = ["rms_norm", "rms_norm_plain"]

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
    return cast(Tensor, _operation(x_BTD, weight_D, eps)).view(x_D.shape)


def rms_norm_plain(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`rms_norm` by PyTorch. Differentiable any number of times."""
    return F.rms_norm(x_D, weight_D.shape, weight_D, eps)


_operation = Operation(
    "rms_norm",
    rms_norm_plain,
    inputs="Tensor x, Tensor weight",
    options="float eps",
    shared=("weight",),
    outputs=("x",),
)
