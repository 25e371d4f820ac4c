"""What a language model is trained on: passages of text in batches, drawn by (seed, step), and those to validate on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["IGNORED", "Passages", "TextBatch", "TextChecks", "Written", "packed", "pieces_of_rows"]

Integers = NDArray[np.int64]

IGNORED = -100
"""The target at a place that does not count."""
OPEN = 32
"""Passages that are filled at the same time, so that rows of unequal lengths fit together."""


class Written(Protocol):
    """Text as the numbers of its tokens, `conca.data.corpus.Corpus` or rows of it, `conca.data.jsonl.Rows`."""

    def __len__(self) -> int: ...

    def read(self, begin: int, end: int, /) -> NDArray[np.unsignedinteger]:
        """Tokens from one place to another."""
        ...

    def mask(self, begin: int, end: int, /) -> NDArray[np.bool_]:
        """Which of them a model is to say."""
        ...

    def sizes(self, begin: int, end: int, /) -> Integers:
        """Bytes that each stands for."""
        ...


class TextBatch(NamedTuple):
    """Passages side by side.

    ids      (B, T) tokens
    target   (B, T) the token after each, -100 where it does not count
    starts   (B, T) where another text begins inside a passage; None if none does
    whole    how many targets count in the whole batch, over all processes
    bytes    how many bytes they stand for here; 0 where nobody asks
    """

    ids: Tensor
    target: Tensor
    starts: Tensor | None
    whole: int
    bytes: int

    def to(self, device: torch.device | str) -> TextBatch:
        """The same batch on a device."""
        starts = None if self.starts is None else self.starts.to(device)
        return self._replace(ids=self.ids.to(device), target=self.target.to(device), starts=starts)


class Piece(NamedTuple):
    """Tokens `begin` to `end`, each with the one after it as its target."""

    begin: int
    end: int


Passage = Sequence[Piece]


def batch_of(text: Written, passages: Sequence[Passage], length: int, *, measured: bool = False) -> TextBatch:
    """Passages as a batch; what is left of each is padding, after everything that counts."""
    shape = (len(passages), length)
    ids, target, starts = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64), np.zeros(shape, np.bool_)
    stands = 0
    for row, passage in enumerate(passages):
        at = 0
        for begin, end in passage:
            tokens, counts = text.read(begin, end + 1).astype(np.int64), text.mask(begin + 1, end + 1)
            ids[row, at : at + end - begin] = tokens[:-1]
            target[row, at : at + end - begin] = np.where(counts, tokens[1:], IGNORED)
            starts[row, at] = at > 0
            stands += int(text.sizes(begin + 1, end + 1)[counts].sum()) if measured else 0
            at += end - begin
    found = torch.from_numpy(starts) if starts.any() else None
    return TextBatch(torch.from_numpy(ids), torch.from_numpy(target), found, int((target != IGNORED).sum()), stands)


def pieces_of_rows(offsets: Integers, begin: int, end: int, length: int) -> list[Piece]:
    """The rows between two places, those longer than a passage in several pieces, one after the other.

    offsets   where every row begins, and the end of the last
    """
    found: list[Piece] = []
    for first, after in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        if begin <= first and after <= end:
            found += [Piece(place, min(place + length, after - 1)) for place in range(first, after - 1, length)]
    return found


def packed(pieces: Sequence[Piece], length: int) -> list[list[Piece]]:
    """Pieces side by side in as few passages as can be found quickly: each goes where the least is left."""
    done: list[list[Piece]] = []
    filled: list[tuple[int, list[Piece]]] = []
    for piece in pieces:
        size = piece.end - piece.begin
        fits = [(left, at) for at, (left, _) in enumerate(filled) if left >= size]
        if fits:
            left, at = min(fits)
            filled[at][1].append(piece)
            filled[at] = (left - size, filled[at][1])
        else:
            filled.append((length - size, [piece]))
        if len(filled) > OPEN:
            done.append(filled.pop(min(range(len(filled)), key=lambda at: filled[at][0]))[1])
    return done + [passage for _, passage in filled]


class Passages(Dataset[TextBatch]):
    """Batches by their step: which passages item i holds is a function of (seed, i) alone.

    In each pass every place of the text comes once. Running text is cut anew in every pass, from a place drawn at random, and joined
    where it ends with its beginning. Rows are kept whole where they are no longer than a passage, and several share one, none of
    which reads the one before; longer ones are cut into pieces. The last batch of a pass is filled up from its beginning.

    Args:
        text: tokens.
        begin, end: those that are learnt.
        offsets: where rows begin, if the text is made of rows, and the end of the last.
        length: tokens of a passage; all of them where there are fewer.
        batch_size: passages of a batch; all of them where there are fewer.
        seed: of cuts and order.

    Raises:
        ValueError: if there is no token with one after it.
    """

    def __init__(
        self,
        text: Written,
        begin: int,
        end: int,
        offsets: Integers | None = None,
        *,
        length: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self.text, self.begin, self.seed = text, begin, seed
        self.tokens = end - begin - 1
        self.length = max(min(length, self.tokens), 1)
        self.rows: list[list[Piece]] | None = None
        if offsets is not None:
            pieces = pieces_of_rows(offsets, begin, end, self.length)
            order = np.random.default_rng(seed).permutation(len(pieces))
            self.rows = packed([pieces[i] for i in order], self.length)
        count = -(-self.tokens // self.length) if self.rows is None else len(self.rows)
        if count < 1:
            raise ValueError("no token has one after it")
        self.batch_size = min(batch_size, count)
        self.count, self.each = count, -(-count // self.batch_size)
        self.drawn: tuple[int, int, NDArray[np.uint32]] = (-1, 0, np.empty(0, np.uint32))

    def __len__(self) -> int:
        return 2**31

    def passages(self, step: int) -> list[Passage]:
        """Those of the batch of a step."""
        turn, place = divmod(step, self.each)
        if self.drawn[0] != turn:
            draw = np.random.default_rng((self.seed, turn))
            order = np.arange(self.count, dtype=np.uint32)
            draw.shuffle(order)
            self.drawn = turn, int(draw.integers(self.tokens)), order
        places = np.arange(place * self.batch_size, (place + 1) * self.batch_size) % self.count
        chosen = self.drawn[2][places].tolist()
        if self.rows is not None:
            return [self.rows[number] for number in chosen]
        return [self.cut(number, self.drawn[1]) for number in chosen]

    def cut(self, number: int, offset: int) -> Passage:
        """A passage of running text, in two pieces if the text ends inside it."""
        first, last = number * self.length, min((number + 1) * self.length, self.tokens)
        begin, end = (offset + first) % self.tokens, (offset + last - 1) % self.tokens + 1
        parts = [(begin, end)] if begin < end else [(begin, self.tokens), (0, end)]
        return [Piece(self.begin + one, self.begin + other) for one, other in parts]

    def batch(self, step: int, first: int = 0, stride: int = 1) -> TextBatch:
        """The passages first, first + stride, ... of the batch of a step."""
        chosen = self.passages(step)
        own = batch_of(self.text, chosen[first::stride], self.length)
        if stride == 1:
            return own
        counts = (self.text.mask(piece.begin + 1, piece.end + 1).sum() for passage in chosen for piece in passage)
        return own._replace(whole=int(sum(counts)))

    def __getitem__(self, step: int) -> TextBatch:
        """The batch of a step."""
        return self.batch(step)


class TextChecks(Dataset[TextBatch]):
    """Tokens `begin` to `end` in passages one after the other, to validate on: the batches first, first + stride, ..."""

    def __init__(
        self,
        text: Written,
        begin: int,
        end: int,
        offsets: Integers | None = None,
        *,
        length: int,
        batch_size: int,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        self.text, self.length = text, max(min(length, end - begin - 1), 1)
        if offsets is None:
            cuts = range(begin, end - 1, self.length)
            found: list[list[Piece]] = [[Piece(at, min(at + self.length, end - 1))] for at in cuts]
        else:
            found = packed(pieces_of_rows(offsets, begin, end, self.length), self.length)
        self.chosen = [found[i : i + batch_size] for i in range(0, len(found), batch_size)][first::stride]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, place: int) -> TextBatch:
        """One of them."""
        return batch_of(self.text, self.chosen[place], self.length, measured=True)
