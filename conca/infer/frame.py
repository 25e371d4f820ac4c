"""Forecasts in long form, as users read them, and the ends that fitted series go on from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import ticks, untick
from conca.data.panel import Key, Schema, Series
from conca.data.times import restore
from conca.types import BadInput

__all__ = ["Ends", "as_given", "check_names", "long_frame", "plain"]

ADDED = "cutoff", "step", "target_name", "y"
"""Columns of a forecast beside those of series, time and quantiles."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Ends:
    """The last row of each fitted series, and the forecast from it.

    keys, times  of the series; times as integers; keys as JSON keeps them (`plain`), so that saving changes nothing
    kind         of the grid
    quantiles    (number of series, H, K, Q); NaN where a forecast needs covariates of the future
    learnt       times of the last row of each that the model learnt from
    """

    keys: tuple[Key, ...]
    times: tuple[int, ...]
    kind: str
    quantiles: Floats
    learnt: tuple[int, ...]

    @classmethod
    def of(cls, series: Sequence[Series], quantiles: Sequence[Floats], learnt: Sequence[int]) -> Ends:
        """The ends of series with the forecast (H, K, Q) from each; the first `learnt` rows of each were learnt from."""
        times = tuple(int(ticks(s.times[-1:])[0]) for s in series)
        last = tuple(int(ticks(s.times[end - 1 : end])[0]) for s, end in zip(series, learnt))
        kind = "datetime" if series[0].times.dtype.kind == "M" else "integer"
        return cls(tuple(plain(s.key) for s in series), times, kind, np.stack(quantiles), last)

    def series(self, targets: Sequence[str]) -> list[Series]:
        """Series of one row, their last."""
        nothing = np.full((1, len(targets)), np.nan)
        empty, codes, given = np.empty((1, 0)), np.empty((1, 0), np.int64), np.ones(1, bool)
        return [
            Series(key, untick(np.array([time], np.int64), self.kind), nothing, empty, codes, given)
            for key, time in zip(self.keys, self.times)
        ]

    def cutoffs(self) -> list[Integers]:
        """The only row of each."""
        return [np.zeros(1, np.int64) for _ in self.keys]

    def parts(self) -> list[Floats]:
        """The forecasts, (1, H, K, Q) each."""
        return [q[None] for q in self.quantiles]

    def as_dict(self) -> dict[str, Any]:
        """All but the quantiles, ready for JSON."""
        return {"keys": self.keys, "times": self.times, "kind": self.kind, "learnt": self.learnt}

    @classmethod
    def from_dict(cls, saved: dict[str, Any], quantiles: Floats) -> Ends:
        """The inverse of `as_dict`. Raises BadInput if the parts do not fit."""
        try:
            keys, times = tuple(tuple(key) for key in saved["keys"]), tuple(int(time) for time in saved["times"])
            learnt = tuple(int(time) for time in saved.get("learnt", times))
            kind = {"datetime": "datetime", "integer": "integer"}[saved["kind"]]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise BadInput("latest: 'keys', 'times' and 'kind' are needed; the run is damaged") from None
        sizes = {len(keys), len(times), len(learnt), len(quantiles)}
        if len(sizes) > 1 or any(abs(time) >= 2**63 for time in (*times, *learnt)):
            raise BadInput("latest: the ends of the series and their forecasts do not fit; the run is damaged")
        return cls(keys, times, kind, quantiles, learnt)


def plain(key: Key) -> Key:
    """A key whose parts are text, booleans and finite numbers of Python's own; all others become text."""
    own = [(part, part.item() if isinstance(part, np.generic) else part) for part in key]
    return tuple(
        value if isinstance(value, int | float) and math.isfinite(value) and str(value) == str(part) else str(part)
        for part, value in own
    )


def check_names(schema: Schema, columns: Sequence[str]) -> None:
    """Raise BadInput if a column of series or time has the name of another column of the forecasts; `columns` as below."""
    for name in (*schema.series, schema.time):
        if name in (*ADDED, *columns):
            raise BadInput(f"column '{name}': a column of the forecasts has this name; rename yours")


def long_frame(
    schema: Schema,
    series: Sequence[Series],
    cutoffs: Sequence[Integers],
    quantiles: Sequence[Floats],
    names: Sequence[str],
) -> pd.DataFrame:
    """One row for each series, cutoff (n,), step and target; quantiles (n, H, K, Q) in columns of these names."""
    parts = [one_series(schema, s, c, q, names) for s, c, q in zip(series, cutoffs, quantiles)]
    return pd.concat(parts, ignore_index=True)


def one_series(
    schema: Schema, series: Series, cutoffs: Integers, quantiles: Floats, names: Sequence[str]
) -> pd.DataFrame:
    """The forecasts of one series."""
    count, horizon, targets, _ = quantiles.shape
    times = np.concatenate([series.times, schema.grid.future(series.times[-1], horizon)])
    y = np.concatenate([series.target, np.full((horizon, targets), np.nan)])
    ahead = (cutoffs[:, None] + np.arange(1, horizon + 1)).reshape(-1)
    each = horizon * targets
    columns: dict[str, Any] = {name: [part] * (count * each) for name, part in zip(schema.series, series.key)}
    if schema.time is not None:
        columns[schema.time] = restore(times[ahead], schema.grid).repeat(targets)
    columns["cutoff"] = restore(series.times[cutoffs], schema.grid).repeat(each)
    columns["step"] = np.tile(np.repeat(np.arange(1, horizon + 1), targets), count)
    columns["target_name"] = np.tile(np.array(schema.target, dtype=object), count * horizon)
    for place, name in enumerate(names):
        columns[name] = quantiles[..., place].reshape(-1)
    columns["y"] = y[ahead].reshape(-1)
    return pd.DataFrame(columns)


def as_given(frame: pd.DataFrame, data: object) -> Any:
    """A frame of the kind that the user gave: of polars for one of polars, else of pandas."""
    if type(data).__module__.partition(".")[0] != "polars":
        return frame
    return import_module("polars").from_pandas(frame)
