"""Clock times of a zone become moments: the hour that autumn repeats, and the one that spring skips."""

from __future__ import annotations

import re
from collections.abc import Mapping
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.types import BadInput, nearest

__all__ = ["check_zone", "localised", "moment_after", "moments"]

Integers = NDArray[np.int64]

FIXED = re.compile(r"[+-]\d\d:\d\d")
SKIPPED = np.iinfo(np.int64).min
"""What stands for the moment of a clock time that there is not."""


def check_zone(tz: str) -> str:
    """The name of a time zone ("Europe/Rome", "UTC", "+02:00"). Raises BadInput if there is none of this name."""
    if isinstance(tz, str) and FIXED.fullmatch(tz) and tz[1:3] < "24" and tz[4:] < "60":
        return tz
    try:
        ZoneInfo(tz)
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(f"tz: there is no time zone '{tz}'; {nearest_zone(str(tz))}") from None
    return tz


def nearest_zone(word: str) -> str:
    """What to add to an error about an unknown time zone: the city of this name, or the nearest zone."""
    zones = sorted(available_timezones())
    cities = [zone for zone in zones if zone.lower().endswith("/" + word.lower().replace(" ", "_"))]
    hint = nearest(word, cities or zones)
    return "write it as Europe/Rome or UTC" if hint.startswith("known") else hint


def moments(local: Integers, zone: str) -> tuple[Integers, Integers]:
    """The first and the last moment at which the clocks of a zone show times, all (N,) in nanoseconds, moments in UTC.

    They differ where the clocks show a time twice, and are `SKIPPED` where they never do.
    """
    index = pd.DatetimeIndex(local.view("datetime64[ns]"))
    found = []
    for first in (True, False):
        which = np.full(len(index), first)
        aware = index.tz_localize(zone, ambiguous=which, nonexistent="NaT").tz_convert("UTC").tz_localize(None)
        found.append(np.asarray(aware.to_numpy("datetime64[ns]").astype(np.int64)))
    return found[0], found[1]


def localised(
    local: Integers, codes: Integers, zone: str, step: int | None = None, before: Mapping[int, int] | None = None
) -> Integers:
    """Moments (N,) in UTC of the clock times of the rows of a table, N; codes (N,) number their series.

    Of a time that the clocks show twice, the first row of a series (in the order of the table, or from its end if the
    series has its latest row first) is the first moment, the next one the second. If there is only one such row, it is
    the moment that goes on from the row before it, or, at the beginning of a series, up to the row after it: a whole
    number of steps away, the first moment if both are. So of an hour that lacks once, the second one lacks. What the
    clocks never show is `SKIPPED`.

    step    nanoseconds; None: the most common distance, if a quarter of the rows has it
    before  the moment before the first row of a series, by its number, where it is known
    """
    first, second = moments(local, zone)
    result = first.copy()
    if (first == second).all():
        return result
    order = reading_order(first, second, codes)
    starts = np.concatenate([[True], np.diff(codes[order]) != 0])
    if step is None:
        step = usual_step(np.diff(local[order])[~starts[1:]])
    result[order] = chosen(first[order], second[order], codes[order], starts, step, before or {})
    return result


def reading_order(first: Integers, second: Integers, codes: Integers) -> Integers:
    """The rows of the table series by series, from its end where a series surely has its latest row first."""
    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.concatenate([[True], np.diff(codes[order]) != 0]))
    ends = np.append(begins[1:], len(order)) - 1
    backwards = first[order[begins]] > second[order[ends]]
    place = np.arange(len(order))
    series = np.repeat(np.arange(len(begins)), ends - begins + 1)
    mirrored = begins[series] + ends[series] - place
    return np.asarray(order[np.where(backwards[series], mirrored, place)])


def usual_step(gaps: Integers) -> int:
    """The most common distance, 1 if fewer than a quarter of the rows have it."""
    sizes, counts = np.unique(gaps[gaps > 0], return_counts=True)
    if not sizes.size or counts.max() * 4 < counts.sum():
        return 1
    return int(sizes[counts.argmax()])


def chosen(
    first: Integers,
    second: Integers,
    codes: Integers,
    starts: NDArray[np.bool_],
    step: int,
    before: Mapping[int, int],
) -> Integers:
    """One moment for each row in reading order, as `localised` says."""
    result = first.copy()
    double = np.flatnonzero(first != second)
    same = pd.DataFrame({"series": codes[double], "first": first[double]}).groupby(["series", "first"])["first"]
    again, single = same.cumcount().to_numpy() > 0, same.transform("size").to_numpy() == 1
    result[double[again]] = second[double[again]]
    opening: list[int] = []
    for at in double[single].tolist():
        earlier = before.get(int(codes[at]), SKIPPED) if starts[at] else SKIPPED
        if SKIPPED < earlier < second[at]:
            result[at] = going_on(int(first[at]), int(second[at]), earlier, step)
        elif starts[at] or (opening and opening[-1] == at - 1 and first[at] > first[at - 1]):
            opening.append(at)
        else:
            result[at] = going_on(int(first[at]), int(second[at]), int(result[at - 1]), step)
    for at in reversed(opening):
        if at + 1 < len(result) and not starts[at + 1]:
            result[at] = leading_to(int(first[at]), int(second[at]), int(result[at + 1]), step)
    return result


def going_on(first: int, second: int, before: int, step: int) -> int:
    """The moment that goes on from the one `before`."""
    later = [moment for moment in (first, second) if moment > before]
    fitting = [moment for moment in later if (moment - before) % step == 0]
    return (fitting or later or [first])[0]


def leading_to(first: int, second: int, after: int, step: int) -> int:
    """The moment that leads up to the one `after`."""
    earlier = [moment for moment in (second, first) if moment < after]
    fitting = [moment for moment in earlier if (after - moment) % step == 0]
    return (fitting or earlier or [first])[0]


def moment_after(local: int, zone: str, before: int | None = None, step: int = 1) -> int | None:
    """The moment of one clock time, in nanoseconds, of a row that follows one at the moment `before`.

    None if the clocks never show it.
    """
    first, second = (int(found[0]) for found in moments(np.array([local], dtype=np.int64), zone))
    if first == SKIPPED:
        return None
    return first if before is None else going_on(first, second, before, step)
