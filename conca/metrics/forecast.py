"""Errors of forecasts.

Missing targets (NaN in y) are never counted; with nothing to count the result is NaN. A forecast that is NaN where the
target is known makes the result NaN: it is not hidden.

Shapes: y (n, H, K) true values of n forecasts, H steps and K targets; forecast (n, H, K); quantiles (n, H, K, Q).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["by_step", "coverage", "mae", "mase", "naive_error", "pinball", "rmse", "scores", "width"]

Floats = NDArray[np.float64]


def counted(errors: Floats, known: NDArray[np.bool_]) -> float:
    """Mean of the errors where `known`, NaN if nowhere."""
    chosen = errors[known]
    return float(chosen.mean()) if chosen.size else float("nan")


def mae(y: Floats, forecast: Floats) -> float:
    """Mean absolute error."""
    return counted(np.abs(y - forecast), ~np.isnan(y))


def rmse(y: Floats, forecast: Floats) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(counted((y - forecast) ** 2, ~np.isnan(y))))


def naive_error(train: Floats, season: int) -> Floats:
    """Mean absolute error of repeating the value of `season` rows before, within the training rows (T, K): shape (K,).

    NaN for a target where no two such rows are known. It is the denominator of `mase`. Raises ValueError if the season
    is less than 1.
    """
    if season < 1:
        raise ValueError(f"season must be at least 1, not {season}")
    apart = np.abs(train[season:] - train[:-season])
    return np.array([counted(column, ~np.isnan(column)) for column in apart.T], dtype=np.float64)


def mase(y: Floats, forecast: Floats, scale: ArrayLike) -> float:
    """Mean absolute scaled error (Hyndman and Koehler, 2006): mean of |y - forecast| / scale.

    scale  `naive_error` of the training rows of the series that each forecast belongs to; any shape that broadcasts to
           (n, H, K), such as (K,) for one series or (n, 1, K). Where it is 0 or NaN, the forecast is not counted.
    """
    scale = np.broadcast_to(np.asarray(scale, dtype=np.float64), y.shape)
    usable = scale > 0
    return counted(np.abs(y - forecast) / np.where(usable, scale, 1.0), usable & ~np.isnan(y))


def pinball(y: Floats, quantiles: Floats, levels: Sequence[float]) -> float:
    """Pinball loss (Koenker and Bassett, 1978), the mean over levels of max(p (y - q), (p - 1) (y - q)).

    At the level 0.5 it is half the absolute error. Raises ValueError if the shapes do not fit.
    """
    p = np.asarray(levels, dtype=np.float64)
    if quantiles.shape != (*y.shape, len(p)):
        raise ValueError(f"quantiles of shape {quantiles.shape} do not fit y of shape {y.shape} and {len(p)} levels")
    error = y[..., None] - quantiles
    return counted(np.maximum(p * error, (p - 1) * error), ~np.isnan(y))


def coverage(y: Floats, lower: Floats, upper: Floats) -> float:
    """Share of true values that lie in the interval [lower, upper], ends included."""
    return counted(((lower <= y) & (y <= upper)).astype(np.float64), ~np.isnan(y))


def width(lower: Floats, upper: Floats) -> float:
    """Mean width of all intervals [lower, upper], in the unit of the target."""
    return counted(upper - lower, np.ones(upper.shape, dtype=bool))


def by_step(metric: Callable[..., float], *arrays: Floats, **fixed: Any) -> Floats:
    """A metric of each step by itself, (H,). `arrays` have the steps on axis 1; what is the same for all goes by name.

    >>> y, forecast = np.zeros((5, 3, 1)), np.ones((5, 3, 1))
    >>> by_step(mae, y, forecast)
    array([1., 1., 1.])
    """
    steps = range(arrays[0].shape[1])
    return np.array([metric(*(a[:, h : h + 1] for a in arrays), **fixed) for h in steps], dtype=np.float64)


def scores(
    y: Floats, quantiles: Floats, levels: Sequence[float], scale: ArrayLike, point: Floats | None = None
) -> dict[str, float]:
    """One row of a table of results: mae, rmse, mase, pinball, and coverage and width of the widest interval.

    point  the forecast that mae, rmse and mase judge; None: the median, which must then be among the levels
    """
    levels = list(levels)
    if point is None:
        if 0.5 not in levels:
            raise ValueError("the levels lack 0.5, the median; give a point forecast")
        point = quantiles[..., levels.index(0.5)]
    lower, upper = (quantiles[..., levels.index(end(levels))] for end in (min, max))
    return {
        "mae": mae(y, point),
        "rmse": rmse(y, point),
        "mase": mase(y, point, scale),
        "pinball": pinball(y, quantiles, levels),
        "coverage": coverage(y, lower, upper),
        "width": width(lower, upper),
    }
