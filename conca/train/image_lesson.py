"""The lesson of images: what is learnt, and what of it validates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from conca.energy.recipes import Recipe as EnergyRecipe
from conca.energy.schedule import Schedule
from conca.models.image_energy import ImageEnergyNetwork
from conca.models.run import CHECKPOINT
from conca.models.unet import UNet
from conca.train.checkpoint import read_checkpoint
from conca.train.course import Course, Trained
from conca.train.fit import train
from conca.train.image_batches import ImageBatch, ImageChecks, ImagePieces
from conca.train.image_learner import EnergyLearner, ImageLearner, NoiseLearner
from conca.train.places import place_of
from conca.train.ranks import rank, world
from conca.train.recipe import Recipe
from conca.types import BadInput

__all__ = ["ImageLesson", "Part", "train_diffusion", "train_energy"]

Part = tuple[NDArray[np.uint8], NDArray[np.int64] | None]
"""Images (N, C, H, W), and their classes if they have any."""


@dataclass(frozen=True)
class ImageLesson:
    """What a network learns of images.

    pieces      what each step learns from
    validation  what is looked at after each epoch; None: nothing
    how         the learner, of the network and the course
    """

    network: nn.Module
    pieces: ImagePieces
    validation: Part | None
    how: Callable[[nn.Module, Course], ImageLearner]

    @property
    def smallest(self) -> int:
        """Images of a step."""
        return self.pieces.batch_size

    def learner(self, course: Course) -> ImageLearner:
        """How it learns."""
        return self.how(self.network, course)

    def steps(self, course: Course) -> Steps:
        """Batches of images."""
        return Steps(self.pieces, course)

    def checks(self, first: int, stride: int) -> ImageChecks | list[ImageBatch]:
        """Batches of the images to validate on."""
        if self.validation is None:
            return []
        return ImageChecks(*self.validation, batch_size=2 * self.pieces.batch_size, first=first, stride=stride)


class Steps:
    """The batches that an epoch still has, as the course stands when it is asked for them; this process's part of each."""

    def __init__(self, pieces: ImagePieces, course: Course) -> None:
        self.pieces, self.course = pieces, course

    def __iter__(self) -> Iterator[ImageBatch]:
        """One after the other."""
        for step in self.course.left():
            yield self.pieces.batch(step, rank(), world())


def train_energy(
    network: ImageEnergyNetwork,
    pieces: ImagePieces,
    validation: Part | None,
    how: EnergyRecipe,
    recipe: Recipe,
    folder: Path,
    *,
    progress: bool = True,
    resume: bool = False,
) -> tuple[Trained, dict[str, Any]]:
    """Train an energy in place, as `conca.train.fit.train` does; also what `EnergyLearner.kept` says in the end.

    Raises BadInput for several devices as well: each would walk chains of its own, from a buffer that the others do not see.
    """
    if (place := place_of(recipe.devices)).processes > 1:
        line = f"devices '{recipe.devices}': the chains of an energy are walked on one device, not on {place.processes}"
        raise BadInput(f"{line}; name one, such as cpu or cuda:0")
    lesson = ImageLesson(network, pieces, validation, partial(energy_learner, how))
    return train(lesson, recipe, folder, progress=progress, resume=resume), last(folder)


def energy_learner(how: EnergyRecipe, network: nn.Module, course: Course) -> EnergyLearner:
    """The learner of an energy."""
    assert isinstance(network, ImageEnergyNetwork)
    return EnergyLearner(network, course, how)


def train_diffusion(
    network: UNet,
    pieces: ImagePieces,
    validation: Part | None,
    schedule: Schedule,
    recipe: Recipe,
    folder: Path,
    *,
    scalar: bool,
    spread: float,
    progress: bool = True,
    resume: bool = False,
) -> tuple[Trained, dict[str, Any]]:
    """Train what tells the noise in place, as `conca.train.fit.train` does; also what `NoiseLearner.kept` says in the end."""
    lesson = ImageLesson(network, pieces, validation, partial(noise_learner, schedule, scalar, spread))
    return train(lesson, recipe, folder, progress=progress, resume=resume), last(folder)


def last(folder: Path) -> dict[str, Any]:
    """What the learner of the last checkpoint kept; nothing in a process that writes none."""
    path = folder / CHECKPOINT
    if not path.exists():
        return {}
    kept: dict[str, Any] = read_checkpoint(path, path.read_bytes())["learner"]
    return kept


def noise_learner(schedule: Schedule, scalar: bool, spread: float, network: nn.Module, course: Course) -> NoiseLearner:
    """The learner of a diffusion."""
    assert isinstance(network, UNet)
    return NoiseLearner(network, course, schedule, scalar, spread)
