"""How good a forecaster is on rows that it did not learn from, beside the simplest forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.panel import Series
from conca.data.split import Split, cutoffs
from conca.estimators.simple import Forecast, SimpleForecasts
from conca.metrics.forecast import by_step, mae, scores

__all__ = ["COLUMNS", "Trial", "held_out_cutoffs", "score_table", "step_errors"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
COLUMNS = {"mae": "MAE", "rmse": "RMSE", "mase": "MASE", "pinball": "pinball", "coverage": "coverage"}
MODEL = "model"


def held_out_cutoffs(splits: Sequence[Split], horizon: int) -> list[Integers]:
    """Every row of each series from which a whole forecast lies in the rows held out; shape (n,)."""
    return [cutoffs(split.validation, split.total, horizon) for split in splits]


@dataclass(frozen=True)
class Trial:
    """Forecasts of a model from chosen rows, and the simple forecasts that know the same rows as the model.

    series     of the table
    cutoffs    the rows (n,) of each that are forecast from
    quantiles  (n, H, K, Q) of the model, for each
    levels     of the quantiles, Q
    simple     fitted
    """

    series: Sequence[Series]
    cutoffs: Sequence[Integers]
    quantiles: Sequence[Floats]
    levels: Sequence[float]
    simple: SimpleForecasts

    @property
    def names(self) -> list[str]:
        """The model and the simple forecasts."""
        return [MODEL, *self.simple.baselines]

    def truth(self) -> Floats:
        """What came, (sum of n, H, K), NaN where it is missing or beyond the table."""
        horizon = self.quantiles[0].shape[1]
        padded = [np.pad(s.target, ((0, horizon), (0, 0)), constant_values=np.nan) for s in self.series]
        return np.concatenate([y[c[:, None] + 1 + np.arange(horizon)] for y, c in zip(padded, self.cutoffs)])

    def unit(self) -> Floats:
        """What MASE divides by, (sum of n, 1, K)."""
        errors = [self.simple.unit(s.key) for s in self.series]
        return np.concatenate([np.broadcast_to(e, (len(c), 1, len(e))) for e, c in zip(errors, self.cutoffs)])

    def forecast(self, name: str) -> Forecast:
        """The forecasts of that name."""
        if name != MODEL:
            return self.simple.predict(name, self.series, self.cutoffs)
        own = np.concatenate(list(self.quantiles))
        middle = min(range(len(self.levels)), key=lambda i: abs(self.levels[i] - 0.5))
        return own[..., middle], own


def forecasts(trials: Sequence[Trial]) -> Iterator[tuple[str, Forecast]]:
    """Name and forecasts of all trials together, one name after the other."""
    for name in trials[0].names:
        points, quantiles = zip(*(trial.forecast(name) for trial in trials))
        yield name, (np.concatenate(points), np.concatenate(quantiles))


def something(trials: Sequence[Trial]) -> list[Trial]:
    """The trials in which there is something to count."""
    return [t for t in trials if sum(map(len, t.cutoffs)) and not np.isnan(t.truth()).all()]


def score_table(trials: Sequence[Trial], targets: Sequence[str] = ()) -> pd.DataFrame:
    """One row for the model and for each simple forecast, over all cutoffs of all trials.

    Columns MAE, RMSE, MASE (of the middle quantile; MASE by the error, on the rows learnt from, of repeating the last
    season), pinball, and coverage (share of values between the lowest and the highest quantile). Missing values are not
    counted. No rows if there is nothing to count. With `targets`, one row for each of these and each forecast, and the
    index says which.
    """
    trials = something(trials)
    names = ["target", "forecast"] if targets else ["forecast"]
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    if trials:
        y, unit, levels = (
            np.concatenate([t.truth() for t in trials]),
            np.concatenate([t.unit() for t in trials]),
            trials[0].levels,
        )
        cuts = {(name,): slice(k, k + 1) for k, name in enumerate(targets)} if targets else {(): slice(None)}
        for name, (point, quantiles) in forecasts(trials):
            for key, k in cuts.items():
                rows[*key, name] = scores(y[..., k], quantiles[..., k, :], levels, unit[..., k], point[..., k])
    index = (
        pd.MultiIndex.from_tuples(list(rows), names=names)
        if targets
        else pd.Index([k[-1] for k in rows], name="forecast")
    )
    frame = pd.DataFrame(list(rows.values()), index=index, columns=list(COLUMNS), dtype=float)
    return frame.rename(columns=COLUMNS)


def step_errors(trials: Sequence[Trial]) -> tuple[tuple[str, ...], Floats]:
    """Names, and the mean absolute error (names, H, K) at each step, NaN where there is nothing to count."""
    y = np.concatenate([t.truth() for t in trials])
    found = {
        name: np.stack([by_step(mae, y[..., k : k + 1], point[..., k : k + 1]) for k in range(y.shape[2])], axis=1)
        for name, (point, _) in forecasts(trials)
    }
    return tuple(found), np.stack(list(found.values()))
