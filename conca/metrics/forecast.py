"""Errors of forecasts. Missing targets (NaN) are never counted; with nothing to count the result is NaN.

Shapes: y (n, H, K) true values of n forecasts, H steps and K targets; forecast (n, H, K); quantiles (n, H, K, Q).
`by_step=True` gives one number for each step, (H,), instead of one for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["coverage", "mae", "mase", "naive_error", "pinball", "rmse", "scores", "width"]

Floats = NDArray[np.float64]


def mean(values: Floats, by_step: bool) -> float | Floats:
    """Mean of values (n, H, K, ...) over what is not NaN."""
    known = ~np.isnan(values)
    axes = tuple(axis for axis in range(values.ndim) if axis != 1) if by_step else None
    count = known.sum(axes)
    total = np.where(known, values, 0.0).sum(axes)
    result = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return result if by_step else float(result)


def mae(y: Floats, forecast: Floats, *, by_step: bool = False) -> float | Floats:
    """Mean absolute error."""
    return mean(np.abs(y - forecast), by_step)


def rmse(y: Floats, forecast: Floats, *, by_step: bool = False) -> float | Floats:
    """Root of the mean squared error."""
    squared = mean((y - forecast) ** 2, by_step)
    return np.sqrt(squared) if by_step else float(np.sqrt(squared))


def naive_error(train: Floats, season: int) -> Floats:
    """Mean absolute error of repeating the value of `season` rows before, within the training rows (T, K): shape (K,).

    NaN for a target where no two such rows are known. It is the denominator of `mase`.
    """
    if season < 1:
        raise ValueError(f"season must be at least 1, not {season}")
    ahead = np.abs(train[season:] - train[:-season])
    return np.asarray(mean(ahead[None].transpose(0, 2, 1), by_step=True))


def mase(y: Floats, forecast: Floats, scale: Floats, *, by_step: bool = False) -> float | Floats:
    """Mean absolute scaled error (Hyndman and Koehler, 2006): mean of |y - forecast| / scale.

    scale  `naive_error` of the training rows of the series that each forecast belongs to; any shape that broadcasts to
           (n, H, K), such as (K,) for one series or (n, 1, K). Where it is 0 or NaN, the forecast is not counted.
    """
    scale = np.where(np.asarray(scale) > 0, scale, np.nan)
    return mean(np.abs(y - forecast) / scale, by_step)


def pinball(y: Floats, quantiles: Floats, levels: Sequence[float], *, by_step: bool = False) -> float | Floats:
    """Pinball loss (Koenker and Bassett, 1978), the mean over levels of max(p (y - q), (p - 1) (y - q)).

    At the level 0.5 it is half the absolute error.
    """
    p = np.asarray(levels, dtype=np.float64)
    if quantiles.shape != (*y.shape, len(p)):
        raise ValueError(f"quantiles of shape {quantiles.shape} do not fit y {y.shape} with {len(p)} levels")
    error = y[..., None] - quantiles
    return mean(np.maximum(p * error, (p - 1) * error), by_step)


def coverage(y: Floats, lower: Floats, upper: Floats, *, by_step: bool = False) -> float | Floats:
    """Share of true values that lie in the interval [lower, upper], ends included."""
    inside = ((lower <= y) & (y <= upper)).astype(np.float64)
    return mean(np.where(np.isnan(y), np.nan, inside), by_step)


def width(lower: Floats, upper: Floats, *, by_step: bool = False) -> float | Floats:
    """Mean width of the intervals [lower, upper], in the unit of the target."""
    return mean(upper - lower, by_step)


def scores(
    y: Floats, quantiles: Floats, levels: Sequence[float], scale: Floats, point: Floats | None = None
) -> dict[str, float]:
    """One row of a table of results: mae, rmse, mase, pinball, coverage and width of the widest interval.

    point  the forecast that mae, rmse and mase judge; None: the median, which must then be among the levels
    """
    order = np.argsort(levels)
    if point is None:
        if 0.5 not in levels:
            raise ValueError("the levels lack 0.5, the median; give a point forecast")
        point = quantiles[..., list(levels).index(0.5)]
    lower, upper = quantiles[..., order[0]], quantiles[..., order[-1]]
    found = {
        "mae": mae(y, point),
        "rmse": rmse(y, point),
        "mase": mase(y, point, scale),
        "pinball": pinball(y, quantiles, levels),
        "coverage": coverage(y, lower, upper),
        "width": width(lower, upper),
    }
    return {name: float(value) for name, value in found.items()}
