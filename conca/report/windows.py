"""Forecasts beside what came: which ones to look at, and their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.grid import Grid
from conca.data.schema import Schema
from conca.estimators.evaluation import Evaluation
from conca.report.dates import along_axis, forecast_times, moment, past_times
from conca.report.drawing import COLOURS, INK, SOFT, canvas, dated, key, label, svg_of
from conca.report.page import Chapter, Picture, short
from conca.report.words import number, percent

__all__ = ["Window", "chapter", "choose", "middle_of", "series_name", "window_errors"]

Floats = NDArray[np.float64]

TITLE = "Forecasts beside what came"
READING = (
    "Each picture is one forecast from a row that was held out: the past that was known, the median forecast and the band between "
    "the lowest and the highest quantile, and what came. Best, median and worst are ranked by the mean error of the window, as a "
    "multiple of the mean error of its series; the others are evenly spaced."
)
TARGETS = 4
SECOND = 1_000_000_000
"""Targets that have pictures, at most."""


@dataclass(frozen=True)
class Window:
    """A forecast to look at: its place in the evaluation, why it was chosen, and its target."""

    place: int
    why: str
    target: int


def middle_of(levels: Sequence[float]) -> int:
    """Which quantile is the forecast that errors are measured of."""
    return min(range(len(levels)), key=lambda i: abs(levels[i] - 0.5))


def window_errors(evaluation: Evaluation, levels: Sequence[float]) -> Floats:
    """Mean absolute error (n, K) of each forecast over its steps, NaN where nothing is known."""
    missing = np.abs(evaluation.y - evaluation.quantiles[..., middle_of(levels)])
    known = ~np.isnan(missing)
    count = known.sum(1)
    total = np.where(known, missing, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def relative(errors: Floats, series: NDArray[np.int64]) -> Floats:
    """Errors (n,) as multiples of the mean error of their series; 1 in a series without any error."""
    result = np.full(len(errors), np.nan)
    for one in np.unique(series):
        here = series == one
        known = errors[here][~np.isnan(errors[here])]
        mean = known.mean() if known.size else np.nan
        result[here] = errors[here] / mean if mean > 0 else np.where(np.isnan(errors[here]), np.nan, 1.0)
    return result


def choose(evaluation: Evaluation, levels: Sequence[float], even: int = 3) -> list[Window]:
    """Best, median and worst forecast of each target, and of the first target `even` more, evenly spaced.

    Forecasts of which less than half of what came is known are left out, if there are others.
    """
    errors, share = window_errors(evaluation, levels), (~np.isnan(evaluation.y)).mean(1)
    enough = share >= 0.5
    errors = np.where(enough | ~enough.any(0), errors, np.nan)
    chosen: list[Window] = []
    for target in range(min(errors.shape[1], TARGETS)):
        rank = relative(errors[:, target], evaluation.series)
        order = np.argsort(rank, kind="stable")[: int((~np.isnan(rank)).sum())]
        if not order.size:
            continue
        places = {"best": order[0], "median": order[(len(order) - 1) // 2], "worst": order[-1]}
        taken = set()
        for why, place in places.items():
            if place not in taken:
                chosen.append(Window(int(place), why if len(order) > 1 else "the only one", target))
                taken.add(place)
        if target == 0:
            known = np.flatnonzero(~np.isnan(rank))
            spaced = known[np.linspace(0, len(known) - 1, even + 2).astype(int)[1:-1]]
            chosen += [Window(int(p), "evenly spaced", 0) for p in np.unique(spaced) if p not in taken]
    return chosen


def series_name(evaluation: Evaluation, place: int) -> str:
    """The series of a forecast in words, "" where the table is one series."""
    return ", ".join(map(str, evaluation.keys[evaluation.series[place]]))


def chapter(evaluation: Evaluation, schema: Schema, levels: Sequence[float]) -> Chapter:
    """The chosen forecasts, drawn."""
    errors = window_errors(evaluation, levels)
    parts = list(pictures(evaluation, schema, levels, errors))
    return Chapter(TITLE, (READING, *parts) if parts else ("Nothing is known of the rows that were forecast.",))


def pictures(evaluation: Evaluation, schema: Schema, levels: Sequence[float], errors: Floats) -> Iterator[Picture]:
    """One for each chosen forecast."""
    for turn, window in enumerate(choose(evaluation, levels)):
        place, target = window.place, window.target
        names = [short(schema.target[target])] if len(schema.target) > 1 else []
        names += [f"series {short(name)}"] if (name := series_name(evaluation, place)) else []
        where = "; ".join([*names, f"from {moment(int(evaluation.cutoffs[place]), schema.grid)}"])
        y, q = evaluation.y[place, :, target], evaluation.quantiles[place, :, target]
        known = ~np.isnan(y)
        held = ((q[:, 0] <= y) & (y <= q[:, -1]))[known].mean()
        usual = np.nanmean(errors[evaluation.series == evaluation.series[place], target])
        ratio = errors[place, target] / usual if usual > 0 else np.nan
        words = f"{window.why}: {where}. Mean absolute error {number(errors[place, target])}"
        words += f", {number(ratio, 2)} times that of its series" if np.isfinite(ratio) else ""
        words += f"; the band holds {percent(held)} of what came." if len(levels) > 1 else "."
        past = evaluation.past[place, :, target]
        drawn = draw(past, y, q, levels, int(evaluation.cutoffs[place]), schema.grid, f"window-{turn}")
        middle = q[:, middle_of(levels)]
        ends = f"The median goes from {number(middle[0])} to {number(middle[-1])}. "
        yield Picture(drawn, f"Forecast beside what came. {ends}{words}", words[0].upper() + words[1:])


def draw(past: Floats, y: Floats, q: Floats, levels: Sequence[float], cutoff: int, grid: Grid, name: str) -> str:
    """Past (P,), truth (H,) and quantiles (H, Q) by their dates, or over the steps from the cutoff where these are not known."""
    figure, (axes,) = canvas()
    past = past[int(np.argmax(~np.isnan(past))) :]  # rows before the table began have no dates
    mark = "o" if len(y) == 1 else None
    dates = grid.kind == "datetime" and grid.regular and grid.step >= SECOND
    before: NDArray[Any] = np.arange(1 - len(past), 1)
    ahead: NDArray[Any] = np.arange(1, len(y) + 1)
    if dates:
        before = along_axis(past_times(cutoff, len(past), grid), grid)
        ahead = along_axis(forecast_times(np.array([cutoff]), len(y), grid)[0], grid)
        dated(axes)
    axes.axvline(before[-1] + (ahead[0] - before[-1]) / 2, color=SOFT, lw=0.8, ls=":")
    axes.plot(before, past, color=SOFT, lw=1.0, label="past", marker="." if len(past) < 4 else None)
    axes.plot(ahead, y, color=INK, lw=1.3, label="what came", marker=mark, ms=4)
    axes.plot(ahead, q[:, middle_of(levels)], color=COLOURS[0], lw=1.6, label="median", marker=mark, ms=4)
    if len(levels) > 1:
        band = f"{levels[0]:g} to {levels[-1]:g}"
        if len(y) == 1:
            axes.vlines(ahead, q[:, 0], q[:, -1], color=COLOURS[0], alpha=0.4, lw=4, label=band)
        else:
            axes.fill_between(ahead, q[:, 0], q[:, -1], color=COLOURS[0], alpha=0.22, lw=0, label=band)
    step = "" if grid.describe() == "1 step" else f" of {grid.describe()}"
    label(axes, "" if dates else f"steps{step} after the last known row", "")
    key(axes, 4)
    return svg_of(figure, name)
