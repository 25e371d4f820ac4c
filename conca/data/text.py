"""Text as a run of ids that is read in parts: which bytes each part stands for, and which end is held out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conca.data.text_files import Joined
from conca.data.tokenizer import Ids, Tokenizer
from conca.types import BadInput

__all__ = ["Store", "Text"]

BLOCK = 1 << 20


class Store(Protocol):
    """Where ids lie: (n,), each of which stands for bytes of a text."""

    def __len__(self) -> int: ...
    def read(self, begin: int, end: int) -> NDArray[Any]: ...
    def sizes(self, begin: int, end: int) -> NDArray[np.int64]: ...
    def bytes_before(self, at: int) -> int: ...
    def at_byte(self, byte: int) -> int: ...


class Text:
    """A run of ids, and the bytes of text that they stand for. Positions are those of ids; parts are [begin, end).

    tokenizer  the one that has made the ids
    source     one line: what was read
    """

    def __init__(self, tokenizer: Tokenizer, ids: Store, text: Joined, source: str, stamp: str) -> None:
        self.tokenizer, self.source = tokenizer, source
        self._ids, self._text, self._stamp = ids, text, stamp

    def __len__(self) -> int:
        """How many ids."""
        return len(self._ids)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the ids: uint8, uint16 or uint32."""
        return self.tokenizer.dtype

    @property
    def n_bytes(self) -> int:
        """Bytes of text that all ids stand for."""
        return self._ids.bytes_before(len(self))

    def read(self, begin: int, end: int) -> Ids:
        """The ids of a part, (end - begin,), a new array. Raises ValueError unless 0 <= begin <= end <= len."""
        self.check(begin, end)
        return self._ids.read(begin, end)

    def sizes(self, begin: int, end: int) -> NDArray[np.int64]:
        """How many bytes each id of a part stands for, (end - begin,). A character over several ids counts to the first."""
        self.check(begin, end)
        return self._ids.sizes(begin, end)

    def bytes_between(self, begin: int, end: int) -> int:
        """How many bytes the ids of a part stand for, together."""
        self.check(begin, end)
        return self._ids.bytes_before(end) - self._ids.bytes_before(begin)

    def raw(self, begin: int, end: int) -> bytes:
        """The bytes that the ids of a part stand for."""
        return b"".join(self.blocks(begin, end))

    def blocks(self, begin: int, end: int, size: int = BLOCK) -> Iterator[bytes]:
        """The bytes that the ids of a part stand for, in blocks of `size` bytes."""
        self.check(begin, end)
        first, last = self._ids.bytes_before(begin), self._ids.bytes_before(end)
        return (self._text.read(at, min(at + size, last)).tobytes() for at in range(first, last, size))

    def mask(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Which ids of a part a model is judged on, (end - begin,): all that have one before them."""
        self.check(begin, end)
        return np.asarray(np.arange(begin, end) > 0)

    def starts(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Which ids of a part begin a text that has nothing to do with what is before it, (end - begin,): the first of all."""
        self.check(begin, end)
        return np.asarray(np.arange(begin, end) == 0)

    def split(self, fraction: float) -> tuple[range, range]:
        """Ids to learn from, and the `fraction` at the end that is held out, as ranges; no id is in both.

        It is cut at the same byte whatever the tokenizer, but for part of an id. Raises BadInput if either part has too
        little in it; with the fraction 0 nothing is held out.
        """
        if not 0 <= fraction < 1:
            raise BadInput(f"the part to hold out must be at least 0 and less than 1, not {fraction}")
        if fraction == 0:
            return range(len(self)), range(len(self), len(self))
        held = math.ceil(self.n_bytes * fraction - 1e-9)
        cut = self.cut_at(self.n_bytes - held)
        if cut < 2 or cut >= len(self):
            raise BadInput(f"{self.source}: too little to learn from one part and hold out another; give more text")
        return range(cut), range(cut, len(self))

    def cut_at(self, byte: int) -> int:
        """The id at which the part to learn from ends, if it should end at a byte."""
        return self._ids.at_byte(byte)

    def stamp(self) -> str:
        """Equal for equal text and tokenizer: names, sizes and samples of contents of the files, wherever they lie."""
        return hashlib.sha256(f"{self._stamp} {self.tokenizer.fingerprint()}".encode()).hexdigest()

    def check(self, begin: int, end: int) -> None:
        """Raise ValueError unless there is such a part."""
        if not 0 <= begin <= end <= len(self):
            raise ValueError(f"there is no part [{begin}, {end}) of {len(self)} ids")
