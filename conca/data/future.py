"""What is known in advance of the steps to forecast: a table with the covariates that a calendar or a plan gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import codes_in, numbers_in, text_of, unknown_levels
from conca.data.grid import Grid, ticks, untick
from conca.data.layout import fitted_rows
from conca.data.roles import check_column
from conca.data.rows import Sorted, name_of, read_rows
from conca.data.schema import Schema
from conca.data.table import Origin, Source, read_table, settled
from conca.data.times import restore
from conca.types import BadInput

__all__ = ["Future", "empty_future", "read_future"]

End = tuple[tuple[Any, ...], Any]
"""Key of a series, and the time of its last row, as the series has it or as an integer."""


@dataclass(frozen=True)
class Future:
    """The known covariates of the H steps after the last row of one series.

    numeric      (H, number of known numeric columns) float64, NaN where missing
    categorical  (H, number of known categorical columns) int64 codes, 0 where missing or unknown
    """

    numeric: NDArray[np.float64]
    categorical: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numeric)


def read_future(
    source: Source, schema: Schema, ends: Sequence[End], horizon: int, notices: list[str] | None = None
) -> list[Future]:
    """The known covariates of the `horizon` steps after each of the `ends`, in their order.

    The table has the columns of series and time, and those in `schema.known`; others are ignored, as are rows of other
    series and other times: the whole table may be given again, with rows added. Without a column of times, the first
    `horizon` rows of each series count. A value may be missing (`notices` says how many are). Raises BadInput, one line,
    on what cannot be read, on a row that is missing, and on one between those that are needed.
    """
    notices = [] if notices is None else notices
    if not schema.known:
        raise BadInput("the model knows no column in advance; name some when fitting (known, --known)")
    source = settled(source)
    table, origin = read_table(source, text=schema.series), Origin.of(source, "future")
    for name in (*schema.series, *(() if schema.time is None else (schema.time,)), *schema.known):
        check_column(table, origin, name)
    before = {named(key): int(ticks(np.asarray(last))) for key, last in ends}
    rows = read_rows(table, origin, schema, schema.grid, None, notices, before)
    rows = rows if schema.time is None else fitted_rows(rows, schema.grid)
    places = [find_rows(rows, schema.grid, end, stretch, horizon) for end, stretch in zip(ends, stretches(rows, ends))]
    numeric, codes = known_values(
        table, origin, schema, np.concatenate(places) if places else np.empty(0, int), notices
    )
    return [Future(numeric[at : at + horizon], codes[at : at + horizon]) for at in range(0, len(numeric), horizon)]


def empty_future(schema: Schema, ends: Sequence[End], horizon: int) -> pd.DataFrame:
    """The table that `read_future` reads, without values: a row for each of the `horizon` steps after each end.

    Raises BadInput if the schema has no column that is known in advance.
    """
    if not schema.known:
        raise BadInput("the model knows no column in advance; name some when fitting (known, --known)")
    columns: dict[str, Any] = {
        name: [key[place] for key, _ in ends for _ in range(horizon)] for place, name in enumerate(schema.series)
    }
    if schema.time is not None:
        times = [schema.grid.future(last, horizon) for _, last in ends]
        columns[schema.time] = restore(np.concatenate(times), schema.grid)
    rows = len(ends) * horizon
    for name in schema.known:
        columns[name] = np.full(rows, np.nan) if name in schema.numeric else np.full(rows, None, dtype=object)
    return pd.DataFrame(columns)


def named(key: tuple[Any, ...]) -> tuple[str, ...]:
    """A key as text: names of series are numbers in one table, and text in another."""
    return tuple(map(str, key))


def stretches(rows: Sorted, ends: Sequence[End]) -> list[slice]:
    """The sorted rows of the series of each end, none where the table lacks it."""
    begins = np.flatnonzero(rows.starts).tolist()
    places = {named(key): slice(b, e) for key, b, e in zip(rows.keys, begins, [*begins[1:], len(rows.when)])}
    return [places.get(named(key), slice(0, 0)) for key, _ in ends]


def find_rows(rows: Sorted, grid: Grid, end: End, stretch: slice, horizon: int) -> NDArray[np.int64]:
    """The rows (H,) of the table that hold the steps after one end. Raises BadInput if one lacks, or lies beside them."""
    key, last = end
    series = f" of series {name_of(key)}" if key else ""
    if grid.kind == "row":
        held = rows.order[stretch]
        if len(held) < horizon:
            what = f"there are {len(held)} rows{series}, and {horizon} steps ahead"
            raise BadInput(f"{rows.origin.name}: {what}; {ADVICE}")
        return held[:horizon]
    needed, when = ticks(grid.future(last, horizon)), rows.when[stretch]
    stray = (when > ticks(np.asarray(last))) & (when <= needed[-1]) & ~np.isin(when, needed)
    if stray.any():
        at = (stretch.start or 0) + int(stray.argmax())
        first = moment(needed[:1], grid)
        raise BadInput(
            f"{rows.cell(at)}: the time {rows.moment(at)}{series} is none of the steps of {grid.describe()} from {first} "
            "on; correct the time"
        )
    found = np.searchsorted(when, needed)
    there = found < len(when)
    there[there] = when[found[there]] == needed[there]
    if not there.all():
        lacking = moment(needed[~there][:1], grid)
        raise BadInput(f"{rows.origin.name}: the row{series} at {lacking} is missing; {ADVICE}")
    return np.asarray(rows.order[stretch][found])


ADVICE = "give a row for each step ahead (--make-future writes them, without values)"


def moment(when: NDArray[np.int64], grid: Grid) -> str:
    """A time for error lines."""
    return str(restore(untick(when, grid.kind), grid)[0])


def known_values(
    table: pd.DataFrame, origin: Origin, schema: Schema, places: NDArray[np.int64], notices: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Numbers and codes of the known columns in these rows of the table."""
    numeric = np.empty((len(places), len(schema.known_numeric)))
    codes = np.empty((len(places), len(schema.known_categorical)), dtype=np.int64)
    for f, place in enumerate(schema.known_numeric):
        numeric[:, f] = numbers_in(table[schema.numeric[place]], origin)[places]
    for c, place in enumerate(schema.known_categorical):
        column = table[schema.categorical[place]].iloc[places]
        codes[:, c], unknown = codes_in(column, schema.levels[place])
        if unknown:
            notices.append(unknown_levels(schema.categorical[place], unknown))
    for name in schema.known:
        missing = int(text_of(table[name].iloc[places]).isna().sum())
        if missing:
            notices.append(f"column '{name}': {missing:,} of {len(places):,} values known in advance are missing")
    return numeric, codes
