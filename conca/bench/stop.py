"""A stop of the tour: what the theory claims, what was measured here, and a picture of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conca.report.page import Picture

__all__ = ["Claim", "Stop"]


@dataclass(frozen=True)
class Claim:
    """One number of the theory beside the measured one.

    text       what it is the number of
    expected   by the theory: a literal, or a formula that the measured code does not use
    measured   by conca, now
    tolerance  how far the two may lie apart
    """

    text: str
    expected: float
    measured: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether they lie no further apart; never where a number is NaN."""
        return abs(self.measured - self.expected) <= self.tolerance


@dataclass(frozen=True)
class Stop:
    """What one stop shows.

    title    of it
    reading  one or two sentences on what is to be seen
    claims   at least one
    picture  of the same numbers
    """

    title: str
    reading: str
    claims: Sequence[Claim]
    picture: Picture
