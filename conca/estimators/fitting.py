"""A fit as a whole: a training that is judged on rows held out, and a last one that learns from all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.encoding import named
from conca.data.grid import ticks
from conca.data.panel import Panel, Schema, Series
from conca.data.split import cutoffs
from conca.data.times import restore
from conca.estimators.config import ForecastConfig
from conca.estimators.evaluation import Evaluation
from conca.estimators.holdout import Plan, everything
from conca.estimators.runs import Run
from conca.estimators.scores import MODEL, Trial, score_table
from conca.estimators.simple import SimpleForecasts
from conca.estimators.training import Learnt, learn
from conca.infer.fitted import Fitted
from conca.infer.forecast import forecast
from conca.infer.frame import Ends

__all__ = ["Unseen", "fit_run", "judged", "trial_of", "unseen", "verdict"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def fit_run(
    config: ForecastConfig, panel: Panel, plan: Plan, folder: Path, *, progress: bool, resume: bool, refit: bool
) -> tuple[Run, list[str]]:
    """Fit, judge, and fit again on all rows; what comes out, and what the user should know.

    Where minutes are limited and there are two trainings, the first has half of them: the last one repeats its steps.
    """
    minutes = None if config.max_minutes is None else config.max_minutes / (1 + refit)
    first = learnt = learn(config, panel, plan.splits, folder, progress=progress, resume=resume, minutes=minutes)
    trial = trial_of(config, learnt, plan)
    again, simple, known = pd.DataFrame(), trial.simple, [split.validation for split in plan.splits]
    seen: Trial | None = None
    if refit:
        whole = everything(panel.series)
        learnt = learn(config, panel, whole, folder / "refit", progress=progress, resume=resume, after=first)
        seen = trial_of(config, learnt, Plan(whole, plan.cutoffs))
        again, simple, known = score_table([seen]).head(1), seen.simple, [len(s) for s in panel.series]
    several = panel.schema.target if len(panel.schema.target) > 1 else ()
    ends = Ends.of(panel.series, latest(config, learnt), known)
    run = Run(
        config,
        Fitted(learnt.schema, learnt.encoding, learnt.network, ends, config.length),
        simple,
        scores=score_table([trial]),
        target_scores=score_table([trial], several) if several else pd.DataFrame(),
        refit_scores=again,
        evaluation=Evaluation.of([trial], seen),
        history=pd.DataFrame(first.trained.history),
    )
    return run, [*first.panel.notices, *unused(learnt), *words_about(panel, plan, run.scores, config.horizon)]


def unused(learnt: Learnt) -> list[str]:
    """What a structural forecaster leaves aside, though it is in the table."""
    schema = learnt.schema
    if learnt.network.config.structure is None:
        return []
    lines = []
    idle = [name for name in (*schema.numeric, *schema.categorical) if name not in schema.known]
    if idle:
        lines.append(f"not used: {', '.join(idle)}; 'kalman' uses covariates that are known in advance (known) alone")
    if not learnt.network.config.structure.turns:
        lines.append("no seasons: 'kalman' finds them by the calendar, and this table has no times, or too few")
    return lines


def words_about(panel: Panel, plan: Plan, scores: pd.DataFrame, horizon: int) -> list[str]:
    """What the user should know of the rows held out, and of what came of them."""
    if len(scores):
        return [judged(panel.schema, panel.series, plan.cutoffs, horizon), *verdict(scores)]
    if all(split.validation == split.total for split in plan.splits):
        return []
    line = f"the rows held out hold no whole forecast of {horizon} steps, so there are no scores"
    return [f"{line}; a shorter horizon, or a larger share held out (test_fraction), gives some"]


def verdict(scores: pd.DataFrame) -> list[str]:
    """A line where a simple forecast is better than the model."""
    mae = scores["MAE"]
    best = str(mae.idxmin())
    if best == MODEL:
        return []
    higher = f"{mae[MODEL] / mae[best] - 1:.0%} higher" if mae[best] > 0 else f"{mae[MODEL]:.2g}"
    return [f"the lowest MAE here is that of '{best}' ({mae[best]:.4g}); the model's is {higher}"]


def latest(config: ForecastConfig, learnt: Learnt) -> list[Floats]:
    """The forecast (H, K, Q) from the end of each series; NaN where the future must be known for it."""
    if learnt.schema.known:
        empty = (config.horizon, len(learnt.schema.target), len(config.quantiles))
        return [np.full(empty, np.nan) for _ in learnt.encoded]
    last = [np.array([len(rows) - 1]) for rows in learnt.encoded]
    return [q[0] for q in forecast(learnt.network, learnt.encoded, last, context=config.length)]


def trial_of(config: ForecastConfig, learnt: Learnt, plan: Plan) -> Trial:
    """Forecasts of a model from the rows of a plan, beside simple ones that know as much."""
    series = learnt.panel.series
    simple = SimpleForecasts(learnt.schema, config.horizon, config.quantiles)
    simple.fit(series, [split.validation for split in plan.splits])
    found = forecast(learnt.network, learnt.encoded, plan.cutoffs, context=config.length)
    return Trial(series, plan.cutoffs, found, config.quantiles, simple)


@dataclass(frozen=True)
class Unseen:
    """The rows of new series from which forecasts are judged.

    cutoffs  (n,) of each series
    old      how many series have no row after those that were learnt from; they are left out
    cold     how many begin after these, so that their first forecasts have no past
    doubtful how many may have been learnt from: without times it cannot be told
    """

    cutoffs: list[Integers]
    old: int
    cold: int
    doubtful: int


def unseen(fitted: Fitted, series: Sequence[Series]) -> Unseen:
    """The rows after those that were learnt from: of a series that has some, every row with a whole forecast among them.

    If they are fewer than the steps of a forecast, the rows that have at least one known step ahead.
    """
    horizon, timed = fitted.network.config.horizon, fitted.schema.time is not None
    learnt = {named(key): time for key, time in zip(fitted.ends.keys, fitted.ends.learnt)}
    chosen, old, cold, doubtful = [], 0, 0, 0
    for one in series:
        last, when = learnt.get(named(one.key)), ticks(one.times)
        begin = 0 if last is None or not timed else int(np.searchsorted(when, last, side="right"))
        whole = cutoffs(begin, len(one), horizon)
        chosen.append(whole if len(whole) else cutoffs(begin, len(one), 1))
        old += timed and begin == len(one)
        cold += timed and last is not None and begin == 0
        doubtful += last is not None and not timed
    return Unseen(chosen, old, cold, doubtful)


def judged(schema: Schema, series: Sequence[Series], rows: Sequence[Integers], horizon: int) -> str:
    """In words: how many forecasts are judged, and of what times."""
    count = sum(map(len, rows))
    line = f"judged: {count:,} forecast{'s' * (count != 1)} of {horizon} step{'s' * (horizon != 1)}"
    if not count or schema.time is None:
        return line
    ends = [(s.times[r[0] + 1], s.times[min(r[-1] + horizon, len(s) - 1)]) for s, r in zip(series, rows) if len(r)]
    first, last = (
        restore(np.array([time]), schema.grid)[0] for time in (min(e[0] for e in ends), max(e[1] for e in ends))
    )
    several = f" of {sum(len(r) > 0 for r in rows):,} series" if len(series) > 1 else ""
    return f"{line}{several}, from {first} to {last}"
