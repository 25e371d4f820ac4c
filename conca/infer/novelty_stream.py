"""A stream of CSV through a fitted run, each row answered by how strange it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from conca.data.grid import ticks
from conca.data.panel import Key, Schema
from conca.infer.ahead import cell, restored, texts
from conca.infer.fitted import Fitted
from conca.infer.frame import as_given
from conca.infer.memory import Last, Memories, Memory, Reading, read_on
from conca.infer.novelty import COLUMNS, Calibration, cells, likelihoods, told
from conca.infer.rows import Given, Rows, read_rows
from conca.infer.session import HasFitted, Session, fitted_of
from conca.infer.stepping import Fault, parts_of, sift
from conca.infer.stream import Stream
from conca.types import BadInput

__all__ = ["NoveltySession", "NoveltyStream", "novelty_lines", "scored"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class NoveltySession(Session):
    """A stream of rows, each answered by how strange it is: `push` gives the lines of `Forecaster.novelty`, the same numbers.

    It needs no future: of what is known in advance, each row brings its own.

    Args:
        model: a fitted forecaster, or what it holds.
        calibration: scores of rows held out, `conca.estimators.novelty.held_out_rows(model.run_)`.
        quantile: rank from which on there is an alarm; None: 0.99, or the highest that there is.

    Raises:
        BadInput: for a model that is none, and a quantile that cannot be reached.
    """

    def __init__(self, model: HasFitted | Fitted, calibration: Calibration, quantile: float | None = None) -> None:
        self.hold(fitted_of(model), None)
        self.calibration, self.quantile = calibration, calibration.checked(quantile)

    def push(self, rows: Given) -> pd.DataFrame:
        """Read rows as `Session.push` does; how strange each is: series, time, novelty, rank, alarm."""
        with self.lock:
            some, origin = read_rows(rows, self.fitted.schema)
            sifted = sift(self.fitted, self.memories, some)
            if sifted.faults:
                place, fault = min(sifted.faults)
                raise BadInput(f"{origin.cell(place, str(self.fitted.schema.time))}: {fault}")
            self.memories, scores, when = scored(self, sifted.rows)
        schema = self.fitted.schema
        columns: dict[str, Any] = {
            name: [key[place] for key in sifted.rows.keys] for place, name in enumerate(schema.series)
        }
        columns[schema.time or "row"] = when if schema.time is None else restored(when, schema.grid)
        columns |= told(scores, self.calibration, self.quantile)
        found: pd.DataFrame = as_given(pd.DataFrame(columns), rows)
        return found


class NoveltyStream(Stream):
    """Rows of CSV after their header, answered by novelty, rank and alarm; as `Stream` in all else.

    Args:
        session, first, where, resumed: as in `Stream`.

    Raises:
        BadInput: as `Stream` does.
    """

    session: NoveltySession

    @property
    def header(self) -> str:
        """The first line of the answer."""
        schema = self.session.fitted.schema
        return ",".join(map(cell, (*schema.series, schema.time or "row", *COLUMNS))) + "\n"

    def read(self, rows: Rows) -> tuple[Memories, str, list[Fault]]:
        """What is held after rows, and the answer to them."""
        memories, scores, when = scored(self.session, rows)
        session = self.session
        rank = session.calibration.rank(scores)
        return memories, novelty_lines(session.fitted.schema, rows.keys, when, scores, rank, session.quantile), []


def scored(session: Session, rows: Rows) -> tuple[Memories, Floats, Integers]:
    """Rows that follow those read before: what is held after them, -log densities (N,), and their times (N,) as integers."""
    fitted = session.fitted
    network = fitted.network
    parts = list(parts_of(fitted, 0, session.memories, rows, None))
    readings = [
        Reading(part.reading.encoded, np.ones(len(part.series), bool), part.memory.rows, list(part.memory.states))
        for part in parts
    ]
    read_on(network, readings, fitted.context)
    after, scores, when = dict(session.memories), np.full(len(rows), np.nan), np.zeros(len(rows), np.int64)
    for part, reading in zip(parts, readings):
        one, given, last = reading.encoded, np.flatnonzero(part.series.given), part.memory.last
        hidden, anchor = torch.cat(reading.hidden, 1), one.anchor
        if last is not None:
            hidden = torch.cat([torch.from_numpy(last.hidden)[:, None], hidden], 1)
            anchor = np.concatenate([last.anchor[None], anchor])
        before = given - (last is None)  # the row before each, among those that are held
        known_before = before >= 0
        chosen = torch.from_numpy(before[known_before])
        known = None if one.known is None else one.known[given[known_before]]
        found = np.full(len(given), np.nan)
        found[known_before] = likelihoods(
            network,
            hidden[:, chosen],
            anchor[before[known_before]],
            known,
            part.series.target[given[known_before]],
            one,
        )
        scores[part.places] = found
        when[part.places] = ticks(part.series.times[given])
        after[part.name] = Memory(
            part.memory.key,
            part.memory.rows + len(part.series),
            one.carry,
            tuple(reading.states),
            Last(hidden[:, -1].numpy().copy(), anchor[-1].copy()),
        )
    return after, scores, when


def novelty_lines(
    schema: Schema, keys: Sequence[Key], when: Integers, scores: Floats, rank: Floats, quantile: float
) -> str:
    """Rows of CSV: series, time, novelty, rank, alarm; empty where there is no score."""
    times = texts(when[:, None], schema.grid, 1) if len(when) else []
    rows = zip(keys, times, scores.tolist(), rank.tolist())
    return "".join(
        ",".join([*map(cell, key), *time, *cells(score, share, quantile)]) + "\n" for key, time, score, share in rows
    )
