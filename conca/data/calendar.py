"""Where in the day, the week and the year a time lies, as sines and cosines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import DAY, Grid, ticks
from conca.data.times import restore
from conca.types import BadInput, nearest

__all__ = ["calendar", "choose_cycles", "turns"]

CYCLES = ("day", "week", "year")
YEAR = 365.2425


def choose_cycles(times: Iterable[NDArray[Any]], grid: Grid) -> tuple[str, ...]:
    """The cycles worth telling a model trained on these times, each (T,) of a series.

    A cycle needs at least three rows in it, and times that go through it at least once (so that no part of it is met
    first after the training). None for times that are not dates.
    """
    if grid.kind != "datetime":
        return ()
    ends = [ticks(t[[0, -1]]).tolist() for t in times if len(t)]
    span = max((last - first + grid.step for first, last in ends), default=0)
    lengths = zip(CYCLES, (1.0, 7.0, YEAR))
    return tuple(name for name, days in lengths if 3 * grid.step <= days * DAY <= 1.01 * span)


def calendar(times: NDArray[Any], cycles: Iterable[str], grid: Grid) -> NDArray[np.float64]:
    """Sine and cosine of the place in each cycle ("day", "week", "year"), by the clock of the grid's time zone.

    times of shape (T,) give (T, 2 * number of cycles). Raises BadInput on an unknown cycle.
    """
    cycles = tuple(cycles)
    for cycle in cycles:
        if cycle not in CYCLES:
            raise BadInput(f"unknown cycle '{cycle}'; {nearest(cycle, CYCLES)}")
    if not cycles:
        return np.empty((len(times), 0))
    local = clock(times, grid)
    days = local.astype(np.int64) / DAY
    of_year = (days - local.astype("datetime64[Y]").astype("datetime64[ns]").astype(np.int64) / DAY) / YEAR
    place = {"day": days % 1.0, "week": (days + 3) % 7.0 / 7.0, "year": of_year}
    angles = 2 * np.pi * np.stack([place[cycle] for cycle in cycles], axis=1)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(times), 2 * len(cycles))


def turns(cycles: Iterable[str], grid: Grid) -> tuple[float, ...]:
    """How many turns each cycle makes from one row of a grid to the next, nominally."""
    days = {"day": 1.0, "week": 7.0, "year": YEAR}
    month = grid.months / 12 if grid.months else grid.step / DAY / YEAR
    return tuple(month if cycle == "year" else grid.step / DAY / days[cycle] for cycle in cycles)


def clock(times: NDArray[Any], grid: Grid) -> NDArray[Any]:
    """What the clocks of the grid's zone show, datetime64[ns]; without a zone, the times themselves."""
    if grid.zone is None:
        return times.astype("datetime64[ns]")
    shown = restore(times, grid)
    assert isinstance(shown, pd.DatetimeIndex)
    return np.asarray(shown.tz_localize(None).to_numpy("datetime64[ns]"))
