"""Sequences side by side in one tensor, right-padded with zeros."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.data.labelled import Labelled

__all__ = ["Shelf"]

Integers = NDArray[np.int64]


class Shelf:
    """Sequences of a set, taken from it by their numbers; the set keeps the type it was read in."""

    def __init__(self, data: Labelled) -> None:
        self.values, self.lengths, self.offsets = data.values, data.lengths, data.offsets
        self.symbols = bool(data.symbols)

    def padded(self, index: Integers) -> tuple[Tensor, Tensor | None]:
        """Sequences (B, T, C), or symbols as int64 (B, T), and their lengths (B,), None if all have T.

        Numbers are float32 where that holds all of their type, else float64.
        """
        lengths = self.lengths[index]
        longest = int(lengths.max(initial=0))
        every = np.arange(longest)
        inside = every < lengths[:, None]
        found = self.values[self.offsets[index][:, None] + np.where(inside, every, 0)]
        ragged = not inside.all()
        if ragged:
            found[~inside] = 0
        kind = np.dtype(np.int64) if self.symbols else np.result_type(found.dtype, np.float32)
        x = torch.from_numpy(found.astype(kind))
        return x[..., 0] if self.symbols else x, torch.from_numpy(lengths) if ragged else None

    def batches(self, tokens: int) -> Iterator[Integers]:
        """All sequences in batches of like lengths, about `tokens` steps each, the shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        while len(order):
            sizes = self.lengths[order] * np.arange(1, len(order) + 1)
            count = max(1, int(np.searchsorted(sizes, tokens, side="right")))
            yield order[:count]
            order = order[count:]
