"""Boosted trees on lags: a strong forecaster that is quick to fit, against which conca is measured in `tables.py`.

One model for all steps ahead and one for each quantile (Friedman, 2001; scikit-learn's HistGradientBoostingRegressor). Its inputs, for a
cutoff c and a step h: the last 48 values; the values one and two seasons before c + h and beside these, for the day, the week
and the year; means over seasons; the covariates at c; the calendar of c + h; and h. What is learnt is the value, or its change
from the last one, or from the one a season before, whichever does best on the rows to stop by; rounds are added until the loss
on these rows no longer falls, or the time is over. In the end the outer quantiles are moved so that each lies above its share of
the values on these rows (Romano, Patterson and Candes, 2019).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from conca.data.panel import Schema, Series
from conca.data.split import Split

__all__ = ["Boosting"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LAGS = 48
DAYS = 1, 7, 364
PAIRS, JUDGED = 150_000, 30_000
"""Pairs of a cutoff and a step to learn from and to stop by, at most."""
ROUNDS, LEAST = 200, 20_000
"""Fewer pairs to learn from where so many rounds could not be afforded, but not fewer than these."""
FEW, MOST = 10, 2000
"""Rounds at the beginning, and at most."""
TRIAL = 0.3
"""Time for each of the three things that can be learnt, to find the best, against that of each of the models."""
BLOCK = 1000
"""Cutoffs that are forecast from at once."""


@dataclass(frozen=True)
class Pairs:
    """Inputs (n, F) and targets (n,) of pairs of a cutoff and a step, and the values (n,) that a change is counted from."""

    x: Floats
    y: Floats
    origins: dict[str, Floats]

    def first(self, n: int) -> Pairs:
        return Pairs(self.x[:n], self.y[:n], {name: values[:n] for name, values in self.origins.items()})


class Boosting:
    """Quantiles of one series, `horizon` steps ahead; fitted within a time."""

    def __init__(self, horizon: int, levels: Sequence[float], schema: Schema, *, seed: int = 0) -> None:
        self.horizon, self.levels, self.schema, self.seed = horizon, tuple(levels), schema, seed
        self.steps = np.arange(1, horizon + 1)
        rows = 86_400 / (schema.grid.seconds or 86_400)
        self.seasons = [n for n in (round(days * rows) for days in DAYS) if 2 <= n <= 1500]
        self.models: list[HistGradientBoostingRegressor] = []
        self.shifts: list[float] = []
        self.origin = "0"
        self.said = ""

    def fit(self, series: Series, split: Split, seconds: float) -> Self:
        """Learn from the rows [0, train) and stop by [train, validation), in about so many seconds."""
        end = time.perf_counter() + seconds
        draw = np.random.default_rng(self.seed)
        begin = min(max(LAGS, *self.seasons[:2]), split.train // 2)
        late = np.arange(max(split.train - 1, 0), split.validation - self.horizon)
        judged = self.pairs(series, draw.permutation(late)[: JUDGED // self.horizon])
        early = draw.permutation(np.arange(begin, split.train - self.horizon))
        pairs = self.pairs(series, early[: PAIRS // self.horizon])
        few, share = pairs.first(LEAST), (end - time.perf_counter()) / (3 * TRIAL + len(self.levels))
        losses, paces = {}, []
        for name in pairs.origins:
            begun = time.perf_counter()
            model, errors = self.boost(0.5, name, few, judged, begun + TRIAL * share)
            losses[name] = float(np.abs(errors).mean())
            paces.append((time.perf_counter() - begun) / model.n_iter_)
        self.origin = min(losses, key=lambda name: losses[name])
        affordable = (end - time.perf_counter()) / len(self.levels) / min(paces)
        pairs = pairs.first(max(LEAST, int(LEAST * affordable / ROUNDS)))
        for place, level in enumerate(self.levels):
            now = time.perf_counter()
            until = now + (end - now) / (len(self.levels) - place)
            model, errors = self.boost(level, self.origin, pairs, judged, until)
            self.models.append(model)
            self.shifts.append(0.0 if level == 0.5 else float(np.quantile(errors, level)))
        rounds_of = ", ".join(str(model.n_iter_) for model in self.models)
        self.said = f"{pairs.x.shape} inputs, {rounds_of} rounds, change from {self.origin}"
        return self

    def boost(
        self, level: float, origin: str, pairs: Pairs, judged: Pairs, until: float
    ) -> tuple[HistGradientBoostingRegressor, Floats]:
        """A model, and its errors on the pairs to stop by; it gets more rounds until these no longer fall, or the time is over."""
        model = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=level,
            learning_rate=0.1,
            min_samples_leaf=40,
            max_features=0.5,
            early_stopping=True,
            n_iter_no_change=20,
            warm_start=True,
            random_state=self.seed,
        )
        y, seen = pairs.y - pairs.origins[origin], judged.y - judged.origins[origin]
        more, rounds = FEW, 0
        while more >= FEW and rounds < MOST:
            begin, before = time.perf_counter(), rounds
            model.set_params(max_iter=rounds + more).fit(pairs.x, y, X_val=judged.x, y_val=seen)
            rounds = model.n_iter_
            if rounds < before + more:
                break
            pace = (time.perf_counter() - begin) / more
            more = min(int((until - time.perf_counter()) / pace), 2 * rounds)
        return model, seen - model.predict(judged.x)

    def predict(self, series: Series, cutoffs: Integers) -> Floats:
        """Quantiles (n, H, 1, Q) after each cutoff, in order."""
        parts = []
        for begin in range(0, len(cutoffs), BLOCK):
            pairs = self.pairs(series, cutoffs[begin : begin + BLOCK], whole=True)
            found = np.stack([model.predict(pairs.x) + shift for model, shift in zip(self.models, self.shifts)], -1)
            found += pairs.origins[self.origin][:, None]
            parts.append(np.sort(found, -1).reshape(-1, self.horizon, 1, len(self.levels)))
        return np.concatenate(parts)

    def pairs(self, series: Series, cutoffs: Integers, *, whole: bool = False) -> Pairs:
        """All steps from these cutoffs; `whole`: also those whose target is not known."""
        held = filled(series.target)[:, 0]
        at, steps = np.repeat(cutoffs, self.horizon), np.tile(self.steps, len(cutoffs))
        last = held[at]
        columns = [last, *(held[np.maximum(at - lag, 0)] - last for lag in range(1, LAGS)), steps.astype(np.float64)]
        total = np.cumsum(np.insert(held, 0, 0.0))
        for n in self.seasons:
            then = at + steps - n * -(-steps // n)
            near = (then, then - 1, np.minimum(then + 1, at), then - n, at - n)
            columns += [held[np.maximum(place, 0)] - last for place in near]
            columns.append((total[at + 1] - total[np.maximum(at + 1 - n, 0)]) / np.minimum(n, at + 1) - last)
        n = self.seasons[0] if self.seasons else 1
        before = held[np.maximum(at + steps - n * -(-steps // n), 0)]
        numbers = np.concatenate([series.numeric, self.schema.one_hot(series.categorical)], axis=1)
        columns += list(filled(numbers)[at].T)
        columns += self.calendar(series, at, steps)
        x = np.stack(columns, 1).astype(np.float32)
        y = series.target[np.minimum(at + steps, len(held) - 1), 0]
        known = np.ones(len(y), bool) if whole else ~np.isnan(y)
        origins = {"0": np.zeros(len(y)), "the last value": last, "the value a season before": before}
        return Pairs(x[known], y[known], {name: values[known] for name, values in origins.items()})

    def calendar(self, series: Series, at: Integers, steps: Integers) -> list[Floats]:
        """Hour, weekday and day of the year of the steps ahead."""
        spacing = pd.Timedelta(seconds=self.schema.grid.seconds or 86_400)
        ahead = pd.DatetimeIndex(series.times[at]) + spacing * pd.Index(steps)
        hours = ahead.hour + ahead.minute / 60
        return [np.asarray(part, dtype=np.float64) for part in (hours, ahead.day_of_week, ahead.day_of_year)]


def filled(values: Floats) -> Floats:
    """Values (T, F) with the last known one where missing; before the first, the first."""
    return np.asarray(pd.DataFrame(values).ffill().bfill().fillna(0.0), dtype=np.float64)
