"""Two concepts learnt apart and sampled together, on images of which it is known what they are.

    python bench/image_composition.py [--work FOLDER] [--number 256]

Crosses anywhere, and any form in the upper left quarter (`image_shapes.py`), each by a diffusion that is an energy (--scalar) and by an
energy of 2019 (`image_trainings.py`, made if they are not there). Sampled are the parts alone and their sum: of diffusions by summed
slopes alone, and with steps of Langevin or of MALA at each level. Counted is how often form, place and both are right.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from image_shapes import read
from image_trainings import WORK, trained
from record import RESULTS, record

from conca.data.image_grid import grid_of, png_of
from conca.energy.langevin import mala, ula
from conca.energy.reverse import ddpm
from conca.estimators.image_diffusion import ImageDiffusion
from conca.estimators.image_energy import ImageEnergy

STEPS = 100
BOUNDS = (-1.0, 1.0)


def ways(first: ImageDiffusion, second: ImageDiffusion, number: int) -> dict[str, np.ndarray]:
    """Images by each way of sampling."""
    schedule = first.schedule_of(levels=STEPS)
    a, b = first.score_on(schedule), second.score_on(schedule)
    options: dict[str, Any] = {"kernel": ddpm("small", bounds=BOUNDS), "steps": None, "schedule": schedule}
    found = {
        "diffusion: crosses alone": first.sample(number, score=a, **options),
        "diffusion: quarter alone": first.sample(number, score=b, **options),
        "diffusion: sum of slopes alone": first.sample(number, score=a + b, **options),
    }
    for name, kernel in (("Langevin", ula), ("MALA", mala)):
        for count in (2, 10):
            found[f"diffusion: sum, {count} steps of {name} at each level"] = first.sample(
                number, score=a + b, corrector=lambda s, kernel=kernel: kernel(0.1 * s**2), corrections=count, **options
            )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Sample, count and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--number", type=int, default=256)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    first, second = (trained(name, given.work) for name in ("crosses", "quarter"))
    assert isinstance(first, ImageDiffusion) and isinstance(second, ImageDiffusion)
    found = ways(first, second, given.number)
    one, two = (trained(f"{name}_energy", given.work) for name in ("crosses", "quarter"))
    assert isinstance(one, ImageEnergy) and isinstance(two, ImageEnergy)
    found |= {
        "energy: crosses alone": one.sample(given.number),
        "energy: quarter alone": two.sample(given.number),
        "energy: sum": one.sample(given.number, energy=one.energy_ + two.energy_),
    }
    rows = []
    for name, pixels in found.items():
        told = read(pixels)
        rows.append([name, *(f"{told[k]:.3f}" for k in ("clear", "cross", "quarter", "both")), f"{told['kinds']:.0f}"])
    shown = np.concatenate([pixels[:16] for pixels in found.values()])
    (RESULTS / "image_composition.png").write_bytes(png_of(grid_of(shown, 16, gap=1, scale=2)))
    record(
        "image_composition",
        "Two concepts learnt apart, sampled together",
        ["way", "near one of the 432", "cross", "in the quarter", "both", "of the 36 that hold for both, met"],
        rows,
        "![rows as in the table](image_composition.png)",
    )


if __name__ == "__main__":
    main()
