"""The training of a model of images as a whole: what is learnt, what is held out, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conca.data.image_set import Images
from conca.energy.chain import sample
from conca.energy.draws import norm
from conca.energy.images import energy_of, noise_of
from conca.energy.recipes import Recipe
from conca.energy.reverse import ddim
from conca.estimators.image_config import DiffusionConfig, EnergyConfig, ImageConfig
from conca.estimators.image_runs import COLUMNS, JUDGED, ImageRun
from conca.estimators.training import trainer
from conca.infer.images import bytes_of, energies, noise_errors, reversed_images, walked_images
from conca.metrics.novelty import auprc, auroc, fpr_at
from conca.models.image_energy import ImageEnergyConfig, ImageEnergyNetwork
from conca.models.unet import UNet, UNetConfig
from conca.train.image_batches import ImagePieces
from conca.train.recipe import Recipe as Training
from conca.train.seeds import seeded
from conca.types import BadInput

__all__ = ["Split", "fit_diffusion", "fit_energy", "settled", "strangers"]

Pixels = NDArray[np.uint8]
N = TypeVar("N", bound=nn.Module)

VALIDATION, MOST = 50, 500
"""One image of so many validates, and no more than this."""
SHOWN, DRAWN_BY = 64, 50
"""Images that are drawn for the report, and by how many steps of a diffusion."""
LOOK = 5
"""Steps of a chain between two looks at it."""
LONGER = 16
"""Chains that draw images from noise are so many times as long as those that went on in a buffer; short-run chains are as long."""


@dataclass(frozen=True)
class Split:
    """Images to learn from, to validate on and to judge by (maybe none)."""

    train: Images
    validation: Images | None
    test: Images | None

    @classmethod
    def of(cls, images: Images, config: ImageConfig) -> Split:
        """The official test part is held out, or a share; some of the rest validate. Raises BadInput if nothing is left to learn."""
        draw = np.random.default_rng(config.random_state)
        test: Images | None = None
        if images.parts is not None and "test" in images.parts and bool((images.parts != "test").any()):
            images, test = images.without("test"), images.part("test")
        elif count := int(config.test_fraction * len(images)):
            order = draw.permutation(len(images))
            images, test = images.take(np.sort(order[count:])), images.take(np.sort(order[:count]))
        validation: Images | None = None
        if count := min(len(images) // VALIDATION, MOST):
            order = draw.permutation(len(images))
            images, validation = images.take(np.sort(order[count:])), images.take(np.sort(order[:count]))
        return cls(images, validation, test)


def settled(images: Images, config: ImageConfig) -> Images:
    """The images as they are learnt. Raises BadInput where classes are wanted and there are not two of them."""
    if config.labels and (images.labels is None or len(images.classes) < 2):
        raise BadInput(f"{images.source}: labels are wanted, and there are no two classes; leave --labels out")
    return images


def fit_energy(config: EnergyConfig, images: Images, folder: Path, *, progress: bool, resume: bool) -> ImageRun:
    """Train an energy and judge it. Raises BadInput and Divergence."""
    split, how = Split.of(images, config), config.how()
    channels, height, width = images.shape
    form = ImageEnergyConfig(
        channels,
        height,
        width,
        features=config.features,
        outputs=len(images.classes) if config.labels else 1,
        activation=config.activation,
        spectral=how.spectral,
    )
    with seeded(config.random_state):
        network = laid_out(ImageEnergyNetwork(form), torch.channels_last)
    pieces, validation = learnt(split, config)
    trained, kept = trainer("image", "energy")(
        network, pieces, validation, how, training(config, pieces, how.lr), folder, progress=progress, resume=resume
    )
    network = laid_out(network, torch.contiguous_format).eval()
    tensors = moments(kept)
    if "places" in kept:
        tensors["buffer"] = torch.from_numpy(bytes_of(kept["places"][:SHOWN], how.low, how.high))
    landscape = energy_of(network)
    steps = how.steps * (LONGER if how.size else 1)
    drawn = walked_images(landscape, how, SHOWN, steps=steps, seed=config.random_state)
    tensors |= {"samples": torch.from_numpy(bytes_of(drawn, how.low, how.high))}
    tensors |= {"walk": walk(network, how, steps, config.random_state)}
    found = judged(split.test, lambda pixels: energies(landscape, pixels, how.low, how.high), config.random_state)
    return made(config, network, images, split, found, tensors, trained.history)


def fit_diffusion(config: DiffusionConfig, images: Images, folder: Path, *, progress: bool, resume: bool) -> ImageRun:
    """Train a diffusion and judge it. Raises BadInput."""
    split = Split.of(images, config)
    channels, height, width = images.shape
    form = UNetConfig(
        channels,
        height,
        width,
        features=config.features,
        halvings=config.halvings,
        blocks=config.blocks,
        patch=config.patch or max(1, round(max(height, width) / 16)),
        classes=len(images.classes) if config.labels else 0,
        dropout=config.dropout,
    )
    with seeded(config.random_state):
        network = laid_out(UNet(form), torch.contiguous_format if config.scalar else torch.channels_last)
    pieces, validation = learnt(split, config)
    spread, highest = spread_of(split.train), distance_of(split.train)
    schedule = config.noise(high=highest)
    trained, kept = trainer("image", "diffusion")(
        network,
        pieces,
        validation,
        schedule,
        training(config, pieces, 1e-3, config.decay),
        folder,
        scalar=config.scalar,
        spread=spread,
        progress=progress,
        resume=resume,
    )
    network = laid_out(network, torch.contiguous_format).eval()
    landscape = noise_of(network, schedule, config.scalar, spread)
    drawn = reversed_images(
        landscape,
        schedule,
        images.shape,
        SHOWN,
        kernel=ddim(bounds=(-1.0, 1.0)),
        steps=min(DRAWN_BY, config.levels),
        seed=config.random_state,
    )
    tensors = moments(kept) | {"samples": torch.from_numpy(bytes_of(drawn, -1, 1))}
    found = judged(split.test, lambda pixels: noise_errors(landscape, schedule, pixels), config.random_state)
    return made(config, network, images, split, found, tensors, trained.history, spread, highest)


def made(
    config: EnergyConfig | DiffusionConfig,
    network: ImageEnergyNetwork | UNet,
    images: Images,
    split: Split,
    found: tuple[Tensor, pd.DataFrame],
    kept: dict[str, Tensor],
    history: list[dict[str, float]],
    spread: float = 1.0,
    highest: float = 50.0,
) -> ImageRun:
    """The run of what was learnt and judged."""
    heights, scores = found
    return ImageRun(
        config,
        network,
        classes=images.classes if config.labels else (),
        source=images.source,
        spread=spread,
        highest=highest,
        held_out=0 if split.test is None else len(split.test),
        scores=scores,
        kept=kept | {"heights": heights},
        history=pd.DataFrame(history),
        notices=[images.source, *images.skipped],
    )


def laid_out(network: N, form: torch.memory_format) -> N:
    """The network, with its kernels in this order in memory: convolutions learn faster with channels last, second derivatives do not."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=form)
    return network


def moments(kept: dict[str, Any]) -> dict[str, Tensor]:
    """The pictures that a training kept, and after how many updates; nothing where there are none."""
    if not kept.get("moments"):
        return {}
    return {"moments": torch.stack(kept["moments"]), "at": torch.tensor(kept["at"], dtype=torch.int64)}


def learnt(split: Split, config: ImageConfig) -> tuple[ImagePieces, Any]:
    """Pieces to learn from, and what validates, with classes where they are learnt."""
    known = config.labels
    pieces = ImagePieces(
        split.train.pixels,
        split.train.labels if known else None,
        batch_size=config.batch_size,
        seed=config.random_state,
    )
    other = split.validation
    return pieces, None if other is None else (other.pixels, other.labels if known else None)


def training(config: ImageConfig, pieces: ImagePieces, rate: float, decay: float = 0.99) -> Training:
    """How to train by these options."""
    epochs, steps = config.course(pieces.each)
    return Training(
        lr=rate if config.lr is None else config.lr,
        weight_decay=0.0,
        epochs=epochs,
        steps=steps,
        patience=10**6,
        max_minutes=config.max_minutes,
        seed=config.random_state,
        devices=config.devices,
        precision=config.precision,
        decay=decay,
    )


def judged(
    test: Images | None, score: Callable[[Pixels], NDArray[np.float64]], seed: int
) -> tuple[Tensor, pd.DataFrame]:
    """Scores of images held out, and how well they are told from others; both empty where nothing was held out."""
    if test is None:
        return torch.zeros(0, dtype=torch.float64), pd.DataFrame(columns=list(COLUMNS))
    own = test.pixels[:JUDGED]
    heights = score(own)
    rows = {
        name: [f(heights, found) for f in (auroc, auprc, fpr_at)]
        for name, found in ((name, score(pixels)) for name, pixels in strangers(own, seed))
    }
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("against")
    return torch.from_numpy(heights), frame


def strangers(pixels: Pixels, seed: int) -> Iterator[tuple[str, Pixels]]:
    """Images that belong to no set, as many as are given: noise, constants, and the given ones with their pixels shuffled."""
    draw = np.random.default_rng(seed)
    n, *shape = pixels.shape
    yield "noise", draw.integers(0, 256, pixels.shape, dtype=np.uint8)
    yield "constants", np.broadcast_to(draw.integers(0, 256, (n, 1, 1, 1), dtype=np.uint8), pixels.shape).copy()
    yield "shuffled", draw.permuted(pixels.reshape(n, -1), axis=1).reshape(n, *shape)


def walk(network: ImageEnergyNetwork, how: Recipe, steps: int, seed: int) -> Tensor:
    """Mean energy and slope of chains from noise, after every fifth step, (steps // 5, 2)."""
    landscape, draw = energy_of(network), torch.Generator().manual_seed(seed)
    start = how.start(landscape.shape or (), torch.float32)(SHOWN, draw)
    chain, _ = sample(landscape, how.kernel, start, steps, LOOK, generator=draw)
    with torch.no_grad():
        found = [landscape.evaluate(x) for x in chain]
    return torch.tensor([[float(energy.mean()), float(norm(score).mean())] for energy, score in found]).double()


def spread_of(images: Images) -> float:
    """Standard deviation of pixels between -1 and 1, at least a hundredth."""
    return max(float(images.pixels.std()) / 127.5, 0.01)


def distance_of(images: Images) -> float:
    """The largest distance of two images of a few hundred, between -1 and 1: where the noise of a geometric schedule begins."""
    some = torch.from_numpy(images.pixels[:300].reshape(min(300, len(images)), -1)).double() / 127.5
    return max(float(torch.cdist(some, some).max()), 1.0)
