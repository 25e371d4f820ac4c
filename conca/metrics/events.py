"""How good alarms are, where what is strange comes in stretches of rows. Arrays in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Events", "events", "stretches"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """Alarms beside what was strange; NaN where there is nothing to count.

    A stretch of strange rows is found by an alarm at one of its rows; it is not counted as wholly seen for that.

    precision  share of the rows with an alarm that are strange
    recall     share of the stretches that were found
    rows       share of the strange rows that had an alarm
    delay      rows from the first of a stretch to its first alarm, mean over those found
    stretches  how many there are
    found      how many of them were found
    alarms     rows with an alarm
    """

    precision: float
    recall: float
    rows: float
    delay: float
    stretches: int
    found: int
    alarms: int


def stretches(strange: ArrayLike) -> Integers:
    """Runs of rows that are strange, (n, 2): the first row, and the one after the last."""
    flags = np.concatenate([[False], np.asarray(strange, dtype=bool).ravel(), [False]])
    return np.flatnonzero(np.diff(flags)).reshape(-1, 2).astype(np.int64)


def events(alarm: ArrayLike, strange: ArrayLike) -> Events:
    """Judge alarms (T,) by what was strange (T,), both true or false.

    Raises ValueError where they are not of one length.
    """
    said, true = (np.asarray(flags, dtype=bool).ravel() for flags in (alarm, strange))
    if said.shape != true.shape:
        raise ValueError(f"{len(said)} alarms and {len(true)} rows do not match")
    found = stretches(true)
    delays = [int(said[first:end].argmax()) for first, end in found if said[first:end].any()]
    return Events(
        precision=float(true[said].mean()) if said.any() else float("nan"),
        recall=len(delays) / len(found) if len(found) else float("nan"),
        rows=float(said[true].mean()) if true.any() else float("nan"),
        delay=float(np.mean(delays)) if delays else float("nan"),
        stretches=len(found),
        found=len(delays),
        alarms=int(said.sum()),
    )
