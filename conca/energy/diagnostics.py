"""Whether chains can be believed: effective sample size, split R-hat, its nested form for many short chains, energy gap.

Chains are of shape (steps, B, ...), as `sample` gives them: B chains, each coordinate (...) for itself. What is not finite, and
chains too short to say something of, give NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from conca.energy.draws import whole
from conca.energy.energy import Energy
from conca.types import BadInput

__all__ = ["acceptance", "effective_sample_size", "energy_gap", "nested_rhat", "split_rhat"]


def acceptance(info: Mapping[str, Tensor]) -> Tensor:
    """Share of accepted proposals of each chain, (B,), of what `sample` reports. Raises BadInput where the kernel tests nothing."""
    if "accepted" not in info:
        raise BadInput("this kernel accepts all: only those that test their steps (mala, hmc) report acceptance")
    return info["accepted"].mean(0)


def energy_gap(energy: Energy, x: Tensor, x_model: Tensor) -> float:
    """mean E(data) - mean E(chains): near 0 where a model has learnt, far from it where chains and data are apart.

    Args:
        energy: asked without gradients.
        x, x_model: data (B, ...) and chains (C, ...).

    Source: Nijkamp et al. 2020, d_s of "On the Anatomy of MCMC-Based Maximum Likelihood Learning".
    """
    with torch.no_grad():
        return float(energy(x).mean() - energy(x_model).mean())


def effective_sample_size(chain: Tensor, kind: str = "bulk") -> Tensor:
    """How many independent draws say as much of a mean as these correlated ones, for each coordinate, (...).

    Args:
        chain: (steps, B, ...), 4 steps or more.
        kind: "bulk" (of ranks, so that heavy tails do no harm; above 400 is asked for), "tail" (the least of both 5% ends),
            or "mean" (of the values as they are).

    Raises:
        BadInput: for another kind, or what is no chain.

    Source: Geyer 1992, initial monotone sequence; Vehtari et al. 2021, "Rank-normalization, folding, and localization: An
    improved R-hat".
    """
    x = _checked(chain)
    if kind == "bulk":
        return _ess(_ranked(_split(x)))
    if kind == "mean":
        return _ess(_split(x))
    if kind != "tail":
        raise BadInput(f"kind must be 'bulk', 'tail' or 'mean', not {kind!r}")
    flat = x.reshape(-1, *x.shape[2:])
    ends = [_ess(_split((x <= _quantile(flat, q)).to(x.dtype))) for q in (0.05, 0.95)]
    return torch.minimum(*ends)


def split_rhat(chain: Tensor) -> Tensor:
    """How much further apart halves of chains are than they are wide, for each coordinate, (...): below 1.01 they agree.

    Rank-normalised, of the values and of their distance from the median, whichever is larger.

    Args:
        chain: (steps, B, ...), 4 steps or more; of a single chain its halves are compared.

    Source: Gelman & Rubin 1992; Vehtari et al. 2021.
    """
    x = _split(_checked(chain))
    ordered = x.reshape(-1, *x.shape[2:]).sort(0).values
    median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return torch.maximum(_rhat(_ranked(x)), _rhat(_ranked((x - median).abs())))


def nested_rhat(chain: Tensor, superchains: int) -> Tensor:
    """R-hat of many short chains, for each coordinate, (...): chains are grouped, those of a group began at one place.

    Also of a single step each: it asks whether the groups have forgotten where they began.

    Args:
        chain: (steps, B, ...); the first B / superchains chains are the first group, and so on.
        superchains: how many groups, 2 or more, with 2 or more chains each where there is one step.

    Raises:
        BadInput: where B cannot be divided by it.

    Source: Margossian et al. 2024, "Nested R-hat: Assessing the Convergence of Markov Chain Monte Carlo When Running Many
    Short Chains", eq. 6.
    """
    x, superchains = _checked(chain, least=1), whole(superchains, "the number of groups")
    steps, batch = x.shape[:2]
    if superchains < 2 or batch % superchains or (steps == 1 and batch == superchains):
        raise BadInput(
            f"{batch} chains of {steps} steps cannot be parted into {superchains} groups of more than one value each"
        )
    grouped = x.reshape(steps, superchains, batch // superchains, *x.shape[2:])
    means = grouped.mean(0)  # of each chain (K, M, ...)
    own = means.mean(1)
    between = own.var(0, unbiased=True)
    among = means.var(1, unbiased=True) if means.shape[1] > 1 else torch.zeros_like(own)
    within = grouped.var(0, unbiased=True).mean(1) if steps > 1 else torch.zeros_like(own)
    return (1 + between / (among + within).mean(0)).sqrt()


def _checked(chain: Tensor, least: int = 4) -> Tensor:
    if not isinstance(chain, Tensor) or chain.dim() < 2 or not chain.is_floating_point():
        found = f"{chain.dtype} of shape {tuple(chain.shape)}" if isinstance(chain, Tensor) else type(chain).__name__
        raise BadInput(f"chains are floating point of shape (steps, B, ...), as sample gives them, not {found}")
    if len(chain) < least or not chain.shape[1]:
        raise BadInput(f"{least} steps or more of one chain or more are needed, not {len(chain)} of {chain.shape[1]}")
    return chain.double()


def _split(x: Tensor) -> Tensor:
    """Each chain as two, its halves (the step in the middle of an odd number is left out): (steps // 2, 2 B, ...)."""
    half = len(x) // 2
    return torch.cat([x[:half], x[len(x) - half :]], 1)


def _ranked(x: Tensor) -> Tensor:
    """Each value by its rank among all, as the quantile of a normal distribution (ties share the mean of theirs)."""
    flat = x.reshape(x.shape[0] * x.shape[1], -1)
    ordered, order = flat.sort(0)
    first = torch.searchsorted(ordered.mT.contiguous(), ordered.mT.contiguous(), right=False)
    last = torch.searchsorted(ordered.mT.contiguous(), ordered.mT.contiguous(), right=True)
    rank = (first + last + 1).mT.double() / 2
    ranks = torch.empty_like(flat).scatter_(0, order, rank)
    normal = math.sqrt(2) * torch.erfinv(2 * ((ranks - 0.375) / (len(flat) + 0.25)) - 1)
    return torch.where(x.isfinite(), normal.reshape(x.shape), float("nan"))


def _quantile(flat: Tensor, q: float) -> Tensor:
    """Of (n, ...) over the first axis, between the two nearest values in proportion."""
    ordered = flat.sort(0).values
    place = q * (len(flat) - 1)
    low = int(place)
    high = min(low + 1, len(flat) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _rhat(x: Tensor) -> Tensor:
    steps = len(x)
    between = steps * x.mean(0).var(0, unbiased=True)
    within = x.var(0, unbiased=True).mean(0)
    return ((between / within + steps - 1) / steps).sqrt()


def _ess(x: Tensor) -> Tensor:
    """Of chains that are split already, (steps, chains, ...)."""
    steps, chains = x.shape[:2]
    flat = x.reshape(steps, chains, -1)
    found = _ess_flat(flat)
    bad = ~flat.isfinite().all(0).all(0) | (
        flat.amax((0, 1)) - flat.amin((0, 1)) < torch.finfo(torch.float64).resolution
    )
    found = torch.where(bad, torch.where(flat.isfinite().all(0).all(0), float(steps * chains), float("nan")), found)
    return found.reshape(x.shape[2:])


def _ess_flat(x: Tensor) -> Tensor:
    """(steps, chains, D) to (D,)."""
    steps, chains = x.shape[:2]
    covariance = _autocovariance(x)  # (steps, chains, D)
    mean_variance = covariance[0].mean(0) * steps / (steps - 1)
    plus = mean_variance * (steps - 1) / steps
    if chains > 1:
        plus = plus + x.mean(0).var(0, unbiased=True)
    rho = 1 - (mean_variance - covariance.mean(1)) / plus  # (steps, D)
    rho[0] = 1.0
    pairs = max(1, (steps - 1) // 2)
    even, odd = rho[0 : 2 * pairs : 2], torch.cat([rho, torch.zeros_like(rho[:1])])[1 : 2 * pairs : 2]
    total = even + odd
    kept = torch.cumprod((total > 0).int(), 0)[
        :-1
    ].bool()  # pairs before the first that is not positive; never the last
    low = torch.cummin(torch.where(kept, total[:-1], math.inf), 0).values if pairs > 1 else total[:0]
    after = kept.sum(0)[None]  # the pair that follows: its first half counts once
    half = even.gather(0, after)[0]
    half = torch.where(total.gather(0, after)[0] >= 0, half, half.clamp(min=0))
    tau = -1 + 2 * torch.where(kept, low, 0).sum(0) + half
    size = steps * chains
    return size / tau.clamp(min=1 / math.log10(size))


def _autocovariance(x: Tensor) -> Tensor:
    """By FFT, biased (divided by the number of steps), (steps, ...)."""
    steps = len(x)
    length = 1 << (2 * steps - 1).bit_length()
    centred = x - x.mean(0)
    power = torch.fft.rfft(centred, n=length, dim=0).abs().square()
    found: Tensor = torch.fft.irfft(power, n=length, dim=0)
    return found[:steps] / steps
