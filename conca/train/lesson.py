"""What a training is about: a network, what it learns from, and what it is stopped by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import nn

from conca.train.course import Course
from conca.train.learner import Learner

__all__ = ["Lesson"]


class Checked(Protocol):
    """Batches to validate on, by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


class Lesson(Protocol):
    """What `conca.train.fit.train` needs to know; it goes to other processes as it is.

    network    that learns
    smallest   pieces of a step, of the network or of each of its members
    """

    @property
    def network(self) -> nn.Module: ...

    @property
    def smallest(self) -> int: ...

    def learner(self, course: Course) -> Learner:
        """How it learns."""
        ...

    def steps(self, course: Course) -> Iterable[Any]:
        """The batches that the present epoch still has, this process's part of each; asked for at every epoch."""
        ...

    def checks(self, first: int, stride: int) -> Checked:
        """Batches to stop by: the first, first + stride, ...; none: the training runs to its end."""
        ...
