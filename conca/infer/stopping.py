"""The text of tokens that are written, as far as it is certain: what may be the beginning of a stop string is held back.

A stop string ends a text where it begins. Of a token that stands across that place only what comes before it is kept: that part is
encoded again, so that the tokens that are kept, their text and the state after them are one and the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conca.data.decoding import Decoding

__all__ = ["Codec", "Cut", "Speech", "TextOf"]


class Codec(Protocol):
    """Of a tokenizer, what writing needs."""

    def encode(self, text: str) -> NDArray[Any]:
        """The tokens of a text."""
        ...

    def stream(self) -> Decoding:
        """A decoding that begins."""
        ...


class Speech(Codec, Protocol):
    """Of a tokenizer, what a talk needs beside that."""

    @property
    def bos(self) -> int | None:
        """The token that texts begin with."""
        ...

    @property
    def eos(self) -> int | None:
        """The token that ends texts."""
        ...

    @property
    def pad(self) -> int | None:
        """The token that fills up."""
        ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Tokens to text, those that stand for no text too if they are `special`."""
        ...


@dataclass(frozen=True)
class Cut:
    """Where a stop string ended a text: so many of its tokens are `kept`, then come `rest`, which were none of them."""

    kept: int
    rest: list[int]


@dataclass
class TextOf:
    """The text of one row.

    Args:
        codec: of the tokenizer; without one there is no text.
        stop: strings that end it.

    ids     tokens so far
    text    what is certain of the text
    sure    so many of the tokens are certain
    """

    codec: Codec | None
    stop: Sequence[str] = ()
    ids: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    sure: int = 0
    held: str = ""
    ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = None if self.codec is None else self.codec.stream()

    @property
    def safe(self) -> int:
        """So many of the tokens are kept whatever comes; a character may be made of four, and be the first of a stop string."""
        return max(0, self.sure - 4) if self.stop else self.sure

    @property
    def text(self) -> str | None:
        """What is certain of the text; None without a tokenizer."""
        return None if self.codec is None else "".join(self.parts)

    def push(self, token: int, *, silent: bool = False) -> Cut | None:
        """One token more; a `silent` one (the end of a text) has none. Says where the text ends if a stop string is complete."""
        self.ids.append(token)
        if self.stream is not None and not silent:
            self.held += self.stream.push([token])
        self.ends.append(len(self.held))  # counted from where `held` begins
        if not self.stop:
            self.release(len(self.held))
            self.sure = len(self.ids)
            self.ends.clear()
            return None
        places = [place for text in self.stop if (place := self.held.find(text)) >= 0]
        if places:
            return self.cut(min(places))
        self.release(len(self.held) - max(begun(self.held, text) for text in self.stop))
        return None

    def release(self, count: int) -> None:
        """So many more characters are certain, and the tokens before the one that ends there (which may hold a part of the next)."""
        self.parts.append(self.held[:count])
        self.held = self.held[count:]
        certain = sum(end < count for end in self.ends)
        self.sure += certain
        self.ends = [end - count for end in self.ends[certain:]]

    def finish(self) -> None:
        """No stop string came: all is certain."""
        if self.stream is not None:
            self.held += self.stream.flush()
        self.parts.append(self.held)
        self.held, self.sure = "", len(self.ids)
        self.ends.clear()

    def cut(self, place: int) -> Cut:
        """The text ends at this place of what is held."""
        assert self.codec is not None
        self.parts.append(self.held[:place])
        text = "".join(self.parts)
        kept = self.sure + sum(end <= place for end in self.ends)
        while not text.startswith(before := plain(self.codec, self.ids[:kept])):
            kept -= 1
        rest = [int(token) for token in np.asarray(self.codec.encode(text[len(before) :]))] if before != text else []
        self.ids = self.ids[:kept] + rest
        self.held, self.sure = "", len(self.ids)
        self.ends.clear()
        return Cut(kept, rest)


def plain(codec: Codec, ids: Sequence[int]) -> str:
    """The text of tokens by themselves."""
    stream = codec.stream()
    return stream.push(ids) + stream.flush()


def begun(text: str, stop: str) -> int:
    """How much of the end of `text` is the beginning of `stop`, less than all of it.

    >>> begun("to be, or", "order")
    2
    """
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
