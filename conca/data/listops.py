"""ListOps: nested lists of digits under MIN, MAX, MED and SM (sum modulo 10), made as for the Long Range Arena.

Nangia and Bowman, ListOps: A Diagnostic Dataset for Latent Tree Learning, 2018; lengths of Tay et al., Long Range Arena, 2021.

A node down to depth 9 is a leaf with probability 3/4, below that always: a digit. Else it is an operator over 2 to 10 nodes,
drawn after them. Trees of more than 500 and fewer than 2000 symbols are kept (brackets round pairs, which the published text also has,
carry no information and do not count), each once, in the order in which they were drawn: a seed is a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count as numbers
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conca.data.labelled import Labelled
from conca.data.making import array_file, draws, in_order, shares
from conca.types import BadInput

__all__ = [
    "COUNT",
    "LONGEST",
    "SYMBOLS",
    "TABLES",
    "is_tree_table",
    "listops",
    "read_tree_table",
    "text_of",
    "tree",
    "value_of",
    "write_arrays",
    "write_tables",
]

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*"0123456789", *OPERATORS, "]")
"""What a tree is written in; symbol i is the number i."""
END = SYMBOLS.index("]")
COUNT, TRAIN, VALIDATION = 100_000, 0.96, 0.02
"""Trees of the arena, and the shares of its parts."""
LEAF = 0.75
DEEPEST = 10
LEAST, LONGEST = 501, 1999
HEADER = b"Source\tTarget"
TABLES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
BLOCK = 200
"""Trees that one stream of random numbers gives."""

Trees = list[tuple[bytes, int]]
Advance = Callable[[int], object]


class _TooLong(Exception):
    """A tree that cannot be kept any more."""


def tree(random: Callable[[], float]) -> bytearray:
    """The symbols of a tree; none of one that is too short or too long. `random` gives uniform numbers in [0, 1)."""
    symbols = bytearray()

    def grow(depth: int) -> None:
        place = len(symbols)
        symbols.append(0)
        for _ in range(2 + int(random() * 9)):
            if depth == DEEPEST - 1 or random() <= LEAF:
                symbols.append(int(random() * 10))
            else:
                grow(depth + 1)
        symbols.append(END)
        symbols[place] = 10 + int(random() * len(OPERATORS))
        if len(symbols) > LONGEST:
            raise _TooLong

    if random() > LEAF:
        try:
            grow(1)
        except _TooLong:
            symbols.clear()
    return symbols if len(symbols) >= LEAST else bytearray()


def value_of(symbols: bytes) -> int:
    """The digit that a tree is worth; the median of an even number of values is rounded down."""
    lists: list[list[int]] = [[]]
    operators: list[int] = []
    for symbol in symbols:
        if symbol < 10:
            lists[-1].append(symbol)
        elif symbol < END:
            operators.append(symbol - 10)
            lists.append([])
        else:
            lists[-2].append(APPLY[operators.pop()](lists.pop()))
    return lists[0][0]


def _median(values: list[int]) -> int:
    values.sort()
    middle = len(values) // 2
    return (values[middle] + values[~middle]) // 2


APPLY: tuple[Callable[[list[int]], int], ...] = (min, max, _median, lambda values: sum(values) % 10)


def text_of(symbols: bytes) -> str:
    """A tree as the published files write it: `[MAX 2 9 ]` is `( ( ( [MAX 2 ) 9 ) ] )`."""
    words: list[str] = []
    opened: list[list[int]] = []
    for symbol in symbols:
        words.append(SYMBOLS[symbol])
        if 10 <= symbol < END:
            opened.append([len(words) - 1, 1])
            continue
        if symbol == END:
            words[-1] += " )"
            at, pairs = opened.pop()
            words[at] = "( " * pairs + words[at]
        if opened:
            words[-1] += " )"
            opened[-1][1] += 1
    return " ".join(words)


def block(index: int, seed: int) -> Trees:
    """The trees of one block, and what they are worth."""
    random = draws("listops", seed, index).random
    found: Trees = []
    while len(found) < BLOCK:
        symbols = tree(random)
        if symbols:
            kept = bytes(symbols)
            found.append((kept, value_of(kept)))
    return found


def once(blocks: Iterable[Trees]) -> Iterator[Trees]:
    """The blocks without trees that have come before."""
    seen: set[bytes] = set()
    for trees in blocks:
        fresh: Trees = []
        for symbols, value in trees:
            mark = hashlib.blake2b(symbols, digest_size=16).digest()
            if mark not in seen:
                seen.add(mark)
                fresh.append((symbols, value))
        yield fresh


def listops(count: int = COUNT, *, seed: int = 0, processes: int = 1) -> Iterator[Trees]:
    """`count` different trees and what they are worth, in blocks. The trees do not depend on the number of processes, and more
    trees of a seed begin with fewer."""
    with closing(in_order(partial(block, seed=seed), numbers(), processes)) as blocks:
        left = count
        for trees in once(blocks):
            yield trees[:left]
            left -= len(trees)
            if left <= 0:
                return


def write_arrays(path: Path, blocks: Iterable[Trees], count: int, advance: Advance = lambda made: None) -> str:
    """Trees as an .npz; returns the checksum of its arrays.

    X (count, 1999) uint8 are places in `symbols` (15,), 0 beyond `lengths` (count,) int64; y (count,) uint8; split (count,) text.
    """
    lengths, values = np.zeros(count, np.int64), np.zeros(count, np.uint8)

    def padded() -> Iterator[NDArray[np.uint8]]:
        begin = 0
        for trees in blocks:
            rows = np.zeros((len(trees), LONGEST), np.uint8)
            for row, (symbols, value) in enumerate(trees):
                rows[row, : len(symbols)] = np.frombuffer(symbols, np.uint8)
                lengths[begin + row], values[begin + row] = len(symbols), value
            begin += len(trees)
            yield rows
            advance(len(trees))

    with array_file(path) as file:
        file.stream("X", (count, LONGEST), np.dtype(np.uint8), padded())
        file.put("y", values)
        file.put("lengths", lengths)
        file.put("split", shares(count, TRAIN, VALIDATION))
        file.put("symbols", np.array(SYMBOLS))
        return file.checksum


def write_tables(folder: Path, blocks: Iterable[Trees], count: int, advance: Advance = lambda made: None) -> str:
    """Trees as the three published tables, in a new or empty folder; returns the sha256 of their lines in order.

    basic_train.tsv, basic_val.tsv and basic_test.tsv: a line "Source", "Target", then a line for each tree, with all its brackets.
    """
    digest = hashlib.sha256()
    split = shares(count, TRAIN, VALIDATION)
    at = 0
    with ExitStack() as stack:
        files = {
            part: stack.enter_context((folder / name).open("w", encoding="ascii", newline="\n"))
            for part, name in TABLES.items()
        }
        for file in files.values():
            file.write("Source\tTarget\n")
        for trees in blocks:
            for symbols, value in trees:
                line = f"{text_of(symbols)}\t{value}\n"
                files[str(split[at])].write(line)
                digest.update(line.encode("ascii"))
                at += 1
            advance(len(trees))
    return digest.hexdigest()


def is_tree_table(path: Path) -> bool:
    """Whether a file is one of the published tables."""
    with path.open("rb") as opened:
        return opened.read(len(HEADER)) == HEADER


def read_tree_table(path: Path) -> Labelled:
    """The trees of one of the published tables. Brackets round pairs are left out.

    Raises BadInput that names the file and the line of what is no tree.
    """
    places = {symbol: place for place, symbol in enumerate(SYMBOLS)} | {"(": -1, ")": -1}
    trees, values = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines()[1:], start=2):
        source, tab, value = line.partition("\t")
        codes = [places.get(word, -2) for word in source.split()]
        if not tab or -2 in codes or value.strip() not in SYMBOLS[:10]:
            raise BadInput(
                f"{path}, line {number}: not a tree with its digit, as in '[MAX 2 9 ]', tab, '9'; fetch it again"
            )
        trees.append(np.array([code for code in codes if code >= 0], np.uint8))
        values.append(int(value))
    return Labelled.of(trees, values, symbols=SYMBOLS, source=path.name).named(path.name)
