"""The door of the room: a table of rows becomes series of numbers on a time grid.

What counts as what, when it is not said:

- of a table with the columns ds and y (and unique_id), or timestamp and target (and item_id), these are time, target
  and series;
- every column that is not target, time or series is a covariate;
- a column is numeric if pandas says so, or if at least half of its cells that are not missing are numbers; then any
  text in it is an error that names the cell ('?' does not quietly turn a column of numbers into categories). All other
  columns are categorical. `categorical=` names columns that are categories though they look like numbers;
- a covariate without any value, of dates, or of texts that hardly repeat (more than 64 different ones and more than one
  for every ten rows) is left out with a notice; named in `covariates`, it is kept, or refused if it cannot be;
- all this is decided on the whole table, also on rows that are held out from training later; `Panel.known` takes the
  categories that occur only there out again;
- a row that the table lacks between two of a series is the same as one whose cells are missing. So that the spacing
  shows, rows next to each other must be the most common case, and of rows lost at random half must be there. Missing
  rows before the first one and after the last count only if the table has them: they say from when and up to when a
  series is known;
- missing is an empty cell, NaN, None, NaT, or the words pandas knows (NA, n/a, null).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import codes_in, numbers_in, unknown_levels
from conca.data.grid import Grid
from conca.data.layout import Layout, lay_out
from conca.data.local import check_zone
from conca.data.roles import Named, Names, as_names, assign_roles, check_columns
from conca.data.rows import name_of
from conca.data.schema import Schema
from conca.data.table import Origin, Source, read_table, settled
from conca.types import BadInput

__all__ = ["Grid", "Key", "Names", "Panel", "Schema", "Series", "as_names", "read_panel"]

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Series:
    """One series on its time grid: T rows, of which those that the table lacked are missing throughout.

    key          values of the series columns, () if there are none
    times        (T,) datetime64[ns] or int64, increasing; `conca.data.times.restore` gives them the user's time zone
    target       (T, K) float64, NaN where missing
    numeric      (T, F) float64, NaN where missing
    categorical  (T, C) int64 codes, 0 where missing or unknown
    given        (T,) bool, whether the table had this row
    """

    key: Key
    times: NDArray[Any]
    target: NDArray[np.float64]
    numeric: NDArray[np.float64]
    categorical: NDArray[np.int64]
    given: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True)
class Panel:
    """All series of a table.

    schema    what the columns mean
    series    the series that can be used, in the order in which the table first names them; at least one
    left_out  key and reason of each series that is too short or has no target value
    notices   lines for the user: what was sorted, filled, left out
    """

    schema: Schema
    series: list[Series]
    left_out: list[tuple[Key, str]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.series)

    def known(self, rows: Sequence[int]) -> Panel:
        """The panel as a model may know it that learns from the first `rows` of each series.

        Categories that do not occur there become code 0, as they would in a new table; a notice counts them. Nothing
        else changes.
        """
        levels: list[tuple[str, ...]] = []
        maps: list[NDArray[np.int64]] = []
        notices = list(self.notices)
        for c, name in enumerate(self.schema.categorical):
            every = self.schema.levels[c]
            met = np.zeros(len(every) + 1, dtype=bool)
            for one, end in zip(self.series, rows, strict=True):
                met[one.categorical[:end, c]] = True
            met[0] = False
            levels.append(tuple(level for level, here in zip(every, met[1:]) if here))
            maps.append(np.where(met, np.cumsum(met), 0))
            if late := len(every) - len(levels[-1]):
                notices.append(f"column '{name}': {late} categories are not met in training; they are read as missing")
        if not levels:
            return self
        series = [
            replace(one, categorical=np.stack([codes[one.categorical[:, c]] for c, codes in enumerate(maps)], axis=1))
            for one in self.series
        ]
        return replace(self, schema=replace(self.schema, levels=tuple(levels)), series=series, notices=notices)


def read_panel(
    source: Source,
    *,
    target: Names | None = None,
    time: str | None = None,
    series: Names = (),
    covariates: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    known: Sequence[str] = (),
    tz: str | None = None,
    schema: Schema | None = None,
    minimum: int = 1,
    strict: bool = False,
) -> Panel:
    """Read a table as series.

    source       path of a CSV or Parquet file, or a data frame of pandas, polars or pyarrow
                 (`conca.data.table.read_table`)
    target       column or columns to forecast; they are numeric
    time         column of times; None: the index of a data frame if it holds dates, or that of a convention
                 (`conca.data.conventions`), else the order of the rows is time
    series       column or columns that tell series apart; none: that of a convention, else one series with the key ()
    covariates   other columns to use; None: all
    categorical  columns among the covariates that are categories though they look like numbers
    known        columns among the covariates that are known in advance, such as holidays; they need not be named as
                 covariates, too
    tz           time zone: times without a zone are what its clocks show (`conca.data.local` says how the hour that
                 autumn repeats is read), times with one are converted to it
    schema       that of an earlier panel, instead of the seven above: columns and spacing are checked against it;
                 categories that it does not know become code 0, other columns are ignored
    minimum      rows on the grid that a series must have
    strict       refuse the table if a series must be left out

    Rows are sorted within each series. Times that a regular grid has and the table lacks become missing rows. Raises
    BadInput, one line, on whatever cannot be read or understood.
    """
    named = Named.of(target, time, series, covariates, categorical, known)
    source = settled(source)
    notices: list[str] = []
    if schema is None:
        named = named.completed(source, notices)
    elif named != Named() or tz is not None:
        raise BadInput("a schema says what the columns are; give either the schema or the columns, not both")
    table = read_table(source, text=named.series if schema is None else schema.series)
    origin = Origin.of(source)
    if schema is None:
        schema = assign_roles(table, origin, named, notices)
        layout = lay_out(table, origin, schema, None, notices, zone_of(tz, schema))
        schema = replace(schema, grid=layout.grid, format=layout.format)
    else:
        check_columns(table, origin, schema)
        layout = lay_out(table, origin, schema, schema.grid, notices)
    columns = read_values(table, origin, schema, notices)
    found, left_out = cut(layout, columns, minimum)
    report_left_out(found, left_out, origin, minimum, strict, notices)
    return Panel(schema, found, left_out, notices)


def zone_of(tz: str | None, schema: Schema) -> str | None:
    """The time zone that is named. Raises BadInput if there is none of this name, or no column of times."""
    if tz is not None and schema.time is None:
        raise BadInput("tz is the zone of the times, but no column of times is named; name it, or leave out tz")
    return None if tz is None else check_zone(tz)


Values = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]


def read_values(table: pd.DataFrame, origin: Origin, schema: Schema, notices: list[str]) -> Values:
    """Target (N, K), numeric (N, F) and categorical (N, C) values of the rows of the table, in its order."""
    target = np.empty((len(table), len(schema.target)))
    numeric = np.empty((len(table), len(schema.numeric)))
    codes = np.empty((len(table), len(schema.categorical)), dtype=np.int64)
    for k, name in enumerate(schema.target):
        target[:, k] = numbers_in(table[name], origin)
        if np.isnan(target[:, k]).all():
            raise BadInput(f"{origin.name}, column '{name}': the target is missing in every row; name another column")
    for f, name in enumerate(schema.numeric):
        numeric[:, f] = numbers_in(table[name], origin, advice=", or name the column as categorical")
    for c, name in enumerate(schema.categorical):
        codes[:, c], unknown = codes_in(table[name], schema.levels[c])
        if unknown:
            notices.append(unknown_levels(name, unknown))
    return target, numeric, codes


def cut(layout: Layout, values: Values, minimum: int) -> tuple[list[Series], list[tuple[Key, str]]]:
    """The series of a table, and those left out with the reason."""
    target, numeric, codes = (layout.spread(v, fill) for v, fill in zip(values, (np.nan, np.nan, 0)))
    found: list[Series] = []
    left_out: list[tuple[Key, str]] = []
    for key, begin, end in layout.stretches():
        rows = slice(begin, end)
        if end - begin < minimum:
            left_out.append((key, f"{end - begin} rows, {minimum} needed"))
        elif np.isnan(target[rows]).all():
            left_out.append((key, "target missing throughout"))
        else:
            parts = target[rows], numeric[rows], codes[rows], layout.given[rows]
            found.append(Series(key, layout.times[rows], *parts))
    return found, left_out


def report_left_out(
    found: list[Series],
    left_out: list[tuple[Key, str]],
    origin: Origin,
    minimum: int,
    strict: bool,
    notices: list[str],
) -> None:
    """Say which series are left out; raise BadInput if none remains, or if `strict`."""
    if not left_out:
        return
    named = [f"{'series ' + name_of(key) if key else 'the series'}: {reason}" for key, reason in left_out[:3]]
    some = "; ".join(named) + ("; ..." if len(left_out) > 3 else "")
    total = len(found) + len(left_out)
    if not found:
        advice = f"give longer series (at least {minimum} rows) with target values"
        raise BadInput(f"{origin.name}: no series can be used ({some}); {advice}")
    line = f"{len(left_out)} of {total} series left out ({some})"
    if strict:
        raise BadInput(f"{origin.name}: {line}; lengthen or remove them, or do without strict")
    notices.append(line)
