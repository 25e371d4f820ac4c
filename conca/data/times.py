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
from conca.data.grid import DAY, FIRST, LAST, Grid
from conca.data.table import Origin
from conca.types import BadInput

__all__ = ["Times", "read_times", "restore"]

OFFSET = re.compile(r"(?:T|:|\d )\d\d(?:[.,]\d+)?\s?(Z|[+-]\d\d:?\d\d|UTC|GMT)$")

HALF_DAY = re.compile(r"\s[AP]M$", re.IGNORECASE)
ISO = "ISO8601"
EIGHT_DIGITS = "%Y%m%d"
YEAR_FIRST = re.compile(r"%Y\W?%d")
"""Nobody writes year, day, month; a date that reads so is a fault."""


@dataclass(frozen=True)
class Times:
    """Times of all rows: `when` (N,) as integers (nanoseconds, in UTC where the `zone` is known), and their kind.

    format  as in `Schema`
    """

    when: NDArray[np.int64]
    kind: str
    zone: str | None = None
    notice: str | None = None
    format: str | None = None


def read_times(
    column: pd.Series[Any], origin: Origin, format: str | None = None, zone: str | None = None, whole: bool = False
) -> Times:
    """The times in a column: text (ISO 8601, or one other format throughout), dates of pandas, or whole numbers.

    format  that of an earlier table, tried first
    zone    that in which times with a zone are wanted; then their zones may differ
    whole   numbers are not dates; else whole numbers of eight digits that are all dates (20100131) are read as such,
            with a notice

    Raises BadInput on a missing or unreadable time, mixed time zones, dates that could be day first or month first, and
    dates beyond the years 1678 to 2261.
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
        own = getattr(column.dtype, "tz", None)
        named = None if own is None else zone or zone_name(own)
        return Times(nanoseconds(column, origin), "datetime", named, format=ISO)
    if text is not None and 2 * pd.to_numeric(text, errors="coerce").notna().mean() < 1:
        return read_dates(text, origin, format, zone)
    return read_whole(column, origin, whole)


def is_dates(column: pd.Series[Any]) -> bool:
    """Whether pandas already holds the column as dates."""
    return bool(pd.api.types.is_datetime64_any_dtype(column))


def read_whole(column: pd.Series[Any], origin: Origin, whole: bool) -> Times:
    """Times that are whole numbers, or dates of eight digits unless they must be `whole`."""
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
    if not whole and when.min() >= 19_000_101 and when.max() <= 21_001_231:
        dates = pd.to_datetime(pd.Series(when, name=name).astype(str), format=EIGHT_DIGITS, errors="coerce")
        if dates.notna().all():
            notice = f"column '{name}': whole numbers such as {when[0]} are read as dates"
            return Times(nanoseconds(dates, origin), "datetime", None, notice, EIGHT_DIGITS)
    return Times(when, "integer")


def read_dates(text: pd.Series[str], origin: Origin, format: str | None, zone: str | None) -> Times:
    """Times that are text."""
    name = str(text.name)
    offsets = text.str.extract(OFFSET, expand=False)
    own = read_zone(offsets, origin, name, mixed=zone is not None)
    named = own if own is None or zone is None else zone
    found = candidates(text, own is not None, format)
    whole = {form: dates for form, dates in found.items() if dates.notna().all()}
    if not whole:
        best = min(found.values(), key=lambda dates: int(dates.isna().sum()))
        at = int(best.isna().to_numpy().argmax())
        raise BadInput(f"{origin.cell(at, name)}: '{shown(text.iloc[at])}' is not a time; write it as 2010-01-31 23:00")
    form, dates = next(iter(whole.items()))
    if any(not other.equals(dates) for other in whole.values()):
        raise BadInput(
            f"{origin.cell(0, name)}: '{shown(text.iloc[0])}' can be day first or month first; write it as 2010-01-31 23:00"
        )
    return Times(nanoseconds(dates, origin), "datetime", named, format=form if len(whole) == 1 else None)


def candidates(text: pd.Series[str], aware: bool, format: str | None) -> dict[str, pd.Series[Any]]:
    """The readings of a text column as dates, by format.

    The one known already, if it reads all; else ISO 8601, if it reads all; else all these, and the formats guessed from
    the first and the middle row. Words such as "now" and "today", which pandas would read, are none.
    """
    text = text.where(text.str.contains(r"\d"))
    found: dict[str, pd.Series[Any]] = {}
    for form in dict.fromkeys([format or ISO, ISO]):
        found[form] = pd.to_datetime(text, format=form, errors="coerce", utc=aware)
        if found[form].notna().all():
            return {form: found[form]}
    for example, day_first in product(text.iloc[[0, len(text) // 2]].dropna(), (False, True)):
        bare, half = HALF_DAY.subn("", example)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # pandas doubts the order that is only tried
            guess = pd.tseries.api.guess_datetime_format(bare, dayfirst=day_first)
        if guess and half:
            guess = guess.replace("%H", "%I") + " %p"
        if guess and guess not in found and not YEAR_FIRST.match(guess):
            found[guess] = pd.to_datetime(text, format=guess, errors="coerce", utc=aware)
    return found


def read_zone(offsets: pd.Series[Any], origin: Origin, name: str, mixed: bool) -> str | None:
    """The one time zone that all times carry, None if none does; `mixed`: the first of several."""
    codes, zones = pd.factorize(offsets)
    if (codes == -1).all():
        return None
    other = (codes == -1) != (codes[0] == -1) if mixed else codes != codes[0]
    if other.any():
        at = int(other.argmax())
        first, second = ("no zone" if code == -1 else zones[code] for code in (codes[0], codes[at]))
        raise BadInput(
            f"{origin.cell(at, name)}: time zones are mixed ({first} in {origin.row(0)}, {second} here); "
            "write all times in one zone, for instance UTC, or name the zone that is meant (tz, --tz)"
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
        years = dates.dt.year.to_numpy()
        when = np.where((years >= 1678) & (years < 2262), 0, LAST)
    beyond = (when < FIRST) | (when >= LAST)
    if beyond.any():
        where = origin.cell(int(beyond.argmax()), str(dates.name))
        raise BadInput(f"{where}: times must lie between the years 1678 and 2261; correct them")
    return when


def zone_name(zone: Any) -> str:
    """A time zone as text that pandas understands."""
    text = str(zone)
    return text.removeprefix("UTC") if re.fullmatch(r"UTC[+-]\d\d:\d\d", text) else text


def wall_clock(when: NDArray[np.int64], zone: str) -> NDArray[np.int64]:
    """What the clocks of a zone show at times in UTC, both in nanoseconds.

    A moment at which the clocks are put forward shows two times. Where the earlier one is the time of day of most rows,
    it is taken: midnights stay midnights, also where the clocks skip one.
    """
    local, before = clocks_at(when, zone), clocks_at(when - 1, zone) + 1
    forward = before < local
    if forward.any():
        of_day, counts = np.unique(local % DAY, return_counts=True)
        usual = of_day[counts.argmax()]
        return np.where(forward & (local % DAY != usual) & (before % DAY == usual), before, local)
    return local


def clocks_at(when: NDArray[np.int64], zone: str) -> NDArray[np.int64]:
    """What the clocks of a zone show, as numbers alone."""
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
