"""The smoother: what a linear-Gaussian model believes of every state, given the whole series.

    r_{t-1} = Z' F^-1 v_t + (1 - K Z)' T' r_t              mean_t + P+ T' r_t
    C = P+ T' P^-1                                         V_t = (1 - C T) P+ (1 - C T)' + C (V_{t+1} + Q) C'

The pass back from the last sample sums up what later samples say of a state, and corrects what the filter knew after its own sample,
mean and P+ (P is the covariance predicted for the sample after it). The means need no inverse of P, so what is singular may be. The
covariance is a sum of positive parts, in Joseph's manner: where the first state is unknown (a variance of 1e6), the usual difference
P+ - P+ T' N T P+ loses ten digits, this form none that matters; P^-1 is a pseudo-inverse, whose choice does not count.
(Rauch, Tung and Striebel 1965; de Jong 1989; Durbin and Koopman 2012.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from conca.ops.kalman_pass import GaussianModel, KalmanState, Pass, forward_pass, symmetric
from conca.ops.linear_system import applied, over_time

__all__ = ["Smoothed", "kalman_smoother"]

RANK = 1e-14
"""Directions in which a scaled covariance is relatively smaller than this count as certain."""


class Smoothed(NamedTuple):
    """The state at each sample, given all samples; 0 past the length of a row."""

    mean_BTN: Tensor
    covariance_BTNN: Tensor


def kalman_smoother(
    y: Tensor, model: GaussianModel, state: KalmanState, *, lengths: Tensor | None = None, time: int = 0
) -> Smoothed:
    """Read y (B, T, O) from `state` on and look back. Arguments and errors as in `kalman_filter`."""
    found, _ = forward_pass(y, model, state, lengths, time)
    (B, T), N = y.shape[:2], state.mean_BN.shape[1]
    if T == 0:
        return Smoothed(y.new_zeros(B, 0, N), y.new_zeros(B, 0, N, N))
    moves, noises = over_time(model.transition, 2, T, time), over_time(model.state_noise, 2, T, time)
    mean_BTN = torch.stack(means(found, moves), 1)
    covariance_BTNN = torch.stack([part.expand(B, N, N) for part in covariances(found, moves, noises, lengths)], 1)
    if lengths is not None:
        past = torch.arange(T, device=y.device) >= lengths[:, None]
        mean_BTN = mean_BTN.masked_fill(past[..., None], 0)
        covariance_BTNN = covariance_BTNN.masked_fill(past[..., None, None], 0)
    return Smoothed(mean_BTN, covariance_BTNN)


def means(found: Pass, moves: tuple[Tensor, ...]) -> list[Tensor]:
    """The smoothed means, first sample first."""
    later = torch.zeros_like(found.mean[-1])
    back: list[Tensor] = []
    for t in reversed(range(len(moves))):
        pushed = applied(moves[t].mT, later)
        back.append(found.mean[t] + applied(found.covariance[t], pushed))
        later = applied(found.pull[t], found.innovation[t]) + applied(found.left[t].mT, pushed)
    return back[::-1]


def covariances(
    found: Pass, moves: tuple[Tensor, ...], noises: tuple[Tensor, ...], lengths: Tensor | None
) -> list[Tensor]:
    """The smoothed covariances, first sample first; what is the same for many samples is worked out once."""
    last = len(moves) - 1
    after = found.covariance[last]
    back = [after]
    seen: tuple[Tensor, ...] = ()
    for t in reversed(range(last)):
        own, ahead, move = found.covariance[t], found.predicted_covariance[t + 1], moves[t]
        if len(seen) != 3 or any(a is not b for a, b in zip(seen, (own, ahead, move))):
            seen = own, ahead, move
            weight = own @ move.mT @ inverse(ahead)
            kept = torch.eye(own.shape[-1], dtype=own.dtype, device=own.device) - weight @ move
            alone = kept @ own @ kept.mT
        after = symmetric(alone + weight @ (after + noises[t]) @ weight.mT)
        if lengths is not None:
            after = torch.where((t + 1 < lengths)[:, None, None], after, own)
        back.append(after)
    return back[::-1]


def inverse(covariance: Tensor) -> Tensor:
    """The pseudo-inverse of covariances (..., N, N), after each variance has been scaled to 1."""
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(variance > 0, variance, 1).rsqrt()
    scale = scale[..., None] * scale[..., None, :]
    scaled: Tensor = torch.linalg.pinv(covariance * scale, hermitian=True, rtol=RANK)
    return scale * scaled
