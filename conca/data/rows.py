"""The rows of a table sorted by series and time, with all that error lines need to name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import shown
from conca.data.grid import DAY, Grid, find_grid, untick
from conca.data.local import SKIPPED, localised
from conca.data.schema import Schema
from conca.data.table import Origin
from conca.data.times import Times, read_times, restore, wall_clock
from conca.types import BadInput

__all__ = ["Sorted", "name_of", "read_rows", "refuse_long"]

Integers = NDArray[np.int64]

HOUR = 3_600_000_000_000
SUNDAY, NIGHT = 3, 4
"""1970 began on a Thursday; clocks are set back in the first hours of a Sunday."""
SPRING, AUTUMN = (3, 4), (9, 10, 11)


@dataclass(frozen=True)
class Sorted:
    """The N rows of a table sorted by series and time, and what error lines need to name them.

    keys    one for each series
    order   (N,) the rows of the table
    when    (N,) their times as integers
    starts  (N,) true at the first row of each series
    kind, zone, wall  as in `Grid`
    format  as in `Schema`
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
    format: str | None = None

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
        if self.wall or not self.zone:
            return self
        return replace(self, when=wall_clock(self.when, self.zone), wall=True)


def name_of(key: tuple[Any, ...]) -> str:
    """A key for error lines."""
    return "/".join(shown(part) for part in key)


def read_rows(
    table: pd.DataFrame,
    origin: Origin,
    schema: Schema,
    grid: Grid | None,
    tz: str | None,
    notices: list[str],
    before: Mapping[tuple[str, ...], int] | None = None,
) -> Sorted:
    """The rows of a table under a schema, of a fitted `grid`, or of a new table (`grid` None), in the time zone `tz`.

    `before`: the moment before the first row of a series, by its key as text, where it is known.

    Raises BadInput on names of series and times that cannot be read, on times that stand twice in a series, and on those
    of another kind than the fitted ones.
    """
    keys, codes = read_keys(table, origin, schema.series)
    if schema.time is None:
        order = np.argsort(codes, kind="stable")
        starts = first_rows(codes[order])
        every = np.arange(len(codes), dtype=np.int64)
        return Sorted(origin, "", keys, order, every - np.maximum.accumulate(np.where(starts, every, 0)), starts, "row")
    zone = tz if grid is None else grid.zone
    whole = grid is not None and grid.kind == "integer"
    times = read_times(table[schema.time], origin, schema.format, zone, whole)
    if times.notice:
        notices.append(times.notice)
    if tz is not None and times.kind != "datetime":
        raise BadInput(f"{origin.name}, column '{schema.time}': whole numbers have no time zone; leave out tz")
    wall = False
    if times.kind == "datetime" and times.zone is None and zone is not None and (grid is None or grid.local):
        wall = grid.wall if grid is not None else daily(times.when, codes)
        known = {code: (before or {}).get(tuple(map(str, key)), SKIPPED) for code, key in enumerate(keys)}
        when = times.when if wall else on_clocks(times, codes, zone, grid, known, origin, schema.time)
        times = replace(times, when=when, zone=zone)
    order = np.lexsort((times.when, codes))
    if not np.array_equal(order, np.argsort(codes, kind="stable")):
        notices.append(f"rows were sorted by '{schema.time}'" + " within each series" * bool(schema.series))
    when, starts = times.when[order], first_rows(codes[order])
    rows = Sorted(origin, schema.time, keys, order, when, starts, times.kind, times.zone, wall, times.format)
    if grid is not None:
        check_kind(rows, grid)
    refuse_duplicates(rows)
    refuse_long(rows, np.flatnonzero((np.diff(rows.when) < 0) & ~rows.starts[1:]))
    return rows


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


def daily(local: Integers, codes: Integers) -> bool:
    """Whether clock times are whole days or more apart, so that hours of the day play no part."""
    order = np.lexsort((local, codes))
    starts, when = first_rows(codes[order]), local[order]
    gaps = np.diff(when)[~starts[1:]]
    if not gaps.size or gaps.min() <= 0:
        return False
    grid = find_grid(when, starts, "datetime")
    return grid.regular and grid.step >= DAY


def on_clocks(
    times: Times,
    codes: Integers,
    zone: str,
    grid: Grid | None,
    before: Mapping[int, int],
    origin: Origin,
    column: str,
) -> Integers:
    """Moments of times without a zone, read off the clocks of one. Raises BadInput on a time that they skip."""
    step = grid.step if grid is not None and grid.regular else None
    when = localised(times.when, codes, zone, step, before)
    skipped = when == SKIPPED
    if skipped.any():
        at = int(skipped.argmax())
        shows = str(restore(untick(times.when[at : at + 1], "datetime"), Grid("datetime"))[0])
        raise BadInput(
            f"{origin.cell(at, column)}: the clocks of {zone} skip {shows}; "
            "correct the time, or name the zone (tz) in whose time it is written"
        )
    return when


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
    if looks_local(rows, twins):
        advice = f"local times, of which autumn repeats an hour? say their zone (tz, --tz); else {advice}"
    raise BadInput(
        f"{rows.where}: {one} and {other}{rows.series(at)} have the same time {rows.moment(at)} "
        f"({int(twins.sum())} such pairs); {advice}"
    )


def looks_local(rows: Sorted, twins: NDArray[np.bool_]) -> bool:
    """Whether all rows with the time of the row before (`twins`) lie where clocks are set back."""
    if rows.kind != "datetime" or rows.zone is not None:
        return False
    when = rows.when[1:][twins]
    month = when.view("datetime64[ns]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    night = (when // DAY % 7 == SUNDAY) & (when % DAY < NIGHT * HOUR) & np.isin(month, (*SPRING, *AUTUMN))
    gaps = np.diff(rows.when)[~rows.starts[1:]]
    sizes, counts = np.unique(gaps[gaps > 0], return_counts=True)
    even = bool(sizes.size) and counts.max() * 2 >= counts.sum() and sizes[counts.argmax()] < DAY
    return bool(night.all()) and even


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
