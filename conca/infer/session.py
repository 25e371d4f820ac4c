"""Streams in Python: rows are pushed, their forecasts come back, and what was read stays in a memory for each series."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from conca.data.table import Source
from conca.infer.coming import Coming, coming_of
from conca.infer.fitted import Fitted
from conca.infer.frame import as_given
from conca.infer.kept import identity, read_memories, write_memories
from conca.infer.memory import Memories
from conca.infer.rows import Given, read_rows
from conca.infer.stepping import Stepped, sift, step
from conca.types import BadInput, path_of

__all__ = ["HasFitted", "Session", "Snapshot", "fitted_of", "push"]


class HasFitted(Protocol):
    """A fitted forecaster."""

    @property
    def fitted(self) -> Fitted:
        """What was fitted."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """What a stream has read, a value.

    run       what tells its model from others (`Session.run`)
    memories  of its series
    """

    run: str
    memories: Memories


class Session:
    """A stream of rows through a fitted forecaster, with one memory for each series.

    >>> import numpy as np, pandas as pd, conca
    >>> table = pd.DataFrame({"y": np.sin(np.arange(200) / 4)})
    >>> model = conca.Forecaster(horizon=3, layers="s4d", d_model=8, epochs=1).fit(table, progress=False)
    >>> stream = Session(model)
    >>> stream.push({"y": 0.1}).step.tolist()
    [1, 2, 3]
    >>> before = stream.snapshot()
    >>> one = stream.push(table.head(5))
    >>> stream.restore(before)
    >>> stream.push(table.head(5)).equals(one)
    True

    The numbers are those of `predict(rolling=True)` on the rows pushed so far. A memory does not grow: a network whose state
    does reads the last rows alone, as `predict` does. Several streams may use one model at once, each in a thread of its own;
    threads that share a stream wait for each other, and its rows are read in the order of the calls.

    Args:
        model: a fitted forecaster, or what it holds (`Fitted`).
        future: where columns are known in advance: a table of their values at all times to come, with the columns of series and
            time; without times, its rows are counted from the beginning of the stream.

    Raises:
        BadInput: for a model that is none, and a future that cannot be read, lacks, or is not needed.
    """

    def __init__(self, model: HasFitted | Fitted, future: Source | None = None) -> None:
        fitted = fitted_of(model)
        self.hold(fitted, coming_of(future, fitted))

    def hold(self, fitted: Fitted, coming: Coming | None) -> None:
        """Begin, with nothing read."""
        self.fitted, self.coming = fitted, coming
        self.memories: Memories = {}
        self._run: str | None = None
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which each copy has for itself."""
        with self.lock:
            return {name: part for name, part in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what another held."""
        self.__dict__.update(state, lock=threading.RLock())

    def __len__(self) -> int:
        return len(self.memories)

    def push(self, rows: Given) -> pd.DataFrame:
        """Read rows, and forecast from each of them.

        Args:
            rows: a mapping or a pandas Series of column and value, which is one row; or a table of rows of one or many series,
                those of a series in the order of time. Rows that the grid has between two of them count as missing. A frame
                without rows gives no forecasts.

        Returns:
            For each row, in their order, what `predict(rolling=True)` gives: columns of series and time, `cutoff`, `step`,
            `target_name`, the quantiles, and `y`, which is not known and NaN. Where rows are not evenly spaced, the steps
            ahead are one nominal step apart. A frame of polars gives one of polars.

        Raises:
            BadInput: one line, for rows that cannot be read, or do not follow those read before. Then none of them is read.
        """
        return push([self], [rows])[0]

    def snapshot(self) -> Snapshot:
        """What was read so far, a value: later pushes do not change it."""
        with self.lock:
            return Snapshot(self.run, dict(self.memories))

    def restore(self, saved: Snapshot) -> None:
        """Go on from a snapshot of a stream through the same model.

        Raises:
            BadInput: one line, for what is no snapshot, or one of another model. Then nothing changes.
        """
        if not isinstance(saved, Snapshot):
            raise BadInput(f"a {type(saved).__name__} is no snapshot of a stream; give what `snapshot()` returned")
        with self.lock:
            if saved.run != self.run:
                raise BadInput(
                    "the snapshot is that of a stream through another model; restore it in a stream of that one"
                )
            self.memories = dict(saved.memories)

    def size_in_bytes(self) -> int:
        """Bytes of the states of all series."""
        return sum(memory.size_in_bytes() for memory in self.memories.values())

    def save(self, path: str | Path) -> None:
        """Write what was read so far to a file, whole or not at all; a symbolic link is followed.

        Raises:
            BadInput: if something that is no file has this name.
            OSError: if it cannot be written.
        """
        with self.lock:
            write_memories(path_of(path), self.memories, self.run)

    def load(self, path: str | Path) -> None:
        """Go on from a file that `save` wrote.

        Raises:
            BadInput: one line, for a file that is missing, damaged, or of another run. Then nothing changes.
        """
        with self.lock:
            self.memories = read_memories(path_of(path), self.fitted, self.run)

    @property
    def run(self) -> str:
        """What tells the fitted run from others: a hash of its weights and of how it reads tables."""
        if self._run is None:
            self._run = identity(self.fitted)
        return self._run


def fitted_of(model: object) -> Fitted:
    """What a model holds that was fitted. Raises BadInput for what is no model."""
    fitted = model if isinstance(model, Fitted) else getattr(model, "fitted", None)
    if not isinstance(fitted, Fitted):
        other = "; labels are streamed by conca.infer.LabelSession" if hasattr(model, "classes_") else ""
        raise BadInput(
            f"a {type(model).__name__} is no fitted forecaster{other}; `conca.load(path)` reads that of a run"
        )
    return fitted


def push(sessions: Sequence[Session], rows: Sequence[Given]) -> list[pd.DataFrame]:
    """Push one row, or one table, to each of many streams through one model; the network reads all of them at once.

    Returns and raises what `Session.push` does; if one row cannot be read, none is.
    """
    if not len(sessions) == len(rows):
        raise ValueError(f"{len(sessions)} streams and {len(rows)} rows do not match")
    if not sessions:
        return []
    fitted = sessions[0].fitted
    if any(one.fitted is not fitted for one in sessions):
        raise ValueError("streams that are stepped together must be through one model")
    if len({id(one) for one in sessions}) < len(sessions):
        raise ValueError("a stream is given twice; push its rows as one table")
    with ExitStack() as held:
        for one in sorted(sessions, key=id):  # in one order, so that two such calls never wait for each other
            held.enter_context(one.lock)
        found = stepped_on(fitted, sessions, rows)
    frames = [stepped.ahead.frame(fitted.schema, fitted.columns) for stepped in found]
    return [as_given(frame, given) for frame, given in zip(frames, rows)]


def stepped_on(fitted: Fitted, sessions: Sequence[Session], rows: Sequence[Given]) -> list[Stepped]:
    """Read the rows of streams whose locks are held. Raises BadInput as `push` does; then nothing has changed."""
    schema, ready = fitted.schema, []
    for given, session in zip(rows, sessions):
        some, origin = read_rows(given, schema)
        sifted = sift(fitted, session.memories, some)
        if sifted.faults:
            place, fault = min(sifted.faults)
            raise BadInput(f"{origin.cell(place, str(schema.time))}: {fault}")
        ready.append(sifted.rows)
    found = step(fitted, [one.memories for one in sessions], ready, [one.coming for one in sessions])
    for stepped in found:
        if stepped.faults:
            raise BadInput(min(stepped.faults)[1].replace(", so this row is read, but not forecast from", ""))
    for session, stepped in zip(sessions, found):
        session.memories = stepped.memories
    return found
