"""Root mean square norms: `torch.nn.RMSNorm` in name, parameters and numbers, and one with a gate and groups; fused over sequences."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.ops.gated_norm import gated_rms_norm
from conca.ops.norm import rms_norm

__all__ = ["GatedNorm", "RMSNorm"]


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` with its arguments, whose `forward` over sequences is `conca.ops.norm.rms_norm`.

    A single step (B, D), a norm without weight or `eps`, and one over several axes are PyTorch's.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) over the root mean square of its last axis, times the weight."""
        if self.weight is not None and self.weight.dtype.itemsize < x.dtype.itemsize:
            return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
        if x.dim() < 3 or self.weight is None or self.eps is None or len(self.normalized_shape) != 1:
            return super().forward(x)
        return rms_norm(x, self.weight, self.eps)


class GatedNorm(nn.RMSNorm):
    """The gated norm of Mamba-2 (Dao and Gu, 2024): x silu(z) over the root mean square of each group of channels, times a weight.

    Args:
        width: number of channels E.
        groups: how many groups of neighbouring channels there are; they divide E.
        eps: added to the mean of the squares.
        norm_first: the gate comes after the norm and the weight.
        device, dtype: of the weight.

    Raises:
        ValueError: if the groups do not divide the channels.
    """

    def __init__(
        self,
        width: int,
        *,
        groups: int = 1,
        eps: float = 1e-5,
        norm_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if groups < 1 or width % groups:
            raise ValueError(f"GatedNorm: {groups} groups do not divide {width} channels")
        super().__init__(width, eps, device=device, dtype=dtype)
        self.groups, self.norm_first = groups, norm_first

    def forward(self, x: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]
        """x and z (..., E), z what opens the gate; y like x."""
        eps = cast(float, self.eps)
        return gated_rms_norm(x, z, self.weight, eps, groups=self.groups, norm_first=self.norm_first)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{len(self.weight)}, groups={self.groups}, eps={self.eps}, norm_first={self.norm_first}"
