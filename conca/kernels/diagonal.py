"""Kernels of the diagonal state space h_t = a h_{t-1} + b u_t, y_t = Re(sum_n c h_t), forward and backward.

Lanes run over channels. A task is one row and one block of lanes; it goes through the chunks of the row, and in each through the
modes, whose states stay in registers over the steps of the chunk. With `save` the state before each chunk is kept; backward
computes the states of one chunk at a time anew from it. `starts` cut a chunk into pieces, `lengths` end a row early.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lanes import add, fma, fnma, load, load_first, mul, splat, store, store_first, width
from conca.kernels.pool import spread
from conca.kernels.views import Rows, array, rows
from conca.ops.diagonal_bodies import CHUNK

__all__ = ["backward", "forward", "warm"]

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
LANES = 16
"""The most lanes that a vector has."""


@inlined
def cut(starts: Any, r: int, t0: int, size: int, cuts: Any) -> int:
    """Pieces of a chunk: piece k is cuts[k] .. cuts[k + 1]; each but the first begins with an empty state. Returns their number.

    A start at the first step makes the first piece empty.
    """
    count = 1
    cuts[0] = 0
    if starts.shape[1] > 0:
        for s in range(size):
            if starts[r, t0 + s]:
                cuts[count] = s
                count += 1
    cuts[count] = size
    return count


@inlined
def fetch(x: Any, start: int, stride: int, size: int, lanes: int, out: Any) -> None:
    """Put `size` steps of a block of channels together."""
    W = width(out)
    for s in range(size):
        store(out, s * W, load_first(x, start + s * stride, lanes))


@inlined
def clear(x: Any, start: int, stride: int, size: int, lanes: int) -> None:
    """Zeros in `size` steps of a block of channels."""
    for s in range(size):
        for i in range(lanes):
            x[start + s * stride + i] = 0


@compiled
def forward_tasks(
    u: Any, ur: int, ut: int, p: Any, h: Any, y: Any, saved: Any, lengths: Any, starts: Any, T: int, D: int, N: int,
    first: int, end: int,
) -> None:  # fmt: skip
    """Flat arrays: u with strides, y (B, T, D), h (B, 2, N, D) (the state, old and new), p = a, b, c (3, 2, N, D),
    saved (B, chunks, 2, N, D) or empty; lengths (B,), starts (B, T) or (B, 0)."""
    W, M = width(y), N * D
    blocks, chunks = -(-D // W), -(-T // CHUNK)
    x, out = np.empty(CHUNK * LANES, y.dtype), np.empty(CHUNK * LANES, y.dtype)
    cuts, zero = np.empty(CHUNK + 2, np.int64), splat(y.dtype.type(0))
    for task in range(first, end):
        r, e = task // blocks, task % blocks * W
        lanes, length = min(W, D - e), lengths[r]
        for t0 in range(0, length, CHUNK):
            size = min(CHUNK, length - t0)
            fetch(u, r * ur + t0 * ut + e, ut, size, lanes, x)
            out[:] = 0
            pieces = cut(starts, r, t0, size, cuts)
            for n in range(N):
                k, i, j = n * D + e, 2 * r * M + n * D + e, 2 * (r * chunks + t0 // CHUNK) * M + n * D + e
                hr, hi = load_first(h, i, lanes), load_first(h, i + M, lanes)
                if saved.size > 0:
                    store_first(saved, j, hr, lanes)
                    store_first(saved, j + M, hi, lanes)
                ar, ai = load_first(p, k, lanes), load_first(p, k + M, lanes)
                br, bi = load_first(p, k + 2 * M, lanes), load_first(p, k + 3 * M, lanes)
                cr, ci = load_first(p, k + 4 * M, lanes), load_first(p, k + 5 * M, lanes)
                for piece in range(pieces):
                    if piece > 0:
                        hr, hi = zero, zero
                    for s in range(cuts[piece] * W, cuts[piece + 1] * W, W):
                        v = load(x, s)
                        re = fma(ar, hr, fnma(ai, hi, mul(br, v)))
                        hi = fma(ar, hi, fma(ai, hr, mul(bi, v)))
                        hr = re
                        store(out, s, fma(cr, hr, fnma(ci, hi, load(out, s))))
                store_first(h, i, hr, lanes)
                store_first(h, i + M, hi, lanes)
            for s in range(size):
                store_first(y, (r * T + t0 + s) * D + e, load(out, s * W), lanes)
        clear(y, (r * T + length) * D + e, D, T - length, lanes)


@compiled
def backward_tasks(
    u: Any, ur: int, ut: int, g: Any, gr: int, gt: int, p: Any, saved: Any, dh: Any, du: Any, dp: Any, lengths: Any,
    starts: Any, T: int, D: int, N: int, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g is the gradient into y, dh (B, 2, N, D) that into the last state and then that of the first,
    du (B, T, D), dp (B, 3, 2, N, D) is added to."""
    W, M = width(du), N * D
    blocks, chunks = -(-D // W), -(-T // CHUNK)
    x, into, out, re, im = (np.empty((CHUNK + 1) * LANES, du.dtype) for _ in range(5))
    cuts = np.empty(CHUNK + 2, np.int64)
    for task in range(first, end):
        r, e = task // blocks, task % blocks * W
        lanes, length = min(W, D - e), lengths[r]
        clear(du, (r * T + length) * D + e, D, T - length, lanes)
        for chunk in range(-(-length // CHUNK) - 1, -1, -1):
            t0 = chunk * CHUNK
            size = min(CHUNK, length - t0)
            fetch(u, r * ur + t0 * ut + e, ut, size, lanes, x)
            fetch(g, r * gr + t0 * gt + e, gt, size, lanes, into)
            out[:] = 0
            pieces = cut(starts, r, t0, size, cuts)
            for n in range(N):
                one_mode(
                    x, into, out, re, im, cuts, pieces, p, saved, 2 * (r * chunks + chunk) * M + n * D + e, dh,
                    2 * r * M + n * D + e, dp, 6 * r * M + n * D + e, M, n * D + e, lanes,
                )  # fmt: skip
            for s in range(size):
                store_first(du, (r * T + t0 + s) * D + e, load(out, s * W), lanes)
