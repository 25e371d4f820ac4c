"""A training, through Lightning: of whatever network, by whatever lesson."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn
from torch.utils.data import DataLoader

from conca.models.run import CHECKPOINT
from conca.models.threads import few_threads
from conca.train.averaged import moving, taken
from conca.train.checkpoint import read_checkpoint
from conca.train.course import Course, Trained
from conca.train.keeper import Keeper
from conca.train.lesson import Lesson
from conca.train.places import Place, place_of
from conca.train.progress import Bar
from conca.train.quiet import quiet
from conca.train.ranks import alike, first, local, rank, shared, world
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.train.worker import together
from conca.types import BadInput

__all__ = ["Trained", "train"]


def train(lesson: Lesson, recipe: Recipe, folder: Path, *, progress: bool = True, resume: bool = False) -> Trained:
    """Train a network in place; what it ends with are the averaged weights of the epoch that validated best.

    Args:
        lesson: the network, on the CPU before and after, and what it learns from. Without anything to stop by, the training
            runs to its end and the last weights are kept.
        recipe: how.
        folder: an existing folder; metrics.csv, logs/ and checkpoints/ are written in it, and nothing elsewhere.
        progress: show a bar on stderr.
        resume: go on from the checkpoint in the folder, if there is one; the weights that come out are those of a training
            that was never interrupted, bit for bit on the same number of threads.

    Raises:
        BadInput: if the devices or the precision cannot be had, the loss stops being a number, or the checkpoint is damaged
            or of another training.
        KeyboardInterrupt: when the user stops the training.
        OSError: if a file cannot be written; a ChildProcessError if one of several processes ends before its time.
    """
    place = place_of(recipe.devices)
    check_batch(lesson, place.processes)
    with seeded(recipe.seed), together(place, learnt, place, lesson, recipe, None):
        return learnt(place, lesson, recipe, folder if first() else None, progress, resume)


def learnt(
    place: Place,
    lesson: Lesson,
    recipe: Recipe,
    folder: Path | None,
    progress: bool = False,
    resume: bool = False,
) -> Trained:
    """What `train` does in each of the processes that train; those without a folder write nothing."""
    network = lesson.network
    check_batch(lesson, world())
    saved = found(folder if resume else None)
    course = Course(recipe) if saved is None else taken_up(saved, recipe, network)
    alike(network)
    with seeded(recipe.seed), quiet(), few_threads(network):
        if not course.ended:
            keeper = Keeper(course, folder, saved)
            trainer = trainer_of(place, recipe, [keeper, *([Bar(course)] if progress and first() else [])])
            learner = lesson.learner(course)
            checks: Any = lesson.checks(rank(), world())
            with interruptible(trainer):
                trainer.fit(learner, lesson.steps(course), DataLoader(checks, batch_size=None) if len(checks) else None)
            network.to("cpu", torch.float32)
            last = moving(network, learner.averaged[0].module)
        elif saved is not None:
            average = {k.removeprefix("module."): v for k, v in saved["averaged"].items() if k.startswith("module.")}
            last = average or saved["network"]
        taken(network, last if course.best is None else course.best)
    if not all(bool(torch.isfinite(p).all()) for p in network.parameters()):
        raise BadInput(f"the training diverged with lr {recipe.lr:g}; give a smaller one")
    network.eval()
    return course.trained


def check_batch(lesson: Lesson, processes: int) -> None:
    """Raise BadInput unless every process has something to learn from in every step."""
    if lesson.smallest < processes:
        line = f"batch_size {lesson.smallest} is too small for {processes} devices"
        raise BadInput(f"{line}; give a larger one, or fewer devices")


def found(folder: Path | None) -> dict[str, Any] | None:
    """The checkpoint in the folder of the first process, for every process. Raises BadInput if it is damaged."""
    path = None if folder is None else folder / CHECKPOINT
    data = shared(path.read_bytes() if path is not None and path.exists() else b"")
    return read_checkpoint(path or CHECKPOINT, data) if data else None


def taken_up(saved: dict[str, Any], recipe: Recipe, network: nn.Module) -> Course:
    """The course of a training that goes on. Raises BadInput if it is another one."""
    try:
        course, own = Course.from_dict(saved["course"], recipe), moving(network)
        if {name: tensor.shape for name, tensor in saved["network"].items()} != {n: t.shape for n, t in own.items()}:
            raise ValueError("it is of another network")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        line = f"the checkpoint does not fit: {error}"
        raise BadInput(f"{line}; resume with the same options, or begin anew with force (--force)") from None
    return course


def trainer_of(place: Place, recipe: Recipe, callbacks: list[Callback]) -> Trainer:
    """Lightning's trainer on the one device of this process; what several add up, `conca.train.ranks` adds up.

    Raises:
        BadInput: if the precision cannot be had.
    """
    if recipe.precision.startswith("16") and place.kind == "cpu":
        raise BadInput(f"precision '{recipe.precision}' needs a GPU; on a CPU say 32-true or bf16-mixed")
    try:
        return Trainer(
            accelerator=place.kind,
            devices=place.devices(local()),
            precision=recipe.precision,  # type: ignore[arg-type]
            max_epochs=-1,
            gradient_clip_val=1.0,
            logger=False,
            callbacks=callbacks,
            plugins=[LightningEnvironment()],
            enable_checkpointing=False,
            enable_progress_bar=any(isinstance(callback, Bar) for callback in callbacks),
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
        )
    except (MisconfigurationException, TypeError, ValueError) as error:
        line = " ".join(str(error).split())
        raise BadInput(f"devices '{recipe.devices}', precision '{recipe.precision}': {line}") from None


@contextmanager
def interruptible(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C comes out as the KeyboardInterrupt it is; Lightning makes it an exit and turns the signal off."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SIGTERMException:
        raise SystemExit(128 + signal.SIGTERM) from None
    except SystemExit:
        if not trainer.interrupted:
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None
