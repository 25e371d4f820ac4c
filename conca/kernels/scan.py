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
from conca.kernels.views import Rows, array, ragged, rows
from conca.ops.diagonal_bodies import CHUNK

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
    pairs: bool, sums: bool, a: Any, i: int, g: Any, j: int, h: Any, k: int, da: Any, n: int, dx: Any, m: int,
    carry: Any, size: int,
) -> None:  # fmt: skip
    """dx = s = g + carry, da = s conj(h) (added to da, if it `sums`), carry = s conj(a)."""
    lanes, zero = width(dx), splat(dx.dtype.type(0))
    full = size // lanes * lanes
    for e in range(0, full, lanes):
        s = add(load(g, j + e), load(carry, e))
        store(dx, m + e, s)
        old = load(da, n + e) if sums else zero
        if pairs:
            store(da, n + e, pair_conj_fma(load(h, k + e), s, old))
            store(carry, e, pair_conj_fma(load(a, i + e), s, zero))
        else:
            store(da, n + e, fma(load(h, k + e), s, old))
            store(carry, e, mul(load(a, i + e), s))
    if pairs:
        for e in range(full, size, 2):
            re, im = g[j + e] + carry[e], g[j + e + 1] + carry[e + 1]
            dx[m + e], dx[m + e + 1] = re, im
            old_re, old_im = (da[n + e], da[n + e + 1]) if sums else (zero_of(da), zero_of(da))
            da[n + e] = h[k + e] * re + h[k + e + 1] * im + old_re
            da[n + e + 1] = h[k + e] * im - h[k + e + 1] * re + old_im
            carry[e] = a[i + e] * re + a[i + e + 1] * im
            carry[e + 1] = a[i + e] * im - a[i + e + 1] * re
    else:
        for e in range(full, size):
            s = g[j + e] + carry[e]
            dx[m + e], carry[e] = s, a[i + e] * s
            da[n + e] = h[k + e] * s + (da[n + e] if sums else zero_of(da))


@inlined
def zero_of(x: Any) -> Any:
    """0 in the type of an array."""
    return x.dtype.type(0)


@inlined
def copy(x: Any, j: int, y: Any, m: int, size: int) -> None:
    """y = x on `size` channels."""
    for e in range(size):
        y[m + e] = x[j + e]


@inlined
def one_start_back(g: Any, j: int, dx: Any, m: int, carry: Any, size: int) -> None:
    """dx = g + carry, and nothing goes to what was before."""
    for e in range(size):
        dx[m + e] = g[j + e] + carry[e]
        carry[e] = 0


@inlined
def one_pad_back(g: Any, j: int, dx: Any, m: int, carry: Any, size: int) -> None:
    """The gradient goes on to the last state of the row."""
    for e in range(size):
        carry[e] += g[j + e]
        dx[m + e] = 0


@inlined
def clear(x: Any, i: int, size: int) -> None:
    """Zeros on `size` channels."""
    for e in range(size):
        x[i + e] = 0


@inlined
def gather(part: Any, da: Any, n: int, size: int) -> None:
    """Add the sum of a chunk to that of the row, and begin anew."""
    for e in range(size):
        da[n + e] += part[e]
        part[e] = 0


@compiled
def forward_tasks(
    a: Any, ar: int, at: int, x: Any, xr: int, xt: int, h: Any, y: Any, lengths: Any, starts: Any, T: int, E: int,
    group: int, pairs: bool, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end: row task // groups, `group` channels from task % groups. Flat arrays; h (B, E), y (B, T, E); lengths (B,),
    starts (B, T or 0)."""
    groups, packed = -(-E // group), starts.shape[1] > 0
    for task in range(first, end):
        r, e = task // groups, task % groups * group
        size, length = min(group, E - e), lengths[r]
        for t in range(T):
            m, j = (r * T + t) * E + e, r * xr + t * xt + e
            before, k = (y, m - E) if t > 0 else (h, r * E + e)
            if t >= length:
                copy(before, k, y, m, size)
            elif packed and starts[r, t]:
                copy(x, j, y, m, size)
            else:
                one_step(pairs, a, r * ar + t * at + e, x, j, before, k, y, m, size)


@compiled
def backward_tasks(
    a: Any, ar: int, at: int, g: Any, gr: int, gt: int, h: Any, states: Any, sr: int, st: int, da: Any, dx: Any,
    dh: Any, lengths: Any, starts: Any, T: int, E: int, group: int, pairs: bool, sums: bool, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; h, dh (B, E), dx (B, T, E), da like it, or zeros (B, E) where it `sums`."""
    groups, packed = -(-E // group), starts.shape[1] > 0
    carry, part = scratch(group, dx), scratch(group, dx)
    for task in range(first, end):
        r, e = task // groups, task % groups * group
        size, length = min(group, E - e), lengths[r]
        carry[:] = 0
        part[:] = 0
        for t in range(T - 1, -1, -1):
            m, i, j = (r * T + t) * E + e, r * ar + t * at + e, r * gr + t * gt + e
            if t >= length or (packed and starts[r, t]):
                if t >= length:
                    one_pad_back(g, j, dx, m, carry, size)
                else:
                    one_start_back(g, j, dx, m, carry, size)
                if not sums:
                    clear(da, m, size)
                continue
            before, k = (states, r * sr + (t - 1) * st + e) if t > 0 else (h, r * E + e)
            into, n = (part, 0) if sums else (da, m)
            one_step_back(pairs, sums, a, i, g, j, before, k, into, n, dx, m, carry, size)
            if sums and t % CHUNK == 0:
                gather(part, da, r * E + e, size)
        if sums:
            gather(part, da, r * E + e, size)
        copy(carry, 0, dh, r * E + e, size)


def forward(
    a: Tensor,
    x: Tensor,
    h: Tensor,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    inplace: bool = False,
) -> Tensor:
    """All states (B, T, E), from x (B, T, E), h (B, E) and a like x or like h, of one dtype; none of them empty.

    With `inplace` they are written over x, which is contiguous then: fresh memory costs more than the scan.
    """
    y = x if inplace else torch.empty_like(x, memory_format=torch.contiguous_format)
    (B, T, E), pairs = _real(x)
    group, tasks = _tasks(B, E)
    tensors = *_steps(a, x), *rows(x), array(h).reshape(-1), array(y).reshape(-1)
    args = *tensors, *ragged(x.shape, lengths, starts), T, E, group, pairs
    spread(lambda first, end: forward_tasks(*args, first, end), tasks, B * T * E // 4)
    return y


def backward(
    a: Tensor,
    h: Tensor,
    states: Tensor,
    g: Tensor,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    inplace: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to a, x and h from that into all states; with `inplace` the second is written over g, which is contiguous then."""
    sums = a.ndim < g.ndim
    da = torch.zeros(a.shape, dtype=a.dtype) if sums else torch.empty_like(g, memory_format=torch.contiguous_format)
    dx, dh = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (g[:0] if inplace else g, h))
    dx = g if inplace else dx
    (B, T, E), pairs = _real(g)
    group, tasks = _tasks(B, E)
    outputs = [array(t).reshape(-1) for t in (da, dx, dh)]
    tensors = *_steps(a, g), *rows(g), array(h).reshape(-1), *rows(states), *outputs
    args = *tensors, *ragged(g.shape, lengths, starts), T, E, group, pairs, sums
    spread(lambda first, end: backward_tasks(*args, first, end), tasks, B * T * E // 2)
    return da, dx, dh


def warm() -> None:
    """Compile both kernels in both precisions; complex numbers run through the same code."""
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(1, 1, 1, dtype=dtype)
        backward(x, x[0], forward(x, x, x[0]), x)


def _steps(a: Tensor, x: Tensor) -> Rows:
    """The coefficients of every step; where they are constant in time, all steps are one."""
    return rows(a if a.ndim == x.ndim else a[:, None].expand(x.shape))


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
