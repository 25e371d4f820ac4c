"""Numbers written as text, read in bulk, with the place of the first that is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from conca.types import BadInput

__all__ = ["read_lines", "read_numbers"]

BLOCK = 1 << 24
MISSING = ("?", "NaN", "nan", "NA")
NUMBER = re.compile(rb"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*|\s*[+-]?(inf|infinity|nan)\s*", re.I)


def read_lines(path: Path) -> list[bytes]:
    """The lines of a text file as bytes, without blanks at their ends.

    Raises BadInput if there is no such file, if it is a directory or empty, or if it holds NUL bytes.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a directory where a file is wanted; name a file")
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise BadInput(f"{path}: the file is empty; fetch or write it again")
    if b"\0" in text:
        raise BadInput(f"{path}: holds NUL bytes, as text in UTF-16 or a damaged file does; save the file as UTF-8")
    return [line.strip() for line in text.removeprefix(b"\xef\xbb\xbf").splitlines()]


def read_numbers(pieces: Sequence[bytes], where: Callable[[int], str]) -> NDArray[np.float64]:
    """The numbers of all pieces, one after another; a piece is numbers with commas between them.

    "?", "NaN" and "NA" are NaN. Raises BadInput, which begins with `where(index of the piece)`, if a number is broken
    or missing between two commas.
    """
    found = []
    for start, end in blocks(pieces):
        some = pieces[start:end]
        numbers = parse(b"\n".join(some))
        if numbers is None or len(numbers) != sum(piece.count(b",") + 1 for piece in some):
            index, word = broken(some)
            raise BadInput(f"{where(start + index)}: '{word}' is not a number; write a number, or ? if it is missing")
        found.append(numbers)
    return np.concatenate(found) if found else np.zeros(0)


def blocks(pieces: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Runs of pieces, as first and one past the last, of some megabytes together."""
    start, size = 0, 0
    for index, piece in enumerate(pieces):
        size += len(piece)
        if size > BLOCK:
            yield start, index + 1
            start, size = index + 1, 0
    if start < len(pieces):
        yield start, len(pieces)


def parse(text: bytes) -> NDArray[np.float64] | None:
    """The numbers of a text that has commas or line ends between them; None if one is broken."""
    try:
        table = arrow_csv.read_csv(
            pa.py_buffer(text.replace(b",", b"\n")),
            read_options=arrow_csv.ReadOptions(column_names=["number"], use_threads=False),
            parse_options=arrow_csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=arrow_csv.ConvertOptions(column_types={"number": pa.float64()}, null_values=[*MISSING]),
        )
    except pa.ArrowInvalid:
        return None
    numbers: NDArray[np.float64] = table.column("number").to_numpy()
    return numbers


def broken(pieces: Sequence[bytes]) -> tuple[int, str]:
    """The index of the first piece that has a broken number, and what stands there."""
    for index, piece in enumerate(pieces):
        for word in piece.split(b","):
            if not NUMBER.fullmatch(word) and word.strip().decode("ascii", "replace") not in MISSING:
                return index, word.strip().decode("utf-8", "replace")[:40]
    return len(pieces) - 1, pieces[-1].rpartition(b",")[2].decode("utf-8", "replace")[:40]
