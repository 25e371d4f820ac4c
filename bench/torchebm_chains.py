"""Chains beside those of torchebm: the same targets, starts, chains and steps, in one run on the CPU.

    python bench/torchebm_chains.py [--repeats 5] [--threads 1]

Langevin (`ula` beside its LangevinDynamics) and Hamiltonian chains (`hmc` beside its HamiltonianMonteCarlo), 1,000 and 200 steps that keep
their last place alone. Effective samples per second are of chains that keep every place, by the figure of this library for both, of the
square of each coordinate.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from packages import CACHE, fetched
from record import record
from torch import Tensor, nn

from conca.energy import DoubleWell, Energy, Gaussian, NetworkEnergy, effective_sample_size, hmc, sample, ula

sys.path.insert(0, str(fetched("torchebm==0.8.9", CACHE)))
core, samplers = importlib.import_module("torchebm.core"), importlib.import_module("torchebm.samplers")

CHAINS = (16, 1000, 10_000)
LANGEVIN, HAMILTON, LEAPFROG = 1000, 200, 10
Walk = Callable[[Tensor, int, bool], Tensor]


class Net(core.BaseModel):
    """A network as an energy of theirs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, 0]


def targets() -> dict[str, tuple[Energy, object, float, float]]:
    """Ours, theirs, and steps of Langevin and leapfrog."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)).requires_grad_(
        False
    )
    covariance = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    gaussian = core.GaussianModel(mean=torch.zeros(2), cov=covariance)
    return {
        "double well": (DoubleWell(2.0), core.DoubleWellModel(barrier_height=2.0), 0.01, 0.1),
        "Gaussian": (Gaussian(torch.zeros(2), covariance), gaussian, 0.05, 0.2),
        "network 2-64-64-1": (NetworkEnergy(net, (2,)), Net(net), 0.01, 0.1),
    }


def ours(energy: Energy, kernel: object) -> Walk:
    """The walk of this library."""

    def walk(x: Tensor, steps: int, keep: bool) -> Tensor:
        return sample(energy, kernel, x, steps, 1 if keep else steps, generator=torch.Generator().manual_seed(0))[0]

    return walk


def theirs(sampler: object) -> Walk:
    """The walk of torchebm; what it keeps comes as (chains, steps, ...)."""

    def walk(x: Tensor, steps: int, keep: bool) -> Tensor:
        found = sampler.sample(x=x.clone(), n_steps=steps, return_trajectory=keep)
        return found.transpose(0, 1) if keep else found[None]

    return walk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for name, (mine, other, langevin, leap) in targets().items():
        for kind, steps, pair in (
            (
                "Langevin",
                LANGEVIN,
                (ours(mine, ula(langevin)), theirs(samplers.LangevinDynamics(other, step_size=langevin))),
            ),
            (
                "Hamiltonian",
                HAMILTON,
                (
                    ours(mine, hmc(leap, LEAPFROG)),
                    theirs(samplers.HamiltonianMonteCarlo(other, step_size=leap, n_leapfrog_steps=LEAPFROG)),
                ),
            ),
        ):
            for chains in CHAINS:
                x = 0.5 * torch.randn(chains, 2, generator=torch.Generator().manual_seed(1))
                seconds = timed(pair, x, steps, given.repeats)
                worth = [effective(walk, x[:1000], steps) for walk in pair] if chains == 1000 else None
                gain = "" if worth is None else f"{worth[0] / worth[1]:.2f}"
                rows.append([name, kind, f"{chains:,}", steps, f"{seconds[1] / seconds[0]:.2f}", gain])
                print(rows[-1], flush=True)
    notes = (
        f"Medians of {given.repeats} turns, taken one after the other; ratios above 1: conca is faster. torchebm 0.8.9, float32. Effective "
        "samples of 1,000 chains, the least over both coordinates, of places that are all kept, from one turn. Leapfrog steps: 10. Where "
        "the energy is a network, its own products and their derivatives, which both ask of PyTorch alike, take nearly all of the time."
    )
    header = ("target", "chains of", "chains", "steps", "times as fast", "times the effective samples a second")
    record(
        f"torchebm_chains{'' if given.threads == 1 else f'_{given.threads}'}",
        "Chains beside torchebm",
        header,
        rows,
        notes,
    )


def timed(pair: tuple[Walk, Walk], x: Tensor, steps: int, repeats: int) -> list[float]:
    """Median seconds of both."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for walk, times in zip(pair, spent):
            begin = time.perf_counter()
            walk(x, steps, False)
            times.append(time.perf_counter() - begin)
    return [median(times[1:]) for times in spent]


def effective(walk: Walk, x: Tensor, steps: int) -> float:
    """Effective samples a second of squares."""
    begin = time.perf_counter()
    chain = walk(x, steps, True)
    spent = time.perf_counter() - begin
    return float(effective_sample_size(chain.square()).min()) / spent


if __name__ == "__main__":
    main()
