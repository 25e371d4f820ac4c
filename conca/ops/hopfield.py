"""The update of a continuous Hopfield memory, which is softmax attention read as one step of retrieval."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["hopfield_update"]


def hopfield_update(x: Tensor, memories: Tensor, beta: float | Tensor) -> Tensor:
    """Replace every probe by the average of the memories, weighted by softmax(beta * similarity).

    With `beta` = 1 / sqrt(D) this is softmax attention whose keys and values are the memories.

    Args:
        x: probes, shape (..., B, D).
        memories: shape (..., M, D), M at least 1; leading axes broadcast with those of `x`.
        beta: inverse temperature, positive; small gives the mean of all memories, large the nearest one.

    Returns:
        Shape (..., B, D).

    Source: Ramsauer et al. 2021, "Hopfield Networks is All You Need", equation 3.

    >>> store = torch.eye(3, dtype=torch.float64)
    >>> hopfield_update(torch.tensor([[0.9, 0.2, 0.0]], dtype=torch.float64), store, 50.0).round(decimals=3).tolist()
    [[1.0, 0.0, 0.0]]
    """
    x_BD, memories_MD = x, memories
    weight_BM = torch.softmax(beta * (x_BD @ memories_MD.mT), dim=-1)
    return weight_BM @ memories_MD
