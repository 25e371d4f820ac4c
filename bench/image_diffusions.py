"""Diffusions of MNIST: ancestral and implicit steps, both variances, two schedules, averaged weights, correctors, and an energy.

    python bench/image_diffusions.py [--work FOLDER] [--number 512]

The runs are those of `image_trainings.py` (made if they are not there): `ddpm` (1,000 linear levels, tells the noise), `scalar` (the same
network as an energy) and `geometric` (noise levels of annealed Langevin). Judged as in `image_energies.py`; the network is told the
noise, not the level, so one network walks every schedule.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from image_features import classifier, judged
from image_trainings import WORK, trained
from record import RESULTS, record

from conca.data.image_grid import grid_of, png_of
from conca.data.images import load_images
from conca.energy.chain import sample
from conca.energy.langevin import mala, ula
from conca.energy.reverse import ddim, ddpm
from conca.estimators.image_diffusion import ImageDiffusion
from conca.models.run import CHECKPOINT
from conca.train.averaged import taken
from conca.train.checkpoint import read_checkpoint

BOUNDS = (-1.0, 1.0)
LONG = 128
"""Images of a way that takes a thousand levels."""
Draw = Callable[[int], np.ndarray]


def plain(model: ImageDiffusion) -> dict[str, Draw]:
    """Ways to draw from what tells the noise."""
    found: dict[str, Draw] = {}
    for variance in ("large", "small"):
        kernel: Any = ddpm(variance, bounds=BOUNDS)  # type: ignore[arg-type]
        found[f"ancestral, {variance} variance, 1000 linear"] = lambda n, kernel=kernel: model.sample(
            min(n, LONG), kernel=kernel, steps=None
        )
        for name in ("linear", "cosine"):
            schedule = model.schedule_of(name, 100)
            found[f"ancestral, {variance} variance, 100 {name}"] = lambda n, kernel=kernel, schedule=schedule: (
                model.sample(n, kernel=kernel, steps=None, schedule=schedule)
            )
    for steps in (10, 20, 50):
        found[f"implicit, {steps} of 1000 linear"] = lambda n, steps=steps: model.sample(
            n, kernel=ddim(bounds=BOUNDS), steps=steps
        )
    found["implicit, 20, and 2 Langevin steps at each"] = lambda n: model.sample(
        n, kernel=ddim(bounds=BOUNDS), steps=20, corrector=lambda s: ula(0.05 * s**2), corrections=2
    )
    found["implicit, 50, weights not averaged"] = lambda n: raw(model).sample(n, kernel=ddim(bounds=BOUNDS), steps=50)
    return found


def raw(model: ImageDiffusion) -> ImageDiffusion:
    """The model with the last weights in place of their running average."""
    path = model.folder / CHECKPOINT  # type: ignore[attr-defined]
    other = copy.deepcopy(model)
    taken(other.network_, read_checkpoint(path, path.read_bytes())["network"])
    return other


def energies(model: ImageDiffusion) -> dict[str, Draw]:
    """Ways to draw from the same network as an energy."""
    return {
        "energy: implicit, 50": lambda n: model.sample(n, kernel=ddim(bounds=BOUNDS), steps=50),
        "energy: implicit, 20, and 2 MALA steps at each": lambda n: model.sample(
            n, kernel=ddim(bounds=BOUNDS), steps=20, corrector=lambda s: mala(0.05 * s**2), corrections=2
        ),
    }


def annealed(model: ImageDiffusion) -> dict[str, Draw]:
    """Annealed Langevin: 50 levels of 10 steps, and no other move."""
    schedule = model.schedule_of(levels=50)
    return {
        "annealed Langevin, 50 levels of 10 steps": lambda n: model.sample(
            n, kernel="langevin", steps=None, schedule=schedule, corrector=lambda s: ula(0.1 * s**2), corrections=10
        ),
        "the same network, implicit, 50": lambda n: model.sample(n, kernel=ddim(bounds=BOUNDS), steps=50),
    }


def acceptance(model: ImageDiffusion) -> list[list[str]]:
    """Share of MALA proposals that are accepted at some levels, from noisy samples."""
    schedule, score, rows = model.schedule_, model.score_, []
    x = torch.from_numpy(model.sample(64, steps=20).copy()).float() / 127.5 - 1
    draw = torch.Generator().manual_seed(0)
    for t in (1, 10, 100, 300, 600, 1000):
        noisy = schedule.noised(x, t, torch.randn(x.shape, generator=draw))
        _, info = sample(score.at(t), mala(0.05 * schedule.level(t)[1] ** 2), noisy, 20, 20, generator=draw)  # type: ignore[type-var]
        rows.append([f"energy: MALA accepted at level {t}", f"{float(info['accepted'].mean()):.2f}", "", "", "", ""])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, judge and write the page; each way is drawn once and kept in FOLDER."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--number", type=int, default=512)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    real = load_images(given.work / "mnist").part("test").pixels
    net, rows, strips, models = (
        classifier(given.work),
        list[list[str]](),
        list[np.ndarray](),
        dict[str, ImageDiffusion](),
    )
    for name, ways in (("ddpm", plain), ("scalar", energies), ("geometric", annealed)):
        model = trained(name, given.work)
        assert isinstance(model, ImageDiffusion)
        model.folder, models[name] = given.work / "runs" / name, model  # type: ignore[attr-defined]
        for way, draw in ways(model).items():
            pixels, seconds = kept(given.work / "drawn", way, draw, given.number)
            found = judged(net, pixels, real[: len(pixels)])
            strips.append(pixels[:16])
            figures = [f"{found['frechet']:.1f}", f"{found['sure']:.3f}", f"{found['entropy']:.2f}"]
            rows.append([way, f"{len(pixels)}", *figures, f"{1000 * seconds / len(pixels):.0f} ms"])
    rows += acceptance(models["scalar"])
    (RESULTS / "image_diffusions.png").write_bytes(png_of(grid_of(np.concatenate(strips), 16, gap=1)))
    for name, model in models.items():
        (RESULTS / f"image_diffusion_{name}.png").write_bytes(png_of(grid_of(model.sample(64), 16, gap=1)))
    losses = "; ".join(f"{n}: " + ", ".join(losses_of(m)) for n, m in models.items())
    record(
        "image_diffusions",
        "Diffusions of MNIST",
        ["way", "images", "Frechet distance", "sure", "entropy, bits", "time an image"],
        rows,
        "![rows as in the table](image_diffusions.png)\n\n"
        f"Validation loss after so many updates: {losses}.\n\n"
        + "\n\n".join(f"{name}, 50 implicit steps\n\n![{name}](image_diffusion_{name}.png)" for name in models),
    )


def kept(folder: Path, way: str, draw: Draw, number: int) -> tuple[np.ndarray, float]:
    """Images of a way and the seconds that they took, from FOLDER if they are there."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{''.join(c if c.isalnum() else '_' for c in way)}.npz"
    if not path.exists():
        begin = time.time()
        pixels = draw(number)
        np.savez_compressed(path, X=pixels, seconds=time.time() - begin)
    found = np.load(path)
    return found["X"], float(found["seconds"])


def losses_of(model: ImageDiffusion) -> list[str]:
    """A few of the losses on the way."""
    history = model.history_
    chosen = np.unique(np.linspace(0, len(history) - 1, 6).astype(int))
    return [f"{int(history['step'][k]):,} {history['val/loss'][k]:.4f}" for k in chosen]


if __name__ == "__main__":
    main()
