"""The simple forecasts that a model is compared with: fitted on the rows that it knows, kept in its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.data.encoding import named
from conca.data.panel import Key, Schema, Series
from conca.metrics.baselines import Baseline, History, LastValue, Moments, Ridge, SeasonalNaive, season_of
from conca.metrics.forecast import naive_error
from conca.types import BadInput

__all__ = ["Forecast", "SimpleForecasts"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Forecast = tuple[Floats, Floats]
"""Point forecasts (n, H, K) and quantiles (n, H, K, Q)."""


@dataclass(frozen=True)
class Known:
    """What is known of S series: mean and deviation of targets and covariates, and the error of repeating a season."""

    mean: Floats
    scale: Floats
    covariate_mean: Floats
    covariate_scale: Floats
    error: Floats

    def at(self, place: int | None) -> tuple[tuple[Moments, Moments], Floats]:
        """Moments and error of one series; None: of the average series."""
        parts = [v.mean(0) if place is None else v[place] for v in (self.mean, self.scale, self.error)]
        others = [v.mean(0) if place is None else v[place] for v in (self.covariate_mean, self.covariate_scale)]
        return ((parts[0], parts[1]), (others[0], others[1])), parts[2]


class SimpleForecasts:
    """The last value, the last season, a ridge regression.

    Args:
        schema: of the table.
        horizon: steps ahead.
        levels: of the quantiles.
    """

    def __init__(self, schema: Schema, horizon: int, levels: Sequence[float]) -> None:
        self.schema = schema
        self.season = season_of(schema.grid.seconds)
        self.baselines: dict[str, Baseline] = {"last value": LastValue(horizon, levels=levels)}
        if self.season > 1:
            name = season_name(self.season, schema.grid.seconds or 0.0)
            self.baselines[name] = SeasonalNaive(horizon, self.season, levels=levels)
        self.baselines["ridge"] = Ridge(horizon, levels=levels)
        self.places: dict[tuple[str, ...], int] = {}
        self.known: Known | None = None

    def fit(self, series: Sequence[Series], train: Sequence[int]) -> Self:
        """Learn from the first `train` rows of each series. Returns itself."""
        histories = [self.history(s, end) for s, end in zip(series, train)]
        for baseline in self.baselines.values():
            baseline.fit(histories)
        targets, covariates = (np.array([[*h.moments[i]] for h in histories]) for i in (0, 1))
        error = np.array([naive_error(s.target[:end], self.season) for s, end in zip(series, train)])
        self.known = Known(targets[:, 0], targets[:, 1], covariates[:, 0], covariates[:, 1], error)
        self.places = {named(s.key): place for place, s in enumerate(series)}
        return self

    def history(self, series: Series, train: int) -> History:
        """A series as the simple forecasts see it."""
        known = None if self.known is None else self.known.at(self.places.get(named(series.key)))[0]
        covariates = np.concatenate([series.numeric, self.schema.one_hot(series.categorical)], axis=1)
        return History(series.target, covariates, train, known)

    def unit(self, key: Key) -> Floats:
        """The error (K,) of repeating the last season, by which MASE divides. RuntimeError before `fit`."""
        if self.known is None:
            raise RuntimeError("fit the simple forecasts before they are asked")
        return self.known.at(self.places.get(named(key)))[1]

    def predict(self, name: str, series: Sequence[Series], cutoffs: Sequence[Integers]) -> Forecast:
        """The forecasts of that name after the cutoffs (n,) of each series, one series after the other."""
        parts = [self.baselines[name].predict(self.history(s, 0), c) for s, c in zip(series, cutoffs) if len(c)]
        points, quantiles = zip(*parts)
        return np.concatenate(points), np.concatenate(quantiles)

    def tensors(self) -> dict[str, Tensor]:
        """All that was learnt, by name, for safetensors."""
        assert self.known is not None
        arrays = {f"series.{name}": values for name, values in vars(self.known).items()}
        for name, baseline in self.baselines.items():
            arrays |= {f"{name}.{part}": values for part, values in baseline.fitted.items()}
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}

    def take(self, tensors: dict[str, Tensor], keys: Sequence[tuple[str, ...]]) -> Self:
        """The inverse of `tensors`; keys of the series as text. Raises BadInput if it lacks something. Returns itself."""
        arrays = {name: np.asarray(tensor.numpy(), dtype=np.float64) for name, tensor in tensors.items()}
        try:
            self.known = Known(**{name: arrays[f"series.{name}"] for name in Known.__dataclass_fields__})
            for name, baseline in self.baselines.items():
                start = f"{name}."
                baseline.take({n.removeprefix(start): v for n, v in arrays.items() if n.startswith(start)})
        except KeyError as error:
            raise BadInput(f"the tensor {error} is missing; the run is damaged") from None
        if any(len(values) != len(keys) for values in vars(self.known).values()):
            raise BadInput(f"the tensors are not of {len(keys)} series; the run is damaged")
        self.places = {key: place for place, key in enumerate(keys)}
        return self


def season_name(season: int, seconds: float) -> str:
    """The forecast that repeats the last season, in words."""
    days = season * seconds / 86_400
    if 0.9 < days < 1.1:
        return "same hour yesterday" if season == 24 else "same time yesterday"
    return "same day last week" if 6.5 < days < 7.5 else "same time last year"
