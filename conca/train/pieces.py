"""What a forecaster is trained on: pieces of series, drawn by (seed, step), and windows to validate on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from conca.data.encoding import Encoded

__all__ = ["Batch", "Pieces", "Steps", "Windows", "windows"]


class Batch(NamedTuple):
    """Pieces of series side by side, right-padded; B pieces of T rows, horizon H, K targets.

    inputs (B, T, I), codes (B, T, C), anchor (B, T, K): see `Encoded`
    future   (B, T, H, K) the scaled targets of the steps ahead of each row, NaN where missing or not to be learnt
    lengths  (B,) rows of each piece, None if all have T
    elapsed  (B, T), None where rows are regular
    unit     (B, K) of the targets
    """

    inputs: Tensor
    codes: Tensor
    anchor: Tensor
    future: Tensor
    lengths: Tensor | None
    elapsed: Tensor | None
    unit: Tensor

    def split(self, parts: int) -> list[Batch]:
        """The batch cut into as many parts of equal size."""
        size = len(self.inputs) // parts
        return [Batch(*(t if t is None else t[i * size : (i + 1) * size] for t in self)) for i in range(parts)]  # type: ignore[arg-type]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Batch:
        """The same batch on a device, its numbers in `dtype`."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return Batch(*map(moved, self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Window:
    """Rows [begin, end) of a series are read; the targets among rows [score, end) are counted."""

    series: int
    begin: int
    score: int
    end: int


def gather(encoded: Sequence[Encoded], parts: Sequence[Window], horizon: int) -> Batch:
    """A batch of windows."""
    rows = max(part.end - part.begin for part in parts)
    first = encoded[0]
    batch, targets = len(parts), first.target.shape[1]
    inputs = np.zeros((batch, rows, first.inputs.shape[1]), np.float32)
    codes = np.zeros((batch, rows, first.codes.shape[1]), np.int64)
    anchor = np.zeros((batch, rows, targets), np.float32)
    future = np.full((batch, rows, horizon, targets), np.nan, np.float32)
    elapsed = None if first.elapsed is None else np.ones((batch, rows), np.float32)
    for b, part in enumerate(parts):
        one, cut, size = encoded[part.series], slice(part.begin, part.end), part.end - part.begin
        inputs[b, :size], codes[b, :size], anchor[b, :size] = one.inputs[cut], one.codes[cut], one.anchor[cut]
        ahead = np.full((size + horizon, targets), np.nan, np.float32)
        ahead[part.score - part.begin : size] = one.target[part.score : part.end]
        future[b, :size] = ahead[np.arange(1, horizon + 1) + np.arange(size)[:, None]]
        if elapsed is not None and one.elapsed is not None:
            elapsed[b, :size] = one.elapsed[cut]
    lengths = [part.end - part.begin for part in parts]
    return Batch(
        inputs=torch.from_numpy(inputs),
        codes=torch.from_numpy(codes),
        anchor=torch.from_numpy(anchor),
        future=torch.from_numpy(future),
        lengths=None if min(lengths) == rows else torch.tensor(lengths),
        elapsed=None if elapsed is None else torch.from_numpy(elapsed),
        unit=torch.tensor(np.stack([encoded[part.series].unit for part in parts]), dtype=torch.float32),
    )


class Pieces(Dataset[Batch]):
    """Batches by their step: item i is a function of (seed, i) alone, so that a training can be taken up anywhere.

    A piece is `length` rows of a series (all of a shorter one); its targets may lie beyond it, up to the end of the rows
    that are learnt from. Every row of every series is as likely as any other to be read.

    Args:
        encoded: the series.
        train: rows of each that are learnt from.
        horizon: steps ahead.
        length, batch_size: rows of a piece, pieces of a batch.
        seed: of the draw.
    """

    def __init__(
        self, encoded: Sequence[Encoded], train: Sequence[int], *, horizon: int, length: int, batch_size: int, seed: int
    ) -> None:
        self.encoded, self.train = encoded, np.asarray(train, dtype=np.int64)
        self.horizon, self.length, self.batch_size, self.seed = horizon, length, batch_size, seed
        self.ends = np.cumsum(self.train)

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step."""
        draw = np.random.default_rng((self.seed, step))
        at = draw.integers(self.ends[-1], size=self.batch_size)
        series = np.searchsorted(self.ends, at, side="right")
        return self.cut([self.piece(int(s), draw) for s in series])

    def piece(self, series: int, draw: np.random.Generator) -> Window:
        """A random piece of a series."""
        rows = int(self.train[series])
        last = max(rows - self.length, 0)
        begin = int(np.clip(draw.integers(-(self.length // 2), last + self.length // 2 + 1), 0, last))
        return Window(series, begin, begin, min(begin + self.length, rows))

    def cut(self, parts: Sequence[Window]) -> Batch:
        """The batch of pieces, with the targets beyond their ends."""
        reach = [
            Window(p.series, p.begin, p.begin, min(p.end + self.horizon, int(self.train[p.series]))) for p in parts
        ]
        wide = gather(self.encoded, reach, self.horizon)
        rows = max(p.end - p.begin for p in parts)
        lengths = [p.end - p.begin for p in parts]
        return Batch(
            inputs=wide.inputs[:, :rows],
            codes=wide.codes[:, :rows],
            anchor=wide.anchor[:, :rows],
            future=wide.future[:, :rows],
            lengths=None if min(lengths) == rows else torch.tensor(lengths),
            elapsed=None if wide.elapsed is None else wide.elapsed[:, :rows],
            unit=wide.unit,
        )


class Windows(Dataset[Batch]):
    """Batches that are there already."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, place: int) -> Batch:
        """One of them."""
        return self.batches[place]


class Steps(Sampler[int]):
    """The steps of an epoch, numbered through all epochs."""

    def __init__(self, each: int) -> None:
        self.each, self.epoch = each, 0

    def __len__(self) -> int:
        return self.each

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch * self.each, (self.epoch + 1) * self.each))

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before every epoch, also after a training was taken up again."""
        self.epoch = epoch


def windows(
    encoded: Sequence[Encoded],
    begin: Sequence[int],
    end: Sequence[int],
    *,
    horizon: int,
    length: int,
    batch_size: int,
) -> list[Batch]:
    """Batches to validate on: the targets of rows [begin, end) of each series, forecast from the rows before them.

    They are cut into stretches of `length` rows, before which as many are read (at least the horizon). Series without
    such rows are not in it.
    """
    warm = max(length, horizon)
    parts = [
        Window(series, max(score - warm, 0), score, min(score + length, last))
        for series, (first, last) in enumerate(zip(begin, end))
        for score in range(max(first, 1), last, length)
    ]
    parts.sort(key=lambda part: part.end - part.begin)
    groups = [parts[i : i + batch_size] for i in range(0, len(parts), batch_size)]
    return [gather(encoded, group, horizon) for group in groups]
