"""What is read from a memory, what goes past it, and the gate of both: (y + c x) silu(z), with one number c for a head and step.

The plain body is as it is written; on a processor each of its products is a pass over memory, forward and backward.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.doors import has_kernel
from conca.ops.operation import Operation
from conca.types import BadInput

__all__ = ["gated_skip", "gated_skip_plain"]


def gated_skip(y_BTE: Tensor, x_BTE: Tensor, c_BTH: Tensor, z_BTE: Tensor) -> Tensor:
    """(y + c x) silu(z) of y, x, z (B, T, E) and c (B, T, H), which is repeated over the E / H channels of each head.

    All of one type, float32 or float64; x and z may be slices of a wider tensor. Raises BadInput for shapes that do not fit.
    """
    fits = y_BTE.ndim == 3 and y_BTE.shape == x_BTE.shape == z_BTE.shape and c_BTH.shape[:2] == y_BTE.shape[:2]
    if not fits or c_BTH.ndim != 3 or y_BTE.shape[2] % max(c_BTH.shape[2], 1):
        shapes = ", ".join(str(tuple(t.shape)) for t in (y_BTE, x_BTE, c_BTH, z_BTE))
        raise BadInput(f"gated_skip: y, x, c and z of shapes {shapes} do not fit each other")
    fast = y_BTE.numel() and has_kernel("gated_skip", y_BTE.device.type)
    return cast(Tensor, (_operation if fast else gated_skip_plain)(y_BTE, x_BTE, c_BTH, z_BTE))


def gated_skip_plain(y_E: Tensor, x_E: Tensor, c_H: Tensor, z_E: Tensor) -> Tensor:
    """`gated_skip` as it is written, with any leading axes."""
    skip = (x_E.reshape(*c_H.shape, -1) * c_H[..., None]).flatten(-2)
    return torch.mul(y_E + skip, F.silu(z_E))


_operation = Operation("gated_skip", gated_skip_plain, inputs="Tensor y, Tensor x, Tensor c, Tensor z", outputs=("y",))
