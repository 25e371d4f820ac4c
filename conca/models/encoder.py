"""A pattern read both ways: blocks that see the whole sequence at every step, and so cannot be run one step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from conca.layers.bidirectional import Bidirectional, BidirectionalBlock
from conca.models.stack import Block, pattern

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """The blocks of a pattern, each around two mixers of its family, one of which reads backward; what they say is added up.

    Args:
        layers: the pattern, as in `conca.models.stack.pattern`.
        d_model: width of every block.
        dropout: on what each block adds.

    Raises:
        BadInput: as `pattern` does.
    """

    def __init__(self, layers: str, d_model: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        there = cast("list[Block[Any]]", list(pattern(layers, d_model).parts))
        back = cast("list[Block[Any]]", list(pattern(layers, d_model).parts))
        self.d_model = d_model
        self.parts = nn.ModuleList(
            BidirectionalBlock(Bidirectional(a.inner, b.inner, merge="sum"), dropout=dropout)
            for a, b in zip(there, back, strict=True)
        )

    @property
    def blocks(self) -> Iterator[BidirectionalBlock]:
        """The blocks in their order."""
        for part in self.parts:
            yield cast(BidirectionalBlock, part)

    def forward(self, x: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """y (B, T, D) of x (B, T, D); lengths (B,) of right-padded rows, 0 past them."""
        for block in self.blocks:
            x = block(x, lengths=lengths)
        return x

    if TYPE_CHECKING:
        __call__ = forward
