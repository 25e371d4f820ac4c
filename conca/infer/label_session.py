"""Streams of labels in Python: rows are read one by one or many at once, and after each there is a label with its probability."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.data.labelled import LARGEST
from conca.infer.label_kept import Heard, identity, read_heard, write_heard
from conca.infer.memory import joined, parted
from conca.layers.states import leaves, size_in_bytes
from conca.models.classify import ClassifyNetwork
from conca.models.threads import few_threads
from conca.types import BadInput, nearest, path_of

__all__ = ["Heard", "LabelSession"]

MOST = 16_384
"""Rows of all sequences that are read at once, padding included."""
PIECE = 1_024
"""Rows of one sequence that are read at once."""

Floats = NDArray[np.float64]
Row: TypeAlias = "Sequence[float] | NDArray[Any] | Tensor | str | int"


class LabelSession:
    """Any number of sequences through one network, step by step; what was read of each is a state of fixed size.

    The numbers are those that the network gives for the sequence up to that step. A state is never changed, so what `state`
    returns stays as it is. A network with attention without a window holds all that it read.

    Args:
        network: put into `eval()`, as it should stay.
        classes: their names, in the order of the network's answers.
        symbols: the vocabulary, where sequences are of symbols.

    Raises:
        BadInput: for a network that reads in both directions, which has no answer before the end.
    """

    def __init__(self, network: ClassifyNetwork, classes: Sequence[Any], *, symbols: Sequence[str] = ()) -> None:
        if network.config.bidirectional:
            raise BadInput("a bidirectional network reads a sequence to its end before it answers; fit one that is not")
        self.network, self.classes, self.symbols = network.eval(), tuple(classes), tuple(symbols)
        self.places = {symbol: place for place, symbol in enumerate(self.symbols)}
        self.memories: Mapping[Hashable, Heard] = {}
        self._run: str | None = None

    def __len__(self) -> int:
        return len(self.memories)

    def step(self, row: Row, key: Hashable = None) -> tuple[Any, Floats]:
        """Read one step of the sequence `key`; it begins with its first step.

        Args:
            row: the numbers of its channels (C,), NaN where missing; or one symbol, as text or as its number.
            key: which sequence, any that can be hashed (text, or texts, to be saved).

        Returns:
            The likeliest label after this step, and the probability of every class (K,).

        Raises:
            BadInput: for a row of another number of channels, an infinite number, an unknown symbol. Then nothing is read.
        """
        (probability,) = self.push([key], self.rows_of([row]))
        return self.classes[int(probability.argmax())], probability

    def read(self, rows: Sequence[Row] | NDArray[Any], key: Hashable = None) -> Floats:
        """Read steps (T, C) of one sequence: the probability of every class after each of them (T, K)."""
        return self.push([key] * len(rows), self.rows_of(rows))

    def last(self, rows: Sequence[Row] | NDArray[Any], key: Hashable = None) -> Floats:
        """As `read`, the probabilities after the last of at least one step alone (K,)."""
        return self.answer(self.last_logits(rows, key))

    def last_logits(self, rows: Sequence[Row] | NDArray[Any], key: Hashable = None) -> Floats:
        """As `last`, the logits (K,)."""
        found = self.rows_of(rows)
        if not len(found):
            raise BadInput("there is no answer to no step; give at least one")
        one = self.memories.get(key) or Heard(0, self.network.init_state(1))
        with torch.inference_mode(), few_threads(self.network):
            logits, state = self.network.read(self.tensor(found)[None], one.state)
        self.memories = {**self.memories, key: Heard(one.steps + len(found), state)}
        return np.asarray(logits[0].double().numpy())

    def push(self, keys: Sequence[Hashable], rows: NDArray[Any]) -> Floats:
        """Read N rows of any sequences, in the order in which they came; sequences are read side by side.

        Args:
            keys: N of them, of which sequence each row is a step.
            rows: (N, C) numbers, or (N,) numbers of symbols.

        Returns:
            Probabilities (N, K) after each row.
        """
        return self.answer(self.push_logits(keys, rows))

    def push_logits(self, keys: Sequence[Hashable], rows: NDArray[Any]) -> Floats:
        """As `push`, the logits (N, K) after each row."""
        places: dict[Hashable, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        result, memories = np.empty((len(keys), len(self.classes))), dict(self.memories)
        with torch.inference_mode(), few_threads(self.network):
            for group in self.groups(places):
                spans = [places[key][begin : begin + PIECE] for key, begin in group]
                before = [memories.get(key) or Heard(0, self.network.init_state(1)) for key, _ in group]
                logits, states = self.side_by_side([rows[span] for span in spans], [one.state for one in before])
                for row, ((key, _), span) in enumerate(zip(group, spans)):
                    memories[key] = Heard(before[row].steps + len(span), states[row])
                    result[span] = logits[row, : len(span)].double().numpy()
        self.memories = memories
        return result

    @staticmethod
    def answer(logits: Floats) -> Floats:
        """Probabilities of the classes (..., K)."""
        found: Floats = torch.from_numpy(logits).softmax(-1).numpy()
        return found

    def groups(self, places: Mapping[Hashable, Sequence[int]]) -> Iterator[list[tuple[Hashable, int]]]:
        """Which pieces (key, place of its first row among its rows) are read together, in turn; a key once in each.

        States that grow are read one by one, since their sizes differ.
        """
        pieces = [
            (begin, min(PIECE, len(own) - begin), key)
            for key, own in places.items()
            for begin in range(0, len(own), PIECE)
        ]
        pieces.sort(key=lambda piece: piece[:2])
        most = MOST if self.network.bounded else 0
        group: list[tuple[Hashable, int]] = []
        for begin, size, key in pieces:
            if group and (group[0][1] != begin or (len(group) + 1) * size > most):
                yield group
                group = []
            group.append((key, begin))
        if group:
            yield group

    def side_by_side(self, rows: Sequence[NDArray[Any]], states: Sequence[Any]) -> tuple[Tensor, list[Any]]:
        """Rows of B sequences, read from B states: logits after every row (B, T, K), and the states after the last ones."""
        lengths = [len(own) for own in rows]
        longest, state = max(lengths), joined(states)
        if longest == 1:
            logits, state = self.network.step(self.tensor(np.concatenate(rows)), state)
            logits = logits[:, None]
        else:
            padded = np.zeros((len(rows), longest, *rows[0].shape[1:]), rows[0].dtype)
            for place, own in enumerate(rows):
                padded[place, : len(own)] = own
            known = None if min(lengths) == longest else torch.tensor(lengths)
            logits, state = self.network.every(self.tensor(padded), state, lengths=known)
        return logits, [parted(state, row) for row in range(len(rows))] if len(rows) > 1 else [state]

    def tensor(self, rows: NDArray[Any]) -> Tensor:
        """Rows as the network reads them."""
        return torch.from_numpy(np.ascontiguousarray(rows))

    def rows_of(self, rows: Sequence[Row] | NDArray[Any]) -> NDArray[Any]:
        """Rows (T, C) of numbers, or numbers of symbols (T,). Raises BadInput for rows that cannot be read."""
        if self.symbols:
            return np.array([self.number_of(row) for row in rows], dtype=np.int64)
        channels = self.network.config.channels
        try:
            found = np.asarray(rows, dtype=np.float64)
        except (TypeError, ValueError):
            raise BadInput(f"a row must be {channels} numbers, one for each channel") from None
        if not len(found):
            return np.empty((0, channels))
        if found.ndim == 1 and channels == 1:
            found = found[:, None]
        if found.shape != (len(found), channels):
            raise BadInput(f"a row has the shape {found.shape[1:]}; the network reads rows of {channels} channels")
        if (np.abs(found) > LARGEST).any():
            raise BadInput(f"a row holds an infinite number, or one beyond {LARGEST:g}; NaN stands for a missing one")
        return found

    def number_of(self, symbol: Any) -> int:
        """The number of a symbol. Raises BadInput for an unknown one."""
        if isinstance(symbol, str):
            if symbol not in self.places:
                raise BadInput(f"unknown symbol '{symbol}'; {nearest(symbol, self.symbols)}")
            return self.places[symbol]
        number = int(np.asarray(symbol).item())
        if not 0 <= number < len(self.symbols):
            raise BadInput(f"there is no symbol number {number}; there are {len(self.symbols)}, from 0")
        return number

    def steps(self, key: Hashable = None) -> int:
        """How many steps of a sequence were read."""
        one = self.memories.get(key)
        return 0 if one is None else one.steps

    def state(self) -> Mapping[Hashable, Heard]:
        """What was read so far, a value: later steps do not change it."""
        return dict(self.memories)

    def restore(self, saved: Mapping[Hashable, Heard]) -> None:
        """Go on from what `state` returned. Raises BadInput for the state of another network; then nothing changes."""
        shape = [leaf.shape[1:] for leaf in leaves(self.network.init_state(1))]
        for one in saved.values():
            own = [leaf.shape[1:] for leaf in leaves(one.state)] if isinstance(one, Heard) else []
            if len(own) != len(shape) or (self.network.bounded and own != shape):
                raise BadInput("this is not the state of a stream through such a network; give what `state` returned")
        self.memories = dict(saved)

    def size_in_bytes(self) -> int:
        """Bytes of the states of all sequences."""
        return sum(size_in_bytes(one.state) for one in self.memories.values())

    @property
    def run(self) -> str:
        """What tells the network from others: a hash of its weights and of what it answers."""
        if self._run is None:
            self._run = identity(self.network, self.classes, self.symbols)
        return self._run

    def save(self, path: str | Path) -> None:
        """Write what was read so far to a file, whole or not at all; keys are kept as texts.

        Raises:
            BadInput: if something that is no file has this name, or a key is neither None, a text, nor a tuple of texts.
            OSError: if it cannot be written.
        """
        write_heard(path_of(path), self.memories, self.run)

    def load(self, path: str | Path) -> None:
        """Go on from a file that `save` wrote. Raises BadInput, one line, if it is missing, damaged, or of another run."""
        self.memories = read_heard(path_of(path), self.network.init_state(1), self.run)
