"""The report of a classifier: every chapter from what the run keeps."""

from __future__ import annotations

from sklearn.utils.validation import check_is_fitted

import conca
from conca.data.grid import Grid
from conca.estimators.classifier import Classifier
from conca.report import classes, classify_facts, confusion, early, history, holds, memory, reliability
from conca.report.classes import counted, named
from conca.report.page import Chapter, Page

__all__ = ["page"]

LEARNING = (
    "The loss is the cross-entropy: the mean of -log of the probability of the right class. In training it is measured on the sequences "
    "that the model learns from, with dropout and with labels that are taken as not quite certain"
)
VALIDATED = (
    "; in validation on others that it does not learn from, so the second may well be the lower one. The weights kept are those with the "
    "lowest validation loss."
)
UNVALIDATED = ". There were too few sequences to set some aside for validation: the weights kept are those at the end of the training."
READING = (
    "This is read from the weights of the layers; a row is one step of a sequence{rate}. The answer is that of the mean over all steps "
    "that were read, which forgets nothing: what the layers remember is what they can tell about a step from the steps before it."
)


def page(classifier: Classifier) -> Page:
    """All chapters; those about sequences held out, if there are any. Raises NotFittedError before `fit`."""
    check_is_fitted(classifier)
    network, labels = classifier.network_, classifier.evaluation_
    judging: list[Chapter] = []
    if labels is not None:
        judging = [
            confusion.chapter(labels),
            classes.chapter(labels, classifier.counts_),
            early.chapter(labels),
            reliability.chapter(labels),
        ]
    how = VALIDATED if "val/loss" in classifier.history_ else UNVALIDATED
    chapters = [
        classify_facts.chapter(classifier),
        history.chapter(classifier.history_, "cross-entropy", LEARNING + how),
        *judging,
        remembered(classifier),
        holds.chapter(network, network.config.channels or 1),
    ]
    names = [named(name, 24) for name in classifier.classes_[:3]]
    title = f"{counted(len(classifier.classes_), 'class')}: {', '.join(names)}" + ", ..." * (
        len(classifier.classes_) > 3
    )
    config = classifier.config
    return Page(title, f"{config.layers}, width {config.d_model}; conca {conca.__version__}", chapters)


def remembered(classifier: Classifier) -> Chapter:
    """What the weights say of memory, in seconds where the sequences have a rate."""
    rate, network = classifier.rate_, classifier.network_
    grid = Grid() if rate is None else Grid("datetime", max(1, round(1e9 / rate)))
    stack = network.causal if network.encoder is None else network.encoder
    text = READING.format(rate="" if rate is None else f", and there are {rate:,g} of them a second")
    return Chapter(memory.TITLE, [text, *memory.weights(stack, grid)])
