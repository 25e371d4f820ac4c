"""The first state of a system with noise where nothing is known of it: around which values, and how wide.

A very wide prior must be wide against the data, and no wider: digits are lost where it is more than about 1e10 times as wide as the
noise. So both its place and its width come from the series. Pieces of 2 N + 8 samples, from the first observation of each row on, are
each explained without noise, by least squares over the state at their beginning; what that leaves is how far the noise carries
the series in so few samples. The first piece says around which state the prior lies. Shifting a series by what the model can
follow, or measuring it in other units, then changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from conca.ops.kalman import GaussianModel
from conca.ops.linear_system import recur

__all__ = ["FAR", "WIDE", "Start", "follows", "unknown_start"]

WIDE = 1e6
"""The variance of an unknown state against that of the noise."""

FAR = 100.0
"""The variance of an unknown state against the square of its distance from where it is thought to be, at least."""

GONE = 1e-6
"""What of a first state is relatively smaller than this when a row begins does not count any more."""

EXACT = 1e-11
"""A series whose deviations are relatively smaller than this is one without noise."""


class Start(NamedTuple):
    """What a series says of the state at its first sample."""

    mean_BN: Tensor
    square: float
    """Mean square of what the model without noise leaves of a piece, in units of the state,"""
    noise: float
    """and the largest variance of the noise of the model, in the same units."""
    spread_BNN: Tensor
    """A covariance that is 1 in all directions when the first observation comes."""


@torch.no_grad()
def unknown_start(y: Tensor, model: GaussianModel, lengths: Tensor | None) -> Start:
    """Around which states, and on which scale, the first states of y (B, T, O) lie; NaN is what is missing. `model` is constant."""
    y = alone(y, model, lengths)
    B, T, O = y.shape  # noqa: E741
    N = model.transition.shape[-1]
    seen = ~y.isnan().all(-1)
    begins = torch.where(seen.any(1), seen.int().argmax(1), 0) if T else torch.zeros(B, dtype=torch.int64)
    length = max(1, min(T, 2 * N + 8))
    count = max(1, -(-T // length))
    places = begins.to(y.device)[:, None] + torch.arange(count * length, device=y.device)
    padded = torch.cat([y, y.new_full((B, 1, O), math.nan)], 1)
    pieces = padded.gather(1, places.clamp_max(T)[..., None].expand(-1, -1, O)).reshape(B * count, length * O)
    there, pieces = ~pieces.isnan(), pieces.nan_to_num()
    # Most pieces miss nothing: one inverse serves them all.
    kinds, kind = torch.unique(there, dim=0, return_inverse=True)
    views = observed_from(model, length) * kinds[..., None]
    inverses = torch.linalg.pinv(views, rtol=1e-10)
    first = torch.zeros(B * count, N, dtype=y.dtype, device=y.device)
    left, spare = y.new_zeros(()), int(there.sum())
    for i, (view, inverse) in enumerate(zip(views, inverses)):
        here = (kind == i).nonzero()[:, 0]
        first[here] = pieces[here] @ inverse.mT
        left = left + (pieces[here] - first[here] @ view.mT).square().sum()
        spare -= len(here) * round(float((view.mT * inverse).sum()))  # the trace is the rank
    mean = first.reshape(B, count, N)[:, 0].clone()
    spread = torch.eye(N, dtype=y.dtype, device=y.device).expand(B, N, N)
    for begin in sorted(set(begins[begins > 0].tolist())):
        late = begins == begin
        back = torch.linalg.pinv(torch.linalg.matrix_power(model.transition, begin), rtol=GONE)
        mean[late], spread = mean[late] @ back.mT, torch.where(late[:, None, None], back @ back.mT, spread)
    square = float(left / spare) if spare > 0 else 0.0
    if not square > EXACT**2 * largest_of(y.nan_to_num().square()):
        square = around(y)
    mean = torch.where(mean.isfinite(), mean, 0)
    unit = largest_of(model.design.square().sum(-1)) or 1.0
    noise = max(largest_of(model.observation_noise.diagonal()) / unit, largest_of(model.state_noise.diagonal()))
    return Start(mean, square / unit if math.isfinite(square) else 0.0, noise, spread)


@torch.no_grad()
def follows(y: Tensor, model: GaussianModel, lengths: Tensor | None) -> bool:
    """Whether the model explains all of y without any noise, from the first states it finds."""
    start = unknown_start(y, model, lengths)
    y = alone(y, model, lengths)
    x, T = start.mean_BN, model.transition
    bound = EXACT * largest_of(y.nan_to_num().abs())
    for y_BO in y.unbind(1):
        if largest_of((y_BO - x @ model.design.mT).abs().nan_to_num()) > bound:
            return False
        x = x @ T.mT
    return True


def alone(y: Tensor, model: GaussianModel, lengths: Tensor | None) -> Tensor:
    """y less what known inputs and offsets add to it; NaN past the length of a row."""
    if model.offset is not None:
        y = y - model.offset
    if model.drive is not None:
        one = torch.eye(model.transition.shape[-1], dtype=y.dtype, device=y.device)
        begin = y.new_zeros(len(y), len(one))
        y = y - recur(model.transition, one, model.design, None, model.drive.expand(*y.shape[:2], -1), begin)[0]
    if lengths is not None:
        y = y.masked_fill((torch.arange(y.shape[1], device=y.device) >= lengths[:, None])[..., None], math.nan)
    return y


def observed_from(model: GaussianModel, length: int) -> Tensor:
    """C, C A, C A^2, ... one below the other: what is observed from a state on, without noise, (length * O, N)."""
    rows = [model.design]
    for _ in range(length - 1):
        rows.append(rows[-1] @ model.transition)
    return torch.cat(rows)


def largest_of(values: Tensor) -> float:
    """The largest of them; 0 of none."""
    return float(values.max()) if values.numel() else 0.0


def around(y: Tensor) -> float:
    """The mean square of a series around its mean; around 0, where it is constant."""
    there = ~y.isnan()
    count = int(there.sum())
    if not count:
        return 0.0
    values = y.nan_to_num()
    mean = values.sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp_min(1)
    spread = float(((values - mean).square() * there).sum() / count)
    whole = float(values.square().sum() / count)
    return spread if spread > EXACT**2 * whole else whole
