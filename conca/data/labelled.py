"""Sequences with labels, end to end in one array: what a classifier learns from.

Lengths may differ; a sequence is a run of rows of one array, so nothing is padded, and values keep the type in which
they were read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conca.types import BadInput

__all__ = [
    "LARGEST",
    "PARTS",
    "Labelled",
    "Labels",
    "Numbers",
    "counted",
    "joined",
    "labels_of_text",
    "numbered",
    "settle_labels",
]

PARTS = ("train", "validation", "test")
"""The parts that an official split has, in this order."""

Numbers: TypeAlias = NDArray[Any]
"""Real numbers of any type: uint8, int16, float32, float64."""

Labels: TypeAlias = NDArray[Any]
"""Labels, (n,): text or integers."""

LARGEST = 1e30
"""The largest value that is read."""
BLOCK = 1 << 20
WHOLE = re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Sequences with labels.

    values    (sum of lengths, C) numbers, NaN where missing; or, where there are `symbols`, integers
              (sum of lengths, 1) that index them
    lengths   (n,) int64, at least 1 each
    labels    (n,) text or integers; None: none are known
    parts     (n,) "train", "validation" or "test"; None: there is no official split
    ids       n names: a file's name, a key, else the number of the sequence, from 0
    channels  C names
    symbols   the vocabulary of symbols; empty: the values are numbers
    rate      samples a second, of audio
    source    one line that says what was read: files, a colon, sizes

    Raises BadInput if these do not fit together, or if a value is infinite or beyond 1e30.
    """

    values: Numbers
    lengths: NDArray[np.int64]
    labels: Labels | None
    parts: NDArray[np.str_] | None
    ids: tuple[str, ...]
    channels: tuple[str, ...]
    symbols: tuple[str, ...] = ()
    rate: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        """Raise BadInput if the fields do not fit together."""
        check_shapes(self)
        check_lengths(self)
        check_values(self)

    @classmethod
    def of(cls, sequences: Sequence[ArrayLike], labels: ArrayLike | None = None, **rest: Any) -> Labelled:
        """Sequences of shape (T,) or (T, C), each an array, end to end; `rest` are other fields.

        Raises BadInput that names the sequence that has no steps, no numbers or other channels than the first.
        """
        ids = tuple(rest.pop("ids", None) or map(str, range(len(sequences))))
        where = origin(rest.get("source", ""))
        arrays = [as_steps(array, f"{where}sequence '{name}'") for array, name in zip(sequences, ids, strict=True)]
        if not arrays:
            raise BadInput(f"{where}there are no sequences; give at least one")
        width = arrays[0].shape[1]
        for array, name in zip(arrays, ids, strict=True):
            if array.shape[1] != width:
                first = f"sequence '{ids[0]}' has {width}"
                raise BadInput(
                    f"{where}sequence '{name}' has {array.shape[1]} channels where {first}; give all the same"
                )
        lengths = np.array([len(array) for array in arrays], np.int64)
        fields: dict[str, Any] = {"parts": None, "channels": numbered(width)} | rest
        if labels is not None:
            fields["labels"] = settle_labels(labels, len(arrays), where)
        return cls(np.concatenate(arrays), lengths, ids=ids, **{"labels": None} | fields)

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self.lengths)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The row of `values` at which each sequence begins, shape (n,)."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def summary(self) -> str:
        """How many sequences, channels, steps and classes there are, in a few words."""
        words = [counted(len(self), "sequence") + self.split_summary]
        words.append(counted(len(self.symbols), "symbol") if self.symbols else counted(len(self.channels), "channel"))
        low, high = int(self.lengths.min()), int(self.lengths.max())
        words.append(counted(high, "step") if low == high else f"{low} to {high} steps")
        if self.labels is not None:
            words.append(counted(len(np.unique(self.labels)), "class", "classes"))
        if self.rate is not None:
            words.append(f"{self.rate:g} samples a second")
        return ", ".join(words)

    @property
    def split_summary(self) -> str:
        """How many sequences each part has, in brackets after a space; empty if there is no split."""
        if self.parts is None:
            return ""
        counts = {part: int((self.parts == part).sum()) for part in PARTS}
        return f" ({', '.join(f'{count} {part}' for part, count in counts.items() if count)})"

    def sequence(self, i: int) -> Numbers:
        """The values of sequence `i`, shape (T_i, C), as a view."""
        start = self.offsets[i]
        return self.values[start : start + self.lengths[i]]

    def take(self, index: ArrayLike) -> Labelled:
        """The sequences at `index`, in its order, copied: integers, or a mask of n truth values.

        Raises BadInput if it names none.
        """
        rows: NDArray[Any] = np.asarray(index)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        if not len(rows):
            raise BadInput(f"{origin(self.source)}no sequences are left; keep at least one")
        starts, lengths = self.offsets[rows], self.lengths[rows]
        pieces = [self.values[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        return replace(
            self,
            values=np.concatenate(pieces),
            lengths=lengths,
            labels=None if self.labels is None else self.labels[rows],
            parts=None if self.parts is None else self.parts[rows],
            ids=tuple(self.ids[row] for row in rows),
        )

    def part(self, name: str) -> Labelled:
        """The sequences of one part, "train", "validation" or "test", copied. Raises BadInput if it has none."""
        mask = np.zeros(len(self), bool) if self.parts is None else self.parts == name
        if not mask.any():
            raise BadInput(
                f"{origin(self.source)}no sequences are marked as the part '{name}'; read a split that has it"
            )
        return self.take(mask)

    def named(self, files: str, note: str = "") -> Labelled:
        """The same, with a `source` line made of the names of the files, the sizes and what is to be noted."""
        return replace(self, source=f"{files}: {self.summary}{note}")


def check_shapes(data: Labelled) -> None:
    """Raise BadInput if the fields of `data` are not of the shapes that belong together."""
    where, n = origin(data.source), len(data.lengths)
    if not n:
        raise BadInput(f"{where}there are no sequences; give at least one")
    if data.values.ndim != 2 or data.values.shape != (int(data.lengths.sum()), len(data.channels)):
        wanted = f"({int(data.lengths.sum())}, {len(data.channels)})"
        raise BadInput(f"{where}values of shape {data.values.shape} where lengths and channels ask for {wanted}")
    if data.symbols and len(data.channels) != 1:
        raise BadInput(f"{where}symbols stand in one channel, and there are {len(data.channels)}; give (n, T)")
    if data.values.dtype.kind not in "biuf":
        raise BadInput(f"{where}values of type {data.values.dtype} are not real numbers; convert them")
    for name in ("labels", "parts", "ids"):
        field = getattr(data, name)
        if field is not None and len(field) != n:
            raise BadInput(f"{where}{len(field)} {name} for {n} sequences; give one each")
    if data.parts is not None and (strange := sorted({*data.parts.tolist()} - {*PARTS})):
        raise BadInput(f"{where}a part is named '{strange[0]}'; the parts are {', '.join(PARTS)}")


def check_lengths(data: Labelled) -> None:
    """Raise BadInput that names the first sequence without a step."""
    empty = np.flatnonzero(data.lengths < 1)
    if len(empty):
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise BadInput(f"{origin(data.source)}sequence '{data.ids[empty[0]]}' has no steps{more}; leave it out")


def check_values(data: Labelled) -> None:
    """Raise BadInput that names the first value that is infinite or is no symbol."""
    values = data.values
    if data.symbols:
        wrong = first_row(values, lambda block: (block < 0) | (block >= len(data.symbols)))
        what = f"is none of the {len(data.symbols)} symbols; number them from 0"
    elif values.dtype.kind == "f":
        wrong = first_row(values, np.isinf if values.dtype.itemsize < 4 else lambda block: np.abs(block) > LARGEST)
        what = f"is infinite, or beyond {LARGEST:g}; mend it, or make it NaN if it is missing"
    else:
        return
    if wrong is not None:
        row, channel = wrong
        at = int(np.searchsorted(np.cumsum(data.lengths), row, side="right"))
        place = f"sequence '{data.ids[at]}', channel '{data.channels[channel]}', step {row - int(data.offsets[at])}"
        raise BadInput(f"{origin(data.source)}{place}: {values[row, channel]} {what}")


def first_row(values: Numbers, wrong: Any) -> tuple[int, int] | None:
    """Row and channel of the first value for which `wrong` holds, looked for in blocks; None if there is none."""
    size = max(1, BLOCK // max(1, values.shape[1]))
    for start in range(0, len(values), size):
        mask = wrong(values[start : start + size])
        if mask.any():
            row, channel = np.argwhere(mask)[0]
            return start + int(row), int(channel)
    return None


def as_steps(array: ArrayLike, where: str) -> Numbers:
    """One sequence as an array (T, C). Raises BadInput if it holds no real numbers, or has other axes."""
    try:
        steps = np.asarray(array)
    except ValueError:
        raise BadInput(f"{where} is ragged; give an array of shape (steps,) or (steps, channels)") from None
    if steps.dtype.kind not in "biuf":
        raise BadInput(f"{where} holds values of type {steps.dtype}, not real numbers; convert them")
    if steps.ndim not in (1, 2):
        raise BadInput(f"{where} has {steps.ndim} axes; give an array of shape (steps,) or (steps, channels)")
    return steps[:, None] if steps.ndim == 1 else steps


def settle_labels(labels: ArrayLike, n: int, where: str = "") -> Labels:
    """Labels as an array (n,) of text or of integers; `where` begins the error line.

    Whole numbers in floating point become integers, bytes become text. Raises BadInput if one is missing or a
    fraction, or if there are not n.
    """
    array = np.asarray(labels)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.shape != (n,):
        raise BadInput(f"{where}labels of shape {array.shape} for {counted(n, 'sequence')}; give one label each")
    if array.dtype.kind == "O":
        array = text_or_numbers(array, where)
    if array.dtype.kind == "S":
        array = decoded(array, where)
    if array.dtype.kind == "f":
        array = whole_numbers(array, where)
    if array.dtype.kind in "bui":
        return array.astype(np.int64)
    if array.dtype.kind != "U":
        raise BadInput(f"{where}labels of type {array.dtype} are not read; give text or integers")
    if (array == "").any():
        raise BadInput(f"{where}the label of sequence {int(np.argmax(array == ''))} is empty; give every one a label")
    return array


def decoded(labels: NDArray[Any], where: str) -> NDArray[Any]:
    """Labels in bytes as text. Raises BadInput if they are not UTF-8."""
    try:
        return np.char.decode(labels, "utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}the label {error.object!r} is not text in UTF-8; write it so") from None


def text_or_numbers(labels: NDArray[Any], where: str) -> NDArray[Any]:
    """Labels held as objects, as text or numbers. Raises BadInput if one is missing or of another kind."""
    for place, label in enumerate(labels):
        if not isinstance(label, (str, bytes, int, float, np.generic)) or label != label:
            raise BadInput(f"{where}the label of sequence {place} is {label!r}; give every one text or an integer")
    texts = sum(isinstance(label, (str, bytes)) for label in labels)
    if texts not in (0, len(labels)):
        raise BadInput(f"{where}some labels are text and some are numbers; give all of one kind")
    return np.array(labels.tolist())


def whole_numbers(labels: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Labels in floating point as integers. Raises BadInput if one is missing or a fraction."""
    wrong = np.flatnonzero(~(labels == np.round(labels)) | (np.abs(labels) >= 2**53))
    if len(wrong):
        label = labels[wrong[0]]
        what = "missing" if np.isnan(label) else f"the number {label:g}, not a class"
        raise BadInput(f"{where}the label of sequence {wrong[0]} is {what}; give every one text or an integer")
    return labels.astype(np.int64)


def labels_of_text(labels: Sequence[str]) -> Labels:
    """Labels read as text: integers if every one is written as an integer is ("7", not "007"), else the text."""
    if labels and all(WHOLE.fullmatch(label) and len(label) < 18 for label in labels):
        return np.array([int(label) for label in labels], np.int64)
    return np.array(labels, np.str_)


def numbered(width: int) -> tuple[str, ...]:
    """Names of `width` channels that have none: "1", "2" and so on."""
    return tuple(str(channel + 1) for channel in range(width))


def counted(n: int, one: str, many: str = "") -> str:
    """A number with its noun: "1 channel", "3 channels"."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def origin(source: str) -> str:
    """The files that a `source` line names, as the beginning of an error line; empty if it names none."""
    files, colon, _ = source.partition(": ")
    return f"{files}: " if colon else f"{source}: " if source else ""


def joined(parts: Mapping[str, Labelled], files: str) -> Labelled:
    """One set of several, the parts of an official split by name, numbered through; `files` names their origin.

    Raises BadInput if they differ in symbols, rate or number of channels.
    """
    (first, one), *others = parts.items()
    for name, data in others:
        if data.symbols != one.symbols or len(data.channels) != len(one.channels):
            told = f"'{name}' has {counted(len(data.channels), 'channel')}, '{first}' {len(one.channels)}"
            raise BadInput(f"{files}: the parts differ: {told}; give the same channels, or symbols, in both")
        if data.rate != one.rate:
            raise BadInput(f"{files}: the part '{first}' has the rate {one.rate}, '{name}' {data.rate}; give one rate")
    every = [data.labels for data in parts.values()]
    known = [labels for labels in every if labels is not None]
    if len({labels.dtype.kind in "US" for labels in known}) > 1:
        known = [labels.astype(np.str_) for labels in known]
    own = {name for data in parts.values() for name in data.ids}
    lengths = np.concatenate([data.lengths for data in parts.values()])
    keep_ids = len(own) == len(lengths)
    return Labelled(
        np.concatenate([data.values for data in parts.values()]),
        lengths,
        np.concatenate(known) if len(known) == len(every) else None,
        np.repeat(list(parts), [len(data) for data in parts.values()]),
        tuple(name for data in parts.values() for name in data.ids)
        if keep_ids
        else tuple(map(str, range(len(lengths)))),
        one.channels,
        one.symbols,
        one.rate,
        files,
    ).named(files)
