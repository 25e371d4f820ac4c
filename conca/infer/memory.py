"""One memory per series: what was read of it, in a state of fixed size; many are read on side by side.

A network whose state grows reads `context` rows at most. Its pieces begin at whole multiples of half of these, as those of
`conca.infer.forecast` do, so a memory holds two states: one to forecast from, and a younger one that takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.data.encoding import Carry, Encoded
from conca.data.panel import Key
from conca.infer.forecast import CHUNK, side_by_side
from conca.layers.states import leaves, size_in_bytes, tree_map
from conca.models.forecast import ForecastNetwork, Tower
from conca.models.threads import few_threads

__all__ = ["Last", "Memories", "Memory", "Reading", "fresh", "joined", "parted", "read_on"]

MOST = 16 * CHUNK
"""Rows of all series that are read at once."""


class Last(NamedTuple):
    """What the row after the last one is forecast from, where rows are judged (`conca.infer.novelty`)."""

    hidden: NDArray[np.float32]
    """(members, D)"""
    anchor: NDArray[np.float32]
    """(H or 1, K)"""


@dataclass(frozen=True)
class Memory:
    """What is held of one series.

    key     of the series, as it came first
    rows    rows on the grid that were read
    carry   what the encoding of the next row needs; None before the first
    states  of the network: none before the first row, else the one to forecast from; after it the younger one, if any
    last    what the next row is judged by; None where rows are not judged
    """

    key: Key
    rows: int = 0
    carry: Carry | None = None
    states: tuple[Any, ...] = ()
    last: Last | None = None

    def size_in_bytes(self) -> int:
        """Bytes of the states."""
        return sum(map(size_in_bytes, self.states))


Memories: TypeAlias = "Mapping[tuple[str, ...], Memory]"
"""Those of many series, by the parts of their keys as text."""


@dataclass
class Reading:
    """Rows of one series on their way through the network.

    encoded  T rows
    given    (T,) which of them are to be forecast from
    begin    place of the first in its series
    states   as in `Memory`; they move on
    hidden   hidden rows (members, n, D) of the given ones among those that are done
    """

    encoded: Encoded
    given: NDArray[np.bool_]
    begin: int
    states: list[Any]
    done: int = 0
    hidden: list[Tensor] = field(default_factory=list)

    def ahead(self, network: ForecastNetwork, half: int) -> int:
        """How many rows come next; the states take turns where a piece begins. `half` 0: there are no pieces."""
        at = self.begin + self.done
        if not self.states:
            self.states = [fresh(network)]
        if half and at and at % half == 0:
            self.states = [self.states[0 if at == half else 1], fresh(network)]
        left = len(self.encoded) - self.done
        return min(left, CHUNK, half - at % half) if half else min(left, CHUNK)


@dataclass(frozen=True)
class Feed:
    """One state of a reading, and the number of rows that it reads next."""

    reading: Reading
    which: int
    size: int

    @property
    def state(self) -> Any:
        """The state."""
        return self.reading.states[self.which]


def fresh(network: ForecastNetwork) -> Any:
    """The state of a network that has read nothing, for one series."""
    return tuple(cast(Tower, tower).init_state(1) for tower in network.towers)


def read_on(network: ForecastNetwork, readings: Sequence[Reading], context: int) -> None:
    """Read all rows of all readings; their states and hidden rows are those afterwards."""
    half = 0 if network.bounded else max(context // 2, 1)
    with evaluating(network), torch.inference_mode(), few_threads(network):
        live = list(readings)
        while live := [one for one in live if one.done < len(one.encoded)]:
            sizes = [one.ahead(network, half) for one in live]
            feeds = [Feed(one, which, n) for one, n in zip(live, sizes) for which in range(len(one.states))]
            for group in alike(feeds, network.bounded):
                feed(network, group)
            for one, size in zip(live, sizes):
                one.done += size


@contextmanager
def evaluating(network: ForecastNetwork) -> Iterator[None]:
    """The network without dropout. One that is so already is left alone: it may be in use elsewhere."""
    training = network.training
    if training:
        network.eval()
    try:
        yield
    finally:
        if training:
            network.train()


def alike(feeds: Iterable[Feed], bounded: bool) -> Iterator[list[Feed]]:
    """Feeds that one call can read: states that grow must be of one size, and end together."""
    groups: dict[Any, list[Feed]] = {}
    for one in feeds:
        groups.setdefault(None if bounded else (one.size, shapes(one.state)), []).append(one)
    for group in groups.values():
        group.sort(key=lambda one: one.size)
        part: list[Feed] = []
        for one in group:
            if part and (len(part) + 1) * one.size > MOST:
                yield part
                part = []
            part.append(one)
        yield part


def shapes(state: Any) -> tuple[torch.Size, ...]:
    """The sizes of the tensors of a state."""
    return tuple(leaf.shape for leaf in leaves(state))


def feed(network: ForecastNetwork, group: Sequence[Feed]) -> None:
    """Let states of a group read their next rows."""
    spans = [(one.reading.done, one.reading.done + one.size) for one in group]
    inputs, codes, elapsed, lengths = side_by_side([one.reading.encoded for one in group], spans)
    before = joined([one.state for one in group])
    if all(one.size == 1 for one in group):
        h, state = step_on(network, inputs[:, 0], codes[:, 0], before, None if elapsed is None else elapsed[:, 0])
    else:
        h, state = network.read(inputs, codes, before, lengths=lengths, elapsed=elapsed)
    for row, (one, (begin, end)) in enumerate(zip(group, spans)):
        reading = one.reading
        reading.states[one.which] = parted(state, row) if len(group) > 1 else state
        if one.which == 0:
            given = reading.given[begin:end]
            part = h[:, row, : end - begin]
            reading.hidden.append(part if given.all() else part[:, torch.from_numpy(given)])


def step_on(
    network: ForecastNetwork, inputs: Tensor, codes: Tensor, state: Any, elapsed: Tensor | None
) -> tuple[Tensor, Any]:
    """What `network.read` gives for one row of each series, by the step of its layers: inputs (B, I), codes (B, C), elapsed (B,)."""
    hidden: list[Tensor] = []
    after: list[Any] = []
    for tower, own in zip(network.towers, state, strict=True):
        h, own = cast(Tower, tower).step(inputs, codes, own, elapsed=elapsed)
        hidden.append(h[:, None])
        after.append(own)
    return torch.stack(hidden), tuple(after)


def joined(states: Sequence[Any]) -> Any:
    """States of one row each as one of many rows."""
    if len(states) == 1:
        return states[0]
    return tree_map(lambda *rows: torch.cat(rows), states[0], *states[1:])


def parted(state: Any, row: int) -> Any:
    """One row of a state, copied: it does not keep the others in memory."""
    return tree_map(lambda leaf: leaf[row : row + 1].clone(), state)
