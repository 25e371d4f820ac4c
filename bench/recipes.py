"""Whether the recipes for energies of images stay stable on small digits, and what spectral norm and squares are for.

    python bench/recipes.py [--updates 300] [--seeds 2]

The digits of scikit-learn (8 x 8), one small convolutional network, each recipe with the values that it ships with, a smaller buffer, and a
batch of 64. Then two things are taken away from that of Du & Mordatch 2019, alone and together.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import mean

import torch
from record import record
from sklearn.datasets import load_digits
from torch import Tensor, nn

from conca.energy import (
    Divergence,
    NetworkEnergy,
    Recipe,
    contrastive_divergence,
    igebm,
    improved_cd,
    jem_recipe,
    short_run,
)

BARE = replace(igebm(), spectral=False, l2=0.0)
RECIPES: dict[str, Recipe] = {
    "igebm": igebm(),
    "improved_cd": improved_cd(),
    "short_run": short_run(),
    "jem_recipe, without labels": jem_recipe(),
    "igebm without spectral norm": replace(igebm(), spectral=False),
    "igebm without squares": replace(igebm(), l2=0.0),
    "igebm without both": BARE,
    "igebm without both, rate 3e-3": replace(BARE, lr=3e-3),
    "igebm, rate 3e-3": replace(igebm(), lr=3e-3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    rows = []
    for name, recipe in RECIPES.items():
        runs = [trained(recipe, x, seed, given.updates) for seed in range(given.seeds)]
        lost = sorted(run[0] for run in runs if run[0])
        alive = [run[1:] for run in runs if not run[0]]
        said = [f"{mean(column):.3g}" for column in zip(*alive)] if alive else ["", "", ""]
        rows.append(
            [name, f"{len(lost)} of {len(runs)}" + (f", at update {', '.join(map(str, lost))}" if lost else ""), *said]
        )
        print(rows[-1], flush=True)
    notes = (
        f"{given.updates} updates of 64 digits, {given.seeds} seeds. diverged: Divergence was raised (energies not finite, or "
        "beyond the limit of the recipe); largest |E|: of the last update; gap: mean energy of digits less that of chains; apart: "
        "mean distance of a pixel of the chains from the nearest digit's, data between 0 and 1. Means over the seeds that did not diverge."
    )
    header = ("recipe", "diverged", "largest abs(E)", "gap", "apart")
    record("recipes", "Recipes for energies of images, on small digits", header, rows, notes)


def network() -> nn.Module:
    """8 x 8 to one number."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(8, 16, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(16, 16, 4, 2, 1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(64, 1),
    )


def trained(recipe: Recipe, data: Tensor, seed: int, updates: int) -> tuple[int, float, float, float]:
    """At which update it diverged (0: never), the largest |E|, the gap, and how far chains are from digits."""
    torch.manual_seed(seed)
    recipe = replace(recipe, size=min(recipe.size, 2000), batch=64)
    energy, draw = NetworkEnergy(recipe.normed(network()), (64,)), torch.Generator().manual_seed(seed)
    buffer, optimizer = recipe.buffer((64,), generator=draw), recipe.optimizer(energy.parameters())
    scaled = recipe.low + (recipe.high - recipe.low) * data
    low, high = torch.zeros(2), torch.zeros(2)
    model = scaled[:64]
    for update in range(1, updates + 1):
        x = recipe.noised(scaled[torch.randint(len(data), (64,), generator=draw)], draw)
        try:
            model = recipe.negatives(energy, 64, buffer, generator=draw)
            loss = contrastive_divergence(energy, x, model, l2=recipe.l2, limit=recipe.limit)
        except Divergence:
            return update, 0.0, 0.0, 0.0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            low, high = energy(x), energy(model)
    there = (model - recipe.low) / (recipe.high - recipe.low)
    apart = (torch.cdist(there, data, p=1) / 64).amin(1).mean()
    return 0, float(torch.cat([low, high]).abs().max()), float(low.mean() - high.mean()), float(apart)


if __name__ == "__main__":
    main()
