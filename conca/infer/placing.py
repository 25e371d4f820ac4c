"""Where rows that come next lie in time: behind the last of their series, on its grid, and not too far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.grid import Grid, ticks, untick
from conca.data.layout import FREE_FILL
from conca.data.local import SKIPPED, moment_after, moments
from conca.data.panel import Schema, Series
from conca.data.rows import name_of
from conca.data.times import restore
from conca.infer.memory import Memory
from conca.infer.rows import Rows
from conca.types import BadInput

__all__ = ["ahead_of", "in_order", "laid_out", "moment", "off_clocks"]

Integers = NDArray[np.int64]
Fault = tuple[int, str]

FURTHEST = 2**63
"""Nanoseconds between two rows are fewer."""


def in_order(schema: Schema, memory: Memory, rows: Rows, horizon: int) -> tuple[Integers, list[Fault]]:
    """Places of the rows of one series that can be read after what was read of it, and why the others cannot."""
    every = np.arange(len(rows), dtype=np.int64)
    if schema.time is None or not len(rows):
        return every, []
    last = None if memory.carry is None else memory.carry.time
    if all_fit(schema.grid, last, rows.when, horizon):
        return every, []
    kept: list[int] = []
    faults: list[Fault] = []
    for place, when in enumerate(rows.when.tolist()):
        fault = misfit(schema.grid, last, when, horizon)
        if fault is None:
            kept.append(place)
            last = when
        else:
            series = " of series " + name_of(memory.key) if memory.key else ""
            faults.append((place, fault.replace("{series}", series)))
    return np.array(kept, dtype=np.int64), faults


def off_clocks(schema: Schema, last: int | None, rows: Rows) -> tuple[Rows, Integers, list[Fault]]:
    """Rows of one series at the moments at which the clocks show their times, after a row at `last`.

    Beside them the places of these among the given ones, and of the others, whose time the clocks skip, with the reason.
    """
    every = np.arange(len(rows), dtype=np.int64)
    zone, step = schema.grid.zone, schema.grid.step if schema.grid.regular else 1
    if not rows.clocks or zone is None:
        return rows, every, []
    first, second = moments(rows.when, zone)
    when = first.copy()
    for place in np.flatnonzero(first != second).tolist():
        before = int(when[place - 1]) if place else last
        when[place] = moment_after(int(rows.when[place]), zone, before, step) or 0
    shown = replace(rows, when=when, clocks=False)
    skipped = first == SKIPPED
    if not skipped.any():
        return shown, every, []
    clocks = [moment(int(rows.when[place]), Grid("datetime")) for place in np.flatnonzero(skipped)]
    faults = [f"the clocks of {zone} skip {time}; correct the time" for time in clocks]
    good = np.flatnonzero(~skipped)
    return shown.take(good), good, list(zip(np.flatnonzero(skipped).tolist(), faults))


def all_fit(grid: Grid, last: int | None, when: Integers, horizon: int) -> bool:
    """Whether all rows can be read, asked at once."""
    before = np.concatenate([when[:1] if last is None else np.array([last], np.int64), when[:-1]])
    later = when > before
    later[0] |= last is None
    if not later.all() or reach_fault(grid, int(when[-1]), horizon):
        return False
    gaps = when - before  # wraps to less than 0 where more than 292 years lie between
    if not grid.regular:
        return bool((gaps >= 0).all())
    steps, fits = grid.positions(untick(when, grid.kind), untick(before, grid.kind))
    return bool((fits & (gaps >= 0) & (steps <= FREE_FILL + 1)).all())


def misfit(grid: Grid, last: int | None, when: int, horizon: int) -> str | None:
    """Why a row at `when` cannot follow one at `last`; None if it can."""
    if fault := reach_fault(grid, when, horizon):
        return fault
    if last is None:
        return None
    now, then = moment(when, grid), moment(last, grid)
    if when == last:
        return f"the time {now} is that of the last row{{series}}; rows must come in order, each time once"
    if when < last:
        return f"the time {now} is older than {then}, the last{{series}}; rows must come in order"
    if when - last >= FURTHEST:
        return f"between {then} and {now} lie more than 292 years; correct the time, or begin with a new state"
    if not grid.regular:
        return None
    step, fits = grid.positions(untick(np.array([when], np.int64), grid.kind), untick(np.array([last]), grid.kind)[0])
    if not fits[0]:
        return f"the time {now} is not a whole number of steps of {grid.describe()} after {then}, the last{{series}}"
    if step[0] > FREE_FILL + 1:
        missing = f"{int(step[0]) - 1:,} rows{{series}} are missing between {then} and {now}"
        return f"{missing}; correct the time, or begin with a new state"
    return None


def reach_fault(grid: Grid, when: int, horizon: int) -> str | None:
    """Why the steps ahead of a time cannot be counted; None if they can."""
    try:
        grid.future(untick(np.array([when], np.int64), grid.kind)[0], horizon)
    except BadInput as error:
        return str(error)
    return None


def moment(when: int, grid: Grid) -> str:
    """A time for error lines."""
    return str(restore(untick(np.array([when], np.int64), grid.kind), grid)[0])


def laid_out(schema: Schema, memory: Memory, rows: Rows) -> Series:
    """The rows of one series on its grid; rows that the grid has between them, or after the last, are missing ones."""
    grid, count = schema.grid, len(rows)
    counted = np.arange(memory.rows, memory.rows + count, dtype=np.int64)
    when = counted if schema.time is None else rows.when
    times = untick(when, grid.kind)
    if not grid.regular or schema.time is None:
        return Series(memory.key, times, rows.target, rows.numeric, rows.categorical, np.ones(count, dtype=bool))
    last = None if memory.carry is None else untick(np.array([memory.carry.time]), grid.kind)[0]
    steps = grid.positions(times, times[0])[0] if last is None else grid.positions(times, last)[0] - 1
    total = int(steps[-1]) + 1
    if total == count:
        return Series(memory.key, times, rows.target, rows.numeric, rows.categorical, np.ones(count, dtype=bool))
    given = np.zeros(total, dtype=bool)
    given[steps] = True

    def spread(values: NDArray[Any], fill: float) -> NDArray[Any]:
        result = np.full((total, values.shape[1]), fill, dtype=values.dtype)
        result[steps] = values
        return result

    parts = spread(rows.target, np.nan), spread(rows.numeric, np.nan), spread(rows.categorical, 0)
    every = grid.between(times[0], total) if last is None else grid.future(last, total)
    return Series(memory.key, every, *parts, given)


def ahead_of(grid: Grid, series: Series, horizon: int) -> Integers:
    """Times (n, horizon) of the steps ahead of each given row, as integers.

    Rows that are not evenly spaced are expected one nominal step after each other.
    """
    steps = np.arange(1, horizon + 1)
    if not grid.regular:
        return np.asarray(ticks(series.times)[:, None] + steps * grid.step)
    every = np.concatenate([series.times, grid.future(series.times[-1], horizon)])
    ahead: Integers = ticks(every)[np.flatnonzero(series.given)[:, None] + steps]
    return ahead
