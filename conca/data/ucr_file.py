"""Text files of the UCR archive (`.tsv`, `.txt`): on each line a label, then the values of one sequence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from conca.data.labelled import WHOLE, Labelled, Labels, labels_of_text
from conca.data.number_text import read_lines, read_numbers
from conca.types import BadInput

__all__ = ["read_ucr"]

UNKNOWN = ("", "?", "nan")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_ucr(path: Path, *, labelled: bool = True) -> Labelled:
    """The sequences of a file with tabs, blanks or commas between the fields: one channel, float64.

    NaN at the end of a line pad it, and are cut off; other NaN are missing values. Labels written as whole numbers, in
    whatever notation, are integers.

    labelled  whether a missing label is bad input; if not, labels are None where any is missing

    Raises BadInput that names the file and the line.
    """
    rows = [(number, line) for number, line in enumerate(read_lines(path), start=1) if line]
    cases = [(number, *halves(line)) for number, line in rows]
    numbers = read_numbers(
        [values for _, _, values in cases if values], lambda index: f"{path}, line {cases[index][0]}"
    )
    full = np.array([values.count(b",") + 1 if values else 0 for _, _, values in cases])
    sequences = np.split(numbers, np.cumsum(full)[:-1])
    lengths = np.array([trimmed(values) for values in sequences], np.int64)
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        raise BadInput(f"{path}, line {cases[empty[0]][0]}: the sequence has no values after its label; leave it out")
    kept = np.concatenate([values[:length] for values, length in zip(sequences, lengths, strict=True)])
    labels = read_labels(path, [(number, label) for number, label, _ in cases], labelled)
    ids = tuple(map(str, range(len(cases))))
    return Labelled(kept[:, None], lengths, labels, None, ids, ("1",), source=path.name).named(path.name)


def halves(line: bytes) -> tuple[str, bytes]:
    """The label of a line, and its values with commas between them."""
    fields = line.split(b",") if b"," in line else line.split()
    return fields[0].strip().decode("utf-8", "surrogateescape"), b",".join(fields[1:])


def trimmed(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """How many values stand before the NaN that pad the end."""
    known = np.flatnonzero(~np.isnan(values))
    return int(known[-1]) + 1 if len(known) else 0


def read_labels(path: Path, found: Sequence[tuple[int, str]], labelled: bool) -> Labels | None:
    """The labels (line, text), None if any is unknown and may be. Raises BadInput if it may not, or is a fraction."""
    texts = []
    for number, label in found:
        if label.lower() in UNKNOWN:
            if not labelled:
                return None
            raise BadInput(f"{path}, line {number}: the label is missing; the first field of a line is its label")
        if any("\ud800" <= letter <= "\udfff" for letter in label):
            raise BadInput(f"{path}, line {number}: the label {label!r} is not text in UTF-8; save the file so")
        texts.append(label)
    if all(NUMBER.fullmatch(label) for label in texts):
        texts = [plain(path, number, label) for number, label in found]
    return labels_of_text(texts)


def plain(path: Path, line: int, label: str) -> str:
    """A number as a whole number is written. Raises BadInput if it is a fraction, or too large to be told from others."""
    if WHOLE.fullmatch(label):
        return label
    value = float(label)
    if not value.is_integer() or abs(value) >= 2**53:
        raise BadInput(f"{path}, line {line}: the label '{label}' is no class; begin each line with a class")
    return str(int(value))
