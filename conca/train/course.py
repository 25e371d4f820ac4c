"""The course of a training: where it stands, what it has found, and when it ends."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from conca.models.run import write_whole
from conca.train.recipe import Recipe

__all__ = ["Course", "Trained"]

Row = dict[str, float]


@dataclass(frozen=True)
class Trained:
    """What a training came to.

    steps    optimiser steps of the weights that were kept: what a last training on all rows repeats
    epochs   epochs until then, the last one counted though it may be a part
    history  one row for each epoch: epoch (from 0), step, lr, train/loss, and where there was validation val/loss, val/mae
    """

    steps: int
    epochs: int
    history: list[Row]


@dataclass
class Course:
    """Where a training stands; all of it is kept in a checkpoint.

    step       optimiser steps done
    begun      the step at which the present epoch began
    total      sum of the losses of the present epoch
    history    see `Trained`
    lowest, best   lowest val/loss, and the averaged weights that had it
    at         steps and epochs of `best`
    waited     epochs since
    seconds    of training, those before an interruption counted
    ended      nothing more is to be learnt
    """

    recipe: Recipe
    step: int = 0
    begun: int = 0
    total: float = 0.0
    history: list[Row] = field(default_factory=list)
    lowest: float = math.inf
    best: dict[str, Tensor] | None = None
    at: tuple[int, int] = (0, 0)
    waited: int = 0
    seconds: float = 0.0
    ended: bool = False

    def left(self) -> range:
        """The steps that the present epoch still has."""
        each = self.recipe.steps
        return range(self.step, min((self.step // each + 1) * each, self.recipe.last))

    @property
    def inside(self) -> bool:
        """Whether it stands inside an epoch, not at its end."""
        return self.step % self.recipe.steps != 0 and self.step < self.recipe.last

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        minutes = self.recipe.max_minutes
        return minutes is not None and self.seconds >= 60 * minutes

    def close(self, lr: float, validation: Row, late: bool) -> bool:
        """The present epoch is over, and the training if it is late; whether its weights are the best so far.

        All that is given is the same in all processes, so that they end together.
        """
        loss = self.total / max(self.step - self.begun, 1)
        row = {"epoch": len(self.history), "step": self.step, "lr": lr, "train/loss": loss, **validation}
        self.history.append(row)
        self.begun, self.total = self.step, 0.0
        judged, measured = "val/loss" in validation, validation.get("val/loss", 0.0)
        better = judged and measured < self.lowest
        self.waited = 0 if better else self.waited + 1
        if better or not judged:
            self.lowest, self.at = measured, (self.step, len(self.history))
        tired = judged and (self.waited >= self.recipe.patience or not math.isfinite(measured))
        self.ended = tired or late or self.step >= self.recipe.last
        return better

    @property
    def trained(self) -> Trained:
        """What it has come to; without weights better than others, these are the last ones."""
        steps, epochs = self.at if self.at[0] else (self.step, len(self.history))
        return Trained(steps, epochs, [dict(row) for row in self.history])

    def as_dict(self) -> dict[str, Any]:
        """Tensors, numbers and lists."""
        return {name: value for name, value in vars(self).items() if name != "recipe"} | {"recipe": asdict(self.recipe)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any], recipe: Recipe) -> Course:
        """The inverse of `as_dict`. Raises KeyError, TypeError or ValueError if it is not the course of this recipe."""
        values = dict(saved)
        before, now = values.pop("recipe"), asdict(recipe)
        for name in now:
            if name not in ("devices", "max_minutes") and before[name] != now[name]:
                raise ValueError(f"{name} was {before[name]}, now it is {now[name]}")
        return cls(recipe, **values | {"at": tuple(values["at"])})

    def write(self, path: Path) -> None:
        """The history as a table. Raises OSError."""
        text = io.StringIO()
        table = csv.DictWriter(text, self.history[0] if self.history else ["epoch", "step"], lineterminator="\n")
        table.writeheader()
        table.writerows(self.history)
        write_whole(path, text.getvalue().encode())
