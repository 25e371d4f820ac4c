"""Two valleys: moments that are known, met by an exact chain, and missed by one that does not reject."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.energy import DoubleWell, Energy, Gaussian, Kernel, mala, sample, ula
from conca.report.drawing import COLOURS, INK, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["wells"]

MOMENTS = {1.0: (0.83275, 0.67993), 2.0: (0.85214, 0.34424), 4.0: (0.91767, -0.05357)}
"""E[x^2] and log Z of exp(-height (x^2 - 1)^2), by quadrature."""
CHAINS, WARM, STEPS = 2000, 200, 400
STEP = 0.2
"""Of the chains on the bowl."""


def wells() -> Stop:
    """Double wells of three heights, and a bowl on which the bias of an unadjusted chain is known."""
    claims, kept = [], torch.empty(0)
    for height, (square, log_z) in MOMENTS.items():
        well = DoubleWell(height)
        chain = walk(well, 0.15 / height)
        kept = chain if height == 2.0 else kept
        claims.append(Claim(f"E[x^2], height {height:g}, by mala", square, *mean_square(chain)))
        claims.append(Claim(f"log Z, height {height:g}, summed on a grid", log_z, log_sum(well), 2e-5))
    bowl = Gaussian(torch.zeros(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    rough = mean_square(walk(bowl, STEP, ula(STEP)))
    claims += [
        Claim(f"N(0, 1) by ula, step {STEP:g}: E[x^2] = 1 / (1 - step / 2)", 10 / 9, *rough),
        Claim("the same by mala: E[x^2]", 1.0, *mean_square(walk(bowl, STEP))),
    ]
    reading = (
        "A chain that tests its steps visits each valley as often as the energy says; one that does not, errs by the size of its step "
        "however long it walks. The bars are where two thousand chains have been, the line is exp(-E) / Z."
    )
    return Stop("Two valleys, visited rightly", reading, claims, picture(kept))


def mean_square(chain: Tensor) -> tuple[float, float]:
    """Mean of x^2 over all chains, and four standard errors of it: the chains do not know each other."""
    each = chain.square().mean(0).flatten()
    return float(each.mean()), 4 * float(each.std()) / len(each) ** 0.5


def walk(energy: Energy, size: float, kernel: Kernel[Energy, Any] | None = None) -> Tensor:
    """Places (kept, CHAINS, 1) of chains that begin in both valleys alike, after they have warmed up."""
    draw = torch.Generator().manual_seed(0)
    start = torch.ones(CHAINS, 1, dtype=torch.float64)
    start[::2] = -1.0
    chain, _ = sample(
        energy, mala(size) if kernel is None else kernel, start, steps=WARM + STEPS, thin=10, generator=draw
    )
    return chain[WARM // 10 :]


def log_sum(energy: Energy) -> float:
    """log of the integral of exp(-E) from -4 to 4."""
    x = torch.linspace(-4, 4, 80_001, dtype=torch.float64)[:, None]
    return float(torch.logsumexp(-energy(x), 0)) + math.log(1e-4)


def picture(chain: Tensor) -> Picture:
    """Where the chains have been, beside the density, height 2."""
    figure, (axes,) = canvas()
    x = torch.linspace(-2, 2, 401, dtype=torch.float64)[:, None]
    density = torch.exp(-DoubleWell(2.0)(x) - MOMENTS[2.0][1])
    axes.hist(
        chain.flatten().numpy(),
        bins=80,
        range=(-2, 2),
        density=True,
        color=COLOURS[0],
        alpha=0.5,
        label="chains, by mala",
    )
    axes.plot(x[:, 0].tolist(), density.tolist(), color=INK, lw=1.3, label="exp(-E) / Z")
    label(axes, "x", "density")
    key(axes)
    words = f"Double well of height 2: E[x^2] is {float(chain.square().mean()):.4f} over {chain.numel():,} places, 0.8521 by the theory."
    return Picture(svg_of(figure, "wells"), words, words)
