"""Which rows of a table are held out, and from which rows they are forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.panel import Series
from conca.data.split import Split, split_by_time, whole
from conca.estimators.scores import held_out_cutoffs
from conca.types import BadInput

__all__ = ["HoldOut", "Plan", "everything"]

VALIDATION = 0.1
"""The share of the rows known to the training, the last ones, that it stops by."""
MOST = 10_000
"""Windows, at most."""


@dataclass(frozen=True)
class Plan:
    """Of each series, the split of its rows, and the last known rows (n,) of the forecasts that judge a model."""

    splits: list[Split]
    cutoffs: list[NDArray[np.int64]]


@dataclass(frozen=True)
class HoldOut:
    """How rows are held out: the last share of every series, or the last windows.

    share    of the rows of every series; every row of them from which a whole forecast fits is forecast from
    windows  so many forecasts of `horizon` steps, instead of a share; the last one ends with the series
    step     rows from one window to the next; None: the horizon
    """

    horizon: int
    share: float = 0.2
    windows: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        share: Any = self.share
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= float(share) < 1:
            raise BadInput(f"test_fraction must be at least 0 and less than 1, not {self.share!r}")
        counts: dict[str, Any] = {"windows": self.windows, "step": self.step}
        for name, value in counts.items():
            if value is not None and (type(value) is not int or not 1 <= value <= MOST):
                raise BadInput(f"{name} must be a whole number from 1 to {MOST:,}, not {value!r}")
        if self.windows is not None and self.share not in (0.0, HoldOut.share):
            raise BadInput("give either windows or a share (test_fraction), not both")
        if self.step is not None and self.windows is None:
            raise BadInput("step says how far windows lie apart; say how many there are (windows)")

    @property
    def rows(self) -> int:
        """Rows of every series that windows take."""
        return self.horizon + ((self.windows or 1) - 1) * (self.step or self.horizon)

    @property
    def minimum(self) -> int:
        """Rows that a series must have."""
        return (self.horizon if self.windows is None else self.rows) + 2

    def plan(self, series: Sequence[Series]) -> Plan:
        """The plan for these series."""
        if self.windows is None:
            splits = [split_by_time(len(s), held_out=self.share, validation=VALIDATION) for s in series]
            return Plan(splits, held_out_cutoffs(splits, self.horizon))
        first = [len(s) - self.rows for s in series]
        every = np.arange(self.windows) * (self.step or self.horizon)
        return Plan(
            [split_at(known, len(s)) for known, s in zip(first, series)], [known - 1 + every for known in first]
        )

    def window(self, series: Sequence[Series], place: int) -> Plan:
        """The plan of one window by itself: what comes after it is not known, what comes before it is learnt from."""
        first = [len(s) - self.rows + place * (self.step or self.horizon) for s in series]
        splits = [split_at(known, len(s)) for known, s in zip(first, series)]
        return Plan(splits, [np.array([known - 1]) for known in first])


def split_at(known: int, total: int) -> Split:
    """A split that holds out all rows from `known` on."""
    return Split(known - whole(known * VALIDATION), known, total)


def everything(series: Sequence[Series]) -> list[Split]:
    """Splits that hold out nothing."""
    return [Split(len(s), len(s), len(s)) for s in series]
