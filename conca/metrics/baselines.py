"""The simplest forecasts, which a model must beat: the last value, the last season, a ridge regression.

All see rows up to a cutoff c (included) and forecast rows c + 1 to c + H. Missing values are filled by the last one
known, at the beginning of a series by the mean of its training rows. Each series is normalised by mean and deviation of
its training rows, so that series of different size share one model and one distribution of errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["Baseline", "History", "LastValue", "Ridge", "SeasonalNaive", "season_of"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CYCLES = (1.0, 7.0, 365.2425)
"""Natural cycles in days: the day, the week, the year."""
LEVELS = (0.1, 0.5, 0.9)
MOST_NUMBERS = 30_000_000
"""The windows of a ridge regression hold at most this many numbers (240 MB); of longer tables, every so many."""
MOST_INPUTS = 1500
"""A ridge regression has at most this many inputs (its Gram matrix takes 18 MB), or one row of targets if they are more."""
BLOCK = 4096


def season_of(seconds: float | None) -> int:
    """Rows in the shortest natural cycle (day, week, year) of rows that are `seconds` apart: at least 2, else 1.

    Quarter-hourly 96, hourly 24, daily 7, weekly 52, monthly 12, quarterly 4; 1 for years or an unknown spacing.
    """
    if seconds is None or seconds <= 0:
        return 1
    rows = (round(86_400 * days / seconds) for days in CYCLES)
    return next((n for n in rows if n >= 2), 1)


Moments = tuple[Floats, Floats]
"""Mean and deviation, (K,) each."""


@dataclass(frozen=True)
class History:
    """One series: target (T, K), covariates (T, F), NaN where missing; its first `train` rows are learnt from.

    known  moments of target and covariates, where they are known from other rows; None: those of the training rows
    """

    target: Floats
    covariates: Floats
    train: int
    known: tuple[Moments, Moments] | None = None

    def __post_init__(self) -> None:
        if self.target.ndim != 2 or self.covariates.ndim != 2 or len(self.target) != len(self.covariates):
            raise ValueError("target must be (T, K) and covariates (T, F), of one length")

    @cached_property
    def moments(self) -> tuple[Moments, Moments]:
        """Mean and deviation of the target, and those of the covariates."""
        return self.known or (moments(self.target[: self.train]), moments(self.covariates[: self.train]))


def moments(rows: Floats) -> Moments:
    """Mean and deviation (K,) of rows (T, K), NaN not counted; 0 without values, deviation 1 if constant."""
    known = ~np.isnan(rows)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, rows, 0.0).sum(0) / count
    scale = np.sqrt((np.where(known, rows - mean, 0.0) ** 2).sum(0) / count)
    return mean, np.where(scale > 1e-9 * np.abs(mean), scale, 1.0)


def filled(values: Floats, mean: Floats, scale: Floats) -> Floats:
    """Values (T, K) normalised; missing ones are the last known, before any the mean (0)."""
    known = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values))[:, None], -1), axis=0)
    held = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    return np.where(last >= 0, (held - mean) / scale, 0.0)


class Baseline(ABC):
    """A point forecast, and quantiles: those of its errors on the training rows, for each step.

    horizon  steps H
    levels   of the quantiles, Q numbers between 0 and 1
    most     training cutoffs that are used; of more, every so many
    """

    def __init__(self, horizon: int, *, levels: Sequence[float] = LEVELS, most: int = 50_000) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1, not {horizon}")
        if not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels must lie between 0 and 1, not {list(levels)}")
        self.horizon, self.levels, self.most = horizon, tuple(float(level) for level in levels), most
        self.spread: Floats | None = None

    @abstractmethod
    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""

    def cutoffs(self, histories: Sequence[History]) -> list[Integers]:
        """The training cutoffs of each series."""
        every = [np.arange(0, max(h.train - self.horizon, 0)) for h in histories]
        stride = max(1, -(-sum(map(len, every)) // self.most))
        return [rows[::stride] for rows in every]

    def fit(self, histories: Sequence[History]) -> Self:
        """Fit on the training rows of all series. Returns itself."""
        errors = [self.truth(h, rows) - self.normal(h, rows) for h, rows in zip(histories, self.cutoffs(histories))]
        self.spread = quantiles_of(np.concatenate(errors), self.levels)
        return self

    @property
    def fitted(self) -> dict[str, Floats]:
        """The arrays that `fit` found; those of another forecast of this kind can be given to `take`."""
        return {} if self.spread is None else {"spread": self.spread}

    def take(self, arrays: dict[str, Floats]) -> Self:
        """Become what `fitted` tells of. Raises KeyError if something lacks. Returns itself."""
        self.spread = arrays["spread"]
        return self

    def predict(self, history: History, cutoffs: Integers) -> tuple[Floats, Floats]:
        """Point forecasts (n, H, K) and quantiles (n, H, K, Q) after each cutoff (n,), in the unit of the target."""
        if self.spread is None:
            raise RuntimeError("fit the baseline before it predicts")
        mean, scale = history.moments[0]
        point = self.normal(history, np.asarray(cutoffs, dtype=np.int64))
        quantiles = point[..., None] + self.spread
        return point * scale + mean, quantiles * scale[:, None] + mean[:, None]

    def truth(self, history: History, cutoffs: Integers) -> Floats:
        """True values (n, H, K) after training cutoffs, normalised, NaN where missing."""
        mean, scale = history.moments[0]
        rows: Floats = history.target[cutoffs[:, None] + 1 + np.arange(self.horizon)]
        return (rows - mean) / scale


class LastValue(Baseline):
    """The last known value, repeated."""

    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""
        last = filled(history.target, *history.moments[0])[cutoffs]
        return np.repeat(last[:, None], self.horizon, axis=1)


class SeasonalNaive(Baseline):
    """The last season, repeated: with hourly rows and a season of 24, the value of the same hour yesterday.

    At cutoffs before the first full season, the first row of the series stands in for what is not there.
    """

    def __init__(self, horizon: int, season: int, *, levels: Sequence[float] = LEVELS, most: int = 50_000) -> None:
        super().__init__(horizon, levels=levels, most=most)
        if season < 1:
            raise ValueError(f"season must be at least 1, not {season}")
        self.season = season

    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""
        back = np.arange(self.horizon) % self.season + 1 - self.season
        values: Floats = filled(history.target, *history.moments[0])[np.maximum(cutoffs[:, None] + back, 0)]
        return values


class Ridge(Baseline):
    """Ridge regression of each step on the last `rows` rows of target and covariates (Hoerl and Kennard, 1970).

    All steps share one Gram matrix of the histories; the rows whose target is missing at a step are taken off it again,
    so that every step is solved exactly on the rows that know it. `penalty` is per row, on the normalised values.

    Of wide tables it sees less, to bound time and memory at `MOST_INPUTS`: as many rows of the covariates as then fit
    beside those of the targets; if not one does, only the first covariates, one row of them; of more targets, fewer rows.
    """

    def __init__(
        self,
        horizon: int,
        rows: int = 48,
        *,
        penalty: float = 1e-3,
        levels: Sequence[float] = LEVELS,
        most: int = 50_000,
    ) -> None:
        super().__init__(horizon, levels=levels, most=most)
        if rows < 1 or penalty <= 0:
            raise ValueError("rows must be at least 1 and the penalty positive")
        self.rows, self.penalty = rows, penalty
        self.weights: Floats | None = None

    @property
    def fitted(self) -> dict[str, Floats]:
        """The arrays that `fit` found."""
        return super().fitted | ({} if self.weights is None else {"weights": self.weights})

    def take(self, arrays: dict[str, Floats]) -> Self:
        """Become what `fitted` tells of. Raises KeyError if something lacks. Returns itself."""
        self.weights = arrays["weights"]
        return super().take(arrays)

    def windows(self, history: History) -> list[Floats]:
        """Views (T, rows * columns) of the rows up to each row, of targets and covariates; before the series, 0."""
        parts = []
        both = (history.target, history.covariates)
        for values, (mean, scale), (rows, columns) in zip(both, history.moments, self.sizes(history)):
            if rows * columns:
                known = filled(values[:, :columns], mean[:columns], scale[:columns])
                padded = np.concatenate([np.zeros((rows - 1, columns)), known])
                parts.append(sliding_window_view(padded.reshape(-1), rows * columns)[::columns])
        return parts

    def sizes(self, history: History) -> list[tuple[int, int]]:
        """Rows and columns that are seen of the targets and of the covariates."""
        targets, covariates = history.target.shape[1], history.covariates.shape[1]
        rows = max(1, min(self.rows, MOST_INPUTS // max(targets, 1)))
        left = max(MOST_INPUTS - rows * targets, 0)
        return [(rows, targets), (max(1, min(self.rows, left // max(covariates, 1))), min(covariates, left))]

    def inputs(self, windows: Sequence[Floats], cutoffs: Integers) -> Floats:
        """What is regressed on: (n, D), the first column constant, then the windows."""
        return np.concatenate([np.ones((len(cutoffs), 1)), *(part[cutoffs] for part in windows)], axis=1)

    def fit(self, histories: Sequence[History]) -> Self:
        """Solve for the weights (D, H, K), then take the quantiles of the errors. Returns itself."""
        cutoffs = self.cutoffs(histories)
        wide = 1 + sum(rows * columns for rows, columns in self.sizes(histories[0]))
        stride = max(1, -(-sum(map(len, cutoffs)) * wide // MOST_NUMBERS))
        chosen = [rows[::stride] for rows in cutoffs]
        x = np.concatenate([self.inputs(self.windows(h), rows) for h, rows in zip(histories, chosen)])
        y = np.concatenate([self.truth(h, rows) for h, rows in zip(histories, chosen)])
        flat = y.reshape(len(y), y.shape[1] * y.shape[2])
        weights = self.solve(x, flat)
        self.weights = weights.reshape(wide, *y.shape[1:])
        self.spread = quantiles_of((flat - x @ weights).reshape(y.shape), self.levels)
        return self

    def solve(self, x: Floats, flat: Floats) -> Floats:
        """Weights (D, H * K) from inputs x (n, D) to targets (n, H * K), NaN where missing."""
        wide, known = x.shape[1], ~np.isnan(flat)
        weights = np.zeros((wide, flat.shape[1]))
        gram, right = x.T @ x, x.T @ np.where(known, flat, 0.0)
        whole = known.all(0) & (len(x) > 0)
        partly = np.flatnonzero(~whole & known.any(0))
        for columns in [np.flatnonzero(whole)] * bool(whole.any()) + [partly[i : i + 1] for i in range(len(partly))]:
            lost = x[~known[:, columns[0]]]
            count = len(x) - len(lost)
            penalty = np.full(wide, self.penalty * count)
            penalty[0] = 1e-9 * count
            weights[:, columns] = np.linalg.solve(gram - lost.T @ lost + np.diag(penalty), right[:, columns])
        return weights

    def normal(self, history: History, cutoffs: Integers) -> Floats:
        """Forecasts (n, H, K) in normalised units."""
        if self.weights is None:
            raise RuntimeError("fit the baseline before it predicts")
        weights, windows = self.weights.reshape(len(self.weights), -1), self.windows(history)
        result = np.empty((len(cutoffs), weights.shape[1]))
        for begin in range(0, len(cutoffs), BLOCK):
            result[begin : begin + BLOCK] = self.inputs(windows, cutoffs[begin : begin + BLOCK]) @ weights
        return result.reshape(len(cutoffs), *self.weights.shape[1:])


def quantiles_of(errors: Floats, levels: tuple[float, ...]) -> Floats:
    """Quantiles (H, K, Q) of errors (n, H, K) over n, NaN not counted; 0 for a step without any error."""
    result = np.zeros((*errors.shape[1:], len(levels)))
    for step, column in np.ndindex(*errors.shape[1:]):
        here = errors[:, step, column]
        here = here[~np.isnan(here)]
        if here.size:
            result[step, column] = np.quantile(here, levels)
    return result
