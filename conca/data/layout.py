"""Where each row of a table goes: to which series, and to which place on its time grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import shown
from conca.data.grid import DAY, Grid, find_grid, untick
from conca.data.schema import Schema
from conca.data.table import Origin
from conca.data.times import read_times, restore, wall_clock
from conca.types import BadInput

__all__ = ["Layout", "lay_out", "name_of"]

Integers = NDArray[np.int64]

MOST_FILL, FREE_FILL = 10, 10_000
"""A grid may have this many rows for each given row, and this many for nothing; a longer gap is taken for an error."""


@dataclass(frozen=True)
class Layout:
    """The grid rows of all series, one series after the other; M grid rows, N rows of the table.

    grid   the spacing of the rows
    keys   one for each series
    ends   (number of series,) where the grid rows of each series end
    times  (M,) times of the grid rows
    given  (M,) whether the table had the row
    order  (N,) the rows of the table sorted by series and time
    place  (N,) the grid rows of these
    """

    grid: Grid
    keys: list[tuple[Any, ...]]
    ends: Integers
    times: NDArray[Any]
    given: NDArray[np.bool_]
    order: Integers
    place: Integers

    def spread(self, values: NDArray[Any], fill: float) -> NDArray[Any]:
        """Values of the table's rows (N, F) at their places on the grid (M, F), `fill` elsewhere."""
        result = np.full((len(self.times), values.shape[1]), fill, dtype=values.dtype)
        result[self.place] = values[self.order]
        return result

    def stretches(self) -> Iterator[tuple[tuple[Any, ...], int, int]]:
        """Key, first grid row and end of each series."""
        begin = 0
        for key, end in zip(self.keys, self.ends.tolist()):
            yield key, begin, end
            begin = end


@dataclass(frozen=True)
class Sorted:
    """The N rows of a table sorted by series and time, and what error lines need to name them.

    keys    one for each series
    order   (N,) the rows of the table
    when    (N,) their times as integers
    starts  (N,) true at the first row of each series
    kind, zone, wall  as in `Grid`
    """

    origin: Origin
    column: str
    keys: list[tuple[Any, ...]]
    order: Integers
    when: Integers
    starts: NDArray[np.bool_]
    kind: str
    zone: str | None = None
    wall: bool = False

    @property
    def where(self) -> str:
        """The column of times, for error lines."""
        return f"{self.origin.name}, column '{self.column}'"

    def cell(self, at: int) -> str:
        """The cell with the time of a sorted row, for error lines."""
        return self.origin.cell(int(self.order[at]), self.column)

    def moment(self, at: int) -> str:
        """The time of a sorted row, for error lines."""
        shown = restore(untick(self.when[at : at + 1], self.kind), Grid(self.kind, zone=self.zone, wall=self.wall))
        return str(shown[0])

    def series(self, at: int) -> str:
        """The series of a sorted row, for error lines: " of series a/b", or nothing if there is only one."""
        key = self.keys[int(self.starts[: at + 1].sum()) - 1]
        return " of series " + name_of(key) if key else ""

    def on_wall_clock(self) -> Sorted:
        """The same rows with times as the clocks of their zone show them."""
        return replace(self, when=wall_clock(self.when, self.zone), wall=True) if self.zone else self


def name_of(key: tuple[Any, ...]) -> str:
    """A key for error lines."""
    return "/".join(shown(part) for part in key)


def lay_out(table: pd.DataFrame, origin: Origin, schema: Schema, grid: Grid | None, notices: list[str]) -> Layout:
    """Sort the rows, find their grid (or check them against that of a fitted run), and place them on it.

    Raises BadInput on times that cannot be read, stand twice, or do not fit the grid.
    """
    keys, codes = read_keys(table, origin, schema.series)
    if schema.time is None:
        order = np.argsort(codes, kind="stable")
        starts = first_rows(codes[order])
        every = np.arange(len(codes), dtype=np.int64)
        when = every - np.maximum.accumulate(np.where(starts, every, 0))
        return place_rows(Sorted(origin, "", keys, order, when, starts, "row"), Grid(), notices)
    times = read_times(table[schema.time], origin)
    if times.notice:
        notices.append(times.notice)
    order = np.lexsort((times.when, codes))
    if not np.array_equal(order, np.argsort(codes, kind="stable")):
        notices.append(f"rows were sorted by '{schema.time}'" + " within each series" * bool(schema.series))
    starts = first_rows(codes[order])
    rows = Sorted(origin, schema.time, keys, order, times.when[order], starts, times.kind, times.zone)
    refuse_duplicates(rows)
    refuse_long(rows, np.flatnonzero((np.diff(rows.when) < 0) & ~rows.starts[1:]))
    if grid is None:
        rows, grid = choose_grid(rows)
        if not grid.regular:
            notices.append(f"times are not evenly spaced: each row is one step ({grid.describe()} in the median)")
    else:
        check_kind(rows, grid)
        rows = replace(rows, zone=grid.zone)
        rows = rows.on_wall_clock() if grid.wall else rows
        check_spacing(rows, grid)
    return place_rows(rows, grid, notices)


def read_keys(table: pd.DataFrame, origin: Origin, names: tuple[str, ...]) -> tuple[list[tuple[Any, ...]], Integers]:
    """Keys of the series in order of appearance, and for every row the number of its series."""
    if not names:
        return [()], np.zeros(len(table), dtype=np.int64)
    for name in names:
        missing = table[name].isna().to_numpy()
        if missing.any():
            where = origin.cell(int(missing.argmax()), name)
            raise BadInput(f"{where}: the name of the series is missing; fill it in or remove the row")
        infinite = table[name].isin([np.inf, -np.inf]).to_numpy()
        if infinite.any():
            where = origin.cell(int(infinite.argmax()), name)
            raise BadInput(f"{where}: the name of the series is infinite; give it another name or remove the row")
    codes = table.groupby(list(names), sort=False, observed=True).ngroup().to_numpy(dtype=np.int64)
    first: Integers = np.unique(codes, return_index=True)[1]
    parts = [table[name].astype(object).iloc[first].tolist() for name in names]
    return list(zip(*parts)), np.asarray(codes)


def first_rows(codes: Integers) -> NDArray[np.bool_]:
    """True where a sorted code differs from the one before it."""
    return np.concatenate([[True], codes[1:] != codes[:-1]])


def refuse_duplicates(rows: Sorted) -> None:
    """Raise BadInput if two rows of a series have the same time."""
    twins = (rows.when[1:] == rows.when[:-1]) & ~rows.starts[1:]
    if not twins.any():
        return
    at = int(twins.argmax())
    one, other = (rows.origin.row(int(row)) for row in np.sort(rows.order[at : at + 2]))
    advice = "remove one of each pair" + ("" if rows.keys[0] else ", or name the column that tells series apart")
    raise BadInput(
        f"{rows.where}: {one} and {other}{rows.series(at)} have the same time {rows.moment(at)} "
        f"({int(twins.sum())} such pairs); {advice}"
    )


def refuse_long(rows: Sorted, before: Integers) -> None:
    """Raise BadInput if there is a sorted row `before` a time too far from the beginning of its series to be counted."""
    if not before.size:
        return
    at = int(before[0]) + 1
    begin = int(np.flatnonzero(rows.starts[: at + 1])[-1])
    raise BadInput(
        f"{rows.cell(at)}: the times{rows.series(at)} reach from {rows.moment(begin)} to {rows.moment(at)}, and more than "
        "292 years cannot be counted; correct the time, or give each stretch a series of its own"
    )


def choose_grid(rows: Sorted) -> tuple[Sorted, Grid]:
    """The grid of a new table. In a time zone, days and more are counted by its clocks, not by hours that pass."""
    grid = find_grid(rows.when, rows.starts, rows.kind)
    if rows.zone and rows.zone != "UTC" and not rows.starts.all() and not (grid.regular and grid.step < DAY):
        clocks = rows.on_wall_clock()
        apart = np.diff(clocks.when)[~rows.starts[1:]]
        wall = find_grid(clocks.when, clocks.starts, clocks.kind)
        if wall.regular and wall.step >= DAY and (apart > 0).all():
            return clocks, replace(wall, zone=rows.zone, wall=True)
    return rows, replace(grid, zone=rows.zone)


def check_kind(rows: Sorted, grid: Grid) -> None:
    """Raise BadInput if new times are of another kind than those of the fitted run."""
    if rows.kind != grid.kind:
        words = {"datetime": "dates", "integer": "whole numbers", "row": "rows without a time"}
        raise BadInput(
            f"{rows.where}: times are {words[rows.kind]}, but the model was fitted on {words[grid.kind]}; give these"
        )
    if (rows.zone is None) != (grid.zone is None):
        zone = f"in the zone {grid.zone}" if grid.zone else "without a time zone"
        raise BadInput(f"{rows.where}: the model was fitted on times {zone}; write these times so, too")


def check_spacing(rows: Sorted, grid: Grid) -> None:
    """Raise BadInput if no two new rows are as near to each other as those of the fitted run."""
    inner = np.flatnonzero(~rows.starts[1:])
    if not grid.regular or len(inner) < 3:
        return
    times = untick(rows.when, rows.kind)
    nearest_steps = grid.positions(times[inner + 1], times[inner])[0].min()
    here = find_grid(rows.when, rows.starts, rows.kind)
    if nearest_steps > 1 or (nearest_steps < 1 and here.regular):
        apart, fitted = here.describe(), grid.describe()
        raise BadInput(f"{rows.where}: rows are {apart} apart, but the model was fitted on {fitted}; resample them")


def place_rows(rows: Sorted, grid: Grid, notices: list[str]) -> Layout:
    """The layout of sorted rows on a grid."""
    begins = np.flatnonzero(rows.starts)
    sizes = np.diff(np.append(begins, len(rows.when)))
    times = untick(rows.when, grid.kind)
    if not grid.regular or grid.kind == "row":
        every = np.arange(len(times), dtype=np.int64)
        return Layout(grid, rows.keys, np.cumsum(sizes), times, np.ones(len(times), dtype=bool), rows.order, every)
    if not grid.months:
        refuse_long(rows, np.flatnonzero(rows.when - np.repeat(rows.when[begins], sizes) < 0) - 1)
    steps, fits = grid.positions(times, np.repeat(times[begins], sizes))
    fits[1:] &= (np.diff(steps) > 0) | rows.starts[1:]
    if not fits.all():
        at = int((~fits).argmax())
        raise BadInput(
            f"{rows.cell(at)}: the time {rows.moment(at)} is not a whole number of steps of {grid.describe()} "
            f"after the one before it{rows.series(at)}; resample the rows"
        )
    lengths = steps[begins + sizes - 1] + 1
    if lengths.sum() > MOST_FILL * len(steps) + FREE_FILL:
        refuse_gap(rows, steps)
    ends = np.cumsum(lengths)
    place = steps + np.repeat(ends - lengths, sizes)
    given = np.zeros(int(ends[-1]), dtype=bool)
    given[place] = True
    if not given.all():
        lacking = f"{int((~given).sum()):,} of {len(given):,}"
        notices.append(f"{lacking} rows on the grid of {grid.describe()} are not in the table; they count as missing")
    full = np.concatenate([grid.between(times[begin], int(n)) for begin, n in zip(begins, lengths)])
    return Layout(grid, rows.keys, ends, full, given, rows.order, place)


def refuse_gap(rows: Sorted, steps: Integers) -> None:
    """Raise BadInput that names the longest gap."""
    gaps = np.where(rows.starts[1:], 0, np.diff(steps))
    at = int(gaps.argmax())
    raise BadInput(
        f"{rows.cell(at + 1)}: {int(gaps[at]) - 1:,} rows are missing between {rows.moment(at)} and "
        f"{rows.moment(at + 1)}; correct the time, or give each stretch a series of its own"
    )
