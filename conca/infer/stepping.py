"""One step of many streams through one model: rows in, memories and forecasts out, all read by the network at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from conca.data.grid import ticks
from conca.data.layout import FREE_FILL
from conca.data.panel import Schema, Series
from conca.infer.ahead import Ahead
from conca.infer.coming import Coming
from conca.infer.fitted import Fitted
from conca.infer.forecast import CHUNK
from conca.infer.memory import Memories, Memory, Reading, read_on
from conca.infer.placing import ahead_of, in_order, laid_out, off_clocks
from conca.infer.rows import Rows

__all__ = ["Fault", "Part", "Replay", "Sifted", "Stepped", "parts_of", "sift", "spans", "step"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Fault = tuple[int, str]


@dataclass(frozen=True)
class Sifted:
    """Rows that came, sorted out.

    rows    those that can be read after what was read, in their order
    places  (n,) of these among those that came
    faults  places of those that cannot be read, with the reason
    passed  number of those that were read before
    """

    rows: Rows
    places: Integers
    faults: list[Fault]
    passed: int = 0


def sift(fitted: Fitted, memories: Memories, rows: Rows, replay: Replay | None = None) -> Sifted:
    """Find the rows that follow those read before; `replay`: what a stream that was resumed reads once more."""
    schema, horizon = fitted.schema, fitted.network.config.horizon
    when = rows.when.copy()
    kept: list[Integers] = [np.empty(0, np.int64)]
    faults: list[Fault] = []
    passed = 0
    for name, places in rows.by_series().items():
        some = rows.take(places) if len(places) < len(rows) else rows
        memory = memories.get(name) or Memory(some.keys[0])
        last = None if memory.carry is None else memory.carry.time
        before = replay.last(name, last) if replay is not None else last
        some, good, skipped = off_clocks(schema, before, some)
        new = 0 if replay is None or last is None else replay.passed(name, last, some.when)
        passed += new
        some, good = some.take(np.arange(new, len(some))), good[new:]
        fits, bad = in_order(schema, memory, some, horizon)
        when[places[good]] = some.when
        kept.append(places[good[fits]])
        faults += [(int(places[place]), fault) for place, fault in skipped]
        faults += [(int(places[good[place]]), fault) for place, fault in bad]
    chosen = np.sort(np.concatenate(kept))
    moved = replace(rows, when=when, clocks=False)
    return Sifted(moved if len(chosen) == len(rows) else moved.take(chosen), chosen, faults, passed)


class Replay:
    """Rows of a stream that goes on from a state and is given once more what the state has read.

    They are passed over: rows of a series that are not newer than the last one that was read, before the first newer one.
    """

    def __init__(self, memories: Memories) -> None:
        self.reached: dict[tuple[str, ...], int | None] = dict.fromkeys(memories)

    def last(self, name: tuple[str, ...], last: int | None) -> int | None:
        """The time of the row before the next one: of the last that was passed over, or of the `last` that was read."""
        return self.reached.get(name, last)

    def passed(self, name: tuple[str, ...], last: int, when: Integers) -> int:
        """How many of the next rows of a series were read before; after the first newer one, none ever is."""
        if name not in self.reached:
            return 0
        newer = when > last
        count = int(newer.argmax()) if newer.any() else len(when)
        if newer.any():
            del self.reached[name]
        elif count:
            self.reached[name] = int(when[-1])
        return count


def spans(schema: Schema, memories: Memories, rows: Rows) -> Integers:
    """How many rows on the grid each row stands for (N,), about: those that are missing before it, and itself."""
    result = np.ones(len(rows), dtype=np.int64)
    if schema.time is None or not schema.grid.regular:
        return result
    for name, places in rows.by_series().items():
        when = rows.when[places]
        memory = memories.get(name)
        first = int(when[0]) if memory is None or memory.carry is None else memory.carry.time
        gaps = (when - np.concatenate([[first], when[:-1]])) // schema.grid.step
        result[places] = gaps.clip(1, FREE_FILL + 1)
    return result


@dataclass(frozen=True)
class Part:
    """Rows of one series of one stream, ready to be read.

    stream   which stream
    name     of the series in its memories
    memory   what was read before
    series   the rows on their grid
    reading  the same, encoded; given are the rows to forecast from
    places   of these among the rows of the stream
    times    (n, H) of the steps ahead of these, as integers
    known    (n, H, G) what is known in advance there; None if there is no such thing
    faults   places of rows that cannot be forecast from, with the reason
    """

    stream: int
    name: tuple[str, ...]
    memory: Memory
    series: Series
    reading: Reading
    places: Integers
    times: Integers
    known: NDArray[np.float32] | None
    faults: list[Fault]

    def after(self) -> Memory:
        """What is held once the rows have been read."""
        rows = self.memory.rows + len(self.series)
        return Memory(self.memory.key, rows, self.reading.encoded.carry, tuple(self.reading.states))


@dataclass(frozen=True)
class Stepped:
    """What a step of one stream gives.

    memories  what is held afterwards
    ahead     the forecasts
    faults    places of rows that were read, but could not be forecast from, with the reason
    """

    memories: Memories
    ahead: Ahead
    faults: list[Fault]


def parts_of(fitted: Fitted, stream: int, memories: Memories, rows: Rows, coming: Coming | None) -> Iterator[Part]:
    """The rows of one stream, series by series."""
    schema, horizon = fitted.schema, fitted.network.config.horizon
    for name, places in rows.by_series().items():
        some = rows.take(places) if len(places) < len(rows) else rows
        memory = memories.get(name) or Memory(some.keys[0])
        series = laid_out(schema, memory, some)
        encoded = fitted.encoding.encode(schema, series, memory.carry)
        times, given, known = ahead_of(schema.grid, series, horizon), series.given, None
        faults: list[Fault] = []
        if coming is not None:
            known, there = coming.ahead(name, times)
            whole = there.all(1)
            for row in np.flatnonzero(~whole).tolist():
                first = int(times[row, int((~there[row]).argmax())])
                faults.append((int(places[row]), coming.lacking(name, first)))
            given = given.copy()
            given[given] = whole
            places, times, known = places[whole], times[whole], known[whole]
        reading = Reading(encoded, given, memory.rows, list(memory.states))
        yield Part(stream, name, memory, series, reading, places, times, known, faults)


def step(
    fitted: Fitted, before: Sequence[Memories], rows: Sequence[Rows], coming: Sequence[Coming | None]
) -> list[Stepped]:
    """Read rows of many streams: what each holds afterwards, and the forecasts from its rows, in their order.

    The rows must be such as `sift` lets through.
    """
    streams = enumerate(zip(before, rows, coming))
    parts = [part for stream, (held, some, known) in streams for part in parts_of(fitted, stream, held, some, known)]
    read_on(fitted.network, [part.reading for part in parts], fitted.context)
    after = [dict(memories) for memories in before]
    found = [Ahead.empty(some.keys, fitted.network.config) for some in rows]
    quantiles, begin = read_out(fitted, parts), 0
    lost: list[list[Fault]] = [[] for _ in rows]
    for part in parts:
        after[part.stream][part.name] = part.after()
        lost[part.stream] += part.faults
        ahead, end = found[part.stream], begin + len(part.places)
        ahead.cutoffs[part.places] = ticks(part.series.times[part.reading.given])
        ahead.times[part.places] = part.times
        ahead.quantiles[part.places] = quantiles[begin:end]
        begin = end
    result = []
    for memories, ahead, faults in zip(after, found, lost):
        gone = [place for place, _ in faults]
        result.append(Stepped(memories, ahead.without(gone) if gone else ahead, faults))
    return result


def read_out(fitted: Fitted, parts: Sequence[Part]) -> Floats:
    """Quantiles (N, H, K, Q) in the unit of the targets at the rows to forecast from, one part after the other."""
    network = fitted.network
    config = network.config
    some = [part for part in parts if len(part.places)]
    if not some:
        return np.empty((0, config.horizon, len(config.bends), len(config.levels)))
    hidden = torch.cat([h for part in some for h in part.reading.hidden], 1)
    anchor = torch.from_numpy(np.concatenate([part.reading.encoded.anchor[part.reading.given] for part in some]))
    values = [part.known for part in some if part.known is not None]
    known = torch.from_numpy(np.concatenate(values)) if values else None
    with torch.inference_mode():
        chunks = [slice(begin, begin + CHUNK) for begin in range(0, len(anchor), CHUNK)]
        scaled = torch.cat([network(hidden[:, c], anchor[c], None if known is None else known[c]) for c in chunks])
    unit, origin = (
        np.repeat([getattr(part.reading.encoded, name) for part in some], [len(part.places) for part in some], axis=0)
        for name in ("unit", "origin")
    )
    result: Floats = scaled.double().numpy() * unit[:, None, :, None] + origin[:, None, :, None]
    return result
