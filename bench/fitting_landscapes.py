"""Rings and eight bowls in the plane, learnt by each loss and compared with the truth by quadrature.

    python bench/fitting_landscapes.py [--updates 2000]

The same network each time, 2-64-64-64-1 with SiLU, beside a wide bowl that makes every energy a density. KL is that from the target to
the fit, in nats, by the midpoint rule on a grid of 200 x 200 over [-6, 6]^2, which holds all of both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from record import record
from torch import Tensor, nn

from conca.energy import (
    Energy,
    Gaussian,
    GaussianMixture,
    NetworkEnergy,
    Rings,
    anatomy,
    contrastive_divergence,
    denoising_score_matching,
    log_z_grid,
    noise_contrastive,
    sample,
    sliced_score_matching,
)

SIDE, POINTS, BATCH, SIGMA = 6.0, 200, 256, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=2000)
    given = parser.parse_args()
    targets = {"rings": Rings((1.0, 2.5), 0.25), "eight bowls": GaussianMixture.eight(scale=0.3)}
    rows = []
    for name, target in targets.items():
        rows.append([name, "nothing learnt", f"{divergence(target, plane()):.3f}", ""])
        for how, make in LOSSES.items():
            begin = time.perf_counter()
            energy = fitted(target, make, given.updates)
            rows.append([name, how, f"{divergence(target, energy):.3f}", f"{time.perf_counter() - begin:.0f}"])
    notes = (
        f"{given.updates:,} updates of {BATCH} by Adam at 3e-3, falling to 0. Persistent: 20 Langevin steps an update, by the recipe "
        "`anatomy(0.2)`, 2,000 chains that go on; short-run: 40 steps from noise each time, whose chains have not arrived, so that what is "
        f"learnt is no density; denoising with noise of {SIGMA}, which the fit includes; noise contrast against a normal distribution of "
        "variance 4, log Z learnt. Seconds on one thread, beside other work."
    )
    header = ("target", "loss", "KL (nats)", "seconds")
    record("fitting_landscapes", "Landscapes in the plane, learnt by each loss", header, rows, notes)


def plane() -> Energy:
    """The network, and the bowl beside it."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    )
    return NetworkEnergy(net, (2,)) + Gaussian(torch.zeros(2), 9 * torch.eye(2))


Loss = Callable[[Energy, Tensor], Tensor]


def persistent(draw: torch.Generator) -> Loss:
    """Chains that go on."""
    recipe = replace(anatomy(0.2), steps=20, size=2000)
    buffer = recipe.buffer((2,), generator=draw)

    def loss(energy: Energy, x: Tensor) -> Tensor:
        return contrastive_divergence(energy, x, recipe.negatives(energy, len(x), buffer, generator=draw))

    return loss


def short_run(draw: torch.Generator) -> Loss:
    """Chains from noise, each time."""
    kernel = anatomy(0.2).kernel

    def loss(energy: Energy, x: Tensor) -> Tensor:
        start = 8 * torch.rand(len(x), 2, generator=draw) - 4
        return contrastive_divergence(energy, x, sample(energy, kernel, start, 40, 40, generator=draw)[0][-1])

    return loss


def from_data(draw: torch.Generator) -> Loss:
    """Chains of five steps from the data: contrastive divergence as it began."""
    kernel = anatomy(0.2).kernel
    return lambda energy, x: contrastive_divergence(energy, x, sample(energy, kernel, x, 5, 5, generator=draw)[0][-1])


def denoising(draw: torch.Generator) -> Loss:
    """The slope of the noised data."""
    return lambda energy, x: denoising_score_matching(energy, x, SIGMA, generator=draw)


def sliced(draw: torch.Generator) -> Loss:
    """The slope of the data themselves."""
    return lambda energy, x: sliced_score_matching(energy, x, generator=draw)


def noise(draw: torch.Generator) -> Loss:
    """Told from noise; log Z is learnt by the bias of the last layer, which is free here."""
    other = Gaussian(torch.zeros(2), 4 * torch.eye(2))
    return lambda energy, x: noise_contrastive(energy, x, other.draw(len(x), draw), other, 0.0)


LOSSES: dict[str, Callable[[torch.Generator], Loss]] = {
    "contrastive divergence, persistent": persistent,
    "contrastive divergence, short-run": short_run,
    "contrastive divergence, 5 steps from data": from_data,
    "denoising score matching": denoising,
    "sliced score matching": sliced,
    "noise contrast": noise,
}


def fitted(target: Rings | GaussianMixture, make: Callable[[torch.Generator], Loss], updates: int) -> Energy:
    """An energy that has learnt from draws of the target."""
    energy, draw = plane(), torch.Generator().manual_seed(0)
    loss, optimizer = make(draw), torch.optim.Adam(energy.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        optimizer.zero_grad()
        loss(energy, target.draw(BATCH, draw)).backward()
        optimizer.step()
        schedule.step()
    return energy


def divergence(target: Energy, energy: Energy) -> float:
    """KL(target || fit), nats."""
    cell = 2 * SIDE / POINTS
    side = -SIDE + cell * (torch.arange(POINTS) + 0.5)
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        log_p, log_q = -target(grid), -energy(grid) - log_z_grid(energy, -SIDE, SIDE, POINTS)
        return float((log_p.exp() * (log_p - log_q)).sum() * cell**2)


if __name__ == "__main__":
    main()
