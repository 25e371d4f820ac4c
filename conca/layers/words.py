"""Words as vectors and back: one table for what comes in, what comes out, and its loss.

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

__all__ = ["Words"]


class Words(nn.Embedding):
    """An `nn.Embedding` of `n_words` vectors of width `d_model`, which is its own head.

    Args:
        n_words: how many words, V.
        d_model: width D of a vector.
        std: standard deviation of the initial values.
        device, dtype: of the table.

    Raises:
        ValueError: for a table without rows or columns.
    """

    def __init__(
        self,
        n_words: int,
        d_model: int,
        *,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if n_words < 1 or d_model < 1:
            raise ValueError(f"Words: n_words {n_words} and d_model {d_model} must be at least 1")
        self.std = std
        super().__init__(n_words, d_model, device=device, dtype=dtype)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True) -> Self:  # type: ignore[override]
        """The table with these rows (V, D); `freeze`: it is not trained. Raises ValueError for anything but a matrix."""
        if embeddings.ndim != 2:
            raise ValueError(f"Words: expected a table (words, width), got {tuple(embeddings.shape)}")
        words = cls(*embeddings.shape, device=embeddings.device, dtype=embeddings.dtype)
        words.weight = nn.Parameter(embeddings, requires_grad=not freeze)
        return words

    def reset_parameters(self) -> None:
        """Normal values of standard deviation `std`."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (..., D) of words (...), integers in 0..V-1; raises IndexError for others."""
        return embedding(ids, self.weight)

    def logits(self, x: Tensor) -> Tensor:
        """A number for each word (..., V), for vectors x (..., D)."""
        return F.linear(x, self.weight)

    def loss(self, x: Tensor, target: Tensor, *, ignore: int = -100, reduction: Reduction = "mean") -> Tensor:
        """Cross entropy of the logits of x (..., D) at the words `target` (...); see `linear_cross_entropy`."""
        return linear_cross_entropy(x, self.weight, target, ignore=ignore, reduction=reduction)
