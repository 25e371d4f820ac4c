"""Cells of text become rows: fast where all is well, and cell by cell, with a line that says what is wrong, where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import LARGEST, numbers_in
from conca.data.panel import Key, Schema
from conca.data.table import MISSING, Origin
from conca.infer.lines import Header, Record
from conca.infer.rows import Rows, when_of
from conca.types import BadInput, nearest

__all__ = ["Cells", "Stretch"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

EMPTY = frozenset(MISSING)
TRUTHS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
"""What pandas reads as booleans, and they as numbers."""
MOST_KNOWN = 10_000
"""Texts of categories that are remembered."""


@dataclass(frozen=True)
class Line(Origin):
    """Where a row came from: a stream, and the line of it."""

    line: int = 0

    def row(self, position: int) -> str:
        """The line; `position` is always 0."""
        return f"row {self.line}"


@dataclass(frozen=True)
class Stretch:
    """Rows that could be read, the lines on which they begin (N,), and what was wrong with the others, by line."""

    rows: Rows
    lines: Sequence[int]
    faults: list[tuple[int, str]]


class Cells:
    """Reads the records of a table that has a header, under the schema of a fitted run.

    Raises:
        BadInput: if a column is missing.
    """

    def __init__(self, schema: Schema, header: Header, where: str) -> None:
        for name in schema.columns:
            if name not in header.names:
                known = nearest(name, header.names) + headless(schema, header)
                raise BadInput(f"{where}, row 1: there is no column '{name}'; {known}")
        self.schema, self.where, self.width = schema, where, len(header.names)
        self.place = {name: header.names.index(name) for name in schema.columns}
        self.codes: list[dict[str, int]] = [{} for _ in schema.categorical]
        self.levels = [{level: code for code, level in enumerate(known, 1)} for known in schema.levels]

    def read(self, records: Sequence[Record]) -> Stretch:
        """The rows of records, in their order."""
        faults: dict[int, str] = {}
        good: list[Record] = []
        for record in records:
            if record.fault:
                faults[record.line] = f"{self.where}, row {record.line}: {record.fault}"
            elif len(record.cells) != self.width:
                faults[record.line] = self.uneven(record)
            else:
                good.append(record)
        rows = self.rows_of(good, faults)
        if any(record.line in faults for record in good):
            kept = [place for place, record in enumerate(good) if record.line not in faults]
            rows, good = rows.take(np.array(kept, dtype=np.int64)), [good[place] for place in kept]
        return Stretch(rows, [record.line for record in good], sorted(faults.items()))

    def uneven(self, record: Record) -> str:
        """What is wrong with a row of another length than the header."""
        cells, needed = len(record.cells), self.width
        advice = "complete the row" if cells < needed else "quote cells that hold the delimiter"
        return f"{self.where}, row {record.line}: {cells} cells, but the header names {needed} columns; {advice}"

    def rows_of(self, records: Sequence[Record], faults: dict[int, str]) -> Rows:
        """The rows of complete records; those with a fault, which is noted, hold anything."""
        schema, count = self.schema, len(records)
        lines = [record.line for record in records]
        columns = list(zip(*(record.cells for record in records))) or [()] * self.width

        def cells(name: str) -> Sequence[str]:
            return columns[self.place[name]]

        for name in schema.series:
            for line, text in zip(lines, cells(name)):
                if not text:
                    cell = f"{self.where}, row {line}, column '{name}'"
                    faults.setdefault(line, f"{cell}: the name of the series is missing; fill it in or remove the row")
        keys: Sequence[Key] = list(zip(*map(cells, schema.series))) if schema.series else [()] * count
        when, clocks = np.zeros(count, np.int64), False
        if schema.time is not None:
            when, clocks = self.times(cells(schema.time), lines, faults)
        target, numeric = (
            stacked([self.numbers(cells(name), name, lines, faults) for name in names], count)
            for names in (schema.target, schema.numeric)
        )
        categories = [self.categories(cells(name), place) for place, name in enumerate(schema.categorical)]
        codes = np.stack(categories, axis=1) if categories else np.zeros((count, 0), np.int64)
        return Rows(keys, when, target, numeric, codes, clocks)

    def numbers(self, cells: Sequence[str], name: str, lines: Sequence[int], faults: dict[int, str]) -> Floats:
        """A column of numbers, NaN where missing."""
        values = quick_numbers(cells)
        if values is None:
            values = np.full(len(cells), np.nan)
            for place, text in enumerate(cells):
                value = number(text)
                if value is None:
                    found = self.asked(
                        lambda column, where: numbers_in(column, where)[0], text, name, lines[place], faults
                    )
                    value = math.nan if found is None else found
                values[place] = value
        return values

    def times(self, cells: Sequence[str], lines: Sequence[int], faults: dict[int, str]) -> tuple[Integers, bool]:
        """The column of times, and whether they are what clocks show."""
        name = str(self.schema.time)
        if not cells:
            return np.zeros(0, np.int64), False
        try:
            return when_of(pd.Series(cells, name=name, dtype="str"), Origin(self.where), self.schema)
        except BadInput:
            when = np.zeros(len(cells), np.int64)
            clocks: bool | None = None
        for place, text in enumerate(cells):
            cell, line = None if text.strip() in EMPTY else text, lines[place]
            found = self.asked(self.moment, cell, name, line, faults)
            if found is None:
                continue
            if clocks not in (None, found[1]):
                where = f"{self.where}, row {line}, column '{name}'"
                faults.setdefault(line, f"{where}: times with and without a zone are mixed; write all in one way")
            when[place], clocks = found[0][0], found[1]
        return when, bool(clocks)

    def moment(self, column: pd.Series[Any], where: Origin) -> tuple[Integers, bool]:
        """One time, as `when_of` gives it."""
        return when_of(column, where, self.schema)

    def asked(
        self,
        reader: Callable[[pd.Series[Any], Origin], Any],
        cell: str | None,
        name: str,
        line: int,
        faults: dict[int, str],
    ) -> Any:
        """One cell, read as the cells of tables are; None where that fails, and the fault is noted."""
        try:
            return reader(pd.Series([cell], name=name, dtype="str"), Line(self.where, line=line))
        except BadInput as error:
            text = str(error)
            row = f"{self.where}, row {line}"
            faults.setdefault(line, text if text.startswith(row) else row + text.removeprefix(self.where))
        return None

    def categories(self, cells: Sequence[str], place: int) -> Integers:
        """Codes of a column of categories, 0 where missing or unknown."""
        known, levels = self.codes[place], self.levels[place]
        for text in set(cells):
            if text not in known:
                if len(known) >= MOST_KNOWN:
                    known.clear()
                    return np.array([code_of(cell, levels) for cell in cells], dtype=np.int64)
                known[text] = code_of(text, levels)
        return np.array([known[cell] for cell in cells], dtype=np.int64)


def headless(schema: Schema, header: Header) -> str:
    """What to add where no column of the schema is in the first line, which may be a row."""
    if set(schema.columns) & set(header.names):
        return ""
    return f"; is the header missing? the first line must name the columns: {header.delimiter.join(schema.columns)}"


def stacked(columns: Sequence[Floats], count: int) -> Floats:
    """Columns (N,) side by side (N, F)."""
    return np.stack(columns, axis=1) if columns else np.empty((count, 0))


def quick_numbers(cells: Sequence[str]) -> Floats | None:
    """A column of numbers, None where something in it must be looked at."""
    try:
        values = np.array([math.nan if cell in EMPTY else float(cell) for cell in cells], dtype=np.float64)
    except ValueError:
        return None
    text = "".join(cells)
    plain = text.isascii() and "_" not in text and bool((np.abs(values[~np.isnan(values)]) <= LARGEST).all())
    missing = sum(cell in EMPTY for cell in cells) == int(np.isnan(values).sum())
    return values if plain and missing else None


def number(text: str) -> float | None:
    """A cell as a number, NaN where it is missing; None where it is none, or an ill one."""
    text = text.strip()
    if text in EMPTY:
        return math.nan
    if text in TRUTHS:
        return TRUTHS[text]
    if not text.isascii() or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def code_of(text: str, levels: dict[str, int]) -> int:
    """The code of a category: by its text, or by that of the number it is, as tables give it."""
    text = text.strip()
    if text in EMPTY:
        return 0
    if text in levels:
        return levels[text]
    value = number(text)
    if value is None:
        return 0
    whole = str(int(value)) if value.is_integer() else ""
    return levels.get(whole) or levels.get(str(value), 0)
