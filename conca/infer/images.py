"""Images from models: drawn by chains on an energy or by a diffusion backwards, completed where they are not known, and judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.energy.chain import Chains, Kernel, undisturbed
from conca.energy.classifier import ClassifierEnergy
from conca.energy.draws import whole
from conca.energy.energy import Energy, Score
from conca.energy.images import to_bytes, to_floats
from conca.energy.recipes import Recipe
from conca.energy.reverse import DDIM, DDPM, reverse_diffusion
from conca.energy.schedule import Schedule

__all__ = [
    "Known",
    "Watch",
    "bytes_of",
    "classes_of",
    "energies",
    "floats_of",
    "noise_errors",
    "reversed_images",
    "walked_images",
]

Pixels = NDArray[np.uint8]
Known = tuple[Tensor, Tensor]
"""Values (C, H, W) and where they are known, bool of the same shape."""
Watch = Callable[[float], None]
"""Is told which share of the work is done."""

ROWS = 256
"""Images that are drawn, or judged, at once."""
LOOK = 10
"""Steps of a chain after which it is told how far it is."""
PROBES = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Noise over signal at which it is tried how well a diffusion tells the noise in an image."""


def floats_of(pixels: Pixels, low: float, high: float) -> Tensor:
    """Bytes (..., C, H, W) as float32 between low and high."""
    return to_floats(torch.from_numpy(np.require(pixels, requirements=["C", "W"])), low, high)


def bytes_of(x: Tensor, low: float, high: float) -> Pixels:
    """Numbers between low and high as bytes; what lies outside is cut off."""
    found: Pixels = to_bytes(x, low, high).numpy()
    return found


def walked_images(
    energy: Energy,
    how: Recipe,
    n: int,
    *,
    steps: int,
    seed: int,
    known: Known | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """Where n chains from noise end, (n, C, H, W), between `how.low` and `how.high`.

    Args:
        energy: of images.
        how: the recipe that it was trained by.
        steps: of each chain.
        seed: of the noise; the first chains begin at the same places, however many are asked for.
        known: what does not move.
        watch: is told how far it is.

    Raises:
        Divergence: where a chain leaves the finite numbers.
    """
    landscape = energy if known is None else energy.given(*known)
    fresh = how.start(energy.shape or (), torch.float32)
    found = []
    for place in range(0, whole(n, "the number of images"), ROWS):
        draw = torch.Generator().manual_seed(hash((seed, place)) % 2**63)
        rows = min(ROWS, n - place)
        x = fresh(ROWS, draw)[:rows]
        chains = Chains(landscape, how.kernel, x, generator=draw)
        for step in range(0, steps, LOOK):
            count = min(LOOK, steps - step)
            chains.run(count, count)
            if watch is not None:
                watch((place + rows * (step + count) / steps) / n)
        found.append(chains.state.x.clamp(how.low, how.high))
    return torch.cat(found)


def reversed_images(
    score: Score,
    schedule: Schedule,
    shape: tuple[int, ...],
    n: int,
    *,
    kernel: DDPM | DDIM | None,
    seed: int,
    steps: int | None = None,
    corrector: Callable[[float], Kernel[Any, Any]] | None = None,
    corrections: int = 1,
    known: Known | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """n images (n, C, H, W), about between -1 and 1, by a diffusion backwards; see `conca.energy.reverse_diffusion`.

    They begin at noise of the seed, the first of them at the same, however many are asked for.
    """
    found = []
    for place in range(0, whole(n, "the number of images"), ROWS):
        draw = torch.Generator().manual_seed(hash((seed, place)) % 2**63)
        rows = min(ROWS, n - place)
        z = torch.randn(ROWS, *shape, generator=draw, dtype=torch.float32)[:rows]
        x = z * schedule.level(schedule.levels(steps)[0])[1]
        values, mask = (None, None) if known is None else known
        visited = schedule.levels(steps)

        def told(level: int, x: Tensor, place: int = place, rows: int = rows, visited: list[int] = visited) -> None:
            if watch is not None:
                done = sum(t > level for t in visited) / len(visited)
                watch((place + rows * done) / n)

        found.append(
            reverse_diffusion(
                score,
                schedule,
                kernel,
                x,
                steps=steps,
                corrector=corrector,
                corrections=corrections,
                known=values,
                mask=mask,
                watch=told,
                generator=draw,
            )
        )
    return torch.cat(found)


def energies(energy: Energy, pixels: Pixels, low: float, high: float) -> NDArray[np.float64]:
    """Of each image, (n,)."""
    with torch.no_grad(), undisturbed(energy):
        energy.eval()
        parts = [
            energy(floats_of(pixels[k : k + ROWS], low, high)).double().numpy() for k in range(0, len(pixels), ROWS)
        ]
    return np.concatenate(parts) if parts else np.zeros(0)


def classes_of(energy: ClassifierEnergy, pixels: Pixels, low: float, high: float) -> NDArray[np.float64]:
    """Probabilities of the classes of each image, (n, K)."""
    with torch.no_grad(), undisturbed(energy):
        energy.eval()
        parts = [
            energy.logits(floats_of(pixels[k : k + ROWS], low, high)).double().softmax(1)
            for k in range(0, len(pixels), ROWS)
        ]
    return torch.cat(parts).numpy()


def noise_errors(score: Score, schedule: Schedule, pixels: Pixels, seed: int = 0) -> NDArray[np.float64]:
    """How badly the noise in each image is told, (n,): the mean square over pixels and five levels, with noise by the seed.

    The best that can be told lies near 0 where noise is strong; relative to the mean over levels it says nothing of scale.
    """
    ratio = schedule.ratio
    levels = sorted({int((ratio - probe).abs().argmin()) + 1 for probe in PROBES})
    total = np.zeros(len(pixels))
    with torch.no_grad(), undisturbed(score):
        score.eval()
        for k in range(0, len(pixels), ROWS):
            x = floats_of(pixels[k : k + ROWS], -1, 1)
            draw = torch.Generator().manual_seed(seed)
            for t in levels:
                z = torch.randn(x.shape[1:], generator=draw, dtype=x.dtype).expand_as(x)
                told = schedule.level(t)[1] * score.at(t).score(schedule.noised(x, t, z))
                total[k : k + ROWS] += (told + z).square().flatten(1).mean(1).double().numpy()
    return total / len(levels)
