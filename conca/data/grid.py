"""The spacing of rows in time: found from the times, kept with the model, continued into the future."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.types import BadInput, nearest

__all__ = ["Grid", "find_grid", "ticks", "untick"]

Integers = NDArray[np.int64]

DAY = 86_400_000_000_000
UNITS = (("d", DAY), ("h", 3_600_000_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000))
KINDS = ("datetime", "integer", "row")
FIRST, LAST = (np.datetime64(day, "ns").astype(np.int64).item() for day in ("1678-01-01", "2262-01-01"))
"""Dates lie between these, the second excluded: whole years that nanoseconds in 64 bits can count."""
LAST_MONTH = (2262 - 1970) * 12
LARGEST = 2**62
"""Whole numbers as times lie below this."""
REGULAR_FILL = 3.0
"""With at most this many grid rows per given row, times that fit a grid are taken to be on it."""
OFTEN = 4
"""A step is the least distance of two rows if at least one in so many has it, though another one may be more common."""


@dataclass(frozen=True)
class Grid:
    """How the rows of one series follow each other.

    kind     "datetime" (times are datetime64[ns]), "integer", or "row" (no time column: rows are counted from 0)
    step     nominal spacing of two rows: nanoseconds for "datetime", else whole steps (the median where irregular)
    months   more than 0: rows are this many calendar months apart, and `step` is only nominal
    ends     with `months`: times are counted from the ends of months, not from their beginnings
    regular  every time of a series is a whole number of steps after the first
    zone     time zone of the user's column as text ("UTC", "+02:00", "Europe/Rome"), None where none was given; with a
             zone, times are in UTC, unless `wall`
    wall     times are read off the clocks of the zone: days there have 23 to 25 hours, but are one day apart
    local    times without a zone in a table are what the clocks of `zone` show
    """

    kind: str = "row"
    step: int = 1
    months: int = 0
    ends: bool = False
    regular: bool = True
    zone: str | None = None
    wall: bool = False
    local: bool = False

    @property
    def seconds(self) -> float | None:
        """Nominal spacing in seconds; None unless times are dates."""
        return self.step / 1e9 if self.kind == "datetime" else None

    def describe(self) -> str:
        """The spacing in words: "1 h", "30 min", "3 months", "5 steps"."""
        if self.months:
            return f"{self.months} month{'s' * (self.months > 1)}"
        if self.kind != "datetime":
            return f"{self.step} step{'s' * (self.step > 1)}"
        for unit, size in UNITS:
            if self.step % size == 0:
                return f"{self.step // size} {unit}"
        return f"{self.step / 1e9:g} s"

    def positions(self, times: NDArray[Any], first: Any) -> tuple[Integers, NDArray[np.bool_]]:
        """Whole steps from `first` (same shape, or scalar) to `times`, and which times lie exactly on the grid."""
        if not self.months:
            gap = ticks(times) - ticks(np.asarray(first))
            return gap // self.step, gap % self.step == 0
        (month, within), (month_0, within_0) = self._months(ticks(times)), self._months(ticks(np.asarray(first)))
        gap = month - month_0
        return gap // self.months, (gap % self.months == 0) & (within == within_0)

    def future(self, last: Any, count: int) -> NDArray[Any]:
        """The `count` times after `last`, a time of a series; shape (count,) and dtype of the series' times.

        Raises BadInput if they are beyond the year 2261, or numbers of 2^62 and more.
        """
        steps = np.arange(1, count + 1, dtype=np.int64)
        start = ticks(np.asarray(last))
        if not self.months:
            self._check_reach(last, int(start) + count * self.step)
            return untick(start + steps * self.step, self.kind)
        month, within = self._months(start)
        if int(month) - self.ends + count * self.months >= LAST_MONTH:
            self._check_reach(last, LAST)
        begin, end = (month_begin(month + steps * self.months + next_one) for next_one in (0, 1))
        day, of_day = np.minimum(within // DAY, (end - begin) // DAY - 1), within % DAY
        return untick(begin + day * DAY + of_day - DAY * self.ends, self.kind)

    def between(self, first: Any, count: int) -> NDArray[Any]:
        """`count` times of the grid, beginning with `first`."""
        return np.concatenate([np.asarray(first)[None], self.future(first, count - 1)]) if count else times_of([], self)

    def elapsed(self, times: NDArray[Any]) -> NDArray[np.float64]:
        """Time since the previous row in nominal steps, shape (T,); 1 at the first row, and everywhere if regular."""
        result = np.ones(len(times))
        if not self.regular:
            result[1:] = np.diff(ticks(times)) / self.step
        return result

    def _check_reach(self, last: Any, end: int) -> None:
        if self.kind == "datetime" and end >= LAST:
            day = str(np.asarray(last).astype("datetime64[D]"))
            raise BadInput(f"times go on from {day} beyond the year 2261, which cannot be counted; correct the times")
        if self.kind != "datetime" and end >= LARGEST:
            raise BadInput(f"times go on from {last} to {end}, which is too large; count them from a later beginning")

    def _months(self, when: Integers) -> tuple[Integers, Integers]:
        shifted = when + DAY * self.ends
        month = shifted.view("datetime64[ns]").astype("datetime64[M]")
        return month.astype(np.int64), shifted - month_begin(month.astype(np.int64))

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Grid:
        """The inverse of `dataclasses.asdict`. Raises BadInput on an unknown key or kind."""
        known = [f.name for f in fields(cls)]
        for key in saved:
            if key not in known:
                raise BadInput(f"grid: unknown key '{key}'; {nearest(key, known)}")
        grid = cls(**saved)
        if grid.kind not in KINDS:
            raise BadInput(f"grid: unknown kind '{grid.kind}'; {nearest(str(grid.kind), KINDS)}")
        if type(grid.step) is not int or type(grid.months) is not int or grid.step < 1 or grid.months < 0:
            raise BadInput("grid: 'step' and 'months' must be whole numbers, at least 1 and 0")
        return grid


def month_begin(months: Integers) -> Integers:
    """Nanoseconds at the beginning of months, both counted from 1970."""
    return np.asarray(months.astype("datetime64[M]").astype("datetime64[ns]").astype(np.int64))


def ticks(times: NDArray[Any]) -> Integers:
    """Times as 64-bit integers: nanoseconds of dates, whole numbers as they are."""
    if times.dtype.kind == "M":
        return times.astype("datetime64[ns]").astype(np.int64)
    return times.astype(np.int64)


def untick(when: Integers, kind: str) -> NDArray[Any]:
    """The inverse of `ticks`."""
    return when.view("datetime64[ns]") if kind == "datetime" else when


def times_of(values: Any, grid: Grid) -> NDArray[Any]:
    """Values as an array of the dtype that times of `grid` have."""
    return np.asarray(values, dtype="datetime64[ns]" if grid.kind == "datetime" else np.int64)


def find_grid(when: Integers, starts: NDArray[np.bool_], kind: str) -> Grid:
    """The grid on which times lie.

    when    (N,) times as integers, each series in one stretch, increasing within it
    starts  (N,) true at the first row of every series
    """
    gaps = np.diff(when)[~starts[1:]]
    if not gaps.size:
        return Grid(kind, DAY if kind == "datetime" else 1)
    if kind == "datetime" and (months := _monthly(when, starts, gaps)):
        return months
    sizes, counts = np.unique(gaps, return_counts=True)
    total = gaps.sum(dtype=np.float64)  # of many series: more than 64-bit integers count
    for place in (int(counts.argmax()), 0):
        step, share = int(sizes[place]), counts[place] / gaps.size
        often = share * OFTEN >= 1 or place == counts.argmax()
        if often and (sizes % step == 0).all() and (total / step <= REGULAR_FILL * gaps.size or share * 2 >= 1):
            return Grid(kind, step)
    divisor = int(np.gcd.reduce(sizes))
    if total / divisor <= 1.5 * gaps.size:
        return Grid(kind, divisor)
    return Grid(kind, max(1, int(np.median(gaps))), regular=False)


def _monthly(when: Integers, starts: NDArray[np.bool_], gaps: Integers) -> Grid | None:
    if gaps.min() < 28 * DAY:
        return None
    for ends in (False, True):
        trial = Grid("datetime", 30 * DAY, 1, ends)
        month, within = trial._months(when)
        if (within == within[0]).all():
            apart = np.diff(month)[~starts[1:]]
            sizes, counts = np.unique(apart, return_counts=True)
            months = int(sizes[counts.argmax()])
            months = months if (sizes % months == 0).all() else int(np.gcd.reduce(sizes))
            return Grid("datetime", round(30.4375 * months) * DAY, months, ends)
    return None
