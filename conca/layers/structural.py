"""Structural time series: a level, its trend, a season, each with noise of its own, and noise on what is observed.

    level_{t+1} = level_t + trend_t + noise                trend_{t+1} = trend_t + noise
    season (dummy): the s seasons sum to noise             season_{t+1} = -(season_t + ... + season_{t-s+2}) + noise
    season (trigonometric): for each harmonic j a pair that turns by 2 pi j / s from sample to sample, with noise

(Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 1989.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conca.layers.kalman import GaussianSystem
from conca.layers.linear_system import LinearSystem
from conca.types import BadInput, nearest

__all__ = ["structural"]

Part = tuple[Tensor, Tensor, Tensor]
"""Transition (N, N), what of it is observed (N), where its noises enter (N, K)."""


def structural(
    *,
    level: bool = True,
    trend: bool = False,
    seasonal: int | None = None,
    harmonics: int | None = None,
    variances: dict[str, float] | None = None,
    diffuse: float | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> GaussianSystem:
    """A model of one observed number, as the sum of its parts, of whose first state nothing is known.

    >>> structural().names, structural(trend=True, seasonal=12).names
    (('irregular', 'level'), ('irregular', 'level', 'trend', 'seasonal'))

    Args:
        level: the local level.
        trend: the level has a trend (needs `level`).
        seasonal: number of samples in a season: dummy seasons, seasonal - 1 states.
        harmonics: with `seasonal`: trigonometric seasons with so many harmonics, two states each, one variance.
        variances: "irregular", "level", "trend", "seasonal" at the start, 1 if not given; one of 0 stays 0, so that its part is
            deterministic. `fit` finds the rest: only the variances are learnt.
        diffuse: variance of the first state, of which nothing is known, around 0; large against the data, and not 1e10 times as
            large. None finds it, and around what, in the series (`GaussianSystem.init_state`).

    Raises:
        BadInput: for no part at all, a trend without level, a season shorter than 2, more harmonics than it has, an unknown variance.
    """
    if (trend and not level) or not (level or seasonal is not None) or (harmonics is not None and seasonal is None):
        raise BadInput(
            "structural: a trend needs a level, harmonics need a season, and there must be a level or a season"
        )
    parts = [*([level_part(trend)] if level else []), *([] if seasonal is None else [season_part(seasonal, harmonics)])]
    names = [
        "irregular",
        *(["level"] if level else []),
        *(["trend"] if trend else []),
        *(["seasonal"] if seasonal else []),
    ]
    given = variances or {}
    for name in given:
        if name not in names:
            raise BadInput(f"structural: there is no variance {name!r}; {nearest(name, names)}")
    values = torch.tensor([given.get(name, 1.0) for name in names], dtype=dtype, device=device)
    A, noise = (blocks([part[i] for part in parts]).to(device, dtype) for i in (0, 2))
    C = torch.cat([part[1] for part in parts])[None].to(device, dtype)
    counts = [torch.arange(2 if trend else 1)] if level else []
    if seasonal is not None:
        counts.append(torch.full((parts[-1][2].shape[1],), len(names) - 2))
    system = LinearSystem.discrete(A, A.new_zeros(len(A), 0), C)
    return GaussianSystem(
        system,
        state_noise=values[1:],
        observation_noise=values[:1],
        noise_input=noise,
        tied=torch.cat(counts).to(device),
        diffuse=diffuse,
        names=tuple(names),
    )


def level_part(trend: bool) -> Part:
    """The local level, or the local linear trend."""
    if not trend:
        return torch.eye(1), torch.ones(1), torch.eye(1)
    return torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0]), torch.eye(2)


def season_part(length: int, harmonics: int | None) -> Part:
    """Dummy seasons, or trigonometric ones."""
    if isinstance(length, bool) or not isinstance(length, int) or length < 2:
        raise BadInput(f"structural: a season has 2 samples or more, got seasonal={length}")
    if harmonics is not None and not 1 <= harmonics <= length // 2:
        raise BadInput(
            f"structural: a season of {length} samples has from 1 to {length // 2} harmonics, got {harmonics}"
        )
    if harmonics is None:
        size = length - 1
        A = torch.diag(torch.ones(size - 1), -1)
        A[0] = -1
        first = torch.eye(size)[:, :1]
        return A, first[:, 0], first
    turns = []
    for j in range(1, harmonics + 1):
        c, s = math.cos(2 * math.pi * j / length), math.sin(2 * math.pi * j / length)
        turns.append(torch.tensor([[c, s], [-s, c]], dtype=torch.float64))
    return blocks(turns), torch.tensor([1.0, 0.0]).repeat(harmonics), torch.eye(2 * harmonics)


def blocks(parts: list[Tensor]) -> Tensor:
    """A matrix of blocks along the diagonal."""
    joined: Tensor = torch.block_diag(*parts)  # type: ignore[no-untyped-call]
    return joined
