"""Whether probabilities are what they say: of the answers given 80%, are 80% right."""

from __future__ import annotations

import numpy as np

from conca.estimators.labels import Labels
from conca.metrics.classification import Calibration, accuracy, calibration, expected_calibration_error, wilson
from conca.report.drawing import COLOURS, canvas, key, label, observed, svg_of
from conca.report.page import Chapter, Picture, Table
from conca.report.words import listing, percent

__all__ = ["chapter", "verdict"]

TITLE = "Calibration"
READING = (
    "Every answer comes with its probability. Of those with a probability of about p, a share of p should be right: on the diagonal the "
    "classifier says rightly how sure it is. The bars are 95% intervals (Wilson); where one crosses the diagonal, the difference may "
    "be chance. Below, how many answers there are of each probability."
)
BINS = 10


def chapter(labels: Labels) -> Chapter:
    """The reliability diagram and its numbers."""
    found = calibration(labels.truth, labels.probability, BINS)
    return Chapter(TITLE, (READING, picture(labels, found), table(found)))


def picture(labels: Labels, found: Calibration) -> Picture:
    """Share right against probability, and how many answers each bin has."""
    figure, (axes, below) = canvas(2, 2.2, sharex=True, gridspec_kw={"height_ratios": (2.4, 1)})
    seen = found.count > 0
    low, high = wilson((found.right * found.count)[seen], found.count[seen])
    bars = np.abs(np.stack([low, high]) - found.right[seen])
    observed(axes, found.confidence[seen], found.right[seen], bars)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.03))
    edges = np.arange(BINS) / BINS
    below.bar(edges, found.count, width=1 / BINS, align="edge", color=COLOURS[0], alpha=0.55, lw=0)
    label(axes, "", "share right")
    label(below, "probability of the answer", "answers")
    key(axes)
    sure = float(labels.probability.max(1).mean())
    error = expected_calibration_error(labels.truth, labels.probability, BINS)
    words = f"Answers have a probability of {percent(sure, 1)} on average, and {percent(accuracy(labels.truth, labels.probability), 1)} "
    words += f"of them are right; the expected calibration error is {percent(error, 1)}. {verdict(found)}"
    return Picture(svg_of(figure, "reliability"), f"Calibration. {words}", words)


def verdict(found: Calibration) -> str:
    """In words: at which probabilities the classifier is too sure, or not sure enough, beyond the 95% intervals."""
    seen = np.flatnonzero(found.count > 0)
    low, high = wilson((found.right * found.count)[seen], found.count[seen])
    sure = found.confidence[seen]
    said = []
    for what, where in (("too sure", sure > high), ("not sure enough", sure < low)):
        if where.any():
            said.append(f"{what} at {listing([percent(p) for p in sure[where]])}")
    return f"Beyond chance, it is {' and '.join(said)}." if said else "No sign of miscalibration beyond chance."


def table(found: Calibration) -> Table:
    """The same in numbers, of the bins that have answers."""
    rows = []
    for place in np.flatnonzero(found.count > 0):
        span = f"{percent(place / BINS)} to {percent((place + 1) / BINS)}"
        cells = (percent(found.confidence[place], 1), percent(found.right[place], 1))
        rows.append([span, f"{found.count[place]:,}", *cells])
    return Table(["probability", "answers", "mean probability", "right"], rows)
