"""The training of a forecaster, through Lightning."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, WeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor
from torch.utils.data import DataLoader

from conca.models.forecast import ForecastNetwork
from conca.train.learner import ForecastLearner
from conca.train.pieces import Batch, Checks, Pieces, Steps
from conca.train.progress import Bar
from conca.train.quiet import quiet
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

__all__ = ["train_forecast"]

AVERAGE = 0.99
"""Decay of the running average of the weights, once it has seen many steps."""


def train_forecast(
    network: ForecastNetwork,
    pieces: Pieces,
    validation: Sequence[Batch],
    recipe: Recipe,
    folder: Path,
    *,
    progress: bool = True,
) -> None:
    """Train a network in place; what it ends with are the averaged weights of the epoch that validated best.

    Args:
        network: on the CPU, before and after.
        pieces: what is learnt from.
        validation: windows to stop by; without any, the training runs to its end.
        recipe: how.
        folder: an existing folder; metrics.csv, logs/ and checkpoints/ are written in it, and nothing elsewhere.
        progress: show a bar on stderr.

    Raises:
        BadInput: if Lightning refuses the devices or the precision, or the loss stops being a number.
        KeyboardInterrupt: when the user stops the training.
    """
    steps = Steps(recipe.steps)
    loader = DataLoader(pieces, batch_size=None, sampler=steps)
    checks: DataLoader[Batch] | None = None
    if validation:
        checks = DataLoader(Checks(validation), batch_size=None)
    with seeded(recipe.seed), quiet():
        best = ModelCheckpoint(
            dirpath=folder / "checkpoints",
            filename="best",
            monitor="val/loss" if validation else None,
            save_last=True,
            enable_version_counter=False,
        )
        accelerator, devices = chosen(recipe.devices)
        if recipe.precision.startswith("16") and accelerator == "cpu":
            raise BadInput(f"precision '{recipe.precision}' needs a GPU; on a CPU say 32-true or bf16-mixed")
        try:
            trainer = Trainer(
                accelerator=accelerator,
                devices=devices,
                precision=recipe.precision,  # type: ignore[arg-type]
                max_epochs=recipe.epochs,
                max_time=None if recipe.max_minutes is None else timedelta(minutes=recipe.max_minutes),
                gradient_clip_val=1.0,
                logger=[CSVLogger(folder, name="", version=""), TensorBoardLogger(folder, name="", version="logs")],
                callbacks=callbacks(recipe, best, bool(validation), progress),
                enable_progress_bar=progress,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                log_every_n_steps=recipe.steps,
                default_root_dir=folder,
            )
        except (MisconfigurationException, TypeError, ValueError) as error:
            line = " ".join(str(error).split())
            raise BadInput(f"devices '{recipe.devices}', precision '{recipe.precision}': {line}") from None
        learner = ForecastLearner(network, recipe)
        with interruptible(trainer):
            trainer.fit(learner, loader, checks)
        network.to("cpu", torch.float32)
        if best.best_model_path:
            kept = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
            learner.load_state_dict(kept["state_dict"])
    if not all(bool(torch.isfinite(p).all()) for p in network.parameters()):
        raise BadInput(f"the training diverged with lr {recipe.lr:g}; give a smaller one")
    network.eval()


def chosen(devices: str) -> tuple[str, str | list[int]]:
    """Lightning's words for one device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1". Raises BadInput."""
    name, _, place = devices.partition(":")
    if devices in ("auto", "1"):
        return ("cuda" if torch.cuda.is_available() else "cpu"), "1"
    if devices == "cpu" or (name == "cuda" and (place.isdigit() or devices == "cuda")):
        return name, [int(place)] if place else "1"
    raise BadInput(f"devices '{devices}': a forecaster trains on one device; say auto, cpu, cuda or cuda:0")


@contextmanager
def interruptible(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C comes out as the KeyboardInterrupt it is; Lightning makes it an exit and turns the signal off."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        if not trainer.interrupted:
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


def callbacks(recipe: Recipe, best: ModelCheckpoint, stops: bool, progress: bool) -> list[Callback]:
    """What happens beside the steps."""
    found: list[Callback] = [WeightAveraging(avg_fn=average), best]
    if stops:
        found.append(EarlyStopping("val/loss", patience=recipe.patience, check_finite=True))
    if progress:
        found.append(Bar())
    return found


def average(kept: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
    """A running mean that forgets: the first steps weigh less and less."""
    decay = min(AVERAGE, (int(count) + 1) / (int(count) + 10))
    return torch.lerp(new.to(kept.dtype), kept, decay) if kept.is_floating_point() else new
