"""A stream of CSV through a fitted run: bytes in, lines of CSV out, and a line for each row that cannot be read."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from conca.infer.ahead import header
from conca.infer.cells import Cells, Stretch
from conca.infer.lines import Record, Splitter, blank_end, read_header
from conca.infer.memory import Memories
from conca.infer.rows import Rows
from conca.infer.session import Session
from conca.infer.stepping import Fault, Replay, sift, spans, step

__all__ = ["Answer", "Keeper", "Stream"]

MOST_LINES = 100_000
"""Lines of forecasts that are made at once."""
MOST_FILLED = 65_536
"""Rows on the grid, missing ones among them, that are read at once."""
SECONDS = 1.0
"""Between two writings of a state, at least."""
FULL = errno.ENOSPC, errno.EDQUOT
"""What the system says where there is no room."""


@dataclass(frozen=True)
class Answer:
    """Lines of CSV, and a line for each row that was refused."""

    text: str
    faults: list[str]


class Stream:
    """Rows of CSV after their header, answered through a `Session`.

    Args:
        session: what holds the memories; they move on when an answer has been taken.
        first: the first line of the table, its header.
        where: name of the table in error lines.
        resumed: rows that the memories have read may come once more, and are passed over.

    Raises:
        BadInput: for a header that cannot be read or lacks a column.

    After answers were taken: how many `rows` were read, `refused`, `passed` over, and how many of those that were read were `lost`
    because what must be known in advance was not.
    """

    def __init__(self, session: Session, first: bytes, where: str, *, resumed: bool = False) -> None:
        schema = session.fitted.schema
        found = read_header(first, where)
        self.session = session
        self.splitter, self.cells = Splitter(found), Cells(schema, found, where)
        self.replay = Replay(session.memories) if resumed and schema.time is not None else None
        self.rows = self.refused = self.lost = self.passed = 0
        self.held_back: list[Record] = []
        self.after = session.memories
        config = session.fitted.network.config
        self.most = max(1, MOST_LINES // (config.horizon * len(config.bends)))

    @property
    def header(self) -> str:
        """The first line of the answer."""
        return header(self.session.fitted.schema, self.session.fitted.columns)

    def feed(self, data: bytes, *, end: bool = False) -> Iterator[Answer]:
        """The answers to all rows that are complete with these bytes; an answer that is not taken was never given."""
        records = self.without_blank_end(self.splitter.feed(data, end=end))
        for begin in range(0, len(records), self.most):
            yield from self.answers(self.cells.read(records[begin : begin + self.most]))

    def without_blank_end(self, records: list[Record]) -> list[Record]:
        """Those before the blank ones at the end, which wait for what comes."""
        records = self.held_back + records
        cut = blank_end(records)
        self.held_back = records[cut:]
        return records[:cut]

    def answers(self, stretch: Stretch) -> Iterator[Answer]:
        """The answer to some rows, in parts where many missing ones lie between them."""
        session, rows = self.session, stretch.rows
        grid_rows = np.cumsum(spans(session.fitted.schema, session.memories, rows))
        parts = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(grid_rows // MOST_FILLED)) + 1)
        for place, part in enumerate(parts):
            some = rows if len(parts) == 1 else rows.take(part)
            yield self.answer(some, [stretch.lines[at] for at in part], stretch.faults if place == 0 else [])
            session.memories = self.after

    def answer(self, rows: Rows, lines: Sequence[int], faults: Sequence[tuple[int, str]]) -> Answer:
        """The answer to some rows; what is held after them is in `after`."""
        fitted, where = self.session.fitted, f"{self.cells.where}, row "
        self.after = self.session.memories
        sifted = sift(fitted, self.session.memories, rows, self.replay)
        column = f", column '{fitted.schema.time}': "
        found = [*faults, *((lines[place], where + str(lines[place]) + column + why) for place, why in sifted.faults)]
        memories, text, lost = self.read(sifted.rows)
        read = [lines[place] for place in sifted.places.tolist()] if lost else []
        found += [(read[place], f"{where}{read[place]}: {why}") for place, why in lost]
        if len(sifted.rows):
            self.after = memories
        self.rows += len(sifted.rows)
        self.refused += len(found) - len(lost)
        self.lost += len(lost)
        self.passed += sifted.passed
        return Answer(text, [fault for _, fault in sorted(found)])

    def read(self, rows: Rows) -> tuple[Memories, str, list[Fault]]:
        """What is held after rows, the answer to them, and those that are read but have no answer."""
        fitted, session = self.session.fitted, self.session
        (stepped,) = step(fitted, [session.memories], [rows], [session.coming])
        return stepped.memories, stepped.ahead.lines(fitted.schema), stepped.faults


class Kept(Protocol):
    """What is kept: a stream whose memories are replaced, never changed."""

    @property
    def memories(self) -> object:
        """What was read so far."""
        ...

    def save(self, path: str | Path) -> None:
        """Write it to a file."""
        ...


class Keeper:
    """Writes what a session holds to a file, now and then.

    Args:
        session: what is kept.
        path: the file; None keeps nothing.
        tell: is given a line when the file cannot be written, once; the old one stays whole.
    """

    def __init__(self, session: Kept, path: Path | None, tell: Callable[[str], None]) -> None:
        self.session, self.path, self.tell = session, path, tell
        self.written = session.memories
        self.due = 0.0
        self.failed = False

    @property
    def behind(self) -> bool:
        """Whether the file lacks what was read last."""
        return self.path is not None and self.session.memories is not self.written

    def wait(self) -> float:
        """Seconds until the file is to be written."""
        return max(0.0, self.due - time.monotonic())

    def keep(self, *, now: bool = False) -> None:
        """Write the file if it is behind, and a second has passed since it was written last, or it is to be done now.

        Where writing takes long, a tenth of the time is spent on it.
        """
        if self.path is None or not self.behind or (self.wait() and not now):
            return
        begin, memories = time.monotonic(), self.session.memories
        try:
            self.session.save(self.path)
        except OSError as error:
            if not self.failed:
                advice = ", free some room" if error.errno in FULL else ""
                self.tell(f"{self.path}: {error.strerror or error}; the state is not saved{advice}")
            self.failed = True
        else:
            self.written, self.failed = memories, False
        end = time.monotonic()
        self.due = end + max(SECONDS, 9 * (end - begin))
