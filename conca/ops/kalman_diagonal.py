"""The Kalman filter of components that decay on their own, seen through one number: a few small operations a sample.

    x_i(t) = d_i^e x_i(t - e) + eta_i,  cov(eta_i, eta_j) = q_ij (1 - (d_i d_j)^e) / (1 - d_i d_j)          y_t = z_t . x_t + eps

e is the time since the sample before, whole or not: one step of e = 3 is three steps of e = 1 without samples, exactly. q is the
noise of one nominal step, q_ij e where d_i d_j = 1. Mean and covariance lie side by side in one matrix (N, N + 1), so that one
product with z_t gives what is expected and how it covaries, and one product of rank one is the update; the general filter
(`conca.ops.kalman`) takes several products of N x N matrices instead. (Kalman 1960; Durbin and Koopman 2012, 6.4, on samples that
are numbers.)

N components, R samples that are asked for. The kernel, where there is one, computes in double precision and is differentiated once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from conca.ops import bodies
from conca.ops.doors import apply, has_kernel

__all__ = ["Belief", "DiagonalModel", "Read", "diagonal_filter", "spread_of"]


class Belief(NamedTuple):
    """What is known of the components, given all samples so far."""

    mean_BN: Tensor
    covariance_BNN: Tensor


class DiagonalModel(NamedTuple):
    """Components and noise of every row of the batch."""

    decay_BN: Tensor
    """d, above 0 and at most 1."""
    noise_BNN: Tensor
    """q, of one nominal step."""
    error_B: Tensor
    """Variance of eps, above 0."""


class Read(NamedTuple):
    """A series read from front to back."""

    innovation_BT: Tensor
    """Observed less expected; 0 where missing, and past the length of a row."""
    variance_BT: Tensor
    """Of the innovation, as expected before; 1 past the length of a row."""
    seen_BT: Tensor
    """Which samples were there (bool)."""
    asked: Belief
    """After the samples that were asked for: mean (B, R, N) and covariance (B, R, N, N)."""
    last: Belief
    """After the last valid sample."""


class _Steps(NamedTuple):
    """What the bodies take, double precision in the kernel; `kept` and `grown` are the two forms of noise."""

    y_BT: Tensor
    seen_BT: Tensor
    design_BTN: Tensor
    left_BTN: Tensor
    """d^e; one step where e is 1 everywhere."""
    gone_BT: Tensor
    """e, alike."""
    kept_BNN: Tensor
    """q / (1 - d d'), what noise comes to in the end; 0 where d d' is 1,"""
    grown_BNN: Tensor
    """and there q, which grows with e; 0 elsewhere."""
    error_B: Tensor
    both_BNM: Tensor
    """Covariance and mean before the first sample, (B, N, N + 1)."""


def spread_of(decay: Tensor, elapsed: Tensor) -> Tensor:
    """How much of the noise of one step gathers in `elapsed` steps: (1 - d^e) / (1 - d), e where d is 1; shapes broadcast."""
    gap = 1 - decay
    safe = torch.where(gap > 0, gap, 1.0)
    return torch.where(gap > 0, (1 - decay**elapsed) / safe, elapsed)


def lost(left: Tensor) -> Tensor:
    """1 - d d' of the pairs of (..., N), (..., N, N): no digits are lost where both are near 1, and it is 0 only where both are 1."""
    gone = 1 - left
    return gone[..., :, None] + gone[..., None, :] - gone[..., :, None] * gone[..., None, :]


def diagonal_filter(
    y: Tensor,
    design: Tensor,
    model: DiagonalModel,
    belief: Belief,
    *,
    lengths: Tensor | None = None,
    elapsed: Tensor | None = None,
    rows: Tensor | None = None,
) -> Read:
    """Read the series y (B, T) from `belief` on.

    Args:
        y: samples, NaN where missing.
        design: z (B, T, N).
        lengths: (B,) integers. Rows are right-padded; the padding may hold anything.
        elapsed: (B, T) time since the sample before, in nominal steps; None: 1. It gets no gradient.
        rows: (R,) increasing indices of samples after which the belief is asked for; None: all.
    """
    B, T, _ = design.shape
    ends = torch.full((B,), T, device=y.device) if lengths is None else lengths
    live = torch.arange(T, device=y.device) < ends[:, None]
    seen = ~torch.isnan(y) & live
    d, q = model.decay_BN, model.noise_BNN
    gap = lost(d)
    fades = gap > 0
    gone = y.new_ones(B, 1) if elapsed is None else torch.where(live, elapsed.detach(), 0)
    steps = _Steps(
        torch.where(seen, y, 0),
        seen,
        torch.where(live[..., None], design, 0),
        d[:, None] if elapsed is None else d[:, None] ** gone[..., None],
        gone,
        torch.where(fades, q / torch.where(fades, gap, 1.0), 0),
        torch.where(fades, 0, q),
        model.error_B,
        torch.cat([belief.covariance_BNN, belief.mean_BN[..., None]], -1),
    )
    every = torch.arange(T) if rows is None else rows.cpu()
    if y.dtype == torch.float64 and min(design.shape) > 0 and has_kernel("diagonal_filter", y.device.type):
        places = torch.full((T,), -1).index_put((every,), torch.arange(len(every)))
        innovation, variance, asked, last = apply(_Filter, *steps, ends, places)
    else:
        innovation, variance, asked, last = _plain(steps, None if lengths is None else live, set(every.tolist()))
    return Read(innovation, variance, seen, _parted(asked), _parted(last))


def _plain(steps: _Steps, live: Tensor | None, wanted: set[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loop over samples in plain PyTorch; `live` where rows end early."""
    B, T, N = steps.design_BTN.shape
    both, y = steps.both_BNM, steps.y_BT
    there = steps.seen_BT.to(y.dtype)
    moving = steps.left_BTN.shape[1] > 1
    found, residuals, variances = list[Tensor](), list[Tensor](), list[Tensor]()
    shrink, noise = _moves(steps, 0) if T else (both, both)
    for t, (y_B, z_BN, there_B) in enumerate(zip(y.unbind(1), steps.design_BTN.unbind(1), there.unbind(1))):
        if moving and t:
            shrink, noise = _moves(steps, t)
        new = torch.addcmul(noise, both, shrink)
        both = new if live is None else torch.where(live[:, t, None, None], new, both)
        row = torch.bmm(z_BN[:, None], both)[:, 0]
        pull, expected = row[:, :N], row[:, N]
        variance = torch.linalg.vecdot(pull, z_BN) + steps.error_B
        residual = (y_B - expected) * there_B
        step = torch.cat([pull, -residual[:, None]], 1)
        both = torch.baddbmm(both, (pull * (-there_B / variance)[:, None])[..., None], step[:, None])
        residuals.append(residual)
        variances.append(variance)
        if t in wanted:
            found.append(both)
    asked = torch.stack(found, 1) if found else both.new_zeros(B, 0, N, N + 1)
    if not T:
        return y, y, asked, both
    variance = torch.stack(variances, 1)
    return torch.stack(residuals, 1), variance if live is None else torch.where(live, variance, 1), asked, both


def _moves(steps: _Steps, t: int) -> tuple[Tensor, Tensor]:
    """What time does before sample t: both becomes noise + both * shrink, (B, N, N + 1) each."""
    left, gone = steps.left_BTN[:, t], steps.gone_BT[:, t, None, None]
    pairs = left[:, :, None] * left[:, None]
    noise = steps.kept_BNN * lost(left) + steps.grown_BNN * gone
    column = left[..., None]
    return torch.cat([pairs, column], -1), torch.cat([noise, torch.zeros_like(column)], -1)


def _parted(both: Tensor) -> Belief:
    return Belief(both[..., -1], both[..., :-1])


def _symmetric(gradient: Tensor) -> Tensor:
    """The gradient to covariance and mean with that to the covariance made symmetric, as the covariance is."""
    square = gradient[..., :-1]
    return torch.cat([0.5 * (square + square.mT), gradient[..., -1:]], -1)


class _Filter(Function):
    """The kernel: innovation, variance, the matrices asked for, the last one."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        *results, saved = bodies.required("diagonal_filter", "cpu")(*tensors)
        y, seen, z, left, gone, kept, grown, error, _, ends, places = tensors
        ctx.save_for_backward(y, seen, z, left, gone, kept, grown, error, ends, places, saved)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        innovation, variance, asked, last = gradients
        into = innovation, variance, _symmetric(asked), _symmetric(last)
        found = bodies.required("diagonal_filter_backward", "cpu")(*ctx.saved_tensors, *into)
        dy, dz, dleft, dkept, dgrown, derror, dboth = found
        return dy, None, dz, dleft, None, dkept, dgrown, derror, dboth, None, None
