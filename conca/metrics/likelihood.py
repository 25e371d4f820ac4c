"""How improbable a value is under quantiles that were forecast. Arrays in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["split_normal_nll"]

Floats = NDArray[np.float64]
FARTHEST = 1e150
"""Standard deviations that a value counts as away from the middle, at most, so that its square is a number."""


def split_normal_nll(y: ArrayLike, quantiles: ArrayLike, levels: Sequence[float], floor: ArrayLike = 0.0) -> Floats:
    """-log of the density (nats) of values (...) under quantiles (..., Q); NaN where a value is missing.

    The density is a split normal: its middle is the median, each side as wide as the outermost quantile there says. Levels
    without a median get one by a straight line between their neighbours; where all lie on one side of it, both sides are alike.

    Args:
        y: what came.
        quantiles: increasing along the last axis.
        levels: of the quantiles, increasing; at least two.
        floor: least standard deviation of a side, (...); a forecast that is sure of one value has none of its own.

    Raises:
        ValueError: for fewer than two levels, or shapes that do not fit.

    Source: Fechner 1897; Wallis 2014, "The Two-Piece Normal, Binormal, or Double Gaussian Distribution".
    """
    value, q, p = np.asarray(y, np.float64), np.asarray(quantiles, np.float64), np.asarray(levels, np.float64)
    if p.size < 2 or q.shape != (*value.shape, p.size):
        raise ValueError(f"quantiles (..., {p.size}) of two levels or more are needed, not {q.shape} for {value.shape}")
    place = int(np.clip(np.searchsorted(p, 0.5), 1, p.size - 1))
    share = (0.5 - p[place - 1]) / (p[place] - p[place - 1])
    middle = q[..., place - 1] + share * (q[..., place] - q[..., place - 1])
    z = [NormalDist().inv_cdf(float(level)) for level in (p[0], p[-1])]
    low = (middle - q[..., 0]) / -z[0] if z[0] < 0 else None
    high = (q[..., -1] - middle) / z[1] if z[1] > 0 else None
    sides = [side for side in (low, high) if side is not None]
    least = np.maximum(np.asarray(floor, np.float64), np.finfo(np.float64).tiny)
    below, above = (np.maximum(side if side is not None else sides[0], least) for side in (low, high))
    with np.errstate(over="ignore"):
        apart = (value - middle) / np.where(value < middle, below, above)
    result: Floats = np.log(np.sqrt(np.pi / 2) * (below + above)) + np.clip(apart, -FARTHEST, FARTHEST) ** 2 / 2
    return result
