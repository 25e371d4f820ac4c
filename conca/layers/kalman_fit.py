"""Parameters of a system with noise, fitted by the slope of the likelihood: several short runs of L-BFGS, the best to its end.

Multiplying all variances by s changes the log-likelihood of n observations to l - n log(s) / 2 + q (1 - 1 / s) / 2, where q is the
sum of squared innovations over their variances; so q follows from two likelihoods, and s = q / n brings any start to the scale of
the data. (Harvey 1989, 3.4; Nocedal 1980.)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from conca.types import BadInput

__all__ = ["Fit", "maximise"]

SHORT = 12
"""Steps of the runs among which one is chosen."""


class Fit(NamedTuple):
    """How a fit went."""

    log_likelihood: float
    steps: int
    converged: bool
    words: str


def maximise(
    learnt: list[nn.Parameter],
    noises: tuple[nn.Parameter, nn.Parameter],
    likelihood: Callable[[], Tensor],
    count: int,
    steps: int,
    starts: tuple[float, ...],
    tolerance: float,
) -> Fit:
    """Bring `learnt` to a maximum of `likelihood()`, the log-likelihood of `count` numbers.

    Args:
        noises: logarithms of the variances of state and observation.
        steps, starts, tolerance: as in `GaussianSystem.fit`.

    Raises:
        BadInput: where there is nothing to fit, or nothing to fit it to, and where no start has a likelihood.
    """
    if not learnt or count < 1 or not starts:
        raise BadInput(
            f"fit: {len(learnt)} parameters, {count} observations beyond those that the unknown first state uses up, "
            f"{len(starts)} starts: there must be some of each"
        )
    first = [p.detach().clone() for p in learnt]
    best, chosen = math.inf, first
    for start in starts:
        put(learnt, first)
        if all(noise.requires_grad for noise in noises):
            shift(noises[:1], start)
            rescale(noises, likelihood, count)
        loss, _ = descend(learnt, likelihood, count, SHORT, tolerance)
        if loss < best:
            best, chosen = loss, [p.detach().clone() for p in learnt]
    put(learnt, chosen)
    if not math.isfinite(best):
        raise BadInput("fit: the likelihood is not finite at any start; look at y, and at the matrices of the system")
    loss, done = descend(learnt, likelihood, count, steps, tolerance)
    slope = count * max(float(p.grad.abs().max()) for p in learnt if p.grad is not None and p.numel())
    converged = slope <= 10 * tolerance
    words = f"{'converged' if converged else 'not converged'} after {done} steps, slope {slope:.1e} at most"
    if not converged:
        warnings.warn(f"fit of a GaussianSystem: {words}; give more steps or other starts", stacklevel=3)
    return Fit(-loss * count, done, converged, words)


def put(learnt: list[nn.Parameter], values: list[Tensor]) -> None:
    """Write values into parameters."""
    with torch.no_grad():
        for parameter, value in zip(learnt, values):
            parameter.copy_(value)


def shift(noises: tuple[nn.Parameter, ...], factor: float) -> None:
    """Multiply variances that are kept as logarithms."""
    with torch.no_grad():
        for noise in noises:
            noise.add_(math.log(factor))


def rescale(noises: tuple[nn.Parameter, nn.Parameter], likelihood: Callable[[], Tensor], count: int) -> None:
    """Multiply all variances by one factor, the best."""
    for _ in range(2):
        with torch.no_grad():
            here = float(likelihood())
            shift(noises, 4.0)
            there = float(likelihood())
        square = (count * math.log(4) - 2 * (here - there)) / 0.75
        shift(noises, (square / count if math.isfinite(square) and square > 0 else 1.0) / 4)


def descend(
    learnt: list[nn.Parameter], likelihood: Callable[[], Tensor], count: int, steps: int, tolerance: float
) -> tuple[float, int]:
    """L-BFGS on the mean; the loss at its end (infinite where there is none) and the number of steps."""
    optimiser = torch.optim.LBFGS(
        learnt,
        max_iter=steps,
        tolerance_grad=tolerance / count,
        tolerance_change=1e-13,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -likelihood() / count
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    try:
        optimiser.step(closure)  # type: ignore[no-untyped-call]
        loss = float(closure().detach())
    except BadInput:
        return math.inf, 0
    return loss if math.isfinite(loss) else math.inf, int(optimiser.state[learnt[0]]["n_iter"])
