"""What is kept while a network learns: the average of its weights, the history, and checkpoints to go on from."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from conca.models.run import CHECKPOINT
from conca.train.averaged import averaged_of, moving, taken
from conca.train.checkpoint import write_checkpoint
from conca.train.course import Course
from conca.train.learner import Learner
from conca.train.ranks import world
from conca.types import BadInput

__all__ = ["Keeper"]

PAUSE = 1.0
"""Seconds between two checkpoints inside an epoch, at least,"""
SHARE = 200
"""and so many times what writing one took."""


class Keeper(Callback):
    """Writes checkpoints/last.ckpt, metrics.csv and logs/ in a folder, after every epoch, and the first also inside them.

    Args:
        course: where the training begins; it is moved on in place.
        folder: None on processes that write nothing.
        saved: the checkpoint that the training is taken up from.
    """

    def __init__(self, course: Course, folder: Path | None, saved: dict[str, Any] | None) -> None:
        self.course, self.folder, self.saved = course, folder, saved
        self.board: TensorBoardLogger | None = None
        self.sum = torch.zeros(())
        self.written, self.took = time.monotonic(), 0.0
        self.clock = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Everything as it was when the checkpoint was written; the learner is on its device, in its precision."""
        learner = cast(Learner, pl_module)
        learner.averaged = [averaged_of(learner.network, self.course.recipe.average, self.course.recipe.decay)]
        if self.saved is not None:
            restore(self.saved, trainer, learner)
            self.saved = None
        self.sum = torch.tensor(self.course.total, dtype=torch.float64, device=learner.device)
        self.clock = time.monotonic() - self.course.seconds
        self.written = time.monotonic()
        if self.folder is not None:
            self.course.write(self.folder / "metrics.csv")
            (self.folder / CHECKPOINT).parent.mkdir(exist_ok=True)
            rows = self.course.history
            purge = int(rows[-1]["step"]) + 1 if rows else None
            self.board = TensorBoardLogger(self.folder, name="", version="logs", purge_step=purge)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Count the step, average, and write a checkpoint if the last one is old."""
        learner, course = cast(Learner, pl_module), self.course
        course.step += 1
        self.sum += learner.loss
        learner.averaged[0].update_parameters(learner.network)
        now = time.monotonic()
        course.seconds = now - self.clock
        if world() == 1:
            learner.stops = course.late
        if learner.stops:
            trainer.should_stop = True
        elif course.inside and now - self.written > max(PAUSE, SHARE * self.took):
            self.keep(trainer, learner)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a row to the history; keep the weights if they are the best."""
        learner, course = cast(Learner, pl_module), self.course
        course.total = float(self.sum)
        self.sum.zero_()
        if course.close(learner.rate, learner.measured(), learner.stops):
            found = moving(learner.network, learner.averaged[0].module)
            course.best = {name: tensor.clone() for name, tensor in found.items()}
        trainer.should_stop = course.ended
        self.keep(trainer, learner)
        if self.folder is not None:
            course.write(self.folder / "metrics.csv")
            if self.board is not None:
                row = {name: value for name, value in course.history[-1].items() if name != "step"}
                self.board.log_metrics(row, course.step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the log; where the disk is full, what matters has been said."""
        if self.board is not None:
            with suppress(OSError):
                self.board.finalize("success")
            self.board = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the log."""
        self.teardown(trainer, pl_module, "fit")

    def keep(self, trainer: Trainer, learner: Learner) -> None:
        """Write a checkpoint."""
        if self.folder is None:
            return
        begin = time.monotonic()
        self.course.total = float(self.sum)
        write_checkpoint(
            self.folder / CHECKPOINT,
            {
                "course": self.course.as_dict(),
                "network": moving(learner.network),
                "averaged": learner.averaged[0].state_dict(),
                "optimizer": trainer.optimizers[0].state_dict(),
                "scheduler": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
                "precision": trainer.precision_plugin.state_dict(),
                "learner": learner.kept(),
            },
        )
        self.written = time.monotonic()
        self.took = self.written - begin


def restore(saved: dict[str, Any], trainer: Trainer, learner: Learner) -> None:
    """What `Keeper.keep` wrote. Raises BadInput if it belongs to another network."""
    try:
        taken(learner.network, saved["network"])
        learner.averaged[0].load_state_dict(saved["averaged"])
        trainer.optimizers[0].load_state_dict(saved["optimizer"])
        trainer.lr_scheduler_configs[0].scheduler.load_state_dict(saved["scheduler"])
        trainer.precision_plugin.load_state_dict(saved["precision"])
        learner.take_up(saved.get("learner", {}))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        raise BadInput(
            "the checkpoint belongs to another network; begin the training anew with force (--force)"
        ) from None
