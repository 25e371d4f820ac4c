"""Kernels of the log-likelihood of a Kalman filter that sees one number a sample, and of its gradient, in double precision.

A task is one row of the batch. The covariance is updated in Joseph's form; its gradient is that of the plain difference P - p p' / F,
which is the same function. Of the transition only what is not 0 is multiplied: structural models hold little else. Forward keeps
what was predicted for every sample, mean and covariance, where a gradient is wanted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.pool import spread
from conca.kernels.views import array

__all__ = ["backward", "forward", "warm"]

LOG_2_PI = math.log(2 * math.pi)


@inlined
def places(T: Any, N: int, found: Any, count: Any) -> None:
    """The columns of each row of T that are not 0, and how many."""
    for i in range(N):
        count[i] = 0
        for j in range(N):
            if T[i, j] != 0:
                found[i, count[i]] = j
                count[i] += 1


@inlined
def look(P: Any, z: Any, N: int, p: Any) -> Any:
    """p = P z; returns z' P z."""
    total = P.dtype.type(0)
    for i in range(N):
        part = P.dtype.type(0)
        for j in range(N):
            part += P[i, j] * z[j]
        p[i] = part
        total += part * z[i]
    return total


@inlined
def learn(P: Any, p: Any, z: Any, F: Any, h: Any, N: int, q: Any) -> None:
    """P = (1 - k z') P (1 - k z')' + h k k' with k = p / F."""
    for i in range(N):
        k, part = p[i] / F, P.dtype.type(0)
        for j in range(N):
            P[i, j] -= k * p[j]
            part += P[i, j] * z[j]
        q[i] = part
    for i in range(N):
        for j in range(i + 1):
            one = P[i, j] - q[i] * p[j] / F + h * p[i] * p[j] / F / F
            other = P[j, i] - q[j] * p[i] / F + h * p[i] * p[j] / F / F
            P[i, j] = P[j, i] = P.dtype.type(0.5) * (one + other)


@inlined
def turn(P: Any, T: Any, found: Any, count: Any, Q: Any, N: int, U: Any) -> None:
    """P = T P T' + Q."""
    for i in range(N):
        for j in range(N):
            U[i, j] = 0
        for e in range(count[i]):
            k = found[i, e]
            for j in range(N):
                U[i, j] += T[i, k] * P[k, j]
    for i in range(N):
        for j in range(i + 1):
            part = P.dtype.type(0)
            for e in range(count[j]):
                part += U[i, found[j, e]] * T[j, found[j, e]]
            P[i, j] = P[j, i] = part + Q[i, j]


@inlined
def turn_back(G: Any, T: Any, found: Any, count: Any, N: int, U: Any) -> None:
    """G = T' G T."""
    for i in range(N):
        for j in range(N):
            U[i, j] = 0
        for j in range(N):
            for e in range(count[j]):
                U[i, found[j, e]] += G[i, j] * T[j, found[j, e]]
    for i in range(N):
        for j in range(N):
            G[i, j] = 0
    for i in range(N):
        for e in range(count[i]):
            k = found[i, e]
            for j in range(N):
                G[k, j] += T[i, k] * U[i, j]


@compiled
def forward_tasks(
    y: Any, T: Any, z: Any, Q: Any, h: Any, c: Any, start: Any, spread0: Any, likelihood: Any, means: Any, spreads: Any,
    faults: Any, kept: bool, first: int, end: int,
) -> None:  # fmt: skip
    """Rows first..end: y, likelihood (B, S); c (1 or B, S or 0, N); means (B, S, N) and spreads (B, S, N, N) if they are kept."""
    N, S = len(z), y.shape[1]
    found, count = np.empty((N, N), np.int64), np.empty(N, np.int64)
    places(T, N, found, count)
    m, after = np.empty(N, y.dtype), np.empty(N, y.dtype)
    p, q = np.empty(N, y.dtype), np.empty(N, y.dtype)
    P, U = np.empty((N, N), y.dtype), np.empty((N, N), y.dtype)
    for row in range(first, end):
        m[:], P[:, :] = start[row], spread0[row]
        for t in range(S):
            if c.shape[1] > 0:
                for i in range(N):
                    m[i] += c[row % c.shape[0], t, i]
            if kept:
                means[row, t], spreads[row, t] = m, P
            likelihood[row, t] = 0
            if not np.isnan(y[row, t]):
                F = look(P, z, N, p) + h[0]
                v = y[row, t]
                for i in range(N):
                    v -= z[i] * m[i]
                if F <= 0:
                    faults[row] = t
                    break
                likelihood[row, t] = -0.5 * (LOG_2_PI + np.log(F) + v * v / F)
                for i in range(N):
                    m[i] += p[i] * v / F
                learn(P, p, z, F, h[0], N, q)
            for i in range(N):
                after[i] = 0
                for e in range(count[i]):
                    after[i] += T[i, found[i, e]] * m[found[i, e]]
            m[:] = after
            turn(P, T, found, count, Q, N, U)


@compiled
def backward_tasks(
    g: Any, y: Any, T: Any, z: Any, Q: Any, h: Any, means: Any, spreads: Any, gy: Any, gT: Any, gz: Any, gQ: Any, gh: Any,
    gc: Any, gm: Any, gP: Any, moved: bool, driven: bool, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`. Gradients by row: gy (B, S), gT (B, N, N) if it `moved`, gz (B, N), gQ, gh (B, 1), gc (B, S, N) if `driven`, and
    to the start, gm (B, N) and gP (B, N, N)."""
    N, S = len(z), y.shape[1]
    found, count = np.empty((N, N), np.int64), np.empty(N, np.int64)
    places(T, N, found, count)
    p, q, after = np.empty(N, y.dtype), np.empty(N, y.dtype), np.empty(N, y.dtype)
    P, U = np.empty((N, N), y.dtype), np.empty((N, N), y.dtype)
    half = y.dtype.type(0.5)
    for row in range(first, end):
        M, G = gm[row], gP[row]
        for t in range(S - 1, -1, -1):
            m, seen = means[row, t], not np.isnan(y[row, t])
            F = h[0] + look(spreads[row, t], z, N, p) if seen else y.dtype.type(1)
            v = y[row, t] if seen else y.dtype.type(0)
            if seen:
                for i in range(N):
                    v -= z[i] * m[i]
            for i in range(N):
                for j in range(N):
                    gQ[row, i, j] += G[i, j]
            if moved:
                for i in range(N):
                    after[i] = m[i] + p[i] * v / F if seen else m[i]
                P[:, :] = spreads[row, t]
                if seen:
                    learn(P, p, z, F, h[0], N, q)
                for i in range(N):  # U = T P
                    for j in range(N):
                        U[i, j] = 0
                    for e in range(count[i]):
                        for j in range(N):
                            U[i, j] += T[i, found[i, e]] * P[found[i, e], j]
                for i in range(N):
                    for j in range(N):
                        part = M[i] * after[j]
                        for k in range(N):
                            part += (G[i, k] + G[k, i]) * U[k, j]
                        gT[row, i, j] += part
            turn_back(G, T, found, count, N, U)
            for i in range(N):
                after[i] = 0
            for i in range(N):
                for e in range(count[i]):
                    after[found[i, e]] += T[i, found[i, e]] * M[i]
            M[:] = after
            if seen:
                along, curve = y.dtype.type(0), y.dtype.type(0)
                for i in range(N):
                    part = y.dtype.type(0)
                    for j in range(N):
                        part += (G[i, j] + G[j, i]) * p[j]
                    q[i] = part
                    curve += half * part * p[i]
                    along += M[i] * p[i]
                to_v = (along - g[row, t] * v) / F
                to_F = (curve - along * v) / F / F - half * g[row, t] * (1 - v * v / F) / F
                gy[row, t] = to_v
                gh[row, 0] += to_F
                for i in range(N):
                    after[i] = (M[i] * v - q[i]) / F + z[i] * to_F
                for i in range(N):
                    part = to_F * p[i] - m[i] * to_v
                    for j in range(N):
                        G[i, j] += half * (after[i] * z[j] + z[i] * after[j])
                        part += spreads[row, t, i, j] * after[j]
                    gz[row, i] += part
                    M[i] -= z[i] * to_v
            if driven:
                for i in range(N):
                    gc[row, t, i] = M[i]


def forward(
    y: Tensor, T: Tensor, z: Tensor, Q: Tensor, h: Tensor, c: Tensor, mean: Tensor, covariance: Tensor, kept: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The log-likelihood of each sample (B, S), means (B, S, N) and covariances predicted (none unless they are `kept`), and of each
    row the sample at which no room for error was left, else -1. y (B, S) with NaN where missing, z (N), h (1), c (1 or B, S or 0, N)."""
    (B, S), N = y.shape, len(z)
    likelihood = torch.zeros(B, S, dtype=y.dtype)
    means, spreads = (torch.empty(B, S if kept else 0, *size, dtype=y.dtype) for size in ((N,), (N, N)))
    faults = torch.full((B,), -1)
    arrays = [array(t) for t in (y, T, z, Q, h, c, mean, covariance, likelihood, means, spreads, faults)]
    spread(lambda first, end: forward_tasks(*arrays, kept, first, end), B, B * S * N * N * 6)
    return likelihood, means, spreads, faults


def backward(
    g: Tensor,
    y: Tensor,
    T: Tensor,
    z: Tensor,
    Q: Tensor,
    h: Tensor,
    c: Tensor,
    means: Tensor,
    spreads: Tensor,
    moved: bool,
) -> tuple[Tensor, ...]:
    """Gradients to y, T (zeros unless it `moved`), z, Q, h, c, and to mean and covariance of the start."""
    (B, S), N = y.shape, len(z)
    sizes = (S,), (N, N), (N,), (N, N), (1,), (S if c.shape[1] else 0, N), (N,), (N, N)
    found = [torch.zeros(B, *size, dtype=y.dtype) for size in sizes]
    arrays = [array(t) for t in (g, y, T, z, Q, h, means, spreads, *found)]
    spread(lambda first, end: backward_tasks(*arrays, moved, c.shape[1] > 0, first, end), B, B * S * N * N * 12)
    gy, gT, gz, gQ, gh, gc, gm, gP = found
    gc = gc if len(c) == B else gc.sum(0, keepdim=True)
    return gy, gT.sum(0), gz.sum(0), gQ.sum(0), gh.sum(0), gc, gm, gP


def warm() -> None:
    """Compile both kernels."""
    y, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    c = torch.zeros(1, 0, 1, dtype=torch.float64)
    _, means, spreads, _ = forward(y, one, one[0], one, one[0], c, one, one[None], True)
    backward(y, y, one, one[0], one, one[0], c, means, spreads, True)
