"""What the median forecast missed: how it is spread, when it happens, and whether one miss foretells the next."""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import Grid, untick
from conca.data.schema import Schema
from conca.data.times import restore
from conca.estimators.evaluation import Evaluation
from conca.report.dates import along_axis, forecast_times, moment
from conca.report.drawing import COLOURS, INK, SOFT, canvas, dated, key, label, svg_of, whole_steps
from conca.report.page import Chapter, Picture, short
from conca.report.windows import middle_of
from conca.report.words import number, percent

__all__ = [
    "Autocorrelation",
    "autocorrelation",
    "by_cycle",
    "chapter",
    "cycle_of",
    "even_lags",
    "over_time",
    "residuals",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TITLE = "Residuals"
READING = (
    "A residual is what came less the median forecast: above 0 the forecast was too low. They should lie around 0 at all times and "
    "hours; what repeats is something that the model could still learn."
)
TARGETS = 2
LAGS, PAIRS, BINS = 48, 30, 40
DAY, WEEK = 86_400.0, 7 * 86_400.0
MONTHS = tuple(calendar.month_name)[1:]
WEEKDAYS = tuple(calendar.day_name)
SPARSE = "The forecasts kept in this run are too few, or not evenly spaced in time, for a picture of how one miss foretells the next."


def residuals(evaluation: Evaluation, levels: Sequence[float]) -> Floats:
    """What came less the median, (n, H, K), NaN where missing."""
    return np.asarray(evaluation.y - evaluation.quantiles[..., middle_of(levels)])


@dataclass(frozen=True)
class Autocorrelation:
    """Correlation of the residuals of one step with those of the forecasts some rows earlier.

    lags   (L,) rows between the two, those alone of which there are enough pairs
    value  (L,)
    bound  (L,) what independent residuals stay within at 95% of the lags: 1.96 / sqrt(pairs)
    """

    lags: Integers
    value: Floats
    bound: Floats


def autocorrelation(errors: Floats, series: Integers, rows: Integers, most: int = LAGS) -> Autocorrelation:
    """Of errors (n,) at rows (n,) of series (n,); series have means of their own, NaN is left out."""
    keep = ~np.isnan(errors)
    errors, series, rows = errors[keep], series[keep], rows[keep]
    errors = errors / (np.abs(errors).max(initial=0.0) or 1.0)
    centred = np.empty_like(errors)
    tables: dict[int, dict[int, float]] = {}
    for one in np.unique(series).tolist():
        here = series == one
        centred[here] = errors[here] - errors[here].mean()
        tables[one] = dict(zip(rows[here].tolist(), centred[here].tolist()))
    variance = float((centred**2).mean()) if len(centred) else 0.0
    lags, values, bounds = [], [], []
    for lag in range(1, most + 1):
        products = [e * table[row - lag] for table in tables.values() for row, e in table.items() if row - lag in table]
        if len(products) >= PAIRS and variance > 0:
            lags.append(lag)
            values.append(float(np.mean(products)) / variance)
            bounds.append(1.96 / len(products) ** 0.5)
    return Autocorrelation(np.array(lags, np.int64), np.array(values), np.array(bounds))


def even_lags(found: Autocorrelation) -> Autocorrelation | None:
    """Those lags that follow each other without a gap: 1, 2, 3, ... or, of cutoffs that are k rows apart, k, 2k, 3k, ...

    None if fewer than three do, as where every fourth or fifth row was kept: a picture of lags 4, 5, 8, 9 would mislead.
    """
    if not len(found.lags):
        return None
    apart = found.lags[0]
    even = int(np.cumprod(found.lags == apart * np.arange(1, len(found.lags) + 1)).sum())
    if even < 3:
        return None
    return Autocorrelation(found.lags[:even], found.value[:even], found.bound[:even])


def row_numbers(evaluation: Evaluation, grid: Grid) -> Integers:
    """Rows (n,) of the cutoffs, counted from the earliest."""
    when = untick(evaluation.cutoffs, grid.kind)
    return grid.positions(when, when.min())[0]


def over_time(errors: Floats, when: Integers, bins: int = BINS) -> tuple[Floats, Floats]:
    """Quantiles 0.1, 0.5, 0.9 (bins, 3) of errors (n,) over equal spans of time, and the middles (bins,) of these."""
    keep = ~np.isnan(errors)
    errors, place = errors[keep], when[keep].astype(np.float64)
    edges = np.linspace(place.min(), place.max(), bins + 1)
    bin_of = np.clip(np.searchsorted(edges, place, side="right") - 1, 0, bins - 1)
    found = np.full((bins, 3), np.nan)
    for one in np.unique(bin_of):
        found[one] = np.quantile(errors[bin_of == one], (0.1, 0.5, 0.9))
    return found, (edges[1:] + edges[:-1]) / 2


def cycle_of(grid: Grid) -> str | None:
    """The cycle that residuals are sorted by: "hour", "weekday" or "month"; None without dates."""
    if grid.seconds is None:
        return None
    if grid.months:
        return "month" if grid.months < 12 else None
    seconds = grid.seconds
    return (
        "hour"
        if seconds <= DAY / 4
        else "weekday"
        if seconds <= WEEK / 3.5
        else "month"
        if seconds <= 32 * DAY
        else None
    )


def by_cycle(errors: Floats, times: Integers, grid: Grid, cycle: str) -> tuple[Integers, Floats, Floats]:
    """Places in the cycle (P,), mean and mean absolute residual (P,) there, by the clock of the table; errors and times (N,)."""
    keep = ~np.isnan(errors)
    clock = restore(untick(times[keep], grid.kind), grid)
    assert isinstance(clock, pd.DatetimeIndex)
    places = np.asarray(getattr(clock, {"weekday": "day_of_week"}.get(cycle, cycle)), dtype=np.int64)
    found, inverse = np.unique(places, return_inverse=True)
    count = np.bincount(inverse)
    mean, size = (np.bincount(inverse, weights=w) / count for w in (errors[keep], np.abs(errors[keep])))
    return found, mean, size


def chapter(evaluation: Evaluation, schema: Schema, levels: Sequence[float]) -> Chapter:
    """Pictures for the first targets."""
    errors = residuals(evaluation, levels)
    parts: list[str | Picture] = []
    for target, name in enumerate(schema.target[:TARGETS]):
        own = errors[..., target]
        if not np.isnan(own).all():
            parts += pictures(own, evaluation, schema, short(name), target)
    if not parts:
        return Chapter(TITLE, ("Nothing is known of the rows that were forecast.",))
    return Chapter(TITLE, (READING, *parts))


def pictures(errors: Floats, evaluation: Evaluation, schema: Schema, target: str, turn: int) -> list[str | Picture]:
    """Of the residuals (n, H) of one target."""
    grid = schema.grid
    found: list[str | Picture] = [histogram(errors[~np.isnan(errors)], target, f"spread-{turn}")]
    known = ~np.isnan(errors[:, 0])
    if grid.kind != "row" and len(np.unique(evaluation.cutoffs[known])) >= 10:
        found.append(timeline(errors[:, 0], evaluation.cutoffs, schema, target, f"time-{turn}"))
    if grid.regular:
        lagged = autocorrelation(errors[:, 0], evaluation.series, row_numbers(evaluation, grid))
        even = even_lags(lagged)
        found.append(correlogram(even, target, f"lags-{turn}") if even else SPARSE)
    if cycle := cycle_of(grid):
        times = forecast_times(evaluation.cutoffs, errors.shape[1], grid)
        found.append(season(*by_cycle(errors.ravel(), times.ravel(), grid, cycle), cycle, target, f"cycle-{turn}"))
    return found


def histogram(errors: Floats, target: str, name: str) -> Picture:
    """How the residuals (N,) are spread; the outermost hundredths stand in the outermost bars."""
    figure, (axes,) = canvas()
    low, high = np.quantile(errors, (0.005, 0.995))
    mean, middle, top = float(errors.mean()), float(np.median(errors)), float(np.abs(errors).max()) or 1.0
    deviation = float((errors / top).std()) * top
    apart = high - low > 1e-9 * top
    edges = np.linspace(low, high, 61) if apart else np.array([low - 0.01 * top, low + 0.01 * top])
    axes.hist(np.clip(errors, low, high), bins=edges.tolist(), color=COLOURS[0], alpha=0.75, density=True)
    axes.axvline(0, color=SOFT, lw=0.8, ls=":")
    axes.axvline(mean, color=COLOURS[1], lw=1.2, label=f"mean {number(mean, 3)}")
    axes.axvline(middle, color=INK, lw=1.2, ls="--", label=f"median {number(middle, 3)}")
    axes.xaxis.set_major_formatter("{x:g}")
    label(axes, "what came less the median forecast", "density")
    key(axes)
    words = f"{target}: residuals of all steps; mean {number(mean, 3)}, median {number(middle, 3)}, "
    words += f"standard deviation {number(deviation, 3)}; 99% lie between {number(low, 3)} and {number(high, 3)}, "
    words += "the others stand in the outermost bars."
    return Picture(svg_of(figure, name), f"Histogram of residuals. {words}", words)


def timeline(errors: Floats, when: Integers, schema: Schema, target: str, name: str) -> Picture:
    """Residuals of step 1 over time."""
    bands, middles = over_time(errors, when, max(5, min(BINS, int((~np.isnan(errors)).sum()) // 10)))
    full = ~np.isnan(bands[:, 1])
    figure, (axes,) = canvas()
    dates = schema.grid.kind == "datetime"
    x = along_axis(middles.astype(np.int64), schema.grid)[full] if dates else middles[full]
    axes.fill_between(x, bands[full, 0], bands[full, 2], color=COLOURS[0], alpha=0.22, lw=0, label="0.1 to 0.9")
    axes.plot(x, bands[full, 1], color=COLOURS[0], lw=1.4, label="median")
    axes.axhline(0, color=SOFT, lw=0.8, ls=":")
    label(axes, "time of the last known row", "residual at step 1")
    key(axes)
    if dates:
        dated(axes)
    worst = int(np.nanargmax(np.abs(bands[:, 1])))
    days = np.ptp(middles) / 8.64e13 if dates else 0.0
    words = f"{target}: residuals of step 1 over time; their median strays furthest from 0, to {number(bands[worst, 1], 3)}, "
    words += f"around {moment(int(middles[worst]), schema.grid)[: 10 if days > 20 else None]}."
    return Picture(svg_of(figure, name), f"Residuals over time. {words}", words)


def correlogram(found: Autocorrelation, target: str, name: str) -> Picture:
    """Autocorrelation by lag."""
    figure, (axes,) = canvas()
    axes.fill_between(found.lags, -found.bound, found.bound, color=SOFT, alpha=0.18, lw=0, label="chance, 95%")
    axes.vlines(found.lags, 0, found.value, color=COLOURS[0], lw=1.6, label="residuals of step 1")
    axes.plot(found.lags, found.value, "o", color=COLOURS[0], ms=2.5)
    axes.axhline(0, color=SOFT, lw=0.8)
    label(axes, "rows between two forecasts", "correlation")
    whole_steps(axes)
    key(axes)
    outside = float((np.abs(found.value) > found.bound).mean())
    words = f"{target}: correlation of the residuals of step 1, {number(found.value[0], 2)} at a distance of {found.lags[0]} row"
    words += (
        f"{'s' * bool(found.lags[0] > 1)}; {percent(outside)} of the {len(found.lags)} lags lie outside the grey band, "
    )
    words += "where 5% would by chance."
    return Picture(svg_of(figure, name), f"Autocorrelation. {words}", words)


def when_in_words(cycle: str, place: int) -> str:
    """A place in a cycle: "on Wednesdays", "in May", "at 13:00"."""
    if cycle == "weekday":
        return f"on {WEEKDAYS[place]}s"
    return f"in {MONTHS[place - 1]}" if cycle == "month" else f"at {place}:00"


def season(places: Integers, mean: Floats, size: Floats, cycle: str, target: str, name: str) -> Picture:
    """Mean and mean absolute residual by hour, weekday or month."""
    figure, (axes,) = canvas()
    axes.bar(places, size, color=COLOURS[0], alpha=0.3, label="mean absolute residual")
    axes.plot(places, mean, "o-", color=COLOURS[1], ms=3, lw=1.3, label="mean residual")
    axes.axhline(0, color=SOFT, lw=0.8)
    names = {"weekday": WEEKDAYS, "month": ("", *MONTHS)}.get(cycle)
    if names:
        axes.set_xticks(places, [names[p][:3] for p in places])
    else:
        axes.set_xticks(np.arange(0, 24, 3))
    label(axes, f"{cycle} that was forecast", "residual")
    key(axes)
    low, high = int(size.argmin()), int(size.argmax())
    easy, hard = (when_in_words(cycle, int(places[i])) for i in (low, high))
    words = f"{target}, all steps: the error is largest {hard} ({number(size[high], 3)}) and smallest {easy} "
    words += (
        f"({number(size[low], 3)}); the mean residual lies between {number(mean.min(), 3)} and {number(mean.max(), 3)}."
    )
    return Picture(svg_of(figure, name), f"Residuals by {cycle}. {words}", words)
