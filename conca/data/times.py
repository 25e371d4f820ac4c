"""A column of times becomes integers that order and space the rows, and integers become the user's times again."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import numbers_in, shown, text_of
from conca.data.grid import FIRST, LAST, Grid
from conca.data.table import Origin
from conca.types import BadInput

__all__ = ["Times", "read_times", "restore"]

OFFSET = re.compile(r"(?:T|:|\d )\d\d(?:[.,]\d+)?\s?(Z|[+-]\d\d:?\d\d|UTC|GMT)$")

HALF_DAY = re.compile(r"\s[AP]M$", re.IGNORECASE)
YEAR_FIRST = re.compile(r"%Y\W?%d")
"""Nobody writes year, day, month; a date that reads so is a fault."""


@dataclass(frozen=True)
class Times:
    """Times of all rows: `when` (N,) as integers (nanoseconds, in UTC where the `zone` is known), and their kind."""

    when: NDArray[np.int64]
    kind: str
    zone: str | None = None
    notice: str | None = None


def read_times(column: pd.Series[Any], origin: Origin) -> Times:
    """The times in a column: text (ISO 8601, or one other format throughout), dates of pandas, or whole numbers.

    Whole numbers of eight digits that are all dates (20100131) are read as such, with a notice. Raises BadInput on a
    missing or unreadable time, mixed time zones, dates that could be day first or month first, and dates beyond the
    years 1678 to 2261.
    """
    name = str(column.name)
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if not isinstance(column.dtype, pd.CategoricalDtype) and pd.api.types.is_timedelta64_dtype(column):
        raise BadInput(f"{origin.name}, column '{name}': durations are not times; give dates or whole numbers")
    missing = column.isna().to_numpy()
    text = None if pd.api.types.is_numeric_dtype(column) or is_dates(column) else text_of(column)
    if text is not None:
        missing = text.isna().to_numpy()
    if missing.any():
        at = int(missing.argmax())
        raise BadInput(f"{origin.cell(at, name)}: the time is missing; fill it in or remove the row")
    if is_dates(column):
        zone = getattr(column.dtype, "tz", None)
        return Times(nanoseconds(column, origin), "datetime", None if zone is None else zone_name(zone))
    if text is not None and 2 * pd.to_numeric(text, errors="coerce").notna().mean() < 1:
        return read_dates(text, origin)
    return read_whole(column, origin)


def is_dates(column: pd.Series[Any]) -> bool:
    """Whether pandas already holds the column as dates."""
    return bool(pd.api.types.is_datetime64_any_dtype(column))


def read_whole(column: pd.Series[Any], origin: Origin) -> Times:
    """Times that are whole numbers."""
    name = str(column.name)
    values = numbers_in(column, origin)
    broken, large = values != np.rint(values), np.abs(values) > 2.0**61
    for fault, words in ((broken, "is not a whole number"), (large, "is too large")):
        if fault.any():
            at = int(fault.argmax())
            raise BadInput(f"{origin.cell(at, name)}: the time {values[at]:.15g} {words}; give dates or whole numbers")
    when = values.astype(np.int64)
    if np.abs(values).max() >= 2.0**53:
        when = np.array([int(cell) for cell in column], dtype=np.int64)
    if when.min() >= 19_000_101 and when.max() <= 21_001_231:
        dates = pd.to_datetime(pd.Series(when, name=name).astype(str), format="%Y%m%d", errors="coerce")
        if dates.notna().all():
            notice = f"column '{name}': whole numbers such as {when[0]} are read as dates"
            return Times(nanoseconds(dates, origin), "datetime", None, notice)
    return Times(when, "integer")


def read_dates(text: pd.Series[str], origin: Origin) -> Times:
    """Times that are text."""
    name = str(text.name)
    offsets = text.str.extract(OFFSET, expand=False)
    zone = read_zone(offsets, origin, name)
    found = candidates(text, zone is not None)
    whole = [dates for dates in found if dates.notna().all()]
    if not whole:
        best = min(found, key=lambda dates: int(dates.isna().sum()))
        at = int(best.isna().to_numpy().argmax())
        raise BadInput(f"{origin.cell(at, name)}: '{shown(text.iloc[at])}' is not a time; write it as 2010-01-31 23:00")
    if any(not dates.equals(whole[0]) for dates in whole[1:]):
        raise BadInput(
            f"{origin.cell(0, name)}: '{shown(text.iloc[0])}' can be day first or month first; write it as 2010-01-31 23:00"
        )
    return Times(nanoseconds(whole[0], origin), "datetime", zone)


def candidates(text: pd.Series[str], aware: bool) -> list[pd.Series[Any]]:
    """The readings of a text column as dates: ISO 8601, else the formats guessed from its first and middle rows.

    Words such as "now" and "today", which pandas would read, are none.
    """
    text = text.where(text.str.contains(r"\d"))
    iso = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=aware)
    if iso.notna().all():
        return [iso]
    formats: list[str] = []
    for example, day_first in product(text.iloc[[0, len(text) // 2]].dropna(), (False, True)):
        bare, half = HALF_DAY.subn("", example)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # pandas doubts the order that is only tried
            guess = pd.tseries.api.guess_datetime_format(bare, dayfirst=day_first)
        if guess and half:
            guess = guess.replace("%H", "%I") + " %p"
        if guess and guess not in formats and not YEAR_FIRST.match(guess):
            formats.append(guess)
    return [iso, *(pd.to_datetime(text, format=f, errors="coerce", utc=aware) for f in formats)]


def read_zone(offsets: pd.Series[Any], origin: Origin, name: str) -> str | None:
    """The one time zone that all times carry, None if none does."""
    codes, zones = pd.factorize(offsets)
    if (codes == -1).all():
        return None
    other = codes != codes[0]
    if other.any():
        at = int(other.argmax())
        first, second = ("no zone" if code == -1 else zones[code] for code in (codes[0], codes[at]))
        raise BadInput(
            f"{origin.cell(at, name)}: time zones are mixed ({first} in {origin.row(0)}, {second} here); "
            "write all times in one zone, for instance UTC"
        )
    zone = str(zones[0])
    return "UTC" if zone in ("Z", "UTC", "GMT") else zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"


def nanoseconds(dates: pd.Series[Any], origin: Origin) -> NDArray[np.int64]:
    """Dates as nanoseconds since 1970, in UTC where they have a zone."""
    if getattr(dates.dtype, "tz", None) is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    try:
        when = np.asarray(dates.dt.as_unit("ns").to_numpy("datetime64[ns]").astype(np.int64))
    except pd.errors.OutOfBoundsDatetime:
        when = np.array([LAST])
    if (when < FIRST).any() or (when >= LAST).any():
        where = f"{origin.name}, column '{dates.name}'"
        raise BadInput(f"{where}: times must lie between the years 1678 and 2261; correct them")
    return when


def zone_name(zone: Any) -> str:
    """A time zone as text that pandas understands."""
    text = str(zone)
    return text.removeprefix("UTC") if re.fullmatch(r"UTC[+-]\d\d:\d\d", text) else text


def wall_clock(when: NDArray[np.int64], zone: str) -> NDArray[np.int64]:
    """What the clocks of a zone show at times in UTC, both in nanoseconds."""
    local = pd.DatetimeIndex(when.view("datetime64[ns]")).tz_localize("UTC").tz_convert(zone).tz_localize(None)
    return np.asarray(local.to_numpy("datetime64[ns]").astype(np.int64))


def restore(times: NDArray[Any], grid: Grid) -> pd.Index[Any]:
    """Times of a series as the user gave them: dates in the time zone of the table, or whole numbers.

    A time that the clocks skip becomes the next one that they show; of two equal ones, the second is taken.
    """
    if grid.kind != "datetime":
        numbers: pd.Index[Any] = pd.Index(times, dtype=np.int64)
        return numbers
    index = pd.DatetimeIndex(times)
    if grid.wall and grid.zone:
        twice = np.zeros(len(index), dtype=bool)
        return pd.DatetimeIndex(index.tz_localize(grid.zone, ambiguous=twice, nonexistent="shift_forward"))
    return index if grid.zone is None else pd.DatetimeIndex(index.tz_localize("UTC").tz_convert(grid.zone))
