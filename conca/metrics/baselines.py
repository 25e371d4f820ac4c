"""The simplest forecasts, which a model must beat: the last value, the last season, a ridge regression.

All see rows up to a cutoff c (included) and forecast rows c + 1 to c + H. Missing values are filled by the last one known,
at the beginning of a series by the mean of its training rows. Each series is normalised by mean and deviation of its
training rows, so that series of different size share one model and one distribution of errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["Baseline", "History", "LastValue", "Ridge", "SeasonalNaive", "season_of"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SEASONS = (1.0, 7.0, 365.2425)
"""Cycles in days: the day, the week, the year."""


def season_of(seconds: float | None) -> int:
    """Rows in the shortest natural cycle (day, week, year) of rows that are `seconds` apart: at least 2, else 1.

    Quarter-hourly 96, hourly 24, daily 7, weekly 52, monthly 12, quarterly 4, yearly 1; 1 where the spacing is unknown.
    """
    if seconds is None or seconds <= 0:
        return 1
    rows = (round(86_400 * days / seconds) for days in SEASONS)
    return next((n for n in rows if n >= 2), 1)


@dataclass(frozen=True)
class History:
    """One series: target (T, K) with NaN where missing, covariates (T, F) likewise, of which `train` rows are learnt from."""

    target: Floats
    covariates: Floats
    train: int

    def __post_init__(self) -> None:
        if self.target.ndim != 2 or self.covariates.ndim != 2 or len(self.target) != len(self.covariates):
            raise ValueError("target must be (T, K) and covariates (T, F), of one length")


def filled(values: Floats, train: int) -> Floats:
    """Values (T, K) normalised by the training rows, missing ones filled by the last known, else by 0 (the mean)."""
    mean, scale = moments(values[:train])
    known = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values))[:, None], -1), axis=0)
    held = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    return np.where(last >= 0, (held - mean) / scale, 0.0)


def moments(rows: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation (K,) of rows (T, K), NaN not counted; 0 without values, deviation 1 if constant."""
    known = ~np.isnan(rows)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, rows, 0.0).sum(0) / count
    scale = np.sqrt((np.where(known, rows - mean, 0.0) ** 2).sum(0) / count)
    return mean, np.where(scale > 1e-9 * np.abs(mean), scale, 1.0)


class Baseline(ABC):
    """A forecast with a point and quantiles; the quantiles are those of its errors on the training rows, by step.

    horizon  steps H
    levels   of the quantiles, Q numbers between 0 and 1
    """

    def __init__(self, horizon: int, levels: Sequence[float] = (0.1, 0.5, 0.9), most: int = 50_000) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1, not {horizon}")
        self.horizon = horizon
        self.levels = tuple(float(level) for level in levels)
        self.most = most
        self.spread: Floats | None = None

    @abstractmethod
    def learn(self, histories: Sequence[History], cutoffs: Sequence[Integers]) -> None:
        """Fit what there is to fit on training cutoffs of each history."""

    @abstractmethod
    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""

    def fit(self, histories: Sequence[History]) -> Baseline:
        """Fit on the training rows of all series, on at most `most` cutoffs evenly spread. Returns itself."""
        every = [np.arange(0, max(h.train - self.horizon, 0)) for h in histories]
        stride = max(1, -(-sum(map(len, every)) // self.most))
        chosen = [rows[::stride] for rows in every]
        self.learn(histories, chosen)
        errors = [self.truth(h, rows) - self.normal(h, rows) for h, rows in zip(histories, chosen)]
        self.spread = quantiles_of(np.concatenate(errors), self.levels)
        return self

    def predict(self, history: History, cutoffs: Integers) -> tuple[Floats, Floats]:
        """Point forecasts (n, H, K) and quantiles (n, H, K, Q) after each cutoff (n,), in the unit of the target."""
        if self.spread is None:
            raise RuntimeError("fit the baseline first")
        mean, scale = moments(history.target[: history.train])
        point = self.normal(history, np.asarray(cutoffs, dtype=np.int64))
        quantiles = point[..., None] + self.spread
        return point * scale + mean, quantiles * scale[:, None] + mean[:, None]

    def truth(self, history: History, cutoffs: Integers) -> Floats:
        """True values (n, H, K) after training cutoffs, normalised, NaN where missing."""
        mean, scale = moments(history.target[: history.train])
        rows = cutoffs[:, None] + 1 + np.arange(self.horizon)
        return (history.target[rows] - mean) / scale


class LastValue(Baseline):
    """The last known value, repeated."""

    def learn(self, histories: Sequence[History], cutoffs: Sequence[Integers]) -> None:
        """Nothing to fit."""

    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""
        last = filled(history.target, history.train)[cutoffs]
        return np.repeat(last[:, None], self.horizon, axis=1)


class SeasonalNaive(Baseline):
    """The values of the last full season, repeated: those of the same hour yesterday, if rows are hours and a season 24.

    Where the series has no season before the cutoff yet, its first row stands in.
    """

    def __init__(
        self, horizon: int, season: int, levels: Sequence[float] = (0.1, 0.5, 0.9), most: int = 50_000
    ) -> None:
        super().__init__(horizon, levels, most)
        if season < 1:
            raise ValueError(f"season must be at least 1, not {season}")
        self.season = season

    def learn(self, histories: Sequence[History], cutoffs: Sequence[Integers]) -> None:
        """Nothing to fit."""

    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""
        back = np.arange(self.horizon) % self.season + 1 - self.season
        return filled(history.target, history.train)[np.maximum(cutoffs[:, None] + back, 0)]


class Ridge(Baseline):
    """Ridge regression of each step on the last `rows` rows of target and covariates (Hoerl and Kennard, 1970).

    All steps share one Gram matrix of the histories; the rows whose target is missing at a step are taken off it again,
    so that every step is solved exactly on the rows that know it.
    """

    def __init__(
        self,
        horizon: int,
        rows: int = 48,
        penalty: float = 1e-3,
        levels: Sequence[float] = (0.1, 0.5, 0.9),
        most: int = 50_000,
    ) -> None:
        super().__init__(horizon, levels, most)
        if rows < 1 or penalty <= 0:
            raise ValueError("rows must be at least 1 and the penalty positive")
        self.rows, self.penalty = rows, penalty
        self.weights: Floats | None = None

    def windows(self, history: History, cutoffs: Integers) -> Floats:
        """What is regressed on (n, 1 + rows * (K + F)): a constant and the last rows; before the series begins, its mean."""
        values = np.concatenate([filled(v, history.train) for v in (history.target, history.covariates)], axis=1)
        padded = np.concatenate([np.zeros((self.rows - 1, values.shape[1])), values])
        last = sliding_window_view(padded, self.rows, axis=0)[cutoffs].reshape(len(cutoffs), -1)
        return np.concatenate([np.ones((len(cutoffs), 1)), last], axis=1)

    def learn(self, histories: Sequence[History], cutoffs: Sequence[Integers]) -> None:
        """Solve for the weights (1 + rows * (K + F), H, K)."""
        x = np.concatenate([self.windows(h, rows) for h, rows in zip(histories, cutoffs)])
        y = np.concatenate([self.truth(h, rows) for h, rows in zip(histories, cutoffs)])
        known = ~np.isnan(y)
        gram, right = x.T @ x, np.einsum("nd,nhk->dhk", x, np.where(known, y, 0.0), optimize=True)
        self.weights = np.zeros((x.shape[1], *y.shape[1:]))
        for step, column in np.ndindex(y.shape[1:]):
            lost = x[~known[:, step, column]]
            count = len(x) - len(lost)
            if count:
                penalty = np.full(len(gram), self.penalty * count)
                penalty[0] = 1e-9 * count
                left = gram - lost.T @ lost
                left[np.diag_indices_from(left)] += penalty
                self.weights[:, step, column] = np.linalg.solve(left, right[:, step, column])

    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""
        assert self.weights is not None
        return np.einsum("nd,dhk->nhk", self.windows(history, cutoffs), self.weights, optimize=True)


def quantiles_of(errors: Floats, levels: tuple[float, ...]) -> Floats:
    """Quantiles (H, K, Q) of errors (n, H, K) over n, NaN not counted; 0 for a step without any error."""
    result = np.zeros((*errors.shape[1:], len(levels)))
    for step, column in np.ndindex(errors.shape[1:]):
        here = errors[:, step, column]
        here = here[~np.isnan(here)]
        if here.size:
            result[step, column] = np.quantile(here, levels)
    return result
