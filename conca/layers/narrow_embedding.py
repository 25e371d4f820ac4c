"""An embedding in int8 or bfloat16 that is its own head: a quarter or half of its memory, and of the time a token's logits take.

    x = scale[ids] * W[ids],    logits = scale * (W x),    loss = mean of -log softmax(logits)_target

What comes out is float32. The table is not trained; gradients to x pass through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.layers.narrow import Narrow, rounded_rows
from conca.layers.tied_embedding import TiedEmbedding
from conca.ops.doors import raised

__all__ = ["NarrowEmbedding"]


class NarrowEmbedding(Narrow):
    """The table of `TiedEmbedding` with narrow rows (V, D), and scales (V,) or none.

    Args:
        weight: (V, D), in int8 or bfloat16.
        scale: (V,) for int8.
        dtype: of the vectors that come out, float32 or float64; int8 takes that of the scale.
    """

    def __init__(self, weight: Tensor, scale: Tensor | None = None, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(weight, scale, None)
        self.num_embeddings, self.embedding_dim = weight.shape
        self._dtype = raised(dtype)

    @classmethod
    def from_table(cls, table: TiedEmbedding, kind: str = "int8") -> Self:
        """The same table, rounded. Raises BadInput for an unknown kind, and for numbers that are not finite."""
        return cls(*rounded_rows(table.weight, kind), dtype=table.weight.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the vectors that come out."""
        return self._dtype if self.scale is None else self.scale.dtype

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (..., D) of tokens (...), integers in 0..V-1; raises IndexError for others."""
        x = F.embedding(ids, self.weight).to(self.dtype)
        return x if self.scale is None else x * F.embedding(ids, self.scale[:, None])

    def logits(self, x: Tensor) -> Tensor:
        """A number for each token (..., V), for vectors x (..., D), in their type. Raises ValueError for another width."""
        return self.product(x)

    def extra_repr(self) -> str:
        """Sizes, and what they are kept in."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.kind}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._dtype = raised(fn(torch.empty(0, dtype=self._dtype)).dtype)
        return super()._apply(fn, recurse)
