"""A table with one row a step becomes sequences with labels: a column names the sequence, another its label."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.columns import is_numeric, numbers_in, shown, text_of
from conca.data.labelled import PARTS, Labelled, labels_of_text
from conca.data.rows import read_rows
from conca.data.schema import Schema
from conca.data.table import ENDINGS, Origin, Source, columns_of, read_table, settled
from conca.types import BadInput, nearest

__all__ = ["is_long_table", "read_long_table"]

NAMED = 6
"""Channels that are named to the user, at most."""
SPLIT_COLUMNS = ("part", "split")
PART_WORDS = {
    **{part: part for part in PARTS},
    **{"training": "train", "valid": "validation", "val": "validation", "testing": "test"},
}


def is_long_table(path: str | Path) -> bool:
    """Whether the name of a file says that it is a table."""
    return Path(path).name.lower().endswith(ENDINGS)


def read_long_table(
    path: Source, *, series: str | None, time: str | None = None, label: str | None = None, labelled: bool = True
) -> Labelled:
    """The sequences of a table with one row a step, in the order in which they appear.

    path      a CSV file (also .csv.gz, .csv.xz), a Parquet file or a data frame, as `read_table` reads them
    series    the column that tells sequences apart; its cells are their names
    time      the column that orders the steps of a sequence: dates or numbers; None: the order of the rows
    label     the column of labels, the same in all rows of a sequence in which it is not missing
    labelled  False: the column of labels may be missing

    Every other column of numbers is a channel, NaN where missing; values are float64. A column named "part" or "split"
    (in any case) that holds train, validation and test is an official split. Other columns of text are passed over, and
    `source` says so.

    Raises BadInput, one line, on a column that is missing, a sequence with two labels, two parts or none, two steps at
    one time, a cell that is no number, an infinite value, or no channel at all.
    """
    source = settled(path)
    names = columns_of(source)
    where = Origin.of(source).name
    if series is None or (label is None and labelled):
        what, option = ("tells sequences apart", "series") if series is None else ("holds the labels", "label")
        raise BadInput(f"{where}: name the column that {what} ({option}, --{option}), one of: {', '.join(names)}")
    if label not in names and not labelled:
        label = None
    roles = check_roles(where, names, {"series": series, "time": time, "label": label})
    split = next((name for name in names if name.lower() in SPLIT_COLUMNS and name not in roles), None)
    table = read_table(source, text=[name for name in (series, label, split) if name is not None])
    return Steps(table, Origin.of(source), series, time).sequences(label, split)


def check_roles(where: str, names: list[str], roles: dict[str, str | None]) -> dict[str, str]:
    """The role of each column that has one. Raises BadInput on a column that is missing or has two roles."""
    taken: dict[str, str] = {}
    for role, name in roles.items():
        if name is None:
            continue
        if name not in names:
            raise BadInput(f"{where}: there is no column '{name}' ({role}); {nearest(name, names)}")
        if name in taken:
            raise BadInput(f"{where}: column '{name}' is named as {taken[name]} and as {role}; it can be one of them")
        taken[name] = role
    return taken


@dataclass(frozen=True)
class Steps:
    """The rows of a table, each a step of a sequence."""

    table: pd.DataFrame
    origin: Origin
    series: str
    time: str | None

    def sequences(self, label: str | None, split: str | None) -> Labelled:
        """The sequences, with labels and official parts if there are such columns."""
        keys, order, starts = self.in_order()
        codes = np.cumsum(starts) - 1
        labels = None if label is None else self.one_each(label, keys, order, codes, "label")
        parts = None if split is None else self.parts(split, keys, order, codes)
        roles = {self.series, self.time, label, split if parts is not None else None}
        rest = [name for name in self.table.columns if name not in roles]
        channels = [name for name in rest if is_numeric(self.table[name])]
        if not channels:
            raise BadInput(f"{self.origin.name}: no column of numbers is left to be a channel; add one")
        passed = [name for name in rest if name not in channels]
        note = f"; channels {', '.join(map(shown, channels[:NAMED]))}" + ", ..." * (len(channels) > NAMED)
        note += f"; no numbers, so passed over: {', '.join(map(shown, passed))}" if passed else ""
        values = np.stack([numbers_in(self.table[name], self.origin)[order] for name in channels], axis=1)
        note += "" if self.time is not None else rising(values, codes, channels)
        lengths = np.bincount(codes).astype(np.int64)
        found = None if labels is None else labels_of_text(labels)
        name = self.origin.name
        data = Labelled(values, lengths, found, parts, tuple(keys), tuple(channels), source=name)
        return data.named(name if self.origin.path is None else self.origin.path.name, note)

    def in_order(self) -> tuple[list[str], NDArray[np.int64], NDArray[np.bool_]]:
        """Names of the sequences, the rows (N,) sorted by sequence and time, and where (N,) a sequence begins.

        Times with a fraction are sorted as numbers; two rows of a sequence with the same one are BadInput.
        """
        table, time = self.table, self.time
        fractions = None
        if time is not None and is_numeric(table[time]):
            numbers = numbers_in(table[time], self.origin)
            fractions = numbers if (numbers != np.rint(numbers)).any() and not np.isnan(numbers).any() else None
        if fractions is not None:
            twice = pd.DataFrame({"series": table[self.series], "time": fractions}).duplicated()
            if twice.any():
                at = int(twice.to_numpy().argmax())
                key = shown(str(table[self.series].iloc[at]))
                raise BadInput(
                    f"{self.origin.cell(at, str(time))}: series '{key}' has another row at the time {fractions[at]:g}; "
                    "remove one of them, or name what tells series apart (series, --series)"
                )
            table = table.assign(**{str(time): pd.factorize(fractions, sort=True)[0]})
        schema = Schema((), time=time, series=(self.series,))
        rows = read_rows(table, self.origin, schema, None, None, [])
        return [str(text) for (text,) in rows.keys], rows.order, rows.starts

    def one_each(
        self, column: str, keys: list[str], order: NDArray[np.int64], codes: NDArray[np.int64], what: str
    ) -> list[str]:
        """The one word that a column says of each sequence. Raises BadInput where it says two, or none."""
        text = text_of(self.table[column]).to_numpy(dtype=object, na_value="")[order]
        known = np.flatnonzero(text != "")
        first = np.full(len(keys), -1)
        first[codes[known][::-1]] = known[::-1]
        none = np.flatnonzero(first < 0)
        if none.size:
            key = shown(keys[int(none[0])])
            raise BadInput(f"{self.origin.name}, column '{column}': series '{key}' has no {what}; give it one")
        other = known[text[known] != text[first[codes[known]]]]
        if other.size:
            at = int(other[0])
            key, one, two = keys[codes[at]], text[first[codes[at]]], text[at]
            raise BadInput(
                f"{self.origin.cell(int(order[at]), column)}: series '{shown(key)}' has the {what}s '{shown(one)}' and "
                f"'{shown(two)}'; a series has one {what}"
            )
        return [str(word) for word in text[first]]

    def parts(
        self, column: str, keys: list[str], order: NDArray[np.int64], codes: NDArray[np.int64]
    ) -> NDArray[np.str_] | None:
        """The official part of each sequence; None if the column says something else than parts, or one part alone."""
        words = text_of(self.table[column]).str.lower()
        if not set(words.dropna()) <= set(PART_WORDS):
            return None
        plain = replace(self, table=self.table.assign(**{column: words.map(PART_WORDS, na_action="ignore")}))
        parts = plain.one_each(column, keys, order, codes, "part")
        return np.array(parts, np.str_) if len(set(parts)) > 1 else None


def rising(values: NDArray[np.float64], codes: NDArray[np.int64], channels: list[str]) -> str:
    """A note on the first channel that goes up with every step of every sequence, as a column of times does."""
    inside = codes[1:] == codes[:-1]
    up = (np.diff(values, axis=0)[inside] > 0).all(0) & inside.any()
    named = [name for name, found in zip(channels, up, strict=True) if found]
    return f"; '{shown(named[0])}' only goes up: if it is the time, name it (time, --time)" if named else ""
