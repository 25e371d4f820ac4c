"""Kernels of the short causal convolution with its bias and SiLU, forward and backward, one pass over memory each way.

A task is a piece of the steps of one row, and some of its channels. Time goes in chunks, whose inputs are laid out first, with the
W - 1 before them, from the tail or the row: every window is then read from a near cache, and there are no edges. The backward makes
the sums before the activation anew and runs from the last chunk to the first; the gradients into the first sums of a chunk are
handed to the one before it. The width 4 of published models is compiled as such. The gradient to the weights is added up over the
steps of a piece, so it does not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lane_math import fill, sigmoid, silu
from conca.kernels.lanes import add, fma, load, load_first, mul, scratch, store, store_first, sub, width
from conca.kernels.pool import spread
from conca.kernels.views import array, ragged, rows

__all__ = ["backward", "forward", "warm"]

CHUNK = 8
"""Steps of a chunk."""

PIECE = 128
"""Steps of a row in one task."""

WIDE = 96
"""Vectors of channels in a task, at most: shorter pieces of a row lie too far apart in memory to be fetched ahead."""


@inlined
def reach(starts: Any, r: int, t: int, W: int) -> int:
    """How many steps back the window of step t of row r goes: W - 1, or to the start of its sequence."""
    for k in range(min(t + 1, W - 1) if starts.shape[1] > 0 else 0):
        if starts[r, t - k]:
            return k
    return W - 1


@inlined
def remembered(starts: Any, r: int, length: int, W: int) -> int:
    """How many of the last W - 1 columns before `length` belong to the sequence that is read there."""
    return min(W - 1, 1 + reach(starts, r, length - 1, W)) if length > 0 else W - 1


@inlined
def lay(x: Any, i: int, y: Any, j: int, size: int) -> None:
    """Copy `size` numbers, the last vector filled up with zeros."""
    for e in range(0, size, width(y)):
        store(y, j + e, load_first(x, i + e, min(width(y), size - e)))


@inlined
def clear(y: Any, i: int, step: int, steps: int, size: int) -> None:
    """`size` zeros in each of `steps` lines."""
    for s in range(steps):
        for e in range(size):
            y[i + s * step + e] = 0


@inlined
def hold(w: Any, bias: Any, E: int, W: int, e0: int, size: int, held: Any, tile: int) -> None:
    """The weights of `size` channels and their bias, a line of `tile` each."""
    for k in range(W):
        lay(w, k * E + e0, held, k * tile, size)
    lay(bias, e0, held, W * tile, size)


@inlined
def stage(x: Any, i: int, xt: int, tail: Any, j: int, E: int, W: int, t0: int, t1: int, size: int, line: Any,
          tile: int) -> None:  # fmt: skip
    """The inputs of the steps t0 - (W - 1)..t1; i and j: the row and its first channel in x and in the tail."""
    for t in range(t0 - W + 1, t1):
        if t < 0:
            lay(tail, j + (t + W - 1) * E, line, (t - t0 + W - 1) * tile, size)
        else:
            lay(x, i + t * xt, line, (t - t0 + W - 1) * tile, size)


@inlined
def window(line: Any, s: int, held: Any, e: int, W: int, tile: int, back: int) -> Any:
    """The bias plus the weighted window of step s of a chunk, `back` steps back."""
    v, at = load(held, W * tile + e), (s + W - 1) * tile + e
    for k in range(W):
        if k <= back:
            v = fma(load(held, k * tile + e), load(line, at - k * tile), v)
    return v


@inlined
def outputs(
    line: Any, s: int, held: Any, W: int, tile: int, back: int, y: Any, o: int, size: int, active: bool
) -> None:
    """Step s of a chunk, to y from o on."""
    for e in range(0, size, width(y)):
        v = window(line, s, held, e, W, tile, back)
        store_first(y, o + e, silu(v) if active else v, min(width(y), size - e))


@inlined
def outputs4(line: Any, held: Any, tile: int, steps: int, y: Any, o: int, E: int, size: int, active: bool) -> None:
    """All steps of a chunk with windows of four in one sequence: the window moves through registers."""
    for e in range(0, size, width(y)):
        w0, w1, w2, w3 = load(held, e), load(held, tile + e), load(held, 2 * tile + e), load(held, 3 * tile + e)
        x3, x2, x1 = load(line, e), load(line, tile + e), load(line, 2 * tile + e)
        rest = load(held, 4 * tile + e)
        for s in range(steps):
            x0 = load(line, (s + 3) * tile + e)
            v = fma(w3, x3, fma(w2, x2, fma(w1, x1, fma(w0, x0, rest))))
            store_first(y, o + s * E + e, silu(v) if active else v, min(width(y), size - e))
            x3, x2, x1 = x2, x1, x0


@compiled
def forward_tasks(
    x: Any, xr: int, xt: int, w: Any, bias: Any, tail: Any, y: Any, new: Any, lengths: Any, starts: Any, T: int, E: int,
    W: int, tile: int, active: bool, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end: of a row its pieces, of a piece its tiles of channels. Flat arrays: x with strides, w (W, E), bias (E,), tail
    and new (B, W - 1, E), y (B, T, E); lengths (B,), starts (B, T or 0)."""
    tiles, pieces = -(-E // tile), -(-T // PIECE)
    line, held = scratch((CHUNK + W - 1) * tile, y), scratch((W + 1) * tile, y)
    for task in range(first, end):
        r, p, e0 = task // tiles // pieces, task // tiles % pieces * PIECE, task % tiles * tile
        size, length, j, last = min(tile, E - e0), lengths[r], r * (W - 1) * E + e0, min(p + PIECE, T)
        hold(w, bias, E, W, e0, size, held, tile)
        for t0 in range(p, min(last, length), CHUNK):
            t1 = min(t0 + CHUNK, length)
            stage(x, r * xr + e0, xt, tail, j, E, W, t0, t1, size, line, tile)
            o = (r * T + t0) * E + e0
            if W == 4 and starts.shape[1] == 0:
                outputs4(line, held, tile, t1 - t0, y, o, E, size, active)
            else:
                for t in range(t0, t1):
                    back = reach(starts, r, t, W)
                    outputs(line, t - t0, held, W, tile, back, y, o + (t - t0) * E, size, active)
        clear(y, (r * T + max(p, length)) * E + e0, E, last - max(p, length), size)
        if p == 0:
            kept = remembered(starts, r, length, W)
            clear(new, j, E, W - 1 - kept, size)
            for c in range(W - 1 - kept, W - 1):
                t = length - W + 1 + c
                for e in range(size):
                    new[j + c * E + e] = x[r * xr + t * xt + e0 + e] if t >= 0 else tail[j + (t + W - 1) * E + e]


@inlined
def slopes(line: Any, s: int, held: Any, W: int, tile: int, back: int, g: Any, i: int, slope: Any, size: int,
           active: bool) -> None:  # fmt: skip
    """Gradients into the sums of step s of a chunk, to `slope`, from those into its outputs in g from i on."""
    for e in range(0, size, width(slope)):
        d = load_first(g, i + e, min(width(slope), size - e))
        if active:
            v = window(line, s, held, e, W, tile, back)
            q = sigmoid(v)
            d = mul(mul(d, q), fma(v, sub(fill(q, 1.0), q), fill(q, 1.0)))
        store(slope, s * tile + e, d)


@inlined
def weights(line: Any, slope: Any, sums: Any, W: int, tile: int, steps: int, size: int, reaches: Any) -> None:
    """Add what a chunk gives to the gradients of the weights and of the bias, a line of `tile` each."""
    for e in range(0, size, width(slope)):
        for k in range(W):
            total = load(sums, k * tile + e)
            for s in range(steps):
                if k <= reaches[s]:
                    total = fma(load(slope, s * tile + e), load(line, (s + W - 1 - k) * tile + e), total)
            store(sums, k * tile + e, total)
        total = load(sums, W * tile + e)
        for s in range(steps):
            total = add(total, load(slope, s * tile + e))
        store(sums, W * tile + e, total)


@inlined
def inputs(slope: Any, s: int, held: Any, W: int, tile: int, reaches: Any, least: int, gnew: Any, n: int,
           kept: bool, dx: Any, o: int, size: int) -> None:  # fmt: skip
    """The gradient into the input of step s of a chunk: through the windows of this step and the W - 1 after it, from `least` on; and
    from that into the new tail from n on, if it is `kept` there."""
    for e in range(0, size, width(dx)):
        lanes = min(width(dx), size - e)
        v = load_first(gnew, n + e, lanes) if kept else fill(load(held, e), 0.0)
        for k in range(least, W):
            if k <= reaches[s + k]:
                v = fma(load(held, k * tile + e), load(slope, (s + k) * tile + e), v)
        store_first(dx, o + e, v, lanes)


@inlined
def chunk(line: Any, slope: Any, held: Any, sums: Any, g: Any, i: int, gt: int, gnew: Any, n: int, since: int, dx: Any,
          o: int, E: int, W: int, tile: int, reaches: Any, steps: int, left: int, size: int,
          active: bool) -> None:  # fmt: skip
    """The backward of one chunk of `steps`, of the `left` ones of the row, the new tail going back to step `since` of the chunk."""
    for s in range(steps):
        slopes(line, s, held, W, tile, reaches[s], g, i + s * gt, slope, size, active)
    weights(line, slope, sums, W, tile, steps, size, reaches)
    for s in range(steps):
        kept = s - left + W - 1 >= 0 and s >= since
        inputs(slope, s, held, W, tile, reaches, 0, gnew, n + s * E, kept, dx, o + s * E, size)


@inlined
def chunk4(line: Any, slope: Any, held: Any, sums: Any, g: Any, i: int, gt: int, gnew: Any, n: int, dx: Any, o: int,
           E: int, tile: int, steps: int, left: int, size: int, active: bool) -> None:  # fmt: skip
    """As `chunk`, with windows of four in one sequence: windows of inputs and of gradients move through registers."""
    for e in range(0, size, width(dx)):
        lanes, one = min(width(dx), size - e), fill(load(held, e), 1.0)
        w0, w1, w2, w3 = load(held, e), load(held, tile + e), load(held, 2 * tile + e), load(held, 3 * tile + e)
        d0, d1, d2, d3 = load(sums, e), load(sums, tile + e), load(sums, 2 * tile + e), load(sums, 3 * tile + e)
        rest, total, at = load(held, 4 * tile + e), load(sums, 4 * tile + e), steps * tile + e
        x0, x1, x2 = load(line, at + 2 * tile), load(line, at + tile), load(line, at)
        g1, g2, g3 = load(slope, at), load(slope, at + tile), load(slope, at + 2 * tile)
        for s in range(steps - 1, -1, -1):
            x3, g0 = load(line, s * tile + e), load_first(g, i + s * gt + e, lanes)
            if active:
                v = fma(w3, x3, fma(w2, x2, fma(w1, x1, fma(w0, x0, rest))))
                q = sigmoid(v)
                g0 = mul(mul(g0, q), fma(v, sub(one, q), one))
            d0, d1, d2, d3, total = fma(g0, x0, d0), fma(g0, x1, d1), fma(g0, x2, d2), fma(g0, x3, d3), add(total, g0)
            v = fma(w3, g3, fma(w2, g2, fma(w1, g1, mul(w0, g0))))
            if s >= left - 3:
                v = add(v, load_first(gnew, n + s * E + e, lanes))
            store_first(dx, o + s * E + e, v, lanes)
            x0, x1, x2, g1, g2, g3 = x1, x2, x3, g0, g1, g2
        for k, v in ((0, d0), (1, d1), (2, d2), (3, d3), (4, total)):
            store(sums, k * tile + e, v)
        for k, v in ((0, g1), (1, g2), (2, g3)):
            store(slope, k * tile + e, v)


@compiled
def backward_tasks(
    x: Any, xr: int, xt: int, w: Any, bias: Any, tail: Any, g: Any, gr: int, gt: int, gnew: Any, dx: Any, dw: Any,
    dtail: Any, lengths: Any, starts: Any, T: int, E: int, W: int, tile: int, active: bool, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g with strides and gnew are the gradients into y and the new tail; dx (B, T, E), dw (B, pieces, W + 1,
    E), the last of it for the bias, dtail (B, W - 1, E)."""
    tiles, pieces = -(-E // tile), -(-T // PIECE)
    line, slope = scratch((max(CHUNK, W - 1) + W - 1) * tile, dx), scratch((CHUNK + W - 1) * tile, dx)
    held, sums, reaches = scratch((W + 1) * tile, dx), scratch((W + 1) * tile, dx), np.empty(CHUNK + W - 1, np.int64)
    for task in range(first, end):
        r, p, e0 = task // tiles // pieces, task // tiles % pieces * PIECE, task % tiles * tile
        size, length, j, last = min(tile, E - e0), lengths[r], r * (W - 1) * E + e0, min(p + PIECE, T)
        since = length - remembered(starts, r, length, W)
        hold(w, bias, E, W, e0, size, held, tile)
        slope[:] = 0
        sums[:] = 0
        reaches[:] = W - 1
        clear(dx, (r * T + max(p, length)) * E + e0, E, last - max(p, length), size)
        if last < length:
            t1 = min(last + W - 1, length)
            stage(x, r * xr + e0, xt, tail, j, E, W, last, t1, size, line, tile)
            for t in range(last, t1):
                i, back = r * gr + t * gt + e0, reach(starts, r, t, W)
                slopes(line, t - last, held, W, tile, back, g, i, slope, size, active)
        for t0 in range((min(last, length) - 1) // CHUNK * CHUNK, p - 1, -CHUNK):
            t1 = min(t0 + CHUNK, length)
            for k in range(W - 2, -1, -1):
                lay(slope, k * tile, slope, (CHUNK + k) * tile, tile)
            for t in range(t0, min(t1 + W - 1, length)):
                reaches[t - t0] = reach(starts, r, t, W)
            stage(x, r * xr + e0, xt, tail, j, E, W, t0, t1, size, line, tile)
            i, o, n = r * gr + t0 * gt + e0, (r * T + t0) * E + e0, j + (t0 - length + W - 1) * E
            if W == 4 and starts.shape[1] == 0:
                chunk4(line, slope, held, sums, g, i, gt, gnew, n, dx, o, E, tile, t1 - t0, length - t0, size, active)
            else:
                chunk(line, slope, held, sums, g, i, gt, gnew, n, since - t0, dx, o, E, W, tile, reaches, t1 - t0,
                      length - t0, size, active)  # fmt: skip
        if p == 0:
            for c in range(W - 1):
                t, n = c - W + 1, c - length
                inputs(slope, t, held, W, tile, reaches, -t, gnew, j + n * E, n >= 0 and t >= since, dtail,
                       j + c * E, size)  # fmt: skip
        for k in range(W + 1):
            for e in range(size):
                dw[((r * pieces + p // PIECE) * (W + 1) + k) * E + e0 + e] = sums[k * tile + e]


def forward(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    tail: Tensor,
    lengths: Tensor | None,
    starts: Tensor | None,
    activation: bool,
) -> tuple[Tensor, Tensor]:
    """y (B, T, E) and the new tail (B, W - 1, E) of x (B, T, E), w (E, W), bias (E,) or None and the tail, of one type; nothing empty
    but a tail of no columns."""
    (_, T, E), W = x.shape, w.shape[1]
    y, new = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, tail))
    tile, tasks = _tasks(x)
    tensors = *rows(x), *_flat(w.T, _bias(w, bias), tail, y, new)
    args = *tensors, *ragged(x.shape, lengths, starts), T, E, W, tile, activation
    spread(lambda first, end: forward_tasks(*args, first, end), tasks, x.numel() * (W + 4))
    return y, new


def backward(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    tail: Tensor,
    lengths: Tensor | None,
    starts: Tensor | None,
    activation: bool,
    gy: Tensor,
    gnew: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients to x, to the weights (B, E, W) and the bias (B, E) by row, and to the tail."""
    (B, T, E), W = x.shape, w.shape[1]
    dx, dtail = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, tail))
    dw = x.new_empty(B, -(-T // PIECE), W + 1, E)
    tile, tasks = _tasks(x)
    tensors = *rows(x), *_flat(w.T, _bias(w, bias), tail), *rows(gy), *_flat(gnew, dx, dw, dtail)
    args = *tensors, *ragged(x.shape, lengths, starts), T, E, W, tile, activation
    spread(lambda first, end: backward_tasks(*args, first, end), tasks, x.numel() * (3 * W + 8))
    total = dw.sum(1)
    weights, constants = (t.clone(memory_format=torch.contiguous_format) for t in (total[:, :W].mT, total[:, W]))
    return dx, weights, None if bias is None else constants, dtail


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(1, 1, 1, dtype=dtype)
        options = x[0], None, x[:, :0], None, None, True
        backward(x, *options, *forward(x, *options))


def _flat(*tensors: Tensor) -> tuple[Any, ...]:
    return tuple(array(t).reshape(-1) for t in tensors)


def _bias(w: Tensor, bias: Tensor | None) -> Tensor:
    return w.new_zeros(w.shape[0]) if bias is None else bias


def _tasks(x: Tensor) -> tuple[int, int]:
    """Channels of a task, a multiple of the lanes, and how many tasks there are."""
    B, T, E = x.shape
    lanes = 64 // x.element_size()
    tiles = -(-E // (WIDE * lanes))
    tile = -(-E // (tiles * lanes)) * lanes
    return tile, B * -(-T // PIECE) * -(-E // tile)
