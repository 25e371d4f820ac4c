"""Root mean square norm: `torch.nn.RMSNorm` in name, parameters and numbers, with a fused body over sequences."""

from __future__ import annotations

from torch import Tensor, nn

from conca.ops.norm import rms_norm

__all__ = ["RMSNorm"]


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` with its arguments, whose `forward` over sequences is `conca.ops.norm.rms_norm`.

    A single step (B, D), a norm without weight or `eps`, and one over several axes are PyTorch's.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) over the root mean square of its last axis, times the weight."""
        if x.dim() < 3 or self.weight is None or self.eps is None or len(self.normalized_shape) != 1:
            return super().forward(x)
        return rms_norm(x, self.weight, self.eps)
