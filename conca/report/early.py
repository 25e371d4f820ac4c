"""Accuracy by the length of a sequence, and while it is read: after every tenth of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from conca.estimators.labels import Labels
from conca.metrics.classification import Binned, accuracy_by, wilson
from conca.report.classes import counted
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, logarithmic, svg_of
from conca.report.page import Chapter, Picture, Table
from conca.report.words import percent

__all__ = ["chapter", "enough", "right_early"]

Floats = NDArray[np.float64]

TITLE = "By length, and while reading"
BARS = "The bars are 95% intervals (Wilson): where two overlap much, the difference may be chance."
ALIKE = "All sequences judged are of one length, {steps}, so there is nothing to compare by length."
BOTH = (
    "This classifier reads whole sequences from both ends, so it has no answer before the end; fit one without bidirectional "
    "(--bidirectional) to know how early it is right."
)
BINS, FULL = 8, 25
"""Lengths are parted into at most so many bins, of so many sequences each, or into two."""
NEARLY = 0.95
WIDE = 10.0
"""Lengths that differ by more than so many times stand on a logarithmic axis."""


def right_early(labels: Labels) -> Floats:
    """Share of right answers (F,) after reading each tenth of the sequences. Raises ValueError where there are no such answers."""
    if labels.early is None:
        raise ValueError("there are no answers before the end")
    return np.asarray((labels.early == labels.truth).mean(1), dtype=np.float64)


def enough(right: Floats) -> int:
    """The first share, counted from 1, from which on at least 95% of the accuracy at the end is reached."""
    below = np.flatnonzero(right < NEARLY * right[-1])
    return int(below[-1]) + 2 if below.size else 1


def chapter(labels: Labels) -> Chapter:
    """Both pictures, as far as there is something to show."""
    parts: list[str | Picture | Table] = []
    if labels.lengths.min() == labels.lengths.max():
        parts.append(ALIKE.format(steps=counted(int(labels.lengths[0]), "step")))
    else:
        bins = min(max(len(labels) // FULL, 2), BINS)
        found = accuracy_by(labels.lengths, labels.truth, labels.probability, bins)
        parts += [BARS, by_length(found), table(found)]
    parts.append(BOTH if labels.early is None else while_reading(labels))
    return Chapter(TITLE, parts)


def spans(found: Binned) -> Iterator[str]:
    """The lengths of each bin in words: "12 to 14"."""
    for first, last in zip(found.first, found.last):
        yield f"{first:,.0f}" if first == last else f"{first:,.0f} to {last:,.0f}"


def by_length(found: Binned) -> Picture:
    """Accuracy and its interval for each bin of lengths."""
    figure, (axes,) = canvas()
    middle = (found.first + found.last) / 2
    axes.hlines(found.right, found.first, found.last, color=COLOURS[0], lw=1.6)
    bars = np.abs(np.stack([found.low, found.high]) - found.right)
    axes.errorbar(middle, found.right, yerr=bars, fmt="o", color=COLOURS[0], ms=4, elinewidth=1.0, capsize=3)
    bottom = max(0.0, math.floor(10 * found.low.min() - 0.5) / 10)
    axes.set_ylim(bottom, 1 + 0.04 * (1 - bottom))
    if found.last.max() > WIDE * found.first.min():
        logarithmic(axes)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,g}")
    label(axes, "steps", "share of right answers")
    words = words_of(found)
    return Picture(svg_of(figure, "by-length"), f"Accuracy by length. {words}", words)


def words_of(found: Binned) -> str:
    """The lowest and the highest accuracy, or the only one."""
    names = [f"{name} steps" for name in spans(found)]
    low, high = int(found.right.argmin()), int(found.right.argmax())
    if len(names) == 1:
        return f"{percent(found.right[0], 1)} of the answers are right, for sequences of {names[0]}."
    if found.right[low] == found.right[high]:
        return f"{percent(found.right[0], 1)} of the answers are right at every length."
    words = (
        f"Right answers: {percent(found.right[high], 1)} at {names[high]}, the best; {percent(found.right[low], 1)} at "
    )
    words += f"{names[low]}, the worst. "
    apart = found.low[high] > found.high[low]
    return words + ("That is more than chance." if apart else "Their intervals overlap: that may be chance.")


def table(found: Binned) -> Table:
    """The same in numbers."""
    rows = [
        [name, f"{count:,}", percent(right, 1), f"{percent(low, 1)} to {percent(high, 1)}"]
        for name, count, right, low, high in zip(spans(found), found.count, found.right, found.low, found.high)
    ]
    return Table(["steps", "sequences", "right", "95% interval"], rows)


def while_reading(labels: Labels) -> Picture:
    """Accuracy after each share, and what the most frequent class would have."""
    right = right_early(labels)
    low, high = wilson(right * len(labels), np.full(len(right), len(labels)))
    shares = np.arange(1, len(right) + 1) / len(right)
    frequent = np.bincount(labels.truth).max() / len(labels)
    figure, (axes,) = canvas()
    axes.axhline(frequent, color=SOFT, lw=1.0, ls="--", label="the most frequent class")
    axes.fill_between(100 * shares, low, high, color=COLOURS[0], alpha=0.18, lw=0)
    axes.plot(100 * shares, right, "o-", color=COLOURS[0], ms=4, lw=1.6, label="model, 95% interval")
    axes.set(ylim=(0, 1.02), xlim=(0, 103))
    axes.xaxis.set_major_formatter("{x:g}%")
    label(axes, "share of the sequence that is read", "share of right answers")
    key(axes)
    half, first = len(right) // 2, enough(right)
    words = f"{percent(right[0], 1)} of the answers are right after the first {percent(shares[0])} of a sequence, "
    words += f"{percent(right[half - 1], 1)} after half of it and {percent(right[-1], 1)} at its end"
    words += f"; from {percent(shares[first - 1])} on, at least 95% of that." if first < len(right) else "."
    return Picture(svg_of(figure, "early"), f"Accuracy while reading. {words}", words)
