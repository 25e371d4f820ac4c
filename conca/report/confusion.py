"""What is taken for what: the confusion matrix in cells, and the worst confusions by name."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator
from numpy.typing import NDArray

from conca.estimators.labels import Labels
from conca.metrics.classification import confusion
from conca.report.classes import counted, marks, named, titles
from conca.report.drawing import COLOURS, INK, SOFT, TEXT, WIDTH, canvas, key, label, svg_of
from conca.report.page import Chapter, Picture, Table
from conca.report.words import percent

__all__ = ["chapter", "picture", "shares", "worst"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TITLE = "What is taken for what"
READING = (
    "Each row is a class as it is, each column what was answered: the more of its row a cell holds, the stronger is its colour; right "
    "answers lie on the diagonal. {marks}"
)
NUMBERED = "Classes are numbered as in the table of all classes below."
NONE = "No answer was wrong."
DRAWN, WRITTEN, LISTED = 120, 12, 12
"""Up to so many classes have a picture, and up to so many numbers in its cells; and so many confusions are listed."""
FAINT, STRONG, DEPTHS = 0.12, 0.62, 25
"""Opacity of a cell that holds next to nothing, and of one that holds all of its row; and how many are told apart."""


def shares(counts: Integers) -> Floats:
    """Share (K, K) of its row that is in each cell; 0 in a row without sequences."""
    return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1), dtype=np.float64)


def worst(counts: Integers, most: int = LISTED) -> list[tuple[int, int]]:
    """Class and wrong answer of the most frequent confusions; of equally frequent ones the larger share of its class first."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    rows, columns = np.nonzero(wrong)
    order = np.lexsort((columns, rows, -shares(counts)[rows, columns], -wrong[rows, columns]))[:most]
    return [(int(rows[i]), int(columns[i])) for i in order]


def chapter(labels: Labels) -> Chapter:
    """The matrix, drawn, and the worst confusions."""
    counts = confusion(labels.truth, labels.probability)
    parts: list[str | Picture | Table] = []
    if len(counts) <= DRAWN:
        numbered = NUMBERED if marks(labels.classes) != labels.classes else ""
        parts += [READING.format(marks=numbered).strip(), picture(labels, counts)]
    else:
        parts.append(f"{len(counts):,} classes are too many for a picture of all that are taken for each other.")
    parts.append(table(labels, counts) if counts.trace() < counts.sum() else NONE)
    return Chapter(TITLE, parts)


def table(labels: Labels, counts: Integers) -> Table:
    """The worst confusions."""
    names, share = titles(labels.classes), shares(counts)
    rows = [[names[i], names[j], f"{counts[i, j]:,}", percent(share[i, j], 1)] for i, j in worst(counts)]
    return Table(["is", "answered", "times", "of the class"], rows, words=2)


def picture(labels: Labels, counts: Integers) -> Picture:
    """The matrix, the truth downward and the answer across."""
    figure, (axes,) = canvas(height=min(WIDTH, 1.2 + 0.5 * len(counts)))
    cells(axes, counts)
    if len(counts) <= WRITTEN:
        numbers(axes, counts)
    places(axes, marks(labels.classes))
    label(axes, "answered", "is")
    for colour, name in ((COLOURS[0], "right"), (COLOURS[1], "wrong")):
        axes.scatter([], [], marker="s", color=colour, alpha=STRONG, linewidths=0, label=name)
    key(axes)
    words = words_of(labels, counts)
    return Picture(svg_of(figure, "confusion"), f"Confusion matrix. {words}", words)


def words_of(labels: Labels, counts: Integers) -> str:
    """How many are right, and the most frequent confusion."""
    right, total = int(counts.trace()), int(counts.sum())
    words = f"{right:,} of {counted(total)} are right ({percent(right / total, 1)})"
    if not (confused := worst(counts, 1)):
        return f"{words}."
    truth, said = confused[0]
    often = f"{counts[truth, said]:,} time{'s' * bool(counts[truth, said] > 1)}"
    part = percent(counts[truth, said] / counts[truth].sum(), 1)
    names = [named(labels.classes[k], 40) for k in (truth, said)]
    return f"{words}. Most often {names[0]} is taken for {names[1]}: {often}, {part} of that class."


def cells(axes: Axes, counts: Integers) -> None:
    """A square for every cell that holds something; those of one colour and depth are one shape, so that the page stays small."""
    share = shares(counts)
    depth = np.ceil(share * DEPTHS).astype(int)
    gap = 0.04 if len(counts) <= WRITTEN else 0.0
    for right, colour in ((True, COLOURS[0]), (False, COLOURS[1])):
        here = np.eye(len(counts), dtype=bool) == right
        for level in np.unique(depth[here & (counts > 0)]):
            rows, columns = np.nonzero(here & (depth == level) & (counts > 0))
            shape = Path.make_compound_path(*(square(int(i), int(j), gap) for i, j in zip(rows, columns)))
            opacity = FAINT + (STRONG - FAINT) * float(level) / DEPTHS
            axes.add_patch(PathPatch(shape, facecolor=colour, alpha=opacity, linewidth=0))


def square(row: int, column: int, gap: float) -> Path:
    """The outline of one cell."""
    low, high = gap - 0.5, 0.5 - gap
    corners = ((low, low), (high, low), (high, high), (low, high), (low, low))
    return Path([(column + x, row + y) for x, y in corners], closed=True)


def numbers(axes: Axes, counts: Integers) -> None:
    """The counts in their cells, as large as they fit."""
    digits = len(str(counts.max()))
    size = min(TEXT, 0.8 * (WIDTH - 0.8) * 72 / len(counts) / digits / 0.6)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            axes.text(column, row, str(count), ha="center", va="center", fontsize=size, color=INK)


def places(axes: Axes, names: tuple[str, ...]) -> None:
    """The marks of the classes along both axes: all of few, else as many as do not touch."""
    count = len(names)
    every = next(step for step in (1, 2, 5, 10, 20, 50) if count / step <= 16)
    ticks = list(range(0, count, every)) if every == 1 else list(range(every - 1, count, every))
    axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_ticks(ticks, [names[i] for i in ticks])
    axes.grid(every > 1)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(SOFT)
    axes.spines[:].set_linewidth(0.6)
