"""What keeps the training of an energy together: the recipe of 2019 with and without spectral norm, squares and clipped slopes.

    python bench/image_ablation.py [--work FOLDER] [--seeds 3] [--updates 1000]

A small network (8 features) on MNIST, 32 images and 32 chains of 60 steps an update. Each training ends after its updates, or when
`Divergence` is raised, or when an energy leaves 1,000. What each came to is kept in FOLDER and not made again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from image_trainings import WORK
from record import RESULTS, record
from torch import Tensor

from conca.data.image_grid import grid_of, png_of
from conca.data.images import load_images
from conca.energy import Divergence, NetworkEnergy, Recipe, contrastive_divergence, igebm, sgld
from conca.infer.images import bytes_of
from conca.models.image_energy import ImageEnergyConfig, ImageEnergyNetwork
from conca.models.run import write_whole

BATCH, LIMIT = 32, 1000.0
FREE = sgld(10.0, 0.005, bounds=(0.0, 1.0), noise_first=True)
SETTINGS: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "no spectral norm": {"spectral": False},
    "no squares": {"l2": 0.0},
    "neither": {"spectral": False, "l2": 0.0},
    "neither, slopes not clipped": {"spectral": False, "l2": 0.0, "kernel": FREE},
}


def recipe(changes: dict[str, Any]) -> Recipe:
    """The recipe of 2019 with these changes."""
    return replace(igebm(), size=2000, batch=BATCH, limit=LIMIT, **changes)


def training(how: Recipe, pixels: np.ndarray, seed: int, updates: int) -> tuple[dict[str, float], Tensor]:
    """What a training came to: updates, whether it diverged, the largest |E| at its end; and where its chains were."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    network = ImageEnergyNetwork(ImageEnergyConfig(1, 28, 28, features=8, spectral=how.spectral))
    energy = NetworkEnergy(network, (1, 28, 28))
    buffer, optimizer = how.buffer((1, 28, 28), generator=draw), how.optimizer(network.parameters())
    found, chains = {"updates": updates, "diverged": 0.0, "size": 0.0}, torch.zeros(0, 1, 28, 28)
    for update in range(updates):
        chosen = torch.randint(len(pixels), (BATCH,), generator=draw)
        x = torch.from_numpy(pixels[chosen.numpy()]).float() / 255
        try:
            chains = how.negatives(energy, BATCH, buffer, generator=draw)
            loss = contrastive_divergence(energy, x, chains, l2=how.l2, limit=how.limit)
        except Divergence as error:
            return found | {"updates": update, "diverged": 1.0, "size": error.energy}, chains
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update == updates - 1:
            with torch.no_grad():
                found["size"] = float(torch.cat([energy(x), energy(chains)]).abs().max())
    return found, chains


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, one by one, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=1000)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pixels = load_images(given.work / "mnist").part("train").pixels
    folder = given.work / "ablation"
    folder.mkdir(parents=True, exist_ok=True)
    rows, strips = [], []
    for number, (name, changes) in enumerate(SETTINGS.items()):
        results = []
        for seed in range(given.seeds):
            path = folder / f"{number}_{seed}_{given.updates}.json"
            if not path.exists():
                found, chains = training(recipe(changes), pixels, seed, given.updates)
                np.save(path.with_suffix(".npy"), bytes_of(chains, 0.0, 1.0))
                write_whole(path, json.dumps(found).encode())
                print(name, seed, found, flush=True)
            results.append(json.loads(path.read_text()))
        drawn = np.load(folder / f"{number}_0_{given.updates}.npy")
        strips.append(drawn[:16] if len(drawn) >= 16 else np.zeros((16, 1, 28, 28), np.uint8))
        when = ", ".join(f"update {r['updates']:.0f}" if r["diverged"] else "-" for r in results)
        sizes = ", ".join(f"{r['size']:.3g}" for r in results)
        rows.append([name, f"{sum(r['diverged'] for r in results):.0f} of {len(results)}", when, sizes])
    (RESULTS / "image_ablation.png").write_bytes(png_of(grid_of(np.concatenate(strips), 16, gap=1)))
    record(
        "image_ablation",
        f"The recipe of 2019 with parts left out, {given.updates} updates",
        ["training", "diverged", "when", "largest absolute energy of the last batch"],
        rows,
        "Where chains were in the end (seed 0), rows as in the table:\n\n![chains](image_ablation.png)",
    )


if __name__ == "__main__":
    main()
