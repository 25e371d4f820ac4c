"""What is known in advance of all times to come, read once: a stream looks up the steps ahead of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conca.data.encoding import named
from conca.data.future import Future, known_values
from conca.data.layout import fitted_rows
from conca.data.panel import Series
from conca.data.roles import check_column
from conca.data.rows import name_of, read_rows
from conca.data.table import Origin, Source, read_table, settled
from conca.infer.fitted import Fitted
from conca.infer.placing import moment
from conca.types import BadInput

__all__ = ["Coming", "coming_of"]

Integers = NDArray[np.int64]
Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """What is known of one series: times (M,) as integers, increasing, and values (M, G) as the network reads them."""

    when: Integers
    known: Floats32


class Coming:
    """The columns that are known in advance, of every time in a table.

    Args:
        source: a table with the columns of series and time, and those in `schema.known`. Without a column of times, its rows
            are counted from the beginning of the stream.
        fitted: the run.

    Raises:
        BadInput: for a table that cannot be read, or lacks a column.
    """

    def __init__(self, source: Source, fitted: Fitted) -> None:
        schema = fitted.schema
        source = settled(source)
        table, origin = read_table(source, text=schema.series), Origin.of(source)
        time = () if schema.time is None else (schema.time,)
        for name in (*schema.series, *time, *schema.known):
            check_column(table, origin, name)
        self.where, self.grid, self.notices = origin.name, schema.grid, list[str]()
        rows = read_rows(table, origin, schema, schema.grid, None, self.notices)
        rows = rows if schema.time is None else fitted_rows(rows, schema.grid)
        values = Future(*known_values(table, origin, schema, rows.order, self.notices))
        nothing = np.empty((0, len(schema.numeric))), np.empty((0, len(schema.categorical)), np.int64)
        empty = Series((), np.empty(0, np.int64), np.empty((0, len(schema.target))), *nothing, np.empty(0, dtype=bool))
        known = fitted.encoding.known(schema, empty, values)
        begins = np.flatnonzero(rows.starts).tolist()
        self.nothing = Table(np.empty(0, np.int64), known[:0])
        self.tables = {
            named(key): Table(rows.when[begin:end], known[begin:end])
            for key, begin, end in zip(rows.keys, begins, [*begins[1:], len(rows.when)])
        }

    def ahead(self, name: tuple[str, ...], times: Integers) -> tuple[Floats32, NDArray[np.bool_]]:
        """What is known at the steps ahead of rows of a series: times (n, H) give (n, H, G), and which are there (n, H)."""
        table = self.tables.get(name, self.nothing)
        if not len(table.when):
            return np.zeros((*times.shape, table.known.shape[1]), np.float32), np.zeros(times.shape, dtype=bool)
        places = np.searchsorted(table.when, times).clip(max=len(table.when) - 1)
        return table.known[places], table.when[places] == times

    def lacking(self, name: tuple[str, ...], when: int) -> str:
        """What to say of a row whose steps ahead are not all in the table: the first that lacks is at `when`."""
        series = f" of series {name_of(name)}" if name else ""
        which = f"number {when} (from 0)" if self.grid.kind == "row" else f"at {moment(when, self.grid)}"
        return f"{self.where}: the row{series} {which} is missing, so this row is read, but not forecast from; add it"


def coming_of(source: Source | None, fitted: Fitted) -> Coming | None:
    """The table of what is known in advance. Raises BadInput if a run needs one and there is none, or the reverse."""
    known = fitted.schema.known
    if source is None and known:
        names = ", ".join(f"'{name}'" for name in known)
        raise BadInput(f"the values of {names} in the steps ahead are needed; give a table of them (future, --future)")
    if source is not None and not known:
        raise BadInput("no column of this run is known in advance; leave the future out")
    return None if source is None else Coming(source, fitted)
