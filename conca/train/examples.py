"""What a classifier is trained on: whole sequences in batches, drawn by (seed, step), and those to validate on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from conca.data.labelled import Labelled
from conca.data.padded import Shelf

__all__ = ["Examples", "LabelBatch", "LabelChecks"]

Integers = NDArray[np.int64]

LOOKED_OVER = 16
"""Batches whose sequences are sorted by length together, so that those of a batch are about as long."""


class LabelBatch(NamedTuple):
    """Sequences side by side, right-padded.

    x        (B, T, C) numbers or (B, T) symbols
    lengths  (B,) of each, None if all have T
    y        (B,) which of the classes
    whole    how many sequences the whole batch has, over all processes
    """

    x: Tensor
    lengths: Tensor | None
    y: Tensor
    whole: int

    def to(self, device: torch.device | str) -> LabelBatch:
        """The same batch on a device."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        return LabelBatch(self.x.to(device), lengths, self.y.to(device), self.whole)


class Examples(Dataset[LabelBatch]):
    """Batches by their step: which sequences item i holds is a function of (seed, i) alone.

    In each pass every sequence comes once; the last batch is filled up from the pass's beginning.

    Args:
        data: the sequences.
        y: (n,) which of the classes each is of.
        batch_size: sequences of a batch; all of them where there are fewer.
        seed: of the order.
    """

    def __init__(self, data: Labelled, y: Integers, *, batch_size: int, seed: int) -> None:
        self.shelf, self.y = Shelf(data), torch.from_numpy(np.asarray(y, dtype=np.int64))
        self.lengths = data.lengths
        self.batch_size, self.seed = min(batch_size, len(data)), seed
        self.each = -(-len(data) // self.batch_size)
        self.order: tuple[int, Integers] = (-1, np.empty((0, 0), np.int64))

    def __len__(self) -> int:
        return 2**31

    def indices(self, step: int) -> Integers:
        """Which sequences the batch of a step holds."""
        turn, place = divmod(step, self.each)
        if self.order[0] != turn:
            self.order = turn, self.drawn(turn)
        found: Integers = self.order[1][place]
        return found

    def drawn(self, turn: int) -> Integers:
        """The batches of a pass, (number of them, batch size)."""
        draw = np.random.default_rng((self.seed, turn))
        order = np.resize(draw.permutation(len(self.lengths)), self.each * self.batch_size)
        if self.lengths.min() == self.lengths.max():
            return order.reshape(self.each, self.batch_size)
        size = LOOKED_OVER * self.batch_size
        parts = [order[i : i + size] for i in range(0, len(order), size)]
        order = np.concatenate([part[np.argsort(self.lengths[part], kind="stable")] for part in parts])
        return draw.permutation(order.reshape(self.each, self.batch_size))

    def batch(self, step: int, first: int = 0, stride: int = 1) -> LabelBatch:
        """The sequences first, first + stride, ... of the batch of a step."""
        chosen = self.indices(step)
        own = chosen[first::stride]
        return LabelBatch(*self.shelf.padded(own), self.y[torch.from_numpy(own)], len(chosen))

    def __getitem__(self, step: int) -> LabelBatch:
        """The batch of a step."""
        return self.batch(step)


class LabelChecks(Dataset[LabelBatch]):
    """All sequences in batches of like lengths, to validate on: the batches first, first + stride, ..."""

    def __init__(self, data: Labelled, y: Integers, *, batch_size: int, first: int = 0, stride: int = 1) -> None:
        self.shelf, self.y = Shelf(data), torch.from_numpy(np.asarray(y, dtype=np.int64))
        order = np.argsort(data.lengths, kind="stable")
        self.chosen = [order[i : i + batch_size] for i in range(0, len(order), batch_size)][first::stride]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, place: int) -> LabelBatch:
        """One of them."""
        own = self.chosen[place]
        return LabelBatch(*self.shelf.padded(own), self.y[torch.from_numpy(own)], len(own))
