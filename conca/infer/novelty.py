"""How strange a row is: its negative log-likelihood under the forecast from the row before, ranked among rows held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.data.encoding import Encoded
from conca.data.panel import Series
from conca.infer.forecast import CHUNK, hidden_rows
from conca.metrics.likelihood import split_normal_nll
from conca.models.forecast import ForecastNetwork
from conca.types import BadInput

__all__ = ["COLUMNS", "QUANTILE", "Calibration", "cells", "joint", "likelihoods", "number_of", "series_novelty", "told"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FLOOR = 1e-3
"""Least standard deviation of a forecast, in units of the series."""
COLUMNS = "novelty", "rank", "alarm"
QUANTILE = 0.99
"""Share of rows held out that scored lower, from which on a row is called strange."""


@dataclass(frozen=True)
class Calibration:
    """Scores of what was held out, in order, (n,): what a new one is measured by.

    what    they are of, in words
    """

    scores: Floats
    what: str = "rows"

    @classmethod
    def of(cls, scores: Floats, what: str = "rows") -> Calibration:
        """From scores in any order; NaN is left out."""
        found = np.asarray(scores, np.float64).ravel()
        return cls(np.sort(found[~np.isnan(found)]), what)

    def rank(self, scores: Floats) -> Floats:
        """Share of those held out that scored lower, the new one counted among them: from 0 to n / (n + 1); NaN of NaN.

        One less the rank is a conformal p-value: where rows are like those held out, it is below a with probability a at most.
        """
        lower = np.searchsorted(self.scores, scores, side="left")
        return np.where(np.isnan(scores), np.nan, lower / (len(self.scores) + 1))

    def checked(self, quantile: float | None) -> float:
        """The rank from which on there is an alarm; None: 0.99, or the highest that there is, if that is lower.

        Raises BadInput unless it lies between 0 and 1, and so many were held out that a rank can reach it.
        """
        most = len(self.scores) / (len(self.scores) + 1)
        if quantile is None:
            return min(QUANTILE, most)
        if not 0 < quantile < 1:
            raise BadInput(f"the quantile from which on a row is strange lies between 0 and 1, not {quantile}")
        if quantile > most:
            raise BadInput(
                f"{len(self.scores):,} {self.what} held out rank up to {most:.4g}, so none would reach {quantile}; hold out more "
                "when you fit, or take a lower quantile"
            )
        return quantile


def likelihoods(
    network: ForecastNetwork,
    hidden: Tensor,
    anchor: NDArray[np.float32],
    known: NDArray[np.float32] | None,
    y: Floats,
    one: Encoded,
) -> Floats:
    """-log densities (n,) of rows, summed over the targets that are there, under the forecasts from the rows before.

    hidden (members, n, D) and anchor (n, H or 1, K) of the rows before; known (n, G) of the rows themselves, which is all that
    the first step ahead looks at; y (n, K), NaN where missing. NaN where no target is there.
    """
    config = network.config
    parts = [np.empty((0, len(config.bends), len(config.levels)))]
    with torch.inference_mode():
        for begin in range(0, len(y), CHUNK):
            some = slice(begin, begin + CHUNK)
            ahead = None
            if known is not None:
                own = torch.from_numpy(np.ascontiguousarray(known[some]))[:, None]
                ahead = torch.cat([own, own.new_zeros(len(own), config.horizon - 1, own.shape[2])], 1)
            parts.append(network(hidden[:, some], torch.from_numpy(anchor[some]), ahead)[:, 0].double().numpy())
    quantiles = np.concatenate(parts) * one.unit[:, None] + one.origin[:, None]
    return joint(y, quantiles, config.levels, one.unit)


def joint(y: Floats, quantiles: Floats, levels: Sequence[float], unit: Floats) -> Floats:
    """-log densities (n,) of rows y (n, K) under quantiles (n, K, Q), summed over the targets that are there; NaN without one.

    unit (K,) or (n, K) of the series.
    """
    each = split_normal_nll(y, quantiles, levels, FLOOR * np.abs(unit))
    there = ~np.isnan(each)
    return np.where(there.any(1), np.where(there, each, 0.0).sum(1), np.nan)


def told(scores: Floats, calibration: Calibration, quantile: float) -> dict[str, Any]:
    """Columns novelty, rank and alarm of scores (n,); an alarm is 1 or 0, or missing where there is no score."""
    rank = calibration.rank(scores)
    alarm = pd.array(np.where(np.isnan(rank), 0, rank >= quantile).astype(np.int64), dtype="Int64")
    alarm[np.isnan(rank)] = pd.NA
    return dict(zip(COLUMNS, (scores, rank, alarm)))


def number_of(value: float) -> str:
    """A number with six digits that count; empty where it is none."""
    return "" if value != value else f"{value:.6g}"


def cells(score: float, rank: float, quantile: float) -> list[str]:
    """The columns of one score as text; empty where there is no score."""
    return [number_of(score), number_of(rank), "" if score != score else str(int(rank >= quantile))]


def rows_before(given: NDArray[np.bool_]) -> Integers:
    """The rows before those that are given (T,), but for the first."""
    rows = np.flatnonzero(given)
    return np.asarray(rows[rows > 0] - 1, dtype=np.int64)


def series_novelty(
    network: ForecastNetwork, series: Sequence[Series], encoded: Sequence[Encoded], *, context: int
) -> list[Floats]:
    """Of each series, -log densities (n,) of its given rows; NaN for its first one, of which nothing is forecast."""
    before = [rows_before(one.given) for one in series]
    result = []
    for own, one, rows, hidden in zip(series, encoded, before, hidden_rows(network, encoded, before, context=context)):
        known = None if one.known is None else one.known[rows + 1]
        found = likelihoods(network, hidden, one.anchor[rows], known, own.target[rows + 1], one)
        first = int(own.given.sum()) - len(rows)
        result.append(np.concatenate([np.full(first, np.nan), found]))
    return result
