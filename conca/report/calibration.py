"""Whether quantiles are what they say: how often what came lay below each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conca.data.schema import Schema
from conca.estimators.evaluation import Evaluation
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, observed, svg_of, whole_steps
from conca.report.page import Chapter, Picture, Table, short
from conca.report.words import listing, number, percent

__all__ = ["Calibration", "calibration", "chapter", "coverage_by_step", "verdict"]

Floats = NDArray[np.float64]

TITLE = "Calibration"
READING = (
    "Of the values that came, a share of p should lie below the quantile p: on the diagonal the forecasts say rightly how unsure "
    "they are. Forecasts of neighbouring rows err together, so the bars are taken from whole blocks of them: where a bar (two "
    "standard errors, ± 2 s.e.) crosses the diagonal, the difference may be chance."
)
TARGETS = 4
BLOCKS = 20


@dataclass(frozen=True)
class Calibration:
    """Nominal against observed.

    levels    (Q,)
    observed  (Q,) share of known values that lie at or below the quantile
    error     (Q,) standard error of it, over blocks of neighbouring forecasts
    """

    levels: Floats
    observed: Floats
    error: Floats


def calibration(evaluation: Evaluation, levels: Sequence[float], target: int) -> Calibration:
    """Of one target, over all steps.

    The forecasts, ordered by series and time, are cut into 20 blocks, whose shares are spread by what forecasts have in common;
    of fewer than 40 forecasts each counts as one draw.
    """
    order = np.lexsort((evaluation.cutoffs, evaluation.series))
    y, q = evaluation.y[order][..., target], evaluation.quantiles[order][..., target, :]
    known = ~np.isnan(y)
    below = ((y[..., None] <= q) & known[..., None]).sum(1)
    count = known.sum(1)
    observed = below.sum(0) / max(int(count.sum()), 1)
    if len(y) >= 2 * BLOCKS:
        cuts = np.array_split(np.arange(len(y)), BLOCKS)
        totals, shares = np.array([count[c].sum() for c in cuts]), np.stack([below[c].sum(0) for c in cuts])
        apart = shares - observed * totals[:, None]
        error = np.sqrt((apart**2).sum(0) * BLOCKS / (BLOCKS - 1)) / max(int(totals.sum()), 1)
    else:
        p = np.asarray(levels)
        error = np.sqrt(p * (1 - p) / max(int((count > 0).sum()), 1))
    return Calibration(np.asarray(levels, dtype=np.float64), observed, error)


def coverage_by_step(evaluation: Evaluation, target: int) -> Floats:
    """Share of known values between the lowest and the highest quantile at each step, (H,), NaN where nothing is known."""
    y, q = evaluation.y[..., target], evaluation.quantiles[..., target, :]
    known = ~np.isnan(y)
    count = known.sum(0)
    inside = ((q[..., 0] <= y) & (y <= q[..., -1]) & known).sum(0)
    return np.where(count > 0, inside / np.maximum(count, 1), np.nan)


def chapter(evaluation: Evaluation, schema: Schema, levels: Sequence[float]) -> Chapter:
    """Reliability, a table of it, and coverage by step, for each target."""
    parts: list[str | Picture | Table] = [READING]
    for target, name in enumerate(schema.target[:TARGETS]):
        if np.isnan(evaluation.y[..., target]).all():
            continue
        found = calibration(evaluation, levels, target)
        parts += [reliability(found, short(name), f"calibration-{target}"), table(found)]
        if len(levels) > 1:
            held = coverage_by_step(evaluation, target)
            parts.append(coverage(held, levels[-1] - levels[0], short(name), f"coverage-{target}"))
    return Chapter(TITLE, parts if len(parts) > 1 else ("Nothing is known of the rows that were forecast.",))


def reliability(found: Calibration, target: str, name: str) -> Picture:
    """Observed over nominal, with bars of two standard errors."""
    figure, (axes,) = canvas()
    observed(axes, found.levels, found.observed, 2 * found.error)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    label(axes, "quantile", "share of values below it")
    key(axes)
    worst = int(np.abs(found.observed - found.levels).argmax())
    words = f"{target}: furthest from right is the quantile {found.levels[worst]:g}, below which {percent(found.observed[worst], 1)} "
    words += f"of the values lay (± {percent(2 * found.error[worst], 1)}). {verdict(found)}"
    return Picture(svg_of(figure, name), f"Calibration. {words}", words)


def verdict(found: Calibration) -> str:
    """In words: which quantiles are too low or too high, by more than two standard errors."""
    apart = found.observed - found.levels
    off = np.flatnonzero(np.abs(apart) > 2 * found.error)
    if not off.size:
        bars = f"All {len(apart)} bars cross" if len(apart) > 1 else "The bar crosses"
        return f"{bars} the diagonal: no sign of miscalibration."
    said = [f"{found.levels[i]:g} is too {'low' if apart[i] < 0 else 'high'}" for i in off]
    return f"Beyond chance, {listing(said)}."


def table(found: Calibration) -> Table:
    """The same in numbers."""
    rows = zip(found.levels, found.observed, found.error)
    return Table(
        ["quantile", "values below", "± 2 s.e."],
        [[f"{p:g}", percent(o, 1), f"± {percent(2 * e, 1)}"] for p, o, e in rows],
        words=0,
    )


def coverage(held: Floats, nominal: float, target: str, name: str) -> Picture:
    """Coverage of the widest interval by step."""
    figure, (axes,) = canvas(height=2.2)
    steps = np.arange(1, len(held) + 1)
    axes.axhline(nominal, color=SOFT, lw=1.0, ls="--", label=f"right: {percent(nominal)}")
    axes.plot(steps, held, "o-", color=COLOURS[0], ms=3, lw=1.4, label="observed")
    axes.set_ylim(min(0.5, float(np.nanmin(held)) - 0.05), 1.0)
    label(axes, "step ahead", "share in the interval")
    whole_steps(axes)
    key(axes)
    words = (
        f"{target}: the interval should hold {percent(nominal)}; it holds between {percent(np.nanmin(held), 1)} and "
    )
    words += f"{percent(np.nanmax(held), 1)} of the values, by step; {number(float(np.nanmean(held)), 3)} on average."
    return Picture(svg_of(figure, name), f"Coverage by step. {words}", words)
