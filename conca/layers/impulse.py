"""An impulse in every channel: what a layer answers to it is its kernel."""

from __future__ import annotations

from torch import Tensor

__all__ = ["impulse"]


def impulse(length: int, width: int, like: Tensor) -> Tensor:
    """(1, T, D): 1 at the first step, then 0; type and place of `like`. Raises ValueError for a negative length."""
    if length < 0:
        raise ValueError(f"a kernel has a length of 0 or more, not {length}")
    x = like.new_zeros(1, length, width)
    x[:, :1] = 1
    return x
