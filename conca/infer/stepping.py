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
from conca.infer.fitted import Fitted
from conca.infer.forecast import CHUNK
from conca.infer.memory import Memories, Memory, Reading, read_on
from conca.infer.placing import ahead_of, in_order, laid_out, off_clocks
from conca.infer.rows import Rows
from conca.types import BadInput

__all__ = ["Replay", "Sifted", "refuse_known", "sift", "spans", "step"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Fault = tuple[int, str]


def refuse_known(fitted: Fitted) -> None:
    """Raise BadInput for a run that needs covariates of the future."""
    known = getattr(fitted.schema, "known", ())
    if known:
        raise BadInput(
            f"the run needs future values of {', '.join(known)}, which a stream does not have; "
            "use predict with a table of them, or fit without"
        )


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
    places   of the rows among those of the stream
    memory   what was read before
    series   the rows on their grid
    reading  the same, encoded
    """

    stream: int
    name: tuple[str, ...]
    places: Integers
    memory: Memory
    series: Series
    reading: Reading

    def after(self) -> Memory:
        """What is held once the rows have been read."""
        rows = self.memory.rows + len(self.series)
        return Memory(self.memory.key, rows, self.reading.encoded.carry, tuple(self.reading.states))


def parts_of(fitted: Fitted, stream: int, memories: Memories, rows: Rows) -> Iterator[Part]:
    """The rows of one stream, series by series."""
    for name, places in rows.by_series().items():
        some = rows.take(places) if len(places) < len(rows) else rows
        memory = memories.get(name) or Memory(some.keys[0])
        series = laid_out(fitted.schema, memory, some)
        encoded = fitted.encoding.encode(fitted.schema, series, memory.carry)
        reading = Reading(encoded, series.given, memory.rows, list(memory.states))
        yield Part(stream, name, places, memory, series, reading)


def step(fitted: Fitted, before: Sequence[Memories], rows: Sequence[Rows]) -> tuple[list[Memories], list[Ahead]]:
    """Read rows of many streams: the memories of each afterwards, and the forecasts from its rows, in their order.

    The rows must be such as `sift` lets through.
    """
    config, grid = fitted.network.config, fitted.schema.grid
    parts = [
        part
        for stream, (memories, some) in enumerate(zip(before, rows))
        for part in parts_of(fitted, stream, memories, some)
    ]
    read_on(fitted.network, [part.reading for part in parts], fitted.context)
    after = [dict(memories) for memories in before]
    found = [Ahead.empty([*some.keys], config) for some in rows]
    quantiles, begin = read_out(fitted, [part.reading for part in parts]), 0
    for part in parts:
        after[part.stream][part.name] = part.after()
        ahead, end = found[part.stream], begin + len(part.places)
        ahead.cutoffs[part.places] = ticks(part.series.times[part.series.given])
        ahead.times[part.places] = ahead_of(grid, part.series, config.horizon)
        ahead.quantiles[part.places] = quantiles[begin:end]
        begin = end
    return list(after), found


def read_out(fitted: Fitted, readings: Sequence[Reading]) -> Floats:
    """Quantiles (N, H, K, Q) in the unit of the targets at the given rows of all readings, one reading after the other."""
    network = fitted.network
    config = network.config
    if not readings:
        return np.empty((0, config.horizon, len(config.bends), len(config.levels)))
    hidden = torch.cat([h for one in readings for h in one.hidden], 1)
    anchor = torch.from_numpy(np.concatenate([one.encoded.anchor[one.given] for one in readings]))
    with torch.inference_mode():
        scaled = torch.cat([network(h, a) for h, a in zip(torch.split(hidden, CHUNK, 1), torch.split(anchor, CHUNK))])
    counts = [int(one.given.sum()) for one in readings]
    unit, origin = (
        np.repeat([getattr(one.encoded, name) for one in readings], counts, axis=0)[:, None, :, None]
        for name in ("unit", "origin")
    )
    values: Floats = scaled.double().numpy() * unit + origin
    return values
