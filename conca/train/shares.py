"""What a step learns from: the pieces of every member, those of one process of several, and slices of them in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from conca.train.course import Course
from conca.train.pieces import Batch, Pieces
from conca.train.ranks import rank, world

__all__ = ["Share", "Shares", "slices"]

TIMED = {"inputs", "codes", "elapsed"}
"""Parts of a batch with an axis of time; of the others, all but these have an axis of the rows forecast from."""
FIXED = {"rows", "lengths", "unit"}


class Share(NamedTuple):
    """What one process learns from in a step.

    parts   for every member its pieces
    values  how many values all processes together are measured on; None if this one is alone
    """

    parts: tuple[Batch, ...]
    values: int | None


class Shares:
    """The steps that an epoch still has, as the course of the training stands when it is asked for them."""

    def __init__(self, pieces: Pieces, course: Course, members: int, levels: int) -> None:
        self.pieces, self.course, self.members, self.levels = pieces, course, members, levels

    def __iter__(self) -> Iterator[Share]:
        """Batches are drawn whole by (seed, step) in every process, which keeps its part of every member's pieces."""
        for step in self.course.left():
            batch = self.pieces[step]
            parts = tuple(batch.share(member, self.members) for member in range(self.members))
            if world() == 1:
                yield Share(parts, None)
            else:
                known = int((~torch.isnan(batch.future)).sum())
                yield Share(tuple(every(part, rank(), world()) for part in parts), known * self.levels)


def every(batch: Batch, first: int, stride: int) -> Batch:
    """The pieces first, first + stride, ..."""
    found = {name: t[first::stride] for name, t in batch._asdict().items() if name != "rows" and t is not None}
    return batch._replace(**found)


def slices(parts: tuple[Batch, ...], size: int | None) -> Iterator[tuple[Batch, ...]]:
    """The pieces of all members, cut every `size` rows, up to the last cut that holds rows to forecast from."""
    longest = max(part.inputs.shape[1] for part in parts)
    ahead = [int(part.rows[-1]) for part in parts if len(part.rows)]
    if size is None or size >= longest or not ahead:
        yield parts
        return
    for begin in range(0, max(ahead) + 1, size):
        yield tuple(between(part, begin, begin + size) for part in parts)


def between(batch: Batch, begin: int, end: int) -> Batch:
    """Rows [begin, end) of all pieces; a piece that has ended before is of length 0."""
    time = slice(begin, min(end, batch.inputs.shape[1]))
    chosen = (batch.rows >= begin) & (batch.rows < end)
    found = {
        name: t[:, time] if name in TIMED else t[:, chosen]
        for name, t in batch._asdict().items()
        if name not in FIXED and t is not None
    }
    found["rows"] = batch.rows[chosen] - begin
    if batch.lengths is not None:
        found["lengths"] = (batch.lengths - begin).clamp(0, time.stop - time.start)
    return batch._replace(**found)
