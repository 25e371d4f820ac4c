"""Tokens to vectors and back: one table for what comes in, what comes out, and its loss.

    x = W[ids],    logits = W x,    loss = mean of -log softmax(W x)_target

Input and output share the weight (Press and Wolf, 2017), its gradient is gathered in one buffer, and the loss never keeps all logits.
"""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.ops.cross_entropy import Reduction, linear_cross_entropy
from conca.ops.embedding import embedding

__all__ = ["TiedEmbedding"]


class TiedEmbedding(nn.Embedding):
    """An `nn.Embedding` of `vocab_size` vectors of width `d_model`, which is its own head.

    Args:
        vocab_size: how many tokens, V.
        d_model: width D of a vector.
        std: standard deviation of the initial values.
        device, dtype: of the table.

    Raises:
        ValueError: for a table without rows or columns.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if vocab_size < 1 or d_model < 1:
            raise ValueError(f"TiedEmbedding: vocab_size {vocab_size} and d_model {d_model} must be at least 1")
        self.std = std
        super().__init__(vocab_size, d_model, device=device, dtype=dtype)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True) -> Self:  # type: ignore[override]
        """The table with these rows (V, D); `freeze`: it is not trained. Raises ValueError for anything but a matrix."""
        if embeddings.ndim != 2:
            raise ValueError(f"TiedEmbedding: expected a table (tokens, width), got {tuple(embeddings.shape)}")
        table = cls(*embeddings.shape, device=embeddings.device, dtype=embeddings.dtype)
        table.weight = nn.Parameter(embeddings, requires_grad=not freeze)
        return table

    def reset_parameters(self) -> None:
        """Normal values of standard deviation `std`."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (..., D) of tokens (...), integers in 0..V-1; raises IndexError for others."""
        return embedding(ids, self.weight)

    def logits(self, x: Tensor) -> Tensor:
        """A number for each token (..., V), for vectors x (..., D)."""
        return F.linear(x, self.weight)

    def loss(self, x: Tensor, target: Tensor, *, ignore: int = -100, reduction: Reduction = "mean") -> Tensor:
        """Cross entropy of the logits of x (..., D) at the tokens `target` (...); see `linear_cross_entropy`."""
        return linear_cross_entropy(x, self.weight, target, ignore=ignore, reduction=reduction)
