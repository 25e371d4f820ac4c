"""Where each row of a table goes: to which series, and to which place on its time grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import DAY, Grid, find_grid, untick
from conca.data.rows import Sorted, read_rows, refuse_long
from conca.data.schema import Schema
from conca.data.table import Origin
from conca.types import BadInput

__all__ = ["Layout", "fitted_rows", "lay_out"]

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
    format  as in `Schema`
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
    format: str | None = None

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


def lay_out(
    table: pd.DataFrame, origin: Origin, schema: Schema, grid: Grid | None, notices: list[str], tz: str | None = None
) -> Layout:
    """Sort the rows, find their grid (or check them against that of a fitted run), and place them on it.

    Raises BadInput on times that cannot be read, stand twice, or do not fit the grid.
    """
    rows = read_rows(table, origin, schema, grid, tz, notices)
    if schema.time is None:
        return place_rows(rows, Grid(), notices)
    if grid is None:
        rows, grid = choose_grid(rows, local=tz is not None)
        if not grid.regular:
            notices.append(f"times are not evenly spaced: each row is one step ({grid.describe()} in the median)")
    else:
        rows = fitted_rows(rows, grid)
        check_spacing(rows, grid)
    return place_rows(rows, grid, notices)


def fitted_rows(rows: Sorted, grid: Grid) -> Sorted:
    """New rows with their times counted as those of a fitted run."""
    rows = replace(rows, zone=grid.zone)
    return rows.on_wall_clock() if grid.wall else rows


def choose_grid(rows: Sorted, local: bool) -> tuple[Sorted, Grid]:
    """The grid of a new table. In a time zone, days and more are counted by its clocks, not by hours that pass."""
    grid = find_grid(rows.when, rows.starts, rows.kind)
    if rows.wall:
        return rows, replace(grid, zone=rows.zone, wall=True, local=local)
    if rows.zone and rows.zone != "UTC" and not rows.starts.all() and not (grid.regular and grid.step < DAY):
        clocks = rows.on_wall_clock()
        apart = np.diff(clocks.when)[~rows.starts[1:]]
        wall = find_grid(clocks.when, clocks.starts, clocks.kind)
        if wall.regular and wall.step >= DAY and (apart > 0).all():
            return clocks, replace(wall, zone=rows.zone, wall=True, local=local)
    return rows, replace(grid, zone=rows.zone, local=local)


def check_spacing(rows: Sorted, grid: Grid) -> None:
    """Raise BadInput if new rows are evenly spaced, but not as those of the fitted run.

    Rows that are far apart here and there are gaps.
    """
    inner = np.flatnonzero(~rows.starts[1:])
    if not grid.regular or len(inner) < 3:
        return
    times = untick(rows.when, rows.kind)
    nearest_steps = grid.positions(times[inner + 1], times[inner])[0].min()
    here = find_grid(rows.when, rows.starts, rows.kind)
    if nearest_steps != 1 and here.regular:
        apart, fitted = here.describe(), grid.describe()
        raise BadInput(f"{rows.where}: rows are {apart} apart, but the model was fitted on {fitted}; resample them")


def place_rows(rows: Sorted, grid: Grid, notices: list[str]) -> Layout:
    """The layout of sorted rows on a grid."""
    begins = np.flatnonzero(rows.starts)
    sizes = np.diff(np.append(begins, len(rows.when)))
    times = untick(rows.when, grid.kind)
    if not grid.regular or grid.kind == "row":
        every = np.arange(len(times), dtype=np.int64)
        given = np.ones(len(times), dtype=bool)
        return Layout(grid, rows.keys, np.cumsum(sizes), times, given, rows.order, every, rows.format)
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
    return Layout(grid, rows.keys, ends, full, given, rows.order, place, rows.format)


def refuse_gap(rows: Sorted, steps: Integers) -> None:
    """Raise BadInput that names the longest gap."""
    gaps = np.where(rows.starts[1:], 0, np.diff(steps))
    at = int(gaps.argmax())
    raise BadInput(
        f"{rows.cell(at + 1)}: {int(gaps[at]) - 1:,} rows are missing between {rows.moment(at)} and "
        f"{rows.moment(at + 1)}; correct the time, or give each stretch a series of its own"
    )
