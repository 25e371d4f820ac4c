"""The lesson of a language model: text to learn from, and a part of it to stop by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conca.models.language import LanguageNetwork
from conca.train.course import Course, Trained
from conca.train.fit import train
from conca.train.passages import Passages, TextBatch, TextChecks, Written
from conca.train.ranks import rank, world
from conca.train.recipe import Recipe
from conca.train.text_learner import TextLearner

__all__ = ["TextLesson", "train_text"]


@dataclass(frozen=True)
class TextLesson:
    """What a language model learns.

    text            tokens
    passages        how those that are learnt come
    validation      begin and end of those to stop by; None: the training runs to its end
    offsets         where rows begin, if the text is made of rows
    """

    network: LanguageNetwork
    text: Written
    passages: Passages
    validation: tuple[int, int] | None
    offsets: NDArray[np.int64] | None

    @property
    def smallest(self) -> int:
        """Passages of a step."""
        return self.passages.batch_size

    def learner(self, course: Course) -> TextLearner:
        """By the cross entropy of the next token."""
        return TextLearner(self.network, course)

    def steps(self, course: Course) -> Steps:
        """Batches of passages."""
        return Steps(self.passages, course)

    def checks(self, first: int, stride: int) -> TextChecks | list[TextBatch]:
        """Batches of the text to stop by."""
        if self.validation is None:
            return []
        length, size = self.passages.length, self.passages.batch_size
        return TextChecks(
            self.text, *self.validation, self.offsets, length=length, batch_size=size, first=first, stride=stride
        )


class Steps:
    """The batches that an epoch still has, as the course stands when it is asked for them; this process's part of each."""

    def __init__(self, passages: Passages, course: Course) -> None:
        self.passages, self.course = passages, course

    def __iter__(self) -> Iterator[TextBatch]:
        """One after the other."""
        for step in self.course.left():
            yield self.passages.batch(step, rank(), world())


def train_text(
    network: LanguageNetwork,
    text: Written,
    passages: Passages,
    validation: tuple[int, int] | None,
    offsets: NDArray[np.int64] | None,
    recipe: Recipe,
    folder: Path,
    *,
    progress: bool = True,
    resume: bool = False,
) -> Trained:
    """Train a language model's network in place on text; the rest as in `conca.train.fit.train`."""
    lesson = TextLesson(network, text, passages, validation, offsets)
    return train(lesson, recipe, folder, progress=progress, resume=resume)
