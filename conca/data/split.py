"""Splitting by time: what is learnt from comes before what is tested on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Split", "cutoffs", "split_by_time"]


@dataclass(frozen=True)
class Split:
    """Rows of one series: [0, train) to learn from, [train, validation) to stop by, [validation, total) held out."""

    train: int
    validation: int
    total: int


def split_by_time(total: int, *, held_out: float = 0.2, validation: float = 0.1) -> Split:
    """Split the `total` grid rows of a series: the last `held_out` of them are held out.

    Of what is left, the last `validation` of them stop the training. Both are shares, in rows rounded down. Raises
    ValueError unless both are at least 0 and less than 1.
    """
    for name, share in (("held_out", held_out), ("validation", validation)):
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be at least 0 and less than 1, not {share}")
    known = total - whole(total * held_out)
    return Split(known - whole(known * validation), known, total)


def whole(rows: float) -> int:
    """Rows rounded down, but not by an error of the last digit (0.2 * 35 is 7)."""
    return int(rows + 1e-9)


def cutoffs(begin: int, end: int, horizon: int, stride: int = 1) -> NDArray[np.int64]:
    """All last known rows c whose forecast rows c + 1 to c + horizon lie in [begin, end); shape (n,), possibly empty.

    A forecast needs one known row, so none is before row 0.
    """
    return np.arange(max(begin - 1, 0), end - horizon, stride, dtype=np.int64)
