"""The progress of training on stderr: epoch, loss, validation error, time left; a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["Bar"]


class Bar(ProgressBar):
    """One bar over all epochs, or one line after each epoch where there is no terminal."""

    def __init__(self) -> None:
        super().__init__()
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
        steps = int(trainer.num_training_batches) * (trainer.max_epochs or 1)
        self.task = self.bar.add_task(self.words(trainer), total=steps, completed=trainer.global_step)
        self.bar.start()

    def words(self, trainer: Trainer) -> str:
        """Epoch, loss and validation error."""
        values = trainer.callback_metrics
        names = (("train/loss", "loss"), ("val/loss", "val"), ("val/mae", "val MAE"))
        parts = [f"{word} {float(values[name]):.4g}" for name, word in names if name in values]
        return "  ".join([f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}", *parts])

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """One step further."""
        if self.bar is not None:
            self.bar.update(self.task, completed=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how the epoch went."""
        if self.bar is not None:
            self.bar.update(self.task, description=self.words(trainer))
        else:
            print(f"conca: {self.words(trainer)}", file=sys.stderr, flush=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the bar full; a training that stopped early has nothing left either."""
        if self.bar is not None:
            self.bar.update(self.task, total=max(trainer.global_step, 1), completed=trainer.global_step)
        self.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self.stop()

    def stop(self) -> None:
        """End the display."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
