"""A fit as a whole: a training that is judged on rows held out, and a last one that learns from all rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import ticks
from conca.data.panel import Panel, Series
from conca.data.split import cutoffs
from conca.estimators.config import ForecastConfig
from conca.estimators.evaluation import Evaluation
from conca.estimators.holdout import Plan, everything
from conca.estimators.runs import Run
from conca.estimators.scores import Trial, score_table
from conca.estimators.simple import SimpleForecasts
from conca.estimators.training import Learnt, learn
from conca.infer.fitted import Fitted
from conca.infer.forecast import forecast
from conca.infer.frame import Ends

__all__ = ["fit_run", "trial_of", "unseen"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def fit_run(
    config: ForecastConfig, panel: Panel, plan: Plan, folder: Path, *, progress: bool, resume: bool, refit: bool
) -> tuple[Run, list[str]]:
    """Fit, judge, and fit again on all rows; what comes out, and what the user should know."""
    first = learnt = learn(config, panel, plan.splits, folder, progress=progress, resume=resume)
    trial = trial_of(config, learnt, plan)
    again, simple, known = pd.DataFrame(), trial.simple, [split.validation for split in plan.splits]
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
        evaluation=Evaluation.of([trial]),
        history=pd.DataFrame(first.trained.history),
    )
    return run, list(first.panel.notices)


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


def unseen(fitted: Fitted, series: Sequence[Series]) -> tuple[list[Integers], int]:
    """The rows (n,) of each series from which a whole forecast lies after the rows that were learnt from.

    Where there are none, or no times that tell, all rows with a whole forecast; the number says of how many series that
    were learnt from this is so.
    """
    horizon, timed = fitted.network.config.horizon, fitted.schema.time is not None
    learnt = {tuple(map(str, key)): time for key, time in zip(fitted.ends.keys, fitted.ends.learnt)}
    chosen, met = [], 0
    for one in series:
        last = learnt.get(tuple(map(str, one.key)))
        begin = 0 if last is None or not timed else int(np.searchsorted(ticks(one.times), last, side="right"))
        new = cutoffs(begin, len(one), horizon)
        met += last is not None and (not timed or not len(new))
        chosen.append(new if len(new) else cutoffs(0, len(one), horizon))
    return chosen, met
