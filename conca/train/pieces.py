"""What a forecaster is trained on: pieces of series, drawn by (seed, step), and windows to validate on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from conca.data.encoding import Encoded

__all__ = ["Batch", "Pieces", "Steps", "Windows", "windows"]

MOST = 2**15
"""Targets that a piece is compared with, at most."""


class Batch(NamedTuple):
    """Pieces of series side by side, right-padded; B pieces of T rows, R of them forecast from, horizon H, K targets.

    inputs (B, T, I), codes (B, T, C): see `Encoded`
    rows     (R,) the rows, the same in all pieces, that are forecast from
    anchor   (B, R, K) at these
    future   (B, R, H, K) the scaled targets of the steps ahead of each of them, NaN where missing or not to be counted
    lengths  (B,) rows of each piece, None if all have T
    elapsed  (B, T), None where rows are regular
    unit     (B, K) of the targets
    """

    inputs: Tensor
    codes: Tensor
    rows: Tensor
    anchor: Tensor
    future: Tensor
    lengths: Tensor | None
    elapsed: Tensor | None
    unit: Tensor

    def share(self, part: int, parts: int) -> Batch:
        """One of as many parts of equal size."""
        size = len(self.inputs) // parts
        cut = slice(part * size, (part + 1) * size)
        own = {name: t[cut] for name, t in self._asdict().items() if name != "rows" and t is not None}
        return self._replace(**own)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Batch:
        """The same batch on a device, its numbers in `dtype`."""
        found = {name: t for name, t in self._asdict().items() if t is not None}
        return self._replace(**{n: t.to(device, dtype if t.is_floating_point() else None) for n, t in found.items()})


@dataclass(frozen=True)
class Window:
    """Rows [begin, end) of a series are read; the targets among rows [score, reach) are counted."""

    series: int
    begin: int
    end: int
    score: int
    reach: int


def gather(encoded: Sequence[Encoded], parts: Sequence[Window], horizon: int, offset: int = 0) -> Batch:
    """A batch of windows. Where pieces, horizon and targets are large, only every so many rows are forecast from."""
    lengths = [part.end - part.begin for part in parts]
    longest, first = max(lengths), encoded[parts[0].series]
    targets = first.target.shape[1]
    stride = max(1, longest * horizon * targets // MOST)
    rows = np.arange(offset % stride, longest, stride)

    def padded(arrays: Sequence[NDArray[Any]], size: int, fill: float = 0) -> Tensor:
        whole = np.full((len(arrays), size, *arrays[0].shape[1:]), fill, arrays[0].dtype)
        for b, array in enumerate(arrays):
            whole[b, : len(array)] = array
        return torch.from_numpy(whole)

    futures = []
    for part in parts:
        ahead = np.full((longest + horizon, targets), np.nan, np.float32)
        reach = min(part.reach, part.end + horizon)
        ahead[part.score - part.begin : reach - part.begin] = encoded[part.series].target[part.score : reach]
        future = ahead[np.arange(1, horizon + 1) + rows[:, None]]
        future[rows >= part.end - part.begin] = np.nan
        futures.append(future)
    cuts = [(encoded[part.series], slice(part.begin, part.end)) for part in parts]
    times = [one.elapsed[cut] for one, cut in cuts if one.elapsed is not None]
    return Batch(
        inputs=padded([one.inputs[cut] for one, cut in cuts], longest),
        codes=padded([one.codes[cut] for one, cut in cuts], longest),
        rows=torch.from_numpy(rows),
        anchor=padded([one.anchor[cut] for one, cut in cuts], longest)[:, rows],
        future=torch.from_numpy(np.stack(futures)),
        lengths=None if min(lengths) == longest else torch.tensor(lengths),
        elapsed=padded(times, longest, 1) if times else None,
        unit=torch.from_numpy(np.stack([one.unit for one, _ in cuts]).astype(np.float32)),
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
        parts = [self.piece(int(s), draw) for s in series]
        return gather(self.encoded, parts, self.horizon, int(draw.integers(2**31)))

    def piece(self, series: int, draw: np.random.Generator) -> Window:
        """A random piece of a series."""
        rows = int(self.train[series])
        last = max(rows - self.length, 0)
        begin = int(np.clip(draw.integers(-(self.length // 2), last + self.length // 2 + 1), 0, last))
        return Window(series, begin, min(begin + self.length, rows), begin, rows)


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
        Window(series, max(score - warm, 0), min(score + length, last), score, min(score + length, last))
        for series, (first, last) in enumerate(zip(begin, end))
        for score in range(max(first, 1), last, length)
    ]
    parts.sort(key=lambda part: part.end - part.begin)
    groups = [parts[i : i + batch_size] for i in range(0, len(parts), batch_size)]
    return [gather(encoded, group, horizon) for group in groups]
