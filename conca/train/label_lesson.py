"""The lesson of a classifier: whole sequences with their classes, some to learn from and some to stop by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conca.data.labelled import Labelled
from conca.models.classify import ClassifyNetwork
from conca.train.course import Course, Trained
from conca.train.examples import Examples, LabelBatch, LabelChecks
from conca.train.fit import train
from conca.train.label_learner import LabelLearner
from conca.train.ranks import rank, world
from conca.train.recipe import Recipe

__all__ = ["LabelLesson", "train_label"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class LabelLesson:
    """What a classifier learns.

    data, y         sequences, and which of the classes each is of
    validation      the same of those to stop by; None: the training runs to its end
    batch_size      sequences of a step
    smoothing       of the labels
    """

    network: ClassifyNetwork
    data: Labelled
    y: Integers
    validation: tuple[Labelled, Integers] | None
    batch_size: int
    seed: int
    smoothing: float

    @property
    def smallest(self) -> int:
        """Sequences of a step."""
        return min(self.batch_size, len(self.data))

    def learner(self, course: Course) -> LabelLearner:
        """By cross-entropy."""
        return LabelLearner(self.network, course, self.smoothing)

    def steps(self, course: Course) -> Steps:
        """Batches of sequences."""
        return Steps(Examples(self.data, self.y, batch_size=self.batch_size, seed=self.seed), course)

    def checks(self, first: int, stride: int) -> LabelChecks | list[LabelBatch]:
        """Batches of the sequences to stop by."""
        if self.validation is None:
            return []
        data, y = self.validation
        return LabelChecks(data, y, batch_size=2 * self.batch_size, first=first, stride=stride)


class Steps:
    """The batches that an epoch still has, as the course stands when it is asked for them; this process's part of each."""

    def __init__(self, examples: Examples, course: Course) -> None:
        self.examples, self.course = examples, course

    def __iter__(self) -> Iterator[LabelBatch]:
        """One after the other."""
        for step in self.course.left():
            yield self.examples.batch(step, rank(), world())


def train_label(
    network: ClassifyNetwork,
    data: Labelled,
    y: Integers,
    validation: tuple[Labelled, Integers] | None,
    recipe: Recipe,
    folder: Path,
    *,
    batch_size: int,
    smoothing: float = 0.0,
    progress: bool = True,
    resume: bool = False,
) -> Trained:
    """Train a classifier's network in place on sequences and their classes; the rest as in `conca.train.fit.train`."""
    lesson = LabelLesson(network, data, y, validation, batch_size, recipe.seed, smoothing)
    return train(lesson, recipe, folder, progress=progress, resume=resume)
