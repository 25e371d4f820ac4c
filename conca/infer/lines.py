"""CSV as it comes, byte by byte: complete records, with the line on which each begins."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from conca.data.table import check_names
from conca.types import BadInput

__all__ = ["LONGEST", "Header", "Record", "Splitter", "blank_end", "read_header"]

LONGEST = 1 << 20
"""Bytes of a line, at most."""
MOST_LINES = 64
"""Lines of a record, at most: a quote that is never closed does not swallow the rows after it."""
DELIMITERS = ",;\t"
CLOSING = re.compile(r'(?:[^"]|"")*+"')
DAMAGED = re.compile("[\udc80-\udcff]")
"""What stands for bytes that are no UTF-8."""


class Header(NamedTuple):
    """The names of the columns, and what stands between cells."""

    names: list[str]
    delimiter: str


class Record(NamedTuple):
    """A record: the line on which it begins (the header is line 1), and its cells, or why it has none."""

    line: int
    cells: list[str]
    fault: str = ""


def read_header(line: bytes, where: str) -> Header:
    """The first line of a table. Raises BadInput unless every column has a name of its own."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{where}, row 1: not UTF-8 text; send the table as UTF-8") from None
    if "\0" in text:
        raise BadInput(f"{where}, row 1: holds NUL bytes, as text in UTF-16 does; send the table as UTF-8")
    if not text.strip():
        raise BadInput(f"{where}: the first row is blank; it must name the columns")
    delimiter = max(DELIMITERS, key=text.count)
    try:
        cells = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))
    except csv.Error as error:
        raise BadInput(f"{where}, row 1: {why_not(error)}; it must name the columns") from None
    names = [name.strip() for name in cells]
    check_names(names, f"{where}, row 1")
    return Header(names, delimiter)


class Splitter:
    """Cuts what comes after the header into records; what is not complete waits for the rest.

    A record ends with its line, unless a quoted cell goes on. Blank lines are no records, except in a table of one column.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.line = 2
        self.rest = b""
        self.open: list[str] = []
        self.lost = False

    def feed(self, data: bytes, *, end: bool = False) -> list[Record]:
        """The records that are complete with these bytes; at the `end` the last needs no end of line."""
        if self.lost:
            data = self.found(data)
        data = self.rest + data
        if end and data and not data.endswith(b"\n"):
            data += b"\n"
        cut = data.rfind(b"\n") + 1
        self.rest = data[cut:]
        records = self.records(data[:cut])
        if end and self.open:
            records += self.each([], end=True)
        if len(self.rest) > LONGEST:
            records += self.each([], end=True)
            records.append(Record(self.line, [], f"the line does not end within {LONGEST:,} bytes; break it"))
            self.rest, self.lost = b"", True
        return records

    def found(self, data: bytes) -> bytes:
        """What comes after the end of a line that was too long."""
        _, newline, after = data.partition(b"\n")
        if newline:
            self.lost = False
            self.line += 1
        return after

    def records(self, whole: bytes) -> list[Record]:
        """The records of complete lines."""
        try:
            text, sound = whole.decode(), b"\0" not in whole
        except UnicodeDecodeError:
            text, sound = whole.decode(errors="surrogateescape"), False
        lines = text.split("\n")[:-1]
        if self.open or not sound or '"' in text:
            return self.each(lines)
        try:
            rows = list(csv.reader(lines, delimiter=self.header.delimiter, skipinitialspace=True))
        except csv.Error:
            return self.each(lines)
        begin = self.line
        self.line += len(lines)
        return [Record(line, self.full(cells)) for line, cells in enumerate(rows, begin) if not self.blank(cells)]

    def full(self, cells: list[str]) -> list[str]:
        """The cells of a blank line are one that is empty."""
        return cells or [""]

    def blank(self, cells: list[str]) -> bool:
        """Whether this is no record."""
        return len(cells) < 2 and len(self.header.names) > 1 and not "".join(cells).strip()

    def each(self, lines: Iterable[str], *, end: bool = False) -> list[Record]:
        """The records of complete lines, looked at one by one; at the `end` no quoted cell goes on."""
        queue = deque(lines)
        records: list[Record] = []
        is_open = bool(self.open)
        while queue or (end and self.open):
            if self.open and (not queue or len(self.open) >= MOST_LINES):
                queue.extendleft(reversed(self.open[1:]))
                fault = f"a quoted cell does not end within {MOST_LINES} lines, or with the table; close it"
                records.append(Record(self.line, [], fault))
                self.open, is_open = [], False
                self.line += 1
                continue
            line = queue.popleft()
            self.open.append(line)
            is_open = stays_open(line, is_open, self.header.delimiter)
            if not is_open:
                records += self.one("\n".join(self.open))
                self.line += len(self.open)
                self.open = []
        return records

    def one(self, text: str) -> Iterator[Record]:
        """The record of one text, if it is not blank."""
        fault, cells = "", [""]
        if "\0" in text:
            fault = "holds NUL bytes, as a damaged file does; write it again"
        elif DAMAGED.search(text):
            fault = "not UTF-8 text; send it as UTF-8"
        else:
            try:
                rows = [line + "\n" for line in text.split("\n")]
                cells = next(csv.reader(rows, delimiter=self.header.delimiter, skipinitialspace=True), [])
            except csv.Error as error:
                fault = why_not(error)
        if fault:
            yield Record(self.line, [], fault)
        elif not self.blank(cells):
            yield Record(self.line, self.full(cells))


def blank_end(records: Sequence[Record]) -> int:
    """Where the blank rows at the end begin: rows of one column may be blank, which is a missing value, but the last are no rows."""
    cut = len(records)
    while cut and records[cut - 1].cells == [""]:
        cut -= 1
    return cut


def why_not(error: csv.Error) -> str:
    """What is wrong with a line that is no CSV, and what to do."""
    if "new-line" in str(error):
        return "holds a carriage return outside quotes; end lines with a line feed"
    if "field larger" in str(error):
        return f"a cell is longer than {csv.field_size_limit():,} characters; shorten it"
    return "cannot be read as CSV; mend it"


def stays_open(line: str, is_open: bool, delimiter: str) -> bool:
    """Whether a quoted cell goes on after a line; `is_open`: whether one went on before it."""
    at = 0
    while True:
        if is_open:
            close = CLOSING.match(line, at)
            if close is None:
                return True
            at, is_open = close.end(), False
        else:
            while line.startswith(" ", at):
                at += 1
            if line.startswith('"', at):
                at, is_open = at + 1, True
                continue
        at = line.find(delimiter, at) + 1
        if not at:
            return False
