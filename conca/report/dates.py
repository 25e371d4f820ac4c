"""Times on a page: of cutoffs and of what was forecast, in words and along an axis."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import DAY, Grid, ticks, untick
from conca.data.times import restore

__all__ = ["along_axis", "forecast_times", "moment", "past_times"]

Integers = NDArray[np.int64]


def moment(when: int, grid: Grid) -> str:
    """A time as the user's table has it: "2024-05-17", with hours and minutes where rows are less than a day apart; "row 7"."""
    found = restore(untick(np.array([when], np.int64), grid.kind), grid)[0]
    if not isinstance(found, pd.Timestamp):
        return f"row {found}"
    clock = found.tz_localize(None)
    if grid.step >= DAY and (grid.regular or clock == clock.normalize()):
        return str(clock.date())
    offset = str(found).removeprefix(str(clock))
    return (f"{clock:%Y-%m-%d %H:%M}" if clock == clock.floor("min") else str(clock)) + offset


def forecast_times(cutoffs: Integers, horizon: int, grid: Grid) -> Integers:
    """Times (n, H), as integers, of the rows that were forecast."""
    if not grid.months:
        return np.asarray(cutoffs[:, None] + np.arange(1, horizon + 1) * grid.step)
    unique, inverse = np.unique(cutoffs, return_inverse=True)
    each = [ticks(grid.future(untick(np.array([c]), grid.kind)[0], horizon)) for c in unique]
    return np.asarray(np.stack(each)[inverse])


def past_times(cutoff: int, rows: int, grid: Grid) -> Integers:
    """Times (rows,), as integers, up to the cutoff and with it; days of months that are too short become their last."""
    back = np.arange(rows)[::-1]
    if not grid.months:
        return np.asarray(cutoff - grid.step * back)
    end = pd.Timestamp(cutoff) + pd.Timedelta(int(grid.ends), "D")
    shifted = [(end - pd.DateOffset(months=int(grid.months * b))).value - DAY * grid.ends for b in back]
    return np.array(shifted, dtype=np.int64)


def along_axis(when: Integers, grid: Grid) -> NDArray[np.datetime64]:
    """Times as integers, as dates that an axis can have: by the clock of the table."""
    found = restore(untick(when, grid.kind), grid)
    assert isinstance(found, pd.DatetimeIndex)
    return np.asarray(found.tz_localize(None).to_numpy())
