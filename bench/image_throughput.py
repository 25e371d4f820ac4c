"""Updates a second of `conca fit` on images, against a bare PyTorch loop over the same network, chains and loss.

    python bench/image_throughput.py [--work FOLDER] [--updates 40]

Both read MNIST, 64 images an update; loops take turns. The fit runs through Lightning with its checkpoints and averaged weights, of which
the first update and what comes after the last are left out.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from image_trainings import WORK
from lightning.pytorch import Callback, Trainer
from record import record

import conca.train.fit as fitting
from conca.data.image_set import Images
from conca.data.images import load_images
from conca.energy import NetworkEnergy, NoiseScore, contrastive_divergence, noise_loss
from conca.estimators.image_config import DiffusionConfig, EnergyConfig
from conca.estimators.image_fitting import laid_out
from conca.models.image_energy import ImageEnergyConfig, ImageEnergyNetwork
from conca.models.unet import UNet, UNetConfig
from conca.train.image_batches import ImagePieces
from conca.train.image_lesson import train_diffusion, train_energy
from conca.train.recipe import Recipe

TURNS = 3


class Clock(Callback):
    """When each update ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Look at the clock."""
        self.times.append(time.perf_counter())


def by_fit(train: Callable[[Path, Recipe], object], updates: int) -> float:
    """Seconds an update through Lightning."""
    clock, made = Clock(), fitting.trainer_of
    fitting.trainer_of = lambda place, recipe, callbacks: made(place, recipe, [*callbacks, clock])
    folder = Path(tempfile.mkdtemp())
    try:
        recipe = Recipe(1e-4, 0.0, 1, updates, 10**6, None, 0, "cpu", "32-true")
        train(folder, recipe)
    finally:
        fitting.trainer_of = made
        shutil.rmtree(folder)
    return (clock.times[-1] - clock.times[0]) / (len(clock.times) - 1)


def bare(step: Callable[[torch.Tensor], torch.Tensor], network: torch.nn.Module, images: Images, updates: int) -> float:
    """Seconds an update of the plainest loop."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-4)
    draw = torch.Generator().manual_seed(0)
    begin = 0.0
    for update in range(updates):
        x = torch.from_numpy(images.pixels[torch.randint(len(images), (64,), generator=draw).numpy()]).float() / 255
        loss = step(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update == 0:
            begin = time.perf_counter()
    return (time.perf_counter() - begin) / (updates - 1)


def energy(images: Images, updates: int) -> tuple[float, float]:
    """Seconds an update of the recipe of 2019: by fit, bare."""
    how, draw = EnergyConfig().how(), torch.Generator().manual_seed(0)

    def network() -> ImageEnergyNetwork:
        return laid_out(ImageEnergyNetwork(ImageEnergyConfig(1, 28, 28, spectral=True)), torch.channels_last)

    pieces = ImagePieces(images.pixels, None, batch_size=64, seed=0)
    ours = by_fit(lambda f, r: train_energy(network(), pieces, None, how, r, f, progress=False), updates)
    net = network()
    landscape, buffer = NetworkEnergy(net, (1, 28, 28)), how.buffer((1, 28, 28), generator=draw)

    def step(x: torch.Tensor) -> torch.Tensor:
        return contrastive_divergence(landscape, x, how.negatives(landscape, 64, buffer, generator=draw), l2=1.0)

    return ours, bare(step, net, images, updates)


def diffusion(images: Images, updates: int) -> tuple[float, float]:
    """Seconds an update of a diffusion: by fit, bare."""
    schedule, draw = DiffusionConfig().noise(), torch.Generator().manual_seed(0)

    def network() -> UNet:
        return laid_out(UNet(UNetConfig(1, 28, 28, blocks=1)), torch.channels_last)

    pieces = ImagePieces(images.pixels, None, batch_size=64, seed=0)
    ours = by_fit(
        lambda f, r: train_diffusion(network(), pieces, None, schedule, r, f, scalar=False, spread=1.0, progress=False),
        updates,
    )
    net = network()
    landscape = NoiseScore(net, schedule)
    return ours, bare(lambda x: noise_loss(landscape, schedule, 2 * x - 1, generator=draw), net, images, updates)


def main(arguments: Sequence[str] | None = None) -> None:
    """Take turns and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--updates", type=int, default=40)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    images = load_images(given.work / "mnist").part("train")
    rows = []
    for name, measure, factor in (("energy, recipe of 2019", energy, 1), ("diffusion", diffusion, 4)):
        turns = [measure(images, given.updates * factor) for _ in range(TURNS)]
        ratio = median(theirs / ours for ours, theirs in turns)
        rows.append([name, f"{ratio:.3f}", ", ".join(f"{theirs / ours:.3f}" for ours, theirs in turns)])
    record(
        "image_throughput",
        "Training images: updates a second of `conca fit` as a share of a bare loop's",
        ["training", "share, median", "each turn"],
        rows,
    )


if __name__ == "__main__":
    main()
