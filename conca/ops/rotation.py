"""Rotary positions: pairs of channels turned by an angle that grows with the position.

Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021. Channel i is paired with channel i + K/2 (of an odd
width the last channel is left alone); the angle of pair i at position t is t * base ** (-2 i / K), computed in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rotate"]


def rotate(x_BTHK: Tensor, at_BT: Tensor, base: float = 10000.0) -> Tensor:
    """x (B, T, H, K) turned to its positions `at` (B, T), integers or reals."""
    half = x_BTHK.shape[-1] // 2
    rate = base ** (-torch.arange(half, dtype=torch.float64, device=x_BTHK.device) / max(half, 1))
    angle = at_BT[..., None].double() * rate
    cos, sin = (f(angle).to(x_BTHK.dtype)[..., None, :] for f in (torch.cos, torch.sin))
    a, b, rest = x_BTHK[..., :half], x_BTHK[..., half : 2 * half], x_BTHK[..., 2 * half :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)
