"""Forecasts from rows in the order in which they came: as a frame, or as lines of CSV at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.grid import DAY, Grid, untick
from conca.data.panel import Key, Schema
from conca.data.times import restore
from conca.models.forecast import NetworkConfig

__all__ = ["Ahead", "header"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Ahead:
    """Forecasts from N rows; H steps, K targets, Q quantiles.

    keys       of the series of each row
    cutoffs    (N,) times of the rows, as integers; their numbers in their series where there is no time column
    times      (N, H) of the steps ahead
    quantiles  (N, H, K, Q) in the unit of the targets
    """

    keys: Sequence[Key]
    cutoffs: Integers
    times: Integers
    quantiles: Floats

    def __len__(self) -> int:
        return len(self.cutoffs)

    @classmethod
    def empty(cls, keys: Sequence[Key], config: NetworkConfig) -> Ahead:
        """Room for the forecasts of a network from rows of series with these keys (N)."""
        shape = config.horizon, len(config.bends), len(config.levels)
        count = len(keys)
        return cls(keys, np.empty(count, np.int64), np.empty((count, shape[0]), np.int64), np.empty((count, *shape)))

    def without(self, places: Sequence[int]) -> Ahead:
        """The forecasts from all other rows."""
        kept = np.delete(np.arange(len(self)), places)
        keys = [self.keys[place] for place in kept.tolist()]
        return Ahead(keys, self.cutoffs[kept], self.times[kept], self.quantiles[kept])

    def frame(self, schema: Schema, names: Sequence[str]) -> pd.DataFrame:
        """One row for each row, step and target, in the columns of `Forecaster.predict`; y is not known."""
        count, horizon, targets, _ = self.quantiles.shape
        each = horizon * targets
        columns: dict[str, Any] = {}
        for place, name in enumerate(schema.series):
            columns[name] = [key[place] for key in self.keys for _ in range(each)]
        if schema.time is not None:
            columns[schema.time] = restored(self.times.reshape(-1), schema.grid).repeat(targets)
        columns["cutoff"] = restored(self.cutoffs, schema.grid).repeat(each)
        columns["step"] = np.tile(np.repeat(np.arange(1, horizon + 1), targets), count)
        columns["target_name"] = np.tile(np.array(schema.target, dtype=object), count * horizon)
        for place, name in enumerate(names):
            columns[name] = self.quantiles[..., place].reshape(-1)
        columns["y"] = np.full(count * each, np.nan)
        texts = () if count else (*schema.series, "target_name")
        return pd.DataFrame(columns).astype(dict.fromkeys(texts, "str"))

    def lines(self, schema: Schema) -> str:
        """The same rows as CSV without a header."""
        count, horizon, targets, levels = self.quantiles.shape
        times = schema.time is not None
        each = [f"{'%s,' * times}%s,{step},{cell(name)},{'%s,' * levels}\n" for step, name in steps(schema, horizon)]
        start = "%s," * bool(schema.series)
        form = "".join(start + line for line in each)
        width = bool(schema.series) + times + 1 + levels
        cells: list[Any] = [None] * (width * horizon * targets)
        shown = texts(self.times, schema.grid, targets) if times else []
        cutoffs = texts(self.cutoffs[:, None], schema.grid, horizon * targets)
        values = self.quantiles.reshape(count, horizon * targets, levels).transpose(0, 2, 1).tolist()
        parts: list[str] = []
        for row, key in enumerate(self.keys):
            at = 0
            if schema.series:
                cells[0::width] = [",".join(map(cell, key))] * (horizon * targets)
                at = 1
            if times:
                cells[at::width] = shown[row]
                at += 1
            cells[at::width] = cutoffs[row]
            for level, numbers in enumerate(values[row], start=at + 1):
                cells[level::width] = numbers
            parts.append(form % tuple(cells))
        return "".join(parts)


def header(schema: Schema, names: Sequence[str]) -> str:
    """The first line of the CSV."""
    time = () if schema.time is None else (schema.time,)
    return ",".join(map(cell, (*schema.series, *time, "cutoff", "step", "target_name", *names, "y"))) + "\n"


def steps(schema: Schema, horizon: int) -> list[tuple[int, str]]:
    """Step and target of each line that one row gives."""
    return [(step, name.replace("%", "%%")) for step in range(1, horizon + 1) for name in schema.target]


def cell(value: Any) -> str:
    """A value as a cell of CSV."""
    text = str(value)
    if not any(mark in text for mark in ',"\n\r'):
        return text
    return '"' + text.replace('"', '""') + '"'


def restored(when: Integers, grid: Grid) -> pd.Index[Any]:
    """Integers as the user's times."""
    return restore(untick(when, grid.kind), grid)


def texts(when: Integers, grid: Grid, times: int) -> list[list[str]]:
    """Times (N, T) as text, each of them `times` times in a row."""
    different, inverse = np.unique(when, return_inverse=True)
    known = np.array(text_of(different, grid), dtype=object)
    shown: list[list[str]] = known[inverse.reshape(when.shape).repeat(times, axis=1)].tolist()
    return shown


def text_of(when: Integers, grid: Grid) -> list[str]:
    """Times as they stand in the CSV of `conca predict`; days alone where rows are days, or longer, and begin at midnight."""
    if grid.kind != "datetime":
        return list(map(str, when.tolist()))
    if grid.zone is None and not (when % SECOND).any():
        days = grid.regular and grid.step >= DAY and not (when % DAY).any()
        dates = when.view("datetime64[ns]").astype("datetime64[D]" if days else "datetime64[s]")
        return [text.replace("T", " ") for text in np.datetime_as_string(dates).tolist()]
    return [str(time) for time in restored(when, grid)]
