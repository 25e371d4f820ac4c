"""Where each row of a table goes: to which series, and to which place of its time grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import Grid, find_grid, untick
from conca.data.schema import Schema
from conca.data.table import Origin
from conca.data.times import Times, read_times, restore
from conca.types import BadInput

__all__ = ["Layout", "lay_out"]

MOST_FILL, FREE_FILL = 10, 10_000
"""A grid may have this many rows for each given row, and this many for nothing; a longer gap is taken for an error."""


@dataclass(frozen=True)
class Layout:
    """The grid rows of all series, one series after the other; M grid rows, N rows of the table.

    schema   with its grid found
    keys     one for each series
    ends     (number of series,) where the grid rows of each series end
    times    (M,) times of the grid rows
    given    (M,) whether the table had the row
    order    (N,) the rows of the table sorted by series and time
    place    (N,) the grid rows of these
    """

    schema: Schema
    keys: list[tuple[Any, ...]]
    ends: NDArray[np.int64]
    times: NDArray[Any]
    given: NDArray[np.bool_]
    order: NDArray[np.int64]
    place: NDArray[np.int64]
    notices: list[str]

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


def lay_out(table: pd.DataFrame, origin: Origin, schema: Schema, grid: Grid | None) -> Layout:
    """Sort the rows, find the grid or check it against the one of a fitted run, and place the rows on it."""
    keys, codes = read_keys(table, origin, schema.series)
    notices: list[str] = []
    if schema.time is None:
        order = np.argsort(codes, kind="stable")
        grid = Grid()
        starts = first_rows(codes[order])
        when = np.arange(len(codes)) - np.maximum.accumulate(np.where(starts, np.arange(len(codes)), 0))
    else:
        times = read_times(table[schema.time], origin)
        if times.notice:
            notices.append(times.notice)
        order = np.lexsort((times.when, codes))
        if not np.array_equal(order, np.argsort(codes, kind="stable")):
            notices.append(f"rows were sorted by '{schema.time}'" + " within each series" * bool(schema.series))
        when, starts = times.when[order], first_rows(codes[order])
        refuse_duplicates(when, starts, order, origin, schema, times, keys, codes)
        if grid is None:
            grid = find_grid(when, starts, times.kind, times.zone)
            if not grid.regular:
                notices.append(f"times are not evenly spaced (half of the steps are at most {grid.describe()})")
        else:
            check_grid(grid, when, starts, times, order, origin, schema)
    return place_rows(replace(schema, grid=grid), keys, when, starts, order, origin, notices)


def read_keys(
    table: pd.DataFrame, origin: Origin, names: tuple[str, ...]
) -> tuple[list[tuple[Any, ...]], NDArray[np.int64]]:
    """Keys of the series in order of appearance, and the number of its series for every row."""
    if not names:
        return [()], np.zeros(len(table), dtype=np.int64)
    for name in names:
        missing = table[name].isna().to_numpy()
        if missing.any():
            raise BadInput(
                f"{origin.cell(int(missing.argmax()), name)}: the series has no name; fill it in or remove the row"
            )
    codes = table.groupby(list(names), sort=False, observed=True).ngroup().to_numpy(dtype=np.int64)
    first = np.unique(codes, return_index=True)[1]
    parts = [table[name].astype(object).iloc[first].tolist() for name in names]
    return list(zip(*parts)), codes


def first_rows(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True where a sorted code differs from the one before it."""
    return np.concatenate([[True], codes[1:] != codes[:-1]])


def refuse_duplicates(
    when: NDArray[np.int64],
    starts: NDArray[np.bool_],
    order: NDArray[np.int64],
    origin: Origin,
    schema: Schema,
    times: Times,
    keys: list[tuple[Any, ...]],
    codes: NDArray[np.int64],
) -> None:
    """Raise BadInput if two rows of a series have the same time."""
    twins = (when[1:] == when[:-1]) & ~starts[1:]
    if not twins.any():
        return
    at = int(twins.argmax())
    one, other = sorted((int(order[at]), int(order[at + 1])))
    moment = restore(untick(when[at : at + 1], times.kind), Grid(times.kind, zone=times.zone))[0]
    key = keys[codes[one]]
    inside = " in series " + "/".join(map(str, key)) if key else ""
    advice = "remove one of each pair" if key else "remove one of each pair, or name the column that tells series apart"
    raise BadInput(
        f"{origin.name}, column '{schema.time}': {origin.row(one)} and {origin.row(other)} have the same time "
        f"{moment}{inside} ({int(twins.sum())} such pairs); {advice}"
    )


def check_grid(
    grid: Grid,
    when: NDArray[np.int64],
    starts: NDArray[np.bool_],
    times: Times,
    order: NDArray[np.int64],
    origin: Origin,
    schema: Schema,
) -> None:
    """Raise BadInput if new times are of another kind, zone or spacing than those of the fitted run."""
    where = f"{origin.name}, column '{schema.time}'"
    if times.kind != grid.kind:
        words = {"datetime": "dates", "integer": "whole numbers", "row": "rows"}
        raise BadInput(f"{where}: times are {words[times.kind]}, but the model was fitted on {words[grid.kind]}")
    if (times.zone is None) != (grid.zone is None):
        zone = f"in {grid.zone}" if grid.zone else "without a time zone"
        raise BadInput(f"{where}: the model was fitted on times {zone}; write these times so, too")
    here = find_grid(when, starts, times.kind, times.zone)
    if grid.regular and not starts.all() and (here.step, here.months) != (grid.step, grid.months):
        gaps = np.diff(when)[~starts[1:]]
        if np.median(gaps) > 1.5 * grid.step or np.median(gaps) < grid.step / 1.5:
            raise BadInput(
                f"{where}: rows are {here.describe()} apart, but the model was fitted on {grid.describe()}; resample them"
            )


def place_rows(
    schema: Schema,
    keys: list[tuple[Any, ...]],
    when: NDArray[np.int64],
    starts: NDArray[np.bool_],
    order: NDArray[np.int64],
    origin: Origin,
    notices: list[str],
) -> Layout:
    """The layout of sorted rows on the grid of the schema."""
    grid = schema.grid
    begins = np.flatnonzero(starts)
    sizes = np.diff(np.append(begins, len(when)))
    times = untick(when, grid.kind)
    if not grid.regular or grid.kind == "row":
        every = np.arange(len(when), dtype=np.int64)
        return Layout(schema, keys, np.cumsum(sizes), times, np.ones(len(when), bool), order, every, notices)
    steps, fits = grid.positions(times, np.repeat(times[begins], sizes))
    if not fits.all():
        at = int((~fits).argmax())
        moment = restore(times[at : at + 1], grid)[0]
        raise BadInput(
            f"{origin.cell(int(order[at]), str(schema.time))}: the time {moment} does not lie on the grid of "
            f"{grid.describe()} that its series begins; resample the rows"
        )
    lengths = steps[begins + sizes - 1] + 1
    refuse_gaps(steps, starts, lengths, times, order, origin, schema)
    ends = np.cumsum(lengths)
    place = steps + np.repeat(ends - lengths, sizes)
    given = np.zeros(int(ends[-1]), dtype=bool)
    given[place] = True
    if not given.all():
        lacking = int((~given).sum())
        notices.append(
            f"{lacking:,} of {len(given):,} times on the grid of {grid.describe()} have no row; they are missing rows"
        )
    full = np.concatenate([grid.between(times[b], int(n)) for b, n in zip(begins, lengths)])
    return Layout(schema, keys, ends, full, given, order, place, notices)


def refuse_gaps(
    steps: NDArray[np.int64],
    starts: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    times: NDArray[Any],
    order: NDArray[np.int64],
    origin: Origin,
    schema: Schema,
) -> None:
    """Raise BadInput if filling the gaps would make a table of a different size."""
    if lengths.sum() <= MOST_FILL * len(steps) + FREE_FILL:
        return
    gaps = np.where(starts[1:], 0, np.diff(steps))
    at = int(gaps.argmax())
    before, after = restore(times[at : at + 2], schema.grid)
    raise BadInput(
        f"{origin.cell(int(order[at + 1]), str(schema.time))}: {int(gaps[at]) - 1:,} rows are missing between {before} "
        f"and {after}; correct the time, or give each stretch a series of its own"
    )
