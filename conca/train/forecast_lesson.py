"""The lesson of a forecaster: pieces of series to learn from, windows to stop by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conca.models.forecast import ForecastNetwork
from conca.train.course import Course, Trained
from conca.train.fit import train
from conca.train.forecast_learner import ForecastLearner
from conca.train.pieces import Batch, Checks, Pieces
from conca.train.recipe import Recipe
from conca.train.shares import Shares

__all__ = ["ForecastLesson", "train_forecast"]


@dataclass(frozen=True)
class ForecastLesson:
    """The lesson of a forecaster: pieces of series, and windows to validate on."""

    network: ForecastNetwork
    pieces: Pieces
    validation: Sequence[Batch]

    @property
    def smallest(self) -> int:
        """Pieces of each member."""
        return self.pieces.batch_size // len(self.network.towers)

    def learner(self, course: Course) -> ForecastLearner:
        """By the pinball loss."""
        return ForecastLearner(self.network, course)

    def steps(self, course: Course) -> Shares:
        """The pieces of every member."""
        return Shares(self.pieces, course, len(self.network.towers), len(self.network.config.levels))

    def checks(self, first: int, stride: int) -> Checks:
        """Windows."""
        return Checks(self.validation[first::stride])


def train_forecast(
    network: ForecastNetwork,
    pieces: Pieces,
    validation: Sequence[Batch],
    recipe: Recipe,
    folder: Path,
    *,
    progress: bool = True,
    resume: bool = False,
) -> Trained:
    """Train a forecaster's network in place on pieces, stopped by windows; the rest as in `conca.train.fit.train`."""
    lesson = ForecastLesson(network, pieces, validation)
    return train(lesson, recipe, folder, progress=progress, resume=resume)
