"""Root mean square norm of groups of channels with a gate, norm(x silu(z)) weight or norm(x) weight silu(z), in one pass each way.

Dao and Gu, 2024 (Mamba-2); the norm is that of Zhang and Sennrich, 2019. Each of G groups of E / G neighbouring channels is divided
by its own root mean square, so that groups may lie on different machines. Published code calls the two orders norm_before_gate false
and true.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.doors import has_kernel, raised
from conca.ops.operation import Operation
from conca.types import BadInput

__all__ = ["gated_rms_norm", "gated_rms_norm_plain"]


def gated_rms_norm(
    x_E: Tensor, z_E: Tensor, weight_E: Tensor, eps: float, *, groups: int = 1, norm_first: bool = False
) -> Tensor:
    """x (..., E) gated by silu(z) and then divided, group by group, by its root mean square, times the weight (E,); with `norm_first`
    the gate comes last.

    Shape and type are those of x; half precisions are computed in float32. x and z may be cut out of a wider tensor and are not
    copied. A step (B, E) is left to PyTorch, whose pieces are cheaper there.
    Raises BadInput for shapes that do not fit, and for groups that do not divide E.
    """
    E = x_E.shape[-1] if x_E.ndim else 0
    if x_E.ndim == 0 or z_E.shape != x_E.shape or weight_E.shape != (E,):
        shapes = f"x {tuple(x_E.shape)}, z {tuple(z_E.shape)}, weight {tuple(weight_E.shape)}"
        raise BadInput(f"gated_rms_norm: {shapes} must be (..., E), (..., E) and (E,)")
    if groups < 1 or E % groups:
        raise BadInput(f"gated_rms_norm: {groups} groups do not divide {E} channels")
    dtype = raised(torch.promote_types(torch.promote_types(x_E.dtype, z_E.dtype), weight_E.dtype))
    x, z, weight = (t.to(dtype) for t in (x_E, z_E, weight_E))
    if x.numel() == 0 or x.ndim < 3 or not has_kernel("gated_rms_norm", x.device.type):
        return gated_rms_norm_plain(x, z, weight, eps, groups, norm_first).to(x_E.dtype)
    x, z = (t.reshape(t.shape[0], -1, E) for t in (x, z))
    return cast(Tensor, _operation(x, z, weight, eps, groups, norm_first)).view(x_E.shape).to(x_E.dtype)


def gated_rms_norm_plain(
    x_E: Tensor, z_E: Tensor, weight_E: Tensor, eps: float, groups: int, norm_first: bool
) -> Tensor:
    """`gated_rms_norm` as it is written. Differentiable any number of times."""
    gate_E = F.silu(z_E)
    x_GP = (x_E if norm_first else x_E * gate_E).reshape(*x_E.shape[:-1], groups, x_E.shape[-1] // groups)
    normed_GP = x_GP * torch.rsqrt(x_GP.square().mean(-1, keepdim=True) + eps)
    y_E = normed_GP.flatten(-2) * weight_E
    return y_E * gate_E if norm_first else y_E


_operation = Operation(
    "gated_rms_norm",
    gated_rms_norm_plain,
    inputs="Tensor x, Tensor z, Tensor weight",
    options="float eps, int groups, bool norm_first",
    shared=("weight",),
    outputs=("x",),
)
