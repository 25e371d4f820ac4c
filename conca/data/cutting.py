"""Long text is encoded in pieces, cut where that changes no id: at ends of lines, else between words."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from conca.data.decoding import decoded
from conca.data.text_files import TextFile, blocks_of
from conca.data.token_file import FlatFiles
from conca.data.tokenizer import Measured, Tokenizer
from conca.types import BadInput

__all__ = ["Progress", "encode_files", "in_threads"]

Progress = Callable[[int, int], None]
"""Is told the bytes done, and those in all."""

PIECE = 1 << 18
LEAD = 256
TRIES = 32
LONGEST = 128
"""Pieces that are waited for until there is a place to cut."""
LINE = re.compile(rb"\n(?=\S)")
WORD = re.compile(rb"(?<=\S)(?= \S)")

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Piece:
    """A piece of a file of text: what is before it, the piece, where it begins, its bytes, and whether the file ends."""

    lead: str
    text: str
    where: str
    n_bytes: int
    last: bool


def encode_files(
    files: tuple[TextFile, ...], tokenizer: Tokenizer, flat: FlatFiles, progress: Progress | None = None
) -> None:
    """Append the ids of files, and the bytes that each stands for, to `flat`; between two of them the end of a text.

    It stands for one byte. A tokenizer without an end puts the end of a line there. Raises BadInput, with the file and
    the byte, for what is not UTF-8, and for text that cannot be cut.
    """
    end = np.array([tokenizer.eos]) if tokenizer.eos is not None else tokenizer.encode("\n")
    total, done, passed, ended = sum(file.n_bytes for file in files), 0, 0, 0
    pieces = (piece for file in files for piece in pieces_of(file, tokenizer))
    for piece, (ids, sizes) in in_threads(lambda piece: (piece, ids_of(piece, tokenizer)), pieces):
        parts = [(ids, sizes, piece.n_bytes)]
        ended += piece.last
        if piece.last and ended < len(files):
            parts.append((end, np.eye(1, len(end), dtype=np.int64)[0], 1))
        for part, counts, n_bytes in parts:
            counts[:1] += passed
            passed = 0 if len(part) else passed + n_bytes
            flat.add_ids(piece.where, part, counts)
        done += piece.n_bytes
        if progress:
            progress(done, total)


def ids_of(piece: Piece, tokenizer: Tokenizer) -> Measured:
    """The ids of a piece and the bytes that each stands for. Raises BadInput if they depend on what is around the piece."""
    found = tokenizer.measured(piece.text, piece.lead)
    if found is None:
        raise BadInput(uncut(piece.where, tokenizer))
    return found


def uncut(where: str, tokenizer: Tokenizer) -> str:
    """What to do about text that must be encoded whole."""
    todo = "break it into lines, or learn its bytes, without a tokenizer"
    return f"{where}: {tokenizer.name} finds no place where this text can be cut into pieces; {todo}"


def pieces_of(file: TextFile, tokenizer: Tokenizer, size: int = PIECE) -> Iterator[Piece]:
    """The pieces of a file, each of about `size` bytes."""
    held, lead, at, wanted = b"", "", 0, size
    for block in blocks_of(file, size):
        held += block
        while len(held) > wanted + LEAD:
            cut = place_to_cut(held, wanted, tokenizer)
            if cut is None:
                if wanted >= LONGEST * size:
                    raise BadInput(uncut(f"{file.path}, byte {at:,}", tokenizer))
                wanted += size
                continue
            yield Piece(lead, decoded(held[:cut], str(file.path), at), f"{file.path}, byte {at:,}", cut, last=False)
            lead, held, at, wanted = tail(held[:cut]), held[cut:], at + cut, size
    text = decoded(held, str(file.path), at)
    yield Piece(lead, text, f"{file.path}, byte {at:,}", len(held), last=True)


def place_to_cut(data: bytes, wanted: int, tokenizer: Tokenizer) -> int | None:
    """The last place in the half before `wanted` where cutting changes no id, if any is found."""
    for pattern in (LINE, WORD):
        places = [match.end() for match in pattern.finditer(data, wanted // 2, wanted)]
        for place in reversed(places[-TRIES:]):
            after = data[place : place + LEAD].decode(errors="ignore")
            if tokenizer.measured(after, tail(data[:place])) is not None:
                return place
    return None


def tail(data: bytes) -> str:
    """What is looked at before a cut."""
    return data[-LEAD:].decode(errors="ignore")


def in_threads(task: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """`task` of each item, in their order, in as many threads as there are processors; few items are read ahead."""
    workers = os.cpu_count() or 1
    waiting: deque[Future[B]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            waiting.append(pool.submit(task, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
