"""Whether a run is good: its error beside that of the simple forecasts, in a sentence, and what was judged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from conca.data.schema import Schema
from conca.estimators.evaluation import MOST, Evaluation
from conca.estimators.forecaster import Forecaster
from conca.report.dates import forecast_times, moment
from conca.report.page import Table, short
from conca.report.words import aligned, percent

__all__ = ["judged", "opening", "score_rows", "verdict"]

READING = (
    "Nothing was fitted on the rows held out. MAE and RMSE are errors of the median in the unit of the target, MASE is the MAE against "
    "that of repeating the last season, pinball is the loss of all quantiles: lower is better. Coverage is the share of values between "
    "the lowest and the highest quantile"
)
REFIT = (
    "After that a new model learned from all rows, for as many steps: it makes the forecasts of this run, and the chapters on what "
    "it remembers are about it. On the rows once held out it scores as below, which says how well it fits, not how well it forecasts:"
)
NOTHING = (
    "No rows were held out, or too few for a whole forecast of {steps}, so there is nothing to judge: give more rows, or a shorter "
    "horizon, and hold some rows out, to see scores, forecasts beside what came, residuals and calibration."
)
UNKEPT = "This run keeps no forecasts of the rows held out, so there are no pictures of them."
UNKNOWN = "Nothing is known of the rows held out, so there are no scores."
ALIKE = 0.01
"""Errors that differ by a smaller share are about the same."""
TARGETS = 4


def verdict(scores: pd.DataFrame, target: str = "") -> str:
    """The best forecast by MAE, and how far the model is from it or ahead; "" if there is no other.

    scores  of one target, the model first; the index names the forecasts
    target  its name, where there are several
    """
    errors = scores["MAE"].to_numpy(dtype=np.float64)
    if len(errors) < 2 or np.isnan(errors[0]) or np.isnan(errors[1:]).all():
        return ""
    place = 1 + int(np.nanargmin(errors[1:]))
    own, other, name = errors[0], errors[place], str(scores.index[place])
    about = f"{target}: " if target else ""
    said = aligned(errors.tolist())
    own_said, other_said = said[0], said[place]
    if abs(own - other) <= ALIKE * other:
        return f"{about}No better than a simple forecast: the model (MAE {own_said}) and {name} ({other_said}) are about equally good."
    if own < other:
        lower = percent(1 - own / other)
        behind = f"that of the best simple forecast, {name} ({other_said})"
        return f"{about}The model forecasts best: its MAE of {own_said} is {lower} below {behind}."
    higher = (
        f"the model's is {percent(own / other - 1)} higher ({own_said})" if other > 0 else f"the model's is {own_said}"
    )
    advice = "Take the simple forecast, or try more epochs (--epochs)."
    return f"{about}A simple forecast is best: {name}, with an MAE of {other_said}; {higher}. {advice}"


def judged(evaluation: Evaluation, schema: Schema) -> str:
    """Which rows were judged: how many forecasts are kept, of how many steps, and the first and the last time."""
    count, horizon, grid = len(evaluation.y), evaluation.y.shape[1], schema.grid
    line = f"{count:,} forecast{'s' * (count > 1)} of {horizon} step{'s' * (horizon > 1)}"
    series = len(np.unique(evaluation.series))
    line += f", of {series:,} series" if series > 1 else ""
    if schema.time is not None:
        ends = np.array([evaluation.cutoffs.min(), evaluation.cutoffs.max()])
        if grid.regular:
            times = forecast_times(ends, horizon, grid)
            ends = np.array([times[0, 0], times[1, -1]])
        first, last = (moment(int(when), grid) for when in ends)
        line += f", {'from' if grid.regular else 'made between'} {first} {'to' if grid.regular else 'and'} {last}"
    if count >= MOST:
        return f"Judged on rows held out; kept for the pictures are {line} (up to {MOST:,} are kept, evenly spaced)."
    return f"Judged on rows held out: {line}."


def score_rows(scores: pd.DataFrame, heading: str = "forecast") -> Table:
    """A table of scores, one row for each forecast; the heading stands above their names."""
    columns = [aligned(scores[name].tolist()) for name in scores.columns]
    rows = [[short(name), *row] for name, *row in zip(scores.index, *columns)]
    return Table([heading, *map(str, scores.columns)], rows)


def by_target(forecaster: Forecaster) -> list[tuple[str, pd.DataFrame]]:
    """Names of the targets of which something is known, where there are several, and the scores of each."""
    each = forecaster.target_scores_
    known = each.index.get_level_values(0) if len(each) else ()
    return [(name, pd.DataFrame(each.xs(name, level=0))) for name in forecaster.schema_.target if name in known]


def opening(forecaster: Forecaster) -> Iterator[str | Table]:
    """The verdict, what was judged, and the scores."""
    config, scores, found = forecaster.config, forecaster.scores_, forecaster.evaluation_
    if not len(scores):
        steps = f"{config.horizon} step{'s' * (config.horizon > 1)}"
        yield NOTHING.format(steps=steps) if found is None else UNKNOWN
    else:
        yield from sentences(forecaster)
        yield judged(found, forecaster.schema_) if found else UNKEPT
        yield score_rows(scores)
        spread = config.quantiles[-1] - config.quantiles[0]
        yield READING + (f"; {spread:.2g} is right." if spread else ".")
        yield from (score_rows(own, short(name)) for name, own in by_target(forecaster))
    if len(forecaster.refit_scores_):
        yield REFIT
        yield score_rows(forecaster.refit_scores_)


def sentences(forecaster: Forecaster) -> Iterator[str]:
    """The verdict on every target, of the first ones alone if there are many."""
    targets = by_target(forecaster)
    verdicts = [verdict(scores, short(name)) for name, scores in targets[:TARGETS]]
    yield from filter(None, verdicts if targets else [verdict(forecaster.scores_)])
    if len(targets) > TARGETS:
        yield f"The scores of the other {len(targets) - TARGETS} targets stand below."
