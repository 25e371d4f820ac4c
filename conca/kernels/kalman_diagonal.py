"""Kernels of the Kalman filter of components that decay on their own, and of its gradient, in double precision.

A task is one row of the batch. Mean and covariance lie in one matrix (N, N + 1), which stays in the nearest cache from step to step.
Backward goes through chunks of steps from the last to the first, computes the matrices of one chunk anew from that before it, and
keeps the gradient to the covariance symmetric, as the covariance is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.pool import spread
from conca.kernels.views import array
from conca.ops.diagonal_bodies import CHUNK

__all__ = ["backward", "forward", "warm"]


@inlined
def lost(one: float, other: float) -> float:
    """1 - one * other, with all its digits where both are near 1: left to itself the compiler merges that product with others."""
    return (1.0 - one) + (1.0 - other) - (1.0 - one) * (1.0 - other)


@inlined
def advance(S: Any, left: Any, gone: float, kept: Any, grown: Any, N: int) -> None:
    """Time goes on: what is left of covariance and mean, and the noise that has gathered."""
    for i in range(N):
        for j in range(N):
            S[i, j] = left[i] * left[j] * S[i, j] + kept[i, j] * lost(left[i], left[j]) + grown[i, j] * gone
        S[i, N] *= left[i]


@inlined
def look(S: Any, z: Any, pull: Any, N: int) -> Any:
    """What is expected, and its variance, without that of the error; `pull` becomes the covariance with the components."""
    expected, variance = 0.0, 0.0
    for i in range(N):
        total = 0.0
        for j in range(N):
            total += S[i, j] * z[j]
        pull[i] = total
        variance += total * z[i]
        expected += S[i, N] * z[i]
    return expected, variance


@inlined
def absorb(S: Any, pull: Any, residual: float, variance: float, N: int) -> None:
    """The update of rank one."""
    for i in range(N):
        gain = pull[i] / variance
        for j in range(N):
            S[i, j] -= gain * pull[j]
        S[i, N] += gain * residual


@inlined
def absorb_back(G: Any, g: Any, pull: Any, dpull: Any, residual: float, variance: float, N: int) -> Any:
    """Gradients to residual and variance, and to `pull`, from those into matrix and mean after the update, which pass on."""
    through, straight = 0.0, 0.0
    for i in range(N):
        total = 0.0
        for j in range(N):
            total += G[i, j] * pull[j]
        dpull[i] = (g[i] * residual - 2.0 * total) / variance
        through += total * pull[i]
        straight += g[i] * pull[i]
    return straight / variance, (through - straight * residual) / (variance * variance)


@inlined
def look_back(
    S: Any, z: Any, pull: Any, G: Any, g: Any, dpull: Any, dz: Any, dresidual: float, dvariance: float, N: int
) -> None:
    """Gradients into what was looked at and `dz`, from those to what was seen."""
    for i in range(N):
        dpull[i] += dvariance * z[i]
    for i in range(N):
        total = 0.0
        for j in range(N):
            total += S[i, j] * dpull[j]
            G[i, j] += 0.5 * (dpull[i] * z[j] + z[i] * dpull[j])
        dz[i] = total + dvariance * pull[i] - dresidual * S[i, N]
        g[i] -= dresidual * z[i]


@inlined
def advance_back(
    S: Any, left: Any, gone: float, kept: Any, G: Any, g: Any, dleft: Any, dkept: Any, dgrown: Any, N: int
) -> None:
    """As `advance`, backward: S is what was before."""
    for i in range(N):
        total = 0.0
        for j in range(N):
            both, slope = left[i] * left[j], G[i, j]
            total += slope * left[j] * (S[i, j] - kept[i, j])
            dkept[i, j] += slope * lost(left[i], left[j])
            dgrown[i, j] += slope * gone
            G[i, j] = slope * both
        dleft[i] += 2.0 * total + g[i] * S[i, N]
        g[i] *= left[i]


@compiled
def forward_tasks(
    y: Any, seen: Any, z: Any, left: Any, gone: Any, kept: Any, grown: Any, error: Any, S: Any, lengths: Any, places: Any,
    innovation: Any, variance: Any, asked: Any, saved: Any, first: int, end: int,
) -> None:  # fmt: skip
    """Rows first..end: y, seen, innovation, variance (B, T), z (B, T, N), left (B, T or 1, N), gone (B, T or 1), kept, grown
    (B, N, N), S (B, N, N + 1) renewed, places (T) of each step in asked (B, R, N, N + 1) or -1, saved (B, chunks, N, N + 1)."""
    T, N = z.shape[1], z.shape[2]
    pull, moving = np.empty(N, z.dtype), left.shape[1] > 1
    for r in range(first, end):
        for t in range(T):
            if t % CHUNK == 0:
                saved[r, t // CHUNK] = S[r]
            if t < lengths[r]:
                k = t if moving else 0
                advance(S[r], left[r, k], gone[r, k], kept[r], grown[r], N)
                expected, spread_of = look(S[r], z[r, t], pull, N)
                variance[r, t] = spread_of + error[r]
                if seen[r, t]:
                    innovation[r, t] = y[r, t] - expected
                    absorb(S[r], pull, innovation[r, t], variance[r, t], N)
            if places[t] >= 0:
                asked[r, places[t]] = S[r]


@compiled
def backward_tasks(
    y: Any, seen: Any, z: Any, left: Any, gone: Any, kept: Any, grown: Any, error: Any, lengths: Any, places: Any,
    saved: Any, gi: Any, gv: Any, ga: Any, gl: Any, dy: Any, dz: Any, dleft: Any, dkept: Any, dgrown: Any, derror: Any,
    dS: Any, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; ga and gl, the gradients into asked and the last S, symmetric; all that begins with d is 0 before."""
    T, N = z.shape[1], z.shape[2]
    pull, dpull, moving = np.empty(N, z.dtype), np.empty(N, z.dtype), left.shape[1] > 1
    states, now, G, g = np.empty((CHUNK + 1, N, N + 1)), np.empty((N, N + 1)), np.empty((N, N)), np.empty(N)
    for r in range(first, end):
        G[:], g[:] = gl[r, :, :N], gl[r, :, N]
        for chunk in range(saved.shape[1] - 1, -1, -1):
            begin = chunk * CHUNK
            size = min(CHUNK, T - begin)
            states[0] = saved[r, chunk]
            for s in range(size):
                t = begin + s
                states[s + 1] = states[s]
                if t < lengths[r]:
                    k = t if moving else 0
                    advance(states[s + 1], left[r, k], gone[r, k], kept[r], grown[r], N)
                    if seen[r, t]:
                        expected, spread_of = look(states[s + 1], z[r, t], pull, N)
                        absorb(states[s + 1], pull, y[r, t] - expected, spread_of + error[r], N)
            for s in range(size - 1, -1, -1):
                t = begin + s
                if places[t] >= 0:
                    G += ga[r, places[t], :, :N]
                    g += ga[r, places[t], :, N]
                if t >= lengths[r]:
                    continue
                k = t if moving else 0
                now[:] = states[s]
                advance(now, left[r, k], gone[r, k], kept[r], grown[r], N)
                expected, spread_of = look(now, z[r, t], pull, N)
                total = spread_of + error[r]
                dresidual, dvariance = 0.0, gv[r, t]
                dpull[:] = 0.0
                if seen[r, t]:
                    straight, more = absorb_back(G, g, pull, dpull, y[r, t] - expected, total, N)
                    dresidual, dvariance = gi[r, t] + straight, dvariance + more
                derror[r] += dvariance
                dy[r, t] = dresidual
                look_back(now, z[r, t], pull, G, g, dpull, dz[r, t], dresidual, dvariance, N)
                advance_back(states[s], left[r, k], gone[r, k], kept[r], G, g, dleft[r, k], dkept[r], dgrown[r], N)
        dS[r, :, :N], dS[r, :, N] = G, g


def forward(
    y: Tensor, seen: Tensor, z: Tensor, left: Tensor, gone: Tensor, kept: Tensor, grown: Tensor, error: Tensor,
    S: Tensor, lengths: Tensor, places: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Innovations and variances (B, T), the matrices asked for (B, R, N, N + 1), the last one, and those before each chunk."""
    B, T, N = z.shape
    last, count = S.clone(memory_format=torch.contiguous_format), int((places >= 0).sum())
    innovation, variance = torch.zeros_like(y), torch.ones_like(y)
    asked, saved = y.new_empty(B, count, N, N + 1), y.new_empty(B, -(-T // CHUNK), N, N + 1)
    inputs = (y, seen, z, left, gone, kept, grown, error, last, lengths, places)
    args = [array(t) for t in (*inputs, innovation, variance, asked, saved)]
    spread(lambda first, end: forward_tasks(*args, first, end), B, 10 * B * T * N * N)
    return innovation, variance, asked, last, saved


def backward(
    y: Tensor, seen: Tensor, z: Tensor, left: Tensor, gone: Tensor, kept: Tensor, grown: Tensor, error: Tensor,
    lengths: Tensor, places: Tensor, saved: Tensor, *gradients: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients to y, z, left, kept, grown, error and S from those into innovation, variance, asked and last."""
    B, T, N = z.shape
    outputs = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (y, z, left, kept, grown, error)]
    outputs.append(y.new_zeros(B, N, N + 1))
    inputs = (y, seen, z, left, gone, kept, grown, error, lengths, places, saved)
    args = [array(t) for t in (*inputs, *gradients, *outputs)]
    spread(lambda first, end: backward_tasks(*args, first, end), B, 40 * B * T * N * N)
    return tuple(outputs)


def warm() -> None:
    """Compile both kernels."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    steps = one[0], one[0] > 0, one, one, one[0], one, one, one[0, 0]
    whole, places = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    both = torch.ones(1, 1, 2, dtype=torch.float64)
    innovation, variance, asked, last, saved = forward(*steps, both, whole, places)
    backward(*steps, whole, places, saved, innovation, variance, asked, last)
