"""What a forecaster is trained on: pieces of series, drawn by (seed, step), and windows to validate on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from conca.data.encoding import Encoded

__all__ = ["Batch", "Checks", "Pieces", "windows"]

Integers = NDArray[np.int64]

MOST = 2**15
"""Targets that a piece is compared with, at most."""


class Batch(NamedTuple):
    """Pieces of series side by side, right-padded; B pieces of T rows, R of them forecast from, horizon H, K targets.

    inputs (B, T, I), codes (B, T, C): see `Encoded`
    rows     (R,) the rows, the same in all pieces, that are forecast from
    anchor   (B, R, H or 1, K) where forecasts from these start
    future   (B, R, H, K) the scaled targets of the steps ahead of each of them, NaN where missing or not to be counted
    lengths  (B,) rows of each piece, None if all have T
    elapsed  (B, T), None where rows are regular
    unit     (B, K) of the targets
    known    (B, R, H, G) what is known in advance of the steps ahead, None if there is no such thing
    """

    inputs: Tensor
    codes: Tensor
    rows: Tensor
    anchor: Tensor
    future: Tensor
    lengths: Tensor | None
    elapsed: Tensor | None
    unit: Tensor
    known: Tensor | None = None

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


class Windows(NamedTuple):
    """B windows, arrays (B,): rows [begin, end) of a series are read; the targets among rows [score, reach) are counted."""

    series: Integers
    begin: Integers
    end: Integers
    score: Integers
    reach: Integers


class Shelf:
    """All series end to end in flat arrays, so that a batch is one take from each, however many series there are."""

    def __init__(self, encoded: Sequence[Encoded]) -> None:
        self.offsets = np.cumsum([0, *map(len, encoded)])[:-1]
        self.inputs, self.codes, self.anchor, self.target = (
            torch.from_numpy(np.concatenate([getattr(one, name) for one in encoded]))
            for name in ("inputs", "codes", "anchor", "target")
        )
        self.unit = torch.from_numpy(np.stack([one.unit for one in encoded]).astype(np.float32))
        self.elapsed, self.known = (
            torch.from_numpy(np.concatenate(found)) if found else None
            for found in (
                [one.elapsed for one in encoded if one.elapsed is not None],
                [one.known[: len(one)] for one in encoded if one.known is not None],
            )
        )

    def gather(self, windows: Windows, horizon: int, offset: int = 0, most: int | None = None) -> Batch:
        """A batch. Where windows, horizon and targets are large, only every so many rows are forecast from."""
        lengths = windows.end - windows.begin
        longest, targets = int(lengths.max()), self.target.shape[1]
        stride = max(1, longest * horizon * targets // (most or MOST))
        rows = np.arange(offset % stride, longest, stride)
        every = np.arange(longest)
        inside = every < lengths[:, None]
        first = self.offsets[windows.series] + windows.begin
        place = torch.from_numpy(first[:, None] + np.where(inside, every, 0))
        padding = None if inside.all() else torch.from_numpy(~inside)
        chosen = rows if stride > 1 else slice(None)
        ahead = self.ahead(windows, longest, horizon)
        return Batch(
            inputs=self.take(self.inputs, place, padding),
            codes=self.take(self.codes, place, padding),
            rows=torch.from_numpy(rows),
            anchor=self.take(self.anchor, place[:, rows], None if padding is None else padding[:, rows]),
            future=self.future(windows, longest, horizon, ahead)[:, chosen],
            lengths=None if padding is None else torch.from_numpy(lengths),
            elapsed=None if self.elapsed is None else self.take(self.elapsed, place, padding, 1),
            unit=self.unit[torch.from_numpy(windows.series)],
            known=None if self.known is None else self.view(self.known, ahead, horizon, 0)[:, chosen],
        )

    def take(self, values: Tensor, place: Tensor, padding: Tensor | None, fill: float = 0) -> Tensor:
        """Rows (B, T, ...) of flat values; `fill` in the padding."""
        found = values.index_select(0, place.reshape(-1)).reshape(*place.shape, *values.shape[1:])
        if padding is not None:
            found[padding] = fill
        return found

    def ahead(self, windows: Windows, longest: int, horizon: int) -> tuple[Tensor, Tensor]:
        """Places (B, T + H) of all rows and those beyond them, and which are not counted."""
        rows = windows.begin[:, None] + np.arange(longest + horizon)
        reach = np.minimum(windows.reach, windows.end + horizon)
        counted = (windows.score[:, None] <= rows) & (rows < reach[:, None])
        place = self.offsets[windows.series][:, None] + np.where(counted, rows, windows.begin[:, None])
        return torch.from_numpy(place), torch.from_numpy(~counted)

    def view(self, values: Tensor, ahead: tuple[Tensor, Tensor], horizon: int, fill: float) -> Tensor:
        """Values (B, T, H, ...) at the steps ahead of every row, `fill` where not counted; views of (B, T + H, ...)."""
        found = self.take(values, *ahead, fill)[:, 1:].unfold(1, horizon, 1)
        return found.transpose(2, 3)

    def future(self, windows: Windows, longest: int, horizon: int, ahead: tuple[Tensor, Tensor]) -> Tensor:
        """The targets (B, T, H, K) of the steps ahead of every row, NaN where not counted."""
        found = self.view(self.target, ahead, horizon, np.nan)
        beyond = np.arange(longest) >= (windows.end - windows.begin)[:, None]
        return found if not beyond.any() else torch.where(torch.from_numpy(beyond)[..., None, None], torch.nan, found)


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
        most: targets that a piece is compared with, at most, about; None: `MOST`.
    """

    def __init__(
        self,
        encoded: Sequence[Encoded],
        train: Sequence[int],
        *,
        horizon: int,
        length: int,
        batch_size: int,
        seed: int,
        most: int | None = None,
    ) -> None:
        self.shelf, self.train = Shelf(encoded), np.asarray(train, dtype=np.int64)
        self.horizon, self.length, self.batch_size, self.seed, self.most = horizon, length, batch_size, seed, most
        self.ends = np.cumsum(self.train)

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step."""
        draw = np.random.default_rng((self.seed, step))
        series = np.searchsorted(self.ends, draw.integers(self.ends[-1], size=self.batch_size), side="right")
        rows = self.train[series]
        last, half = np.maximum(rows - self.length, 0), self.length // 2
        begin = np.clip(draw.integers(-half, last + half + 1), 0, last)
        found = Windows(series, begin, np.minimum(begin + self.length, rows), begin, rows)
        return self.shelf.gather(found, self.horizon, int(draw.integers(2**31)), self.most)


class Checks(Dataset[Batch]):
    """Batches that are there already."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, place: int) -> Batch:
        """One of them."""
        return self.batches[place]


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
        (series, max(score - warm, 0), min(score + length, last), score, min(score + length, last))
        for series, (first, last) in enumerate(zip(begin, end))
        for score in range(max(first, 1), last, length)
    ]
    parts.sort(key=lambda part: part[2] - part[1])
    shelf = Shelf(encoded)
    groups = [np.array(parts[i : i + batch_size], dtype=np.int64) for i in range(0, len(parts), batch_size)]
    return [shelf.gather(Windows(*group.T), horizon) for group in groups]
