"""The progress of training on stderr: epoch, loss, validation error, time left; a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from conca.train.course import Course

__all__ = ["Bar"]


class Bar(ProgressBar):
    """One bar over all epochs, or one line after each epoch where there is no terminal."""

    def __init__(self, course: Course) -> None:
        super().__init__()
        self.course = course
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def disable(self) -> None:
        """Nothing to do: whoever wants no bar makes none."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar."""
        console = Console(file=sys.stderr)
        if not console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, refresh_per_second=4)
        course = self.course
        self.task = self.bar.add_task(self.words(), total=course.recipe.last, completed=self.done())
        self.bar.start()

    def done(self) -> int:
        """Steps that are done, or as many as make the same part of the whole as the time that is over, if that is more."""
        recipe, minutes = self.course.recipe, self.course.recipe.max_minutes
        late = 0.0 if minutes is None else min(self.course.seconds / (60 * minutes), 1.0)
        return max(self.course.step, int(late * recipe.last))

    def words(self) -> str:
        """Epoch, loss and validation error; the last training, on all rows, says so."""
        rows, recipe = self.course.history, self.course.recipe
        values = rows[-1] if rows else {}
        names = (("train/loss", "loss"), ("val/loss", "val"), ("val/mae", "val MAE"), ("val/accuracy", "accuracy"))
        parts = [f"{word} {float(values[name]):.4g}" for name, word in names if name in values]
        epochs = -(-recipe.last // recipe.steps)
        last = "all rows, " if recipe.stop is not None else ""
        at, minutes = min(max(len(rows), 1), epochs), recipe.max_minutes
        spent = "" if minutes is None else f", {self.course.seconds / 60:.1f} of {minutes:g} min"
        return "  ".join([f"{last}epoch {at}/{epochs}{spent}", *parts])

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """One step further."""
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how the epoch went."""
        if self.bar is not None:
            self.bar.update(self.task, description=self.words())
        else:
            print(f"conca: {self.words()}", file=sys.stderr, flush=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the bar full; a training that stopped early has nothing left either."""
        if self.bar is not None:
            self.bar.update(self.task, total=max(self.course.step, 1), completed=self.course.step)
        self.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self.stop()

    def stop(self) -> None:
        """End the display."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
