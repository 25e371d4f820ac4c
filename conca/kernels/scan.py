"""Kernels of the first-order scan h_t = a_t h_{t-1} + x_t, and of its gradient, real and complex.

Channels are the lanes and time is outside, so that memory is read in the order it lies in; a state is read back from the row
just written. The gradient runs backward in time without a flipped copy. A task is one row and some of its channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lanes import add, fma, load, mul, pair_conj_fma, pair_fma, scratch, splat, store, width
from conca.kernels.pool import spread
from conca.kernels.views import array, rows

__all__ = ["backward", "forward", "warm"]

NARROW, WIDE = 64, 16384
"""Real channels of a task: at least and at most."""


@inlined
def one_step(pairs: bool, a: Any, i: int, x: Any, j: int, h: Any, k: int, y: Any, m: int, size: int) -> None:
    """y = a h + x on `size` channels from the offsets i, j, k, m."""
    lanes = width(y)
    full = size // lanes * lanes
    for e in range(0, full, lanes):
        if pairs:
            store(y, m + e, pair_fma(load(a, i + e), load(h, k + e), load(x, j + e)))
        else:
            store(y, m + e, fma(load(a, i + e), load(h, k + e), load(x, j + e)))
    if pairs:
        for e in range(full, size, 2):
            re, im = h[k + e], h[k + e + 1]
            y[m + e] = a[i + e] * re - a[i + e + 1] * im + x[j + e]
            y[m + e + 1] = a[i + e] * im + a[i + e + 1] * re + x[j + e + 1]
    else:
        for e in range(full, size):
            y[m + e] = a[i + e] * h[k + e] + x[j + e]


@inlined
def one_step_back(
    pairs: bool, a: Any, i: int, g: Any, j: int, h: Any, k: int, da: Any, dx: Any, m: int, carry: Any, size: int
) -> None:
    """dx = s = g + carry, da = s conj(h), carry = s conj(a)."""
    lanes, zero = width(da), splat(da.dtype.type(0))
    full = size // lanes * lanes
    for e in range(0, full, lanes):
        s = add(load(g, j + e), load(carry, e))
        store(dx, m + e, s)
        if pairs:
            store(da, m + e, pair_conj_fma(load(h, k + e), s, zero))
            store(carry, e, pair_conj_fma(load(a, i + e), s, zero))
        else:
            store(da, m + e, mul(load(h, k + e), s))
            store(carry, e, mul(load(a, i + e), s))
    if pairs:
        for e in range(full, size, 2):
            re, im = g[j + e] + carry[e], g[j + e + 1] + carry[e + 1]
            dx[m + e], dx[m + e + 1] = re, im
            da[m + e] = h[k + e] * re + h[k + e + 1] * im
            da[m + e + 1] = h[k + e] * im - h[k + e + 1] * re
            carry[e] = a[i + e] * re + a[i + e + 1] * im
            carry[e + 1] = a[i + e] * im - a[i + e + 1] * re
    else:
        for e in range(full, size):
            s = g[j + e] + carry[e]
            dx[m + e], da[m + e], carry[e] = s, h[k + e] * s, a[i + e] * s


@compiled
def forward_tasks(
    a: Any, ar: int, at: int, x: Any, xr: int, xt: int, h: Any, y: Any, T: int, E: int, group: int, pairs: bool,
    first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end: row task // groups, `group` channels from task % groups. Flat arrays; h (B, E), y (B, T, E)."""
    groups = -(-E // group)
    for task in range(first, end):
        r, e = task // groups, task % groups * group
        size = min(group, E - e)
        one_step(pairs, a, r * ar + e, x, r * xr + e, h, r * E + e, y, r * T * E + e, size)
        for t in range(1, T):
            m = (r * T + t) * E + e
            one_step(pairs, a, r * ar + t * at + e, x, r * xr + t * xt + e, y, m - E, y, m, size)


@compiled
def backward_tasks(
    a: Any, ar: int, at: int, g: Any, gr: int, gt: int, h: Any, states: Any, sr: int, st: int, da: Any, dx: Any,
    dh: Any, T: int, E: int, group: int, pairs: bool, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; h, dh (B, E), da, dx (B, T, E)."""
    groups = -(-E // group)
    carry = scratch(group, da)
    for task in range(first, end):
        r, e = task // groups, task % groups * group
        size = min(group, E - e)
        carry[:] = 0
        for t in range(T - 1, 0, -1):
            i, j, k = r * ar + t * at + e, r * gr + t * gt + e, r * sr + (t - 1) * st + e
            one_step_back(pairs, a, i, g, j, states, k, da, dx, (r * T + t) * E + e, carry, size)
        one_step_back(pairs, a, r * ar + e, g, r * gr + e, h, r * E + e, da, dx, r * T * E + e, carry, size)
        for c in range(size):
            dh[r * E + e + c] = carry[c]


def forward(a: Tensor, x: Tensor, h: Tensor) -> Tensor:
    """All states (B, T, E), from tensors (B, T, E), (B, T, E), (B, E) of one dtype; none of them empty."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    (B, T, E), pairs = _real(x)
    group, tasks = _tasks(B, E)
    args = *rows(a), *rows(x), array(h).reshape(-1), array(y).reshape(-1), T, E, group, pairs
    spread(lambda first, end: forward_tasks(*args, first, end), tasks, B * T * E)
    return y


def backward(a: Tensor, h: Tensor, states: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to a, x and h from that into all states."""
    da, dx, dh = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (g, g, h))
    (B, T, E), pairs = _real(g)
    group, tasks = _tasks(B, E)
    outputs = [array(t).reshape(-1) for t in (da, dx, dh)]
    args = *rows(a), *rows(g), array(h).reshape(-1), *rows(states), *outputs, T, E, group, pairs
    spread(lambda first, end: backward_tasks(*args, first, end), tasks, 2 * B * T * E)
    return da, dx, dh


def warm() -> None:
    """Compile both kernels in both precisions; complex numbers run through the same code."""
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(1, 1, 1, dtype=dtype)
        backward(x, x[0], forward(x, x, x[0]), x)


def _real(x: Tensor) -> tuple[tuple[int, int, int], bool]:
    """Sizes in real numbers, and whether they are pairs."""
    B, T, E = x.shape
    return (B, T, E * 2 if x.is_complex() else E), x.is_complex()


def _tasks(B: int, E: int) -> tuple[int, int]:
    """Real channels of a task (a multiple of the lanes), and how many tasks there are."""
    wanted = -(-2 * torch.get_num_threads() // B)
    group = min(max(-(-E // wanted), NARROW), WIDE)
    group = -(-group // NARROW) * NARROW
    return group, B * -(-E // group)
