"""Rows as they come, of one or many series: from a data frame, checked against what was fitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import LARGEST, codes_in, numbers_in, shown
from conca.data.encoding import named
from conca.data.layout import fitted_rows
from conca.data.panel import Key, Schema
from conca.data.roles import check_column, check_columns
from conca.data.rows import Sorted, check_kind, read_keys
from conca.data.table import Origin, Source, columns_of, read_table, settled
from conca.data.times import ISO, read_times
from conca.types import BadInput

__all__ = ["Given", "Rows", "read_rows", "when_of"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PLAIN = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)?", re.ASCII)
WHOLE = re.compile(r"-?\d{1,17}", re.ASCII)
NUMBERS = {int, float, np.float64, np.float32, np.int64, np.int32}
EARLIEST, LATEST = "1678", "2261"
"""Years whose dates certainly can be counted lie between these."""
Given: TypeAlias = "Mapping[str, Any] | pd.Series[Any] | Source"
"""One row, as a mapping of columns or a pandas Series, or a table of them."""


@dataclass(frozen=True)
class Rows:
    """N rows in the order in which they came; K targets, F numbers, C categories.

    keys         of their series
    when         (N,) times as integers (`conca.data.grid.ticks`); 0 where there is no time column
    target       (N, K) NaN where missing
    numeric      (N, F) NaN where missing
    categorical  (N, C) codes, 0 where missing or unknown
    clocks       times are what the clocks of the grid's zone show; which moments these are, the rows before them say
    """

    keys: Sequence[Key]
    when: Integers
    target: Floats
    numeric: Floats
    categorical: Integers
    clocks: bool = False

    def __len__(self) -> int:
        return len(self.when)

    def take(self, places: Integers) -> Rows:
        """The rows at these places (n,)."""
        keys = [self.keys[place] for place in places.tolist()]
        target, numeric, categorical = self.target[places], self.numeric[places], self.categorical[places]
        return Rows(keys, self.when[places], target, numeric, categorical, self.clocks)

    def by_series(self) -> dict[tuple[str, ...], Integers]:
        """The places of the rows of each series; its name is its key as text."""
        if not len(self):
            return {}
        if not self.keys[0]:
            return {(): np.arange(len(self))}
        places: dict[tuple[str, ...], list[int]] = {}
        for place, key in enumerate(self.keys):
            places.setdefault(named(key), []).append(place)
        return {name: np.array(found, dtype=np.int64) for name, found in places.items()}


def read_rows(given: Given, schema: Schema) -> tuple[Rows, Origin]:
    """The rows of a table, or one row, under the schema of a fitted run; other columns are ignored.

    A frame without rows gives none. Raises BadInput, one line, for what cannot be read or lacks a column.
    """
    row: Any = given.to_dict() if isinstance(given, pd.Series) else given
    source: Any = given
    if isinstance(row, Mapping):
        quick = quick_row(row, schema)
        if quick is not None:
            return quick, Origin("table")
        listed = [name for name, cell in row.items() if isinstance(cell, (list, tuple, np.ndarray, pd.Series))]
        for name in listed:
            if name in schema.columns:
                raise BadInput(
                    f"column '{shown(name)}': a row has one value in each column; give a frame for many rows"
                )
        source = pd.DataFrame([{name: cell for name, cell in row.items() if name not in listed}])
    source = settled(source)
    if isinstance(source, pd.DataFrame) and not len(source):
        return no_rows(source, schema), Origin("table")
    table, origin = read_table(source, text=schema.series), Origin.of(source)
    check_columns(table, origin, schema)
    refuse_bytes(table, origin, schema)
    keys, codes = read_keys(table, origin, schema.series)
    when, clocks = np.zeros(len(table), np.int64), False
    if schema.time is not None:
        when, clocks = when_of(table[schema.time], origin, schema)
    target = np.stack([numbers_in(table[name], origin) for name in schema.target], axis=1)
    numeric = np.empty((len(table), len(schema.numeric)))
    for f, name in enumerate(schema.numeric):
        numeric[:, f] = numbers_in(table[name], origin)
    categorical = np.zeros((len(table), len(schema.categorical)), dtype=np.int64)
    for c, name in enumerate(schema.categorical):
        categorical[:, c], _ = codes_in(table[name], schema.levels[c])
    return Rows([keys[code] for code in codes.tolist()], when, target, numeric, categorical, clocks), origin


def no_rows(empty: pd.DataFrame, schema: Schema) -> Rows:
    """The rows of a frame that has none. Raises BadInput if it lacks a column."""
    named_so = pd.DataFrame(columns=columns_of(empty))
    for name in schema.columns:
        check_column(named_so, Origin("table"), name)
    target, numeric = (np.empty((0, len(names))) for names in (schema.target, schema.numeric))
    return Rows([], np.empty(0, np.int64), target, numeric, np.empty((0, len(schema.categorical)), np.int64))


def refuse_bytes(table: pd.DataFrame, origin: Origin, schema: Schema) -> None:
    """Raise BadInput for a name of a series that is bytes: as text, it would be that of another series."""
    for name in schema.series:
        parts = table[name].tolist() if table[name].dtype == object else []
        for place, part in enumerate(parts):
            if isinstance(part, (bytes, bytearray, memoryview)):
                cell = origin.cell(place, name)
                raise BadInput(f"{cell}: the name of the series is bytes, not text; decode it")


def quick_row(row: Mapping[str, Any], schema: Schema) -> Rows | None:
    """One row of plain values, as a table of it would be read; None where something in it must be looked at."""
    key = tuple(row.get(name) for name in schema.series)
    numbers = [row.get(name) for name in (*schema.target, *schema.numeric)]
    texts = [row.get(name) for name in schema.categorical]
    when = 0 if schema.time is None else quick_moment(row.get(schema.time), schema)
    plain = all(isinstance(part, str) and part for part in key) and all(isinstance(text, str) for text in texts)
    if when is None or not plain or not all(type(number) in NUMBERS for number in numbers):
        return None
    values = np.array([numbers], dtype=np.float64)
    if not (np.isnan(values) | (np.abs(values) <= LARGEST)).all():
        return None
    stripped = [str(text).strip() for text in texts]
    places = [known.index(text) + 1 if text in known else 0 for text, known in zip(stripped, schema.levels)]
    targets = len(schema.target)
    codes = np.array([places], dtype=np.int64)
    clocks = schema.grid.local and not schema.grid.wall and schema.time is not None
    return Rows([key], np.array([when], np.int64), values[:, :targets], values[:, targets:], codes, clocks)


def quick_moment(time: Any, schema: Schema) -> int | None:
    """One time as an integer, None where it must be looked at."""
    if isinstance(time, str):
        found = quick_times([time], schema)
        return None if found is None else int(found[0])
    if schema.grid.kind == "integer":
        return time if type(time) is int and abs(time) < 2**61 else None
    dated = type(time) is pd.Timestamp and time.tzinfo is None and EARLIEST < f"{time.year:04}" < LATEST
    return int(time.as_unit("ns").value) if dated and (schema.grid.local or not schema.grid.zone) else None


def when_of(column: pd.Series[Any], origin: Origin, schema: Schema) -> tuple[Integers, bool]:
    """A column of times as integers (N,), as series hold them, and whether they are yet what the clocks of a zone show.

    Raises BadInput for times that cannot be read, or are of another kind than the fitted ones.
    """
    grid = schema.grid
    cells = column.tolist()
    quick = quick_times(cells, schema) if all(isinstance(cell, str) for cell in cells) else None
    if quick is not None:
        return quick, grid.local and not grid.wall
    times = read_times(column, origin, schema.format, grid.zone, whole=grid.kind == "integer")
    clocks = grid.local and times.kind == "datetime" and times.zone is None
    order = np.arange(len(times.when), dtype=np.int64)
    zone = grid.zone if clocks else times.zone
    starts = np.ones(len(order), dtype=bool)
    rows = Sorted(
        origin, str(column.name), [()], order, times.when, starts, times.kind, zone, wall=clocks and grid.wall
    )
    check_kind(rows, grid)
    return fitted_rows(rows, grid).when, clocks and not grid.wall


def quick_times(cells: Sequence[str], schema: Schema) -> Integers | None:
    """A column of times written in the commonest ways, None where it must be looked at."""
    grid = schema.grid
    if grid.kind == "integer":
        return np.array(list(map(int, cells)), dtype=np.int64) if all(map(WHOLE.fullmatch, cells)) else None
    if schema.format != ISO or (grid.zone and not grid.local) or not all(map(PLAIN.fullmatch, cells)):
        return None
    try:
        when = np.array(cells, dtype="datetime64[ns]").astype(np.int64)
    except ValueError:
        return None
    return when if all(EARLIEST < text[:4] < LATEST for text in cells) else None
