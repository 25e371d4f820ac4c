"""Text in UTF-8, and ids on their way to text: told in whole characters alone.

What may be half of a character is held back until the rest of it has come.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from conca.types import BadInput

__all__ = ["ByteStream", "Decoding", "TokenStream", "decoded", "encoded", "places"]

BROKEN = "\ufffd"
HELD = 64
"""Ids that are held back at most: what is broken, or has no text, for longer never was a character."""


class Decoding(Protocol):
    """Ids on their way to text."""

    def push(self, ids: Sequence[int]) -> str:
        """The whole characters that these ids have finished, "" if none."""

    def flush(self) -> str:
        """What was held back; half a character is told as U+FFFD."""


class ByteStream:
    """Bytes on their way to text."""

    def __init__(self, silent: int | None) -> None:
        self.silent = silent
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        """See `Decoding`."""
        return self.decoder.decode(bytes(i for i in ids if i != self.silent))

    def flush(self) -> str:
        """See `Decoding`."""
        return self.decoder.decode(b"", final=True)


class TokenStream:
    """Ids of tokens on their way to text.

    Text is decoded together with the ids told last, since how a token is written may depend on whether one is before it.
    """

    def __init__(self, decode: Callable[[list[int]], str], silent: Collection[int]) -> None:
        self.decode, self.silent = decode, silent
        self.kept: list[int] = []
        self.told = 0
        self.sent = ""

    def push(self, ids: Sequence[int]) -> str:
        """See `Decoding`."""
        return "".join(self.one(int(i)) for i in ids if int(i) not in self.silent)

    def one(self, token: int) -> str:
        """What one more id finishes."""
        self.kept.append(token)
        if not self.decode(self.kept).endswith(BROKEN):
            return self.tell(len(self.kept))
        return self.tell(len(self.kept) - 3) if len(self.kept) - self.told > HELD else ""

    def tell(self, count: int) -> str:
        """The text of the first `count` ids kept, as far as it is new."""
        new = self.decode(self.kept[:count])[len(self.sent) :]
        if new:
            self.kept = self.kept[self.told :]
            self.told = count - self.told
            self.sent = self.decode(self.kept[: self.told])
        elif count - self.told > HELD:
            del self.kept[self.told : count]
        return new

    def flush(self) -> str:
        """See `Decoding`."""
        return self.tell(len(self.kept)) if len(self.kept) > self.told else ""


def encoded(text: str) -> bytes:
    """UTF-8 of a text. Bytes of a command line that were none come back as they were.

    Raises BadInput for other halves of surrogate pairs.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        said = f"the text has half of a surrogate pair at character {error.start}"
        raise BadInput(f"{said}, which UTF-8 cannot write; write the character whole") from None


def decoded(data: bytes, where: str, offset: int = 0) -> str:
    """Bytes read as UTF-8. Raises BadInput: `where`, and at which byte, counted from `offset`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = f"byte {offset + error.start} (0x{data[error.start]:02x})"
        todo = "a tokenizer reads UTF-8 alone: convert it, or learn its bytes, without a tokenizer"
        raise BadInput(f"{where}: not UTF-8 at {at}; {todo}") from None


def places(text: str) -> NDArray[np.int64]:
    """Where each character begins in the UTF-8 of a text, and where the last one ends: (characters + 1,)."""
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))
