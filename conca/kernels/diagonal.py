"""Kernels of the diagonal state space h_t = a h_{t-1} + b u_t, y_t = Re(sum_n c h_t), forward and backward.

Lanes run over channels. A task is one row and one block of channels; it goes through the chunks of the row, and in each through the
modes, whose states stay in registers over the steps of the chunk. With `saved` the state before each chunk is kept; backward
computes the states of one chunk at a time anew from it. `starts` cut a chunk into pieces, `lengths` end a row early.

What belongs to modes lies in memory as blocks: (block, mode, real and imaginary parts, lane), the last block filled up with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lanes import (
    accumulate,
    fma,
    fnma,
    load,
    load_first,
    mul,
    scratch,
    splat,
    store,
    store_first,
    width,
)
from conca.kernels.pool import spread
from conca.kernels.views import array, ragged, rows
from conca.ops.diagonal_bodies import CHUNK

__all__ = ["backward", "blocks_of", "forward", "modes_of", "tasks_of", "warm"]

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


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


@inlined
def six(p: Any, k: int) -> Any:
    """Real and imaginary parts of a, b and c of one mode."""
    W = width(p)
    return load(p, k), load(p, k + W), load(p, k + 2 * W), load(p, k + 3 * W), load(p, k + 4 * W), load(p, k + 5 * W)


@inlined
def advance(ar: Any, ai: Any, br: Any, bi: Any, hr: Any, hi: Any, v: Any) -> Any:
    """a h + b v."""
    return fma(ar, hr, fnma(ai, hi, mul(br, v))), fma(ar, hi, fma(ai, hr, mul(bi, v)))


@inlined
def one_mode(x: Any, out: Any, cuts: Any, pieces: int, p: Any, k: int, h: Any, i: int) -> None:
    """One mode in one chunk: inputs x, outputs added to `out`, the state in h renewed."""
    W, zero = width(x), splat(x.dtype.type(0))
    ar, ai, br, bi, cr, ci = six(p, k)
    hr, hi = load(h, i), load(h, i + W)
    for piece in range(pieces):
        if piece > 0:
            hr, hi = zero, zero
        for s in range(cuts[piece] * W, cuts[piece + 1] * W, W):
            hr, hi = advance(ar, ai, br, bi, hr, hi, load(x, s))
            store(out, s, fma(cr, hr, fnma(ci, hi, load(out, s))))
    store(h, i, hr)
    store(h, i + W, hi)


@inlined
def two_modes(x: Any, out: Any, cuts: Any, pieces: int, p: Any, k: int, h: Any, i: int) -> None:
    """Two modes at once: neither waits for the other, and the outputs are touched once for both."""
    W, zero = width(x), splat(x.dtype.type(0))
    ar, ai, br, bi, cr, ci = six(p, k)
    dr, di, er, ei, fr, fi = six(p, k + 6 * W)
    hr, hi, gr, gi = load(h, i), load(h, i + W), load(h, i + 2 * W), load(h, i + 3 * W)
    for piece in range(pieces):
        if piece > 0:
            hr, hi, gr, gi = zero, zero, zero, zero
        for s in range(cuts[piece] * W, cuts[piece + 1] * W, W):
            v = load(x, s)
            hr, hi = advance(ar, ai, br, bi, hr, hi, v)
            gr, gi = advance(dr, di, er, ei, gr, gi, v)
            store(out, s, fma(fr, gr, fnma(fi, gi, fma(cr, hr, fnma(ci, hi, load(out, s))))))
    store(h, i, hr)
    store(h, i + W, hi)
    store(h, i + 2 * W, gr)
    store(h, i + 3 * W, gi)


@compiled
def forward_tasks(
    u: Any, ur: int, ut: int, p: Any, h: Any, y: Any, saved: Any, row: int, lengths: Any, starts: Any, T: int, D: int,
    N: int, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end. Flat arrays: u with strides, y (B, T, D); in blocks p (blocks, N, 6, W), h (B, blocks, N, 2, W) (the
    state, old and then new), saved (B, row) with row = 0 or at least blocks * chunks * N * 2 W; lengths (B,), starts (B, T or 0)."""
    W = width(y)
    blocks, chunks = -(-D // W), -(-T // CHUNK)
    x, out, cuts = scratch(CHUNK * W, y), scratch(CHUNK * W, y), np.empty(CHUNK + 2, np.int64)
    for task in range(first, end):
        r, block = task // blocks, task % blocks
        e, lanes, length = block * W, min(W, D - block * W), lengths[r]
        for t0 in range(0, length, CHUNK):
            size = min(CHUNK, length - t0)
            fetch(u, r * ur + t0 * ut + e, ut, size, lanes, x)
            out[:] = 0
            pieces = cut(starts, r, t0, size, cuts)
            if row > 0:
                j = r * row + (block * chunks + t0 // CHUNK) * N * 2 * W
                for i in range(0, N * 2 * W, W):
                    store(saved, j + i, load(h, task * N * 2 * W + i))
            for n in range(0, N - 1, 2):
                two_modes(x, out, cuts, pieces, p, (block * N + n) * 6 * W, h, (task * N + n) * 2 * W)
            if N % 2:
                one_mode(x, out, cuts, pieces, p, (block * N + N - 1) * 6 * W, h, (task * N + N - 1) * 2 * W)
            for s in range(size):
                store_first(y, (r * T + t0 + s) * D + e, load(out, s * W), lanes)
        clear(y, (r * T + length) * D + e, D, T - length, lanes)


@inlined
def one_mode_back(
    x: Any, into: Any, out: Any, re: Any, im: Any, cuts: Any, pieces: int, p: Any, k: int, saved: Any, j: int,
    dh: Any, i: int, dp: Any, m: int,
) -> None:  # fmt: skip
    """One mode in one chunk: states forward in time into re, im (before each step), then the gradient back through them."""
    W, zero = width(x), splat(x.dtype.type(0))
    ar, ai, br, bi, cr, ci = six(p, k)
    dar, dai, dbr, dbi, dcr, dci = zero, zero, zero, zero, zero, zero
    hr, hi = load(saved, j), load(saved, j + W)
    for piece in range(pieces):
        if piece > 0:
            hr, hi = zero, zero
        for s in range(cuts[piece] * W, cuts[piece + 1] * W, W):
            store(re, s, hr)
            store(im, s, hi)
            hr, hi = advance(ar, ai, br, bi, hr, hi, load(x, s))
            g = load(into, s)
            dcr, dci = fma(g, hr, dcr), fnma(g, hi, dci)
    tr, ti = load(dh, i), load(dh, i + W)
    for piece in range(pieces - 1, -1, -1):
        for s in range((cuts[piece + 1] - 1) * W, cuts[piece] * W - 1, -W):
            v, g, hr, hi = load(x, s), load(into, s), load(re, s), load(im, s)
            qr, qi = fma(g, cr, tr), fnma(g, ci, ti)
            store(out, s, fma(qr, br, fma(qi, bi, load(out, s))))
            dbr, dbi = fma(qr, v, dbr), fma(qi, v, dbi)
            dar, dai = fma(qr, hr, fma(qi, hi, dar)), fma(qi, hr, fnma(qr, hi, dai))
            tr, ti = fma(ar, qr, mul(ai, qi)), fnma(ai, qr, mul(ar, qi))
        if piece > 0:
            tr, ti = zero, zero
    store(dh, i, tr)
    store(dh, i + W, ti)
    accumulate(dp, m, dar)
    accumulate(dp, m + W, dai)
    accumulate(dp, m + 2 * W, dbr)
    accumulate(dp, m + 3 * W, dbi)
    accumulate(dp, m + 4 * W, dcr)
    accumulate(dp, m + 5 * W, dci)


@compiled
def backward_tasks(
    u: Any, ur: int, ut: int, g: Any, gr: int, gt: int, p: Any, saved: Any, row: int, dh: Any, du: Any, dp: Any,
    lengths: Any, starts: Any, T: int, D: int, N: int, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g is the gradient into y with strides, dh (B, blocks, N, 2, W) that into the last state and then that of
    the first, du (B, T, D), dp (B, blocks, N, 6, W) is added to."""
    W = width(du)
    blocks, chunks = -(-D // W), -(-T // CHUNK)
    x, into, out = scratch(CHUNK * W, du), scratch(CHUNK * W, du), scratch(CHUNK * W, du)
    re, im, cuts = scratch(CHUNK * W, du), scratch(CHUNK * W, du), np.empty(CHUNK + 2, np.int64)
    for task in range(first, end):
        r, block = task // blocks, task % blocks
        e, lanes, length = block * W, min(W, D - block * W), lengths[r]
        clear(du, (r * T + length) * D + e, D, T - length, lanes)
        for chunk in range(-(-length // CHUNK) - 1, -1, -1):
            t0 = chunk * CHUNK
            size = min(CHUNK, length - t0)
            fetch(u, r * ur + t0 * ut + e, ut, size, lanes, x)
            fetch(g, r * gr + t0 * gt + e, gt, size, lanes, into)
            out[:] = 0
            pieces = cut(starts, r, t0, size, cuts)
            j = r * row + (block * chunks + chunk) * N * 2 * W
            for n in range(N):
                one_mode_back(
                    x, into, out, re, im, cuts, pieces, p, (block * N + n) * 6 * W, saved, j + n * 2 * W,
                    dh, (task * N + n) * 2 * W, dp, (task * N + n) * 6 * W,
                )  # fmt: skip
            for s in range(size):
                store_first(du, (r * T + t0 + s) * D + e, load(out, s * W), lanes)


def forward(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Tensor | None, starts: Tensor | None, saved: Tensor
) -> tuple[Tensor, Tensor]:
    """y (B, T, D) and the last state (B, D, N); `saved` (B, 0 or enough) receives the states before the chunks. Nothing is empty."""
    (_, T, D), N = u.shape, a.shape[1]
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    state, flat = blocks_of(h), array(saved).reshape(-1)
    outputs = array(_joined(a, b, c)).reshape(-1), array(state).reshape(-1), array(y).reshape(-1)
    args = *rows(u), *outputs, flat, saved.shape[1], *ragged(u.shape, lengths, starts), T, D, N
    tasks, work = tasks_of(u, N)
    spread(lambda first, end: forward_tasks(*args, first, end), tasks, 8 * work)
    return y, modes_of(state, D)


def backward(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    h: Tensor,
    lengths: Tensor | None,
    starts: Tensor | None,
    saved: Tensor,
    gy: Tensor,
    gh: Tensor,
) -> Five:
    """Gradients to u, to a, b and c by row (B, D, N), and to h, from those into y and the last state."""
    (B, T, D), N = u.shape, a.shape[1]
    du, dh, p = torch.empty_like(u, memory_format=torch.contiguous_format), blocks_of(gh), _joined(a, b, c)
    dp = p.new_zeros(B, *p.shape)
    outputs = (array(t).reshape(-1) for t in (dh, du, dp))
    flat = array(p).reshape(-1), array(saved).reshape(-1), saved.shape[1], *outputs
    args = *rows(u), *rows(gy), *flat, *ragged(u.shape, lengths, starts), T, D, N
    tasks, work = tasks_of(u, N)
    spread(lambda first, end: backward_tasks(*args, first, end), tasks, 22 * work)
    da, db, dc = (modes_of(dp[..., k : k + 2, :], D) for k in (0, 2, 4))
    return du, da, db, dc, modes_of(dh, D)


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        u, a = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype.to_complex())
        saved = u.new_empty(1, 32)
        y, h = forward(u, a, a, a, a[None], None, None, saved)
        backward(u, a, a, a, a[None], None, None, saved, y, h)


def blocks_of(z: Tensor) -> Tensor:
    """(..., D, N) complex as a new (..., blocks, N, 2, W) real."""
    pairs = torch.view_as_real(z.detach().resolve_conj())
    W = 64 // pairs.element_size()
    filled = F.pad(pairs, (0, 0, 0, 0, 0, -z.shape[-2] % W))
    return (
        filled.reshape(*z.shape[:-2], -1, W, z.shape[-1], 2)
        .movedim(-3, -1)
        .clone(memory_format=torch.contiguous_format)
    )


def _joined(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a, b and c as blocks side by side: (blocks, N, 6, W)."""
    return torch.cat([blocks_of(t) for t in (a, b, c)], -2)


def modes_of(blocks: Tensor, D: int) -> Tensor:
    """The inverse of `blocks_of`: (..., D, N) complex."""
    pairs = blocks.movedim(-1, -3).flatten(-4, -3)[..., :D, :, :]
    return torch.view_as_complex(pairs.contiguous()).clone()


def tasks_of(u: Tensor, N: int) -> tuple[int, int]:
    """How many tasks there are, and mode-steps in all of them."""
    B, T, D = u.shape
    lanes = 64 // u.element_size()
    blocks = -(-D // lanes)
    return B * blocks, B * T * blocks * lanes * N
