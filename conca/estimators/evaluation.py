"""Forecasts of rows held out beside what came: kept in the run, so that reports can be drawn without the table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conca.data.panel import Key

__all__ = ["Evaluation"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """Forecasts from up to 2,000 rows, evenly spaced over all series, and errors by step over all of them.

    n forecasts, P rows of past, H steps, K targets, Q quantiles; everything in the unit of the targets, NaN where missing.

    keys       of the series
    series     (n,) which of the keys
    cutoffs    (n,) times, as integers (`conca.data.grid.ticks`), of the last row known to each forecast
    past       (n, P, K) the rows up to the cutoff, it included; P is at most 3 H and at most 168
    y          (n, H, K) what came
    quantiles  (n, H, K, Q) what was forecast
    names      of the model ("model") and of the simple forecasts
    by_step    (number of names, H, K) mean absolute error at each step
    """

    keys: tuple[Key, ...]
    series: Integers
    cutoffs: Integers
    past: Floats
    y: Floats
    quantiles: Floats
    names: tuple[str, ...]
    by_step: Floats
