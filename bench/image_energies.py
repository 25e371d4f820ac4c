"""Energies of MNIST at 28 x 28 by three recipes: samples, completion, what is strange to them, and how far samples lie from digits.

    python bench/image_energies.py [--work FOLDER] [--number 1000]

The runs are those of `image_trainings.py` (made if they are not there). Judged on 1,000 test images: Frechet distance of as many samples
in the features of a small classifier trained here, the share of samples that it is sure of (0.9), the entropy of the classes that it tells
(3.32 bits at most), and AUROC of the energy against Fashion-MNIST, noise, constants and shuffled digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from image_features import classifier, judged
from image_trainings import TRAININGS, WORK, trained
from record import RESULTS, record

from conca.data.image_grid import grid_of, png_of
from conca.data.images import load_images
from conca.estimators.image_energy import ImageEnergy
from conca.estimators.image_fitting import strangers
from conca.metrics.novelty import auroc

NAMES = "igebm", "short_run", "generative_convnet"
HALF = 14
"""Rows of a digit that are hidden."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, judge and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--names", nargs="+", default=NAMES)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    real = load_images(given.work / "mnist").part("test").pixels[: given.number]
    fashion = load_images(given.work / "fashion").part("test").pixels[: given.number]
    others = {"Fashion-MNIST": fashion, **dict(strangers(real, 0))}
    net = classifier(given.work)
    rows = [["test digits themselves", "", *told(judged(net, real[::2], real[1::2])), *[""] * len(others)]]
    for name in given.names:
        model = trained(name, given.work)
        assert isinstance(model, ImageEnergy)
        drawn = model.sample(given.number)
        completed(model, real[:8], name)
        (RESULTS / f"image_energy_{name}.png").write_bytes(png_of(grid_of(drawn[:64], 16, gap=1)))
        own = model.novelty(real)["novelty"]
        strange = [f"{auroc(own, model.novelty(pixels)['novelty']):.3f}" for pixels in others.values()]
        minutes = TRAININGS[name][2]["max_minutes"]
        rows.append(
            [
                name,
                f"{int(model.history_['step'].iloc[-1]):,} in {minutes} min",
                *told(judged(net, drawn, real)),
                *strange,
            ]
        )
    record(
        "image_energies",
        "Energies of MNIST",
        ["recipe", "updates", "Frechet distance", "sure", "entropy, bits", *(f"AUROC {name}" for name in others)],
        rows,
        "\n\n".join(
            f"{name}: samples, not chosen; completion (rows: digit, lower half hidden, three ways to fill it in)\n\n"
            f"![samples](image_energy_{name}.png)\n\n![completion](image_energy_{name}_completed.png)"
            for name in given.names
        ),
    )


def told(found: dict[str, float]) -> list[str]:
    """In digits."""
    return [f"{found['frechet']:.1f}", f"{found['sure']:.3f}", f"{found['entropy']:.2f}"]


def completed(model: ImageEnergy, digits: np.ndarray, name: str) -> None:
    """A picture of digits, half hidden, and three completions of each."""
    mask = np.zeros((28, 28), bool)
    mask[HALF:] = True
    ways = np.stack([model.complete(digit, mask, 3) for digit in digits], 1)
    hidden = digits.copy()
    hidden[:, :, HALF:] = 128
    assert (ways[:, :, :, :HALF] == digits[None, :, :, :HALF]).all()
    (RESULTS / f"image_energy_{name}_completed.png").write_bytes(
        png_of(grid_of(np.concatenate([digits, hidden, *ways]), len(digits), gap=1))
    )


if __name__ == "__main__":
    main()
