"""Kernels of summed angles: angle_t = angle_{t-1} + dt_t rate_t for every head, brought into one turn, and the gradients of both.

The sums are float64 whatever the type of the rest. A task is one row and some of its heads; heads share the rates, so each task has
its own sum of gradients to them. `starts` make the angle 0, `lengths` end a row early: past its end the angle stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled
from conca.kernels.pool import spread
from conca.kernels.views import array, ragged

__all__ = ["backward", "forward", "warm"]

PARTS = 8
"""Tasks that share the heads of a row, at most."""

TURN = 2 * np.pi


@compiled
def forward_tasks(
    dt: Any, rate: Any, last: Any, out: Any, lengths: Any, starts: Any, parts: int, first: int, end: int
) -> None:
    """Tasks first..end: dt (B, T, H), rate (B, T, S), last (B, H, S) float64 (before, and then after), out (B, T, H, S)."""
    T, H, S = out.shape[1:]
    for task in range(first, end):
        b, part = task // parts, task % parts
        for t in range(T):
            live = t < lengths[b]
            begin = live and starts.shape[1] > 0 and starts[b, t]
            for h in range(H * part // parts, H * (part + 1) // parts):
                angle, to = last[b, h], out[b, t, h]
                if begin:
                    angle[:] = 0
                if live:
                    step = np.float64(dt[b, t, h])
                    for s in range(S):
                        w = angle[s] + step * np.float64(rate[b, t, s])
                        angle[s] = w - TURN * np.floor(w * (1 / TURN))
                for s in range(S):
                    to[s] = angle[s]


@compiled
def backward_tasks(
    dt: Any, rate: Any, g: Any, dangle: Any, ddt: Any, drate: Any, lengths: Any, starts: Any, parts: int, first: int,
    end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`: g (B, T, H, S) is the gradient into the angles, dangle (B, H, S) float64 that into the last ones and then
    that of the first, ddt as dt, drate (B, parts, T, S)."""
    T, H, S = g.shape[1:]
    for task in range(first, end):
        b, part = task // parts, task % parts
        for t in range(T - 1, -1, -1):
            live, sums = t < lengths[b], drate[b, part, t]
            begin = live and starts.shape[1] > 0 and starts[b, t]
            sums[:] = 0
            for h in range(H * part // parts, H * (part + 1) // parts):
                G, into = dangle[b, h], g[b, t, h]
                for s in range(S):
                    G[s] += into[s]
                total = 0.0
                if live:
                    step = dt[b, t, h]
                    for s in range(S):
                        total += G[s] * rate[b, t, s]
                        sums[s] += step * G[s]
                ddt[b, t, h] = total
                if begin:
                    G[:] = 0


def forward(
    dt: Tensor, rate: Tensor, angle: Tensor, lengths: Tensor | None, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Angles (B, T, H, S) of the type of dt (B, T, H), and the last ones (B, H, S), from rate (B, T, S) and angle, float64."""
    (B, T, H), S = dt.shape, rate.shape[2]
    out, last, parts = dt.new_empty(B, T, H, S), angle.clone(memory_format=torch.contiguous_format), min(PARTS, H)
    args = *(array(t) for t in (dt, rate, last, out)), *ragged(dt.shape, lengths, starts), parts
    spread(lambda first, end: forward_tasks(*args, first, end), B * parts, 4 * out.numel())
    return out, last


def backward(
    dt: Tensor, rate: Tensor, angle: Tensor, lengths: Tensor | None, starts: Tensor | None, g: Tensor, g_last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to dt, rate and angle from those into the angles and the last ones."""
    (B, T, H), S = dt.shape, rate.shape[2]
    parts, ddt = min(PARTS, H), torch.empty_like(dt, memory_format=torch.contiguous_format)
    dangle, drate = g_last.clone(memory_format=torch.contiguous_format), rate.new_empty(B, parts, T, S)
    args = *(array(t) for t in (dt, rate, g, dangle, ddt, drate)), *ragged(dt.shape, lengths, starts), parts
    spread(lambda first, end: backward_tasks(*args, first, end), B * parts, 4 * g.numel())
    return ddt, drate.sum(1), dangle


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        dt, angle = torch.ones(1, 1, 1, dtype=dtype), torch.ones(1, 1, 1, dtype=torch.float64)
        backward(dt, dt, angle, None, None, *forward(dt, dt, angle, None, None))
