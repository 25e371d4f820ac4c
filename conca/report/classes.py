"""Classes on a page: their names in words, their short marks in drawings, and how good the answers are for each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from conca.estimators.labels import Labels
from conca.metrics.classification import by_class, confusion
from conca.report.page import Chapter, Table, short
from conca.report.words import listing, percent

__all__ = ["chapter", "counted", "marks", "named", "titles"]

TITLE = "Class by class"
READING = (
    "Precision is the share that is right of the times a class was answered, recall the share that was found of the sequences that are "
    "of this class, and F1 is between the two: it is high where both are. Macro F1, on top of this page, is the mean of the last column."
)
MOST = 60
"""Classes that are listed."""
FEW = 3
"""Of so many without any sequence the names are said."""
LONG = re.compile(r"(\S{16})(?=\S)")
WHOLE = re.compile(r"-?[0-9]{1,4}", re.ASCII)


def named(name: object, limit: int = 60) -> str:
    """The name of a class for a page: on one line, cut, and apart from the direction in which the text around it is written.

    A word that is very long may be broken, so that no table becomes wider than it must.
    """
    line = LONG.sub("\\1\u200b", short(name, limit))
    return f"\u2068{line}\u2069" if line else "(empty)"


def marks(classes: Sequence[str]) -> tuple[str, ...]:
    """What stands for each class in a drawing: its name where all are whole numbers, else its place, counted from 1."""
    if all(WHOLE.fullmatch(name) for name in classes):
        return tuple(classes)
    return tuple(str(place) for place in range(1, len(classes) + 1))


def titles(classes: Sequence[str], limit: int = 32) -> tuple[str, ...]:
    """Mark and name of each class, "3. walking"; the mark alone where it is the name."""
    return tuple(
        mark if mark == name else f"{mark}. {named(name, limit)}" for mark, name in zip(marks(classes), classes)
    )


def counted(count: int, what: str = "sequence") -> str:
    """So many: "1 sequence", "1,200 sequences", "3 classes"."""
    return f"{count:,} {what}{('es' if what.endswith('s') else 's') * (count != 1)}"


def chapter(labels: Labels, learnt: NDArray[np.int64]) -> Chapter:
    """A table of the classes, in their order; of many, those with the lowest F1, the worst first.

    learnt  (K,) sequences of each class that were learnt from
    """
    found = by_class(confusion(labels.truth, labels.probability))
    order, parts = np.arange(len(labels.classes)), [READING]
    if len(order) > MOST:
        order = np.argsort(found.f1, kind="stable")[:MOST]
        parts.append(f"These are the {MOST} of {len(labels.classes):,} classes with the lowest F1.")
    names = titles(labels.classes)
    if absent := [names[k] for k in np.flatnonzero(found.support == 0)]:
        of = listing(absent) if len(absent) <= FEW else counted(len(absent), "class")
        parts.append(f"No sequence of {of} was held out, so nothing is known of the recall.")
    headings = ["class", "learnt from", "judged", "precision", "recall", "F1"]
    columns = (found.precision, found.recall, found.f1)
    numbers = (learnt, found.support)
    rows = [[names[k], *(f"{n[k]:,}" for n in numbers), *(percent(c[k], 1) for c in columns)] for k in order]
    return Chapter(TITLE, (*parts, Table(headings, rows)))
