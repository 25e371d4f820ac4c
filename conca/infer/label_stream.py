"""Streams of rows, or of bare samples, through a network that labels: bytes in, a line of CSV with a label out for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from conca.data.labelled import numbered
from conca.data.schema import Schema
from conca.energy.novelty import energy_score
from conca.infer.ahead import cell
from conca.infer.cells import Cells, number
from conca.infer.label_session import Floats, LabelSession
from conca.infer.lines import Header, Record, Splitter, blank_end, read_header
from conca.infer.novelty import COLUMNS, Calibration, cells
from conca.infer.stream import Answer
from conca.types import BadInput, nearest

__all__ = ["LabelStream", "SampleStream"]

MOST_ROWS = 8_192
"""Rows that are answered at once."""
FULL_SCALE = 32_768
"""What a sample of 16 bits is divided by, as in files of sound."""


class Labels:
    """The lines of CSV that answer steps: [series,] step, label, probability[, probability of every class].

    Args:
        session: what holds the memories; they move on when an answer has been taken.
        series: the column that names a sequence, if there is one.
        every: whether the probability of every class is told.
        novelty: what was held out, and the rank from which on there is an alarm: then [series,] step, label, novelty (the energy),
            rank and alarm are told.

    After answers were taken: how many `rows` were read, and `refused`. None are ever `passed` over or `lost`.
    """

    def __init__(
        self,
        session: LabelSession,
        series: str | None,
        every: bool,
        novelty: tuple[Calibration, float | None] | None = None,
    ) -> None:
        self.session, self.series, self.every = session, series, every
        self.novelty = None if novelty is None else (novelty[0], novelty[0].checked(novelty[1]))
        self.names = [cell(name) for name in session.classes]
        self.rows = self.refused = self.passed = self.lost = 0

    @property
    def header(self) -> str:
        """The first line of the answer."""
        series = [] if self.series is None else [self.series]
        classes = [f"p_{name}" for name in self.session.classes] if self.every else []
        told = ("probability", *classes) if self.novelty is None else COLUMNS
        return ",".join(map(cell, (*series, "step", "label", *told))) + "\n"

    def line(self, key: Sequence[str], step: int, logits: Floats) -> str:
        """The answer to one step: the likeliest label, and how likely it is, or how strange the sequence is so far."""
        best = int(logits.argmax())
        if self.novelty is not None:
            calibration, quantile = self.novelty
            energy = energy_score(torch.from_numpy(logits)[None]).numpy()
            told = cells(float(energy[0]), float(calibration.rank(energy)[0]), quantile)
            return ",".join([*map(cell, key), str(step), self.names[best], *told]) + "\n"
        probability = self.session.answer(logits)
        others = [f"{p:.6g}" for p in probability.tolist()] if self.every else []
        return ",".join([*map(cell, key), str(step), self.names[best], f"{probability[best]:.6g}", *others]) + "\n"


class LabelStream(Labels):
    """Rows of CSV after their header, each answered by a label.

    Args:
        session, series, every, novelty: as in `Labels`.
        first: the first line of the table, its header: it names the channels, in any order; other columns are ignored.
        where: name of the table in error lines.
        channels: of the run. Where these are but numbers, columns of other names are taken in their order.

    Raises:
        BadInput: for a header that cannot be read or lacks a column.
    """

    def __init__(
        self,
        session: LabelSession,
        first: bytes,
        where: str,
        *,
        channels: Sequence[str],
        series: str | None = None,
        every: bool = False,
        novelty: tuple[Calibration, float | None] | None = None,
    ) -> None:
        super().__init__(session, series, every, novelty)
        found, key = read_header(first, where), () if series is None else (series,)
        names = in_order(found, channels, series)
        if session.symbols:
            schema = Schema((), series=key, categorical=names, levels=(session.symbols,))
        else:
            schema = Schema((), series=key, numeric=names)
        self.splitter, self.cells, self.where = Splitter(found), Cells(schema, found, where), where
        self.symbol = self.cells.place[names[0]] if session.symbols else -1
        self.held_back: list[Record] = []

    def feed(self, data: bytes, *, end: bool = False) -> Iterator[Answer]:
        """The answers to all rows that are complete with these bytes; an answer that is not taken was never given."""
        records = self.held_back + self.splitter.feed(data, end=end)
        cut = blank_end(records)
        records, self.held_back = records[:cut], records[cut:]
        for begin in range(0, len(records), MOST_ROWS):
            yield from self.answer(records[begin : begin + MOST_ROWS])

    def answer(self, records: Sequence[Record]) -> Iterator[Answer]:
        """The answer to some rows."""
        session = self.session
        codes: dict[int, int] = {}
        if session.symbols:
            records = [self.checked(record, codes) for record in records]
        stretch = self.cells.read(records)
        keys, before = stretch.rows.keys, session.memories
        rows: NDArray[np.generic] = stretch.rows.numeric
        if session.symbols:
            rows = np.array([codes[line] for line in stretch.lines], dtype=np.int64)
        steps = {key: session.steps(key) for key in set(keys)}
        found = session.push_logits(keys, rows)
        after, session.memories = session.memories, before
        lines = []
        for key, logits in zip(keys, found):
            steps[key] += 1
            lines.append(self.line(key, steps[key], logits))
        self.rows += len(lines)
        self.refused += len(stretch.faults)
        yield Answer("".join(lines), [fault for _, fault in stretch.faults])
        session.memories = after

    def checked(self, record: Record, codes: dict[int, int]) -> Record:
        """The same record, its symbol noted by its line; or one with a fault, where that is unknown."""
        if record.fault or len(record.cells) != self.cells.width:
            return record
        text, places = record.cells[self.symbol], self.session.places
        known = text if text in places else text.strip()
        if known not in places:
            column = self.cells.schema.categorical[0]
            why = f"unknown symbol '{text}' in column '{column}'; {nearest(text, places)}"
            return Record(record.line, [], why)
        codes[record.line] = places[known]
        return record


def in_order(header: Header, channels: Sequence[str], series: str | None) -> tuple[str, ...]:
    """The columns of the channels. Raises BadInput where channels without names meet a header that cannot be theirs."""
    others = tuple(name for name in header.names if name != series)
    if tuple(channels) != numbered(len(channels)) or set(channels) <= set(others) or len(others) != len(channels):
        return tuple(channels)
    if all(number(name) is not None for name in others):
        raise BadInput("stdin, row 1: numbers stand where the columns are named; send a header first, such as x,y,z")
    return others


class SampleStream(Labels):
    """Bare samples, 16 bits each, little-endian, one channel: a label after every so many of them, and after the last.

    Args:
        session, every, novelty: as in `Labels`.
        size: samples from one answer to the next.

    Raises:
        BadInput: for a network of more than one channel, or of symbols.
    """

    def __init__(
        self,
        session: LabelSession,
        size: int,
        *,
        every: bool = False,
        novelty: tuple[Calibration, float | None] | None = None,
    ) -> None:
        super().__init__(session, None, every, novelty)
        channels = session.network.config.channels
        if session.symbols or channels != 1:
            what = "symbols" if session.symbols else f"{channels} channels"
            raise BadInput(f"--raw: the run reads {what}, and bare samples are one channel; send rows of CSV")
        self.size, self.rest, self.begun = size, b"", False

    def feed(self, data: bytes, *, end: bool = False) -> Iterator[Answer]:
        """The answers that are due with these bytes. Raises BadInput for nothing at all, or a file of sound with its header."""
        data = self.rest + data
        if end and not data and not self.rows:
            raise BadInput("stdin is empty; send samples of 16 bits to it")
        if not self.begun and (len(data) >= 4 or end):
            self.begun = True
            if data.startswith(b"RIFF"):
                raise BadInput("stdin begins as a WAV file does; send bare samples, as `tail -c +45 file.wav` gives")
        width = 2 * self.size
        whole = 0 if not self.begun else len(data) if end else len(data) - len(data) % width
        self.rest = data[whole:]
        for begin in range(0, whole - whole % 2, width):
            yield from self.answer(data[begin : min(begin + width, whole - whole % 2)])
        if end and whole % 2:
            self.refused += 1
            yield Answer("", ["stdin: the last sample is half a sample; it is passed over"])

    def answer(self, data: bytes) -> Iterator[Answer]:
        """The answer after some samples."""
        session, before = self.session, self.session.memories
        samples = np.frombuffer(data, dtype="<i2") / FULL_SCALE
        logits = session.last_logits(samples[:, None], ())
        after, session.memories = session.memories, before
        self.rows += len(samples)
        yield Answer(self.line((), before[()].steps + len(samples) if () in before else len(samples), logits), [])
        session.memories = after
