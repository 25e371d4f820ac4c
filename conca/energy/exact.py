"""Exact references: log Z on a grid, by enumeration, and by annealed importance sampling, which is exact in expectation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from conca.energy.chain import Chains, Divergence, Kernel
from conca.energy.draws import whole
from conca.energy.energy import Energy
from conca.types import BadInput

__all__ = ["ais", "log_z_enumerate", "log_z_grid"]

MOST = 1 << 26
"""Points of a grid, or of an enumeration."""
BLOCK = 1 << 16
"""Points that an energy is asked about at once."""


def log_z_grid(energy: Energy, low: float, high: float, points: int) -> Tensor:
    """log of the integral of exp(-E) over a box, by the midpoint rule, shape (); memory does not grow with the grid.

    Args:
        energy: of points with one to three coordinates, which `energy.shape` tells; a scalar where that is None.
        low, high: of the box, in every coordinate.
        points: along each side; their number is the power of it.

    Raises:
        BadInput: for more than three coordinates (use `ais`), or a box or grid that cannot be.
        Divergence: where an energy is not a number.
    """
    shape = (1,) if energy.shape is None else energy.shape
    size = math.prod(shape)
    whole(points, "points of a grid")
    if not (low < high and math.isfinite(high - low)):
        raise BadInput(f"the box goes from low to high, low below high, not from {low} to {high}")
    if size > 3:
        raise BadInput(f"a grid serves up to three coordinates, and this energy has {size}; use ais")
    if points**size > MOST:
        raise BadInput(f"a grid of {points}^{size} points is not summed; up to 2^26 points are, take fewer")
    like = _like(energy)
    cell = (high - low) / points
    side = low + cell * (torch.arange(points, dtype=like.dtype, device=like.device) + 0.5)
    return _summed(energy, side, size, shape) + size * math.log(cell)


def log_z_enumerate(energy: Energy, values: Sequence[float], size: int | None = None) -> Tensor:
    """log of the sum of exp(-E) over all points whose coordinates take these values, shape ().

    Args:
        energy: of discrete points, such as spins.
        values: that a coordinate may take.
        size: how many coordinates, where `energy.shape` does not tell it.

    Raises:
        BadInput: for more than 2^26 points, or values that are none, repeated or not finite.
        Divergence: where an energy is not a number.
    """
    shape = energy.shape if size is None else (size,)
    if shape is None:
        raise BadInput("the energy does not tell the shape of a point: give size")
    count = math.prod(shape)
    if not values or len(set(values)) < len(values) or not all(map(math.isfinite, values)):
        raise BadInput(f"values are one or more numbers, each once, such as (-1, 1), not {values}")
    if len(values) ** count > MOST:
        raise BadInput(
            f"{len(values)} values of {count} coordinates are not enumerated; up to 2^26 points are, use ais"
        )
    like = _like(energy)
    return _summed(energy, torch.tensor(list(values), dtype=like.dtype, device=like.device), count, shape)


def ais(
    energy: Energy,
    base: Energy,
    kernel: Kernel[Any, Any],
    x: Tensor,
    levels: int | Sequence[float],
    *,
    log_z: float = 0.0,
    steps: int = 1,
    generator: torch.Generator,
) -> tuple[float, float]:
    """(log Z, its standard error) by annealed importance sampling from a base whose log Z is known.

    On the way E_b = (1 - b) E_base + b E, from b = 0 to 1; each chain weighs what its walk has gained, and the mean of the
    weights has the expectation Z. The error is that of the logarithm of this mean, from how the weights of the chains
    vary; it cannot tell of valleys that no chain found.

    Args:
        energy: whose log Z is asked for.
        base: with the same x, such as a `Gaussian` (normalised: log_z 0).
        kernel: exact for every E_b, such as `mala(...)`, `hmc(...)`, `gibbs(values)`.
        x: independent draws of the base, (B, ...), `base.draw(n, generator)`.
        levels: how many, evenly spaced, or all values of b in between, rising from 0 to 1.
        log_z: of the base.
        steps: of the kernel on each level.
        generator: as in `sample`.

    Raises:
        BadInput: for a kernel that is not exact, levels that do not rise from 0 to 1, or fewer than two chains.
        Divergence: where an energy is not a number.

    Source: Neal 2001, "Annealed importance sampling".
    """
    if not getattr(kernel, "exact", False):
        raise BadInput(f"annealed importance sampling needs a kernel that is exact (mala, hmc, gibbs), not {kernel}")
    between = [k / whole(levels, "levels") for k in range(levels + 1)] if isinstance(levels, int) else list(levels)
    if len(between) < 2 or between[0] != 0 or between[-1] != 1 or between != sorted(set(between)):
        raise BadInput("levels rise from 0 to 1, such as [0, 0.1, 0.5, 1]")
    if not math.isfinite(log_z):
        raise BadInput(f"log_z of the base must be finite, not {log_z}")
    if len(x) < 2:
        raise BadInput(f"two chains or more tell how sure the result is, not {len(x)}")
    gained = x.new_zeros(len(x))
    for before, b in pairwise(between):
        with torch.no_grad():
            gained = gained + (b - before) * (base(x) - energy(x))
        _numbers(gained)
        if b < 1:
            mixed = base * (1 - b) + energy * b
            x = Chains(mixed, kernel, x, generator=generator).run(steps, steps)[0][-1]
    gained = gained.double()
    mean = float(torch.logsumexp(gained, 0)) - math.log(len(gained))
    weights = (gained - mean).exp()
    return log_z + mean, float(weights.std() / len(weights) ** 0.5)


def _summed(energy: Energy, side: Tensor, size: int, shape: tuple[int, ...]) -> Tensor:
    """log sum exp(-E) over all points whose coordinates are among `side`, block by block."""
    total, count = torch.tensor(-math.inf, dtype=torch.float64), len(side) ** size
    with torch.no_grad():
        for begin in range(0, count, BLOCK):
            number = torch.arange(begin, min(begin + BLOCK, count), device=side.device)
            digits = [number // len(side) ** k % len(side) for k in range(size)]
            x = torch.stack([side[digit] for digit in digits], 1) if size else side.new_empty(len(number), 0)
            height = energy(x.reshape(len(number), *shape)).double()
            _numbers(height)
            total = torch.logaddexp(total, torch.logsumexp(-height, 0).cpu())
    return total


def _numbers(energy: Tensor) -> None:
    if bool(energy.isnan().any()):
        raise Divergence(0, float("nan"), float("nan"), int(energy.isnan().sum()), len(energy), training=True)


def _like(energy: Energy) -> Tensor:
    """A tensor of the precision and on the device of an energy."""
    tensors = (t for t in (*energy.parameters(), *energy.buffers()) if t.is_floating_point())
    return next(tensors, torch.empty(0, dtype=torch.float64))
