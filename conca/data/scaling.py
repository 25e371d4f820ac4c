"""Normalisation by mean and standard deviation, fitted on the training rows and kept in the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.types import BadInput

__all__ = ["Scaler"]

Floats = NDArray[np.float64]

FLAT = 1e-9
"""A column whose deviation is below this share of its largest value is constant, up to rounding."""


@dataclass(frozen=True)
class Scaler:
    """`(values - mean) / scale` for each of K columns; missing values stay missing."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, parts: Iterable[Floats], columns: int | None = None) -> Scaler:
        """Mean and standard deviation of each column over all rows (T, K) of all parts, NaN not counted.

        A constant column gets the scale 1, a column without values also the mean 0. `columns` is K where there may be
        no part. Raises ValueError on infinite values.
        """
        rows = list(parts)
        values = np.concatenate(rows) if rows else np.empty((0, columns or 0))
        if np.isinf(values).any():
            raise ValueError("infinite values cannot be normalised")
        known = ~np.isnan(values)
        count = np.maximum(known.sum(0), 1)
        size = np.where(known, np.abs(values), 0.0).max(0, initial=0.0)
        unit = np.where(size > 0, size, 1.0)
        small = np.where(known, values / unit, 0.0)
        mean = small.sum(0) / count
        spread = np.sqrt((np.where(known, small - mean, 0.0) ** 2).sum(0) / count)
        scale = np.where(spread > FLAT, spread * unit, 1.0)
        return cls(tuple((mean * unit).tolist()), tuple(scale.tolist()))

    @classmethod
    def each(cls, parts: Iterable[Floats], fallback: Scaler, least: int = 8) -> list[Scaler]:
        """A scaler for every part (a series) by itself; columns with fewer than `least` values take the fallback."""
        result = []
        for rows in parts:
            own, enough = cls.fit([rows]), (~np.isnan(rows)).sum(0) >= least
            mean = np.where(enough, own.mean, fallback.mean)
            scale = np.where(enough, own.scale, fallback.scale)
            result.append(cls(tuple(mean.tolist()), tuple(scale.tolist())))
        return result

    def transform(self, values: Floats) -> Floats:
        """Normalise values of shape (..., K)."""
        return np.asarray((values - np.asarray(self.mean)) / np.asarray(self.scale))

    def inverse(self, values: Floats) -> Floats:
        """Undo `transform`, shape (..., K)."""
        return np.asarray(values * np.asarray(self.scale) + np.asarray(self.mean))

    def as_dict(self) -> dict[str, list[float]]:
        """Lists of numbers, ready for JSON."""
        return {"mean": list(self.mean), "scale": list(self.scale)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Scaler:
        """The inverse of `as_dict`. Raises BadInput unless there are as many finite means as finite positive scales."""
        try:
            mean, scale = (tuple(float(v) for v in saved[key]) for key in ("mean", "scale"))
        except (KeyError, TypeError, ValueError):
            raise BadInput("scaler: 'mean' and 'scale' must be lists of numbers") from None
        if len(mean) != len(scale) or not np.isfinite((*mean, *scale)).all() or not all(s > 0 for s in scale):
            raise BadInput("scaler: 'mean' and 'scale' must be finite, of one length, and scales positive")
        return cls(mean, scale)
