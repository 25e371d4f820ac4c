"""What a classifier is: the verdict on it first, then what it reads and answers, and its layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from conca.estimators.classifier import Classifier
from conca.estimators.labels import MOST, Labels
from conca.metrics.classification import wilson
from conca.report.classes import counted, named
from conca.report.page import Chapter, Table, short
from conca.report.verdict import score_rows
from conca.report.words import listing, percent

__all__ = ["chapter", "facts", "judged", "verdict"]

TITLE = "How good it is, and what it is"
READING = (
    "Nothing was fitted on the sequences held out. Accuracy is the share of right answers; macro F1 is the mean over the classes of an "
    "F1 between precision and recall, so that rare classes count as much as others: higher is better. Log loss is the mean of -log of the "
    "probability of the right class: lower is better."
)
NEAREST = " 1-NN answers with the class of the nearest sequence that was learnt from."
NOTHING = (
    "No sequences were held out, so there is nothing to judge: give data with a test part, or hold some of it out (test_fraction), to "
    "see scores, confusions and calibration."
)
UNKEPT = "This run keeps no answers on the sequences held out, so there are no pictures of them."
NAMED, CHANNELS = 12, 8
"""So many classes and channels are named."""
SIMPLE = {"most frequent": "always the most frequent class", "1-NN": "the nearest neighbour (1-NN)"}


def verdict(scores: pd.DataFrame, labels: Labels | None = None) -> str:
    """The accuracy of the model beside the best of the others; "" if there is no other.

    scores  the model first; the index names the answers
    labels  what was judged: how many sequences says whether a difference may be chance
    """
    right = scores["accuracy"].to_numpy(dtype=np.float64)
    if len(right) < 2 or np.isnan(right[0]) or np.isnan(right[1:]).all():
        return ""
    place = 1 + int(np.nanargmax(right[1:]))
    own, other, name = right[0], right[place], str(scores.index[place])
    name = SIMPLE.get(name, name)
    chance = ""
    if labels is not None:
        low, high = wilson(own * len(labels), len(labels))
        if low <= other <= high:
            chance = f" With {counted(len(labels))} judged the difference may be chance."
    if own == other:
        return f"No better than a simple answer: the model and {name} are both right in {percent(own, 1)} of cases."
    if own > other:
        return f"The model is right most often: in {percent(own, 1)} of cases; {name} in {percent(other, 1)}.{chance}"
    advice = " Take the simple answer, or try more epochs (--epochs) or a wider network (--d-model)."
    return f"A simple answer is right more often: {name} in {percent(other, 1)} of cases, the model in {percent(own, 1)}.{chance or advice}"


def judged(labels: Labels) -> str:
    """What was judged: sequences, classes that occur, and lengths."""
    low, high = int(labels.lengths.min()), int(labels.lengths.max())
    occur = len(np.unique(labels.truth))
    line = f"{counted(len(labels))} of {counted(occur, 'class')}, "
    line += f"{counted(low, 'step')} long" if low == high else f"{low:,} to {high:,} steps long"
    if len(labels) >= MOST:
        return (
            f"Judged on sequences held out; kept for the pictures are {line} (up to {MOST:,} are kept, evenly spaced)."
        )
    return f"Judged on sequences held out: {line}."


def opening(classifier: Classifier) -> Iterator[str | Table]:
    """The verdict, what was judged, and the scores."""
    scores, labels = classifier.scores_, classifier.evaluation_
    if not len(scores):
        yield NOTHING
        return
    if said := verdict(scores, labels):
        yield said
    yield judged(labels) if labels is not None else UNKEPT
    yield score_rows(scores, "answers of")
    yield READING + NEAREST * ("1-NN" in scores.index)


def facts(classifier: Classifier) -> list[tuple[str, str]]:
    """What is read, what is answered, and by what, in words."""
    config, network = classifier.config, classifier.network_
    names = [named(name, 40) for name in classifier.classes_[:NAMED]]
    more = len(classifier.classes_) - len(names)
    way = (
        "both ways; it answers for whole sequences"
        if network.encoder is not None
        else "forward; it answers after every step"
    )
    learnt = counted(int(classifier.counts_.sum()))
    return [
        *([("data", short(classifier.source_, 400))] if classifier.source_ else []),
        ("learnt from", learnt),
        ("reads", reads(classifier)),
        ("answers one of", listing([*names, f"{more:,} more"] if more else names)),
        ("layers", f"{config.layers}, width {config.d_model}"),
        ("direction", way),
        ("parameters", f"{sum(p.numel() for p in network.parameters()):,}"),
    ]


def reads(classifier: Classifier) -> str:
    """What a step of a sequence holds."""
    if symbols := classifier.network_.config.symbols:
        return f"one of {counted(symbols, 'symbol')} a step"
    names = classifier.channels_
    line = counted(len(names), "channel") + " a step"
    if 1 < len(names) <= CHANNELS:
        line += f": {', '.join(named(name, 24) for name in names)}"
    if classifier.rate_ is not None:
        line += f", {classifier.rate_:,g} steps a second"
    return line


def chapter(classifier: Classifier) -> Chapter:
    """Verdict and scores, facts, and what else was said of the data."""
    parts: list[str | Table] = [*opening(classifier), Table(["", ""], facts(classifier), words=2)]
    said = ("the highest accuracy here is ", "learnt from ", classifier.source_ or "learnt from ")
    return Chapter(TITLE, [*parts, *(line for line in map(str, classifier.notices_) if not line.startswith(said))])
