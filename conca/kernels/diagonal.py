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
from conca.kernels.views import array, rows
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


@inlined
def six(p: Any, k: int, M: int, lanes: int) -> Any:
    """Real and imaginary parts of a, b and c of one mode."""
    ar, ai = load_first(p, k, lanes), load_first(p, k + M, lanes)
    br, bi = load_first(p, k + 2 * M, lanes), load_first(p, k + 3 * M, lanes)
    return ar, ai, br, bi, load_first(p, k + 4 * M, lanes), load_first(p, k + 5 * M, lanes)


@inlined
def begin(h: Any, i: int, saved: Any, j: int, M: int, lanes: int) -> Any:
    """The state of one mode, kept in `saved` too where j is not negative."""
    hr, hi = load_first(h, i, lanes), load_first(h, i + M, lanes)
    if j >= 0:
        store_first(saved, j, hr, lanes)
        store_first(saved, j + M, hi, lanes)
    return hr, hi


@inlined
def advance(ar: Any, ai: Any, br: Any, bi: Any, hr: Any, hi: Any, v: Any) -> Any:
    """a h + b v."""
    return fma(ar, hr, fnma(ai, hi, mul(br, v))), fma(ar, hi, fma(ai, hr, mul(bi, v)))


@inlined
def one_mode(
    x: Any, out: Any, cuts: Any, pieces: int, p: Any, h: Any, i: int, saved: Any, j: int, n: int, M: int, lanes: int
) -> None:
    """One mode in one chunk: inputs x, outputs added to `out`, the state in h renewed."""
    W, zero = width(x), splat(x.dtype.type(0))
    ar, ai, br, bi, cr, ci = six(p, n, M, lanes)
    hr, hi = begin(h, i + n, saved, j + n if j >= 0 else j, M, lanes)
    for piece in range(pieces):
        if piece > 0:
            hr, hi = zero, zero
        for s in range(cuts[piece] * W, cuts[piece + 1] * W, W):
            hr, hi = advance(ar, ai, br, bi, hr, hi, load(x, s))
            store(out, s, fma(cr, hr, fnma(ci, hi, load(out, s))))
    store_first(h, i + n, hr, lanes)
    store_first(h, i + n + M, hi, lanes)


@inlined
def two_modes(
    x: Any, out: Any, cuts: Any, pieces: int, p: Any, h: Any, i: int, saved: Any, j: int, n: int, D: int, M: int,
    lanes: int,
) -> None:  # fmt: skip
    """Two modes at once: neither waits for the other, and the outputs are touched once for both."""
    W, zero, m = width(x), splat(x.dtype.type(0)), n + D
    ar, ai, br, bi, cr, ci = six(p, n, M, lanes)
    dr, di, er, ei, fr, fi = six(p, m, M, lanes)
    hr, hi = begin(h, i + n, saved, j + n if j >= 0 else j, M, lanes)
    gr, gi = begin(h, i + m, saved, j + m if j >= 0 else j, M, lanes)
    for piece in range(pieces):
        if piece > 0:
            hr, hi, gr, gi = zero, zero, zero, zero
        for s in range(cuts[piece] * W, cuts[piece + 1] * W, W):
            v = load(x, s)
            hr, hi = advance(ar, ai, br, bi, hr, hi, v)
            gr, gi = advance(dr, di, er, ei, gr, gi, v)
            y = fma(cr, hr, fnma(ci, hi, load(out, s)))
            store(out, s, fma(fr, gr, fnma(fi, gi, y)))
    store_first(h, i + n, hr, lanes)
    store_first(h, i + n + M, hi, lanes)
    store_first(h, i + m, gr, lanes)
    store_first(h, i + m + M, gi, lanes)


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
    cuts = np.empty(CHUNK + 2, np.int64)
    for task in range(first, end):
        r, e = task // blocks, task % blocks * W
        lanes, length = min(W, D - e), lengths[r]
        for t0 in range(0, length, CHUNK):
            size = min(CHUNK, length - t0)
            fetch(u, r * ur + t0 * ut + e, ut, size, lanes, x)
            out[:] = 0
            pieces = cut(starts, r, t0, size, cuts)
            n, j = e, 2 * (r * chunks + t0 // CHUNK) * M if saved.size > 0 else -1
            while n + D < M:
                two_modes(x, out, cuts, pieces, p, h, 2 * r * M, saved, j, n, D, M, lanes)
                n += 2 * D
            if n < M:
                one_mode(x, out, cuts, pieces, p, h, 2 * r * M, saved, j, n, M, lanes)
            for s in range(size):
                store_first(y, (r * T + t0 + s) * D + e, load(out, s * W), lanes)
        clear(y, (r * T + length) * D + e, D, T - length, lanes)


@inlined
def accumulate(x: Any, i: int, value: Any, lanes: int) -> None:
    """Add to the first lanes at an offset."""
    store_first(x, i, add(load_first(x, i, lanes), value), lanes)


@inlined
def one_mode_back(
    x: Any, into: Any, out: Any, re: Any, im: Any, cuts: Any, pieces: int, p: Any, k: int, saved: Any, j: int,
    dh: Any, i: int, dp: Any, m: int, M: int, lanes: int,
) -> None:  # fmt: skip
    """One mode in one chunk: states forward in time into re, im (before each step), then the gradient back through them."""
    W, zero = width(x), splat(x.dtype.type(0))
    hr, hi = load_first(saved, j, lanes), load_first(saved, j + M, lanes)
    ar, ai, br, bi, cr, ci = six(p, k, M, lanes)
    dar, dai, dbr, dbi, dcr, dci = zero, zero, zero, zero, zero, zero
    for piece in range(pieces):
        if piece > 0:
            hr, hi = zero, zero
        for s in range(cuts[piece] * W, cuts[piece + 1] * W, W):
            store(re, s, hr)
            store(im, s, hi)
            v, g = load(x, s), load(into, s)
            hr, hi = advance(ar, ai, br, bi, hr, hi, v)
            dcr, dci = fma(g, hr, dcr), fnma(g, hi, dci)
    tr, ti = load_first(dh, i, lanes), load_first(dh, i + M, lanes)
    for piece in range(pieces - 1, -1, -1):
        for s in range((cuts[piece + 1] - 1) * W, cuts[piece] * W - 1, -W):
            v, g = load(x, s), load(into, s)
            hr, hi = load(re, s), load(im, s)
            qr, qi = fma(g, cr, tr), fnma(g, ci, ti)
            store(out, s, fma(qr, br, fma(qi, bi, load(out, s))))
            dbr, dbi = fma(qr, v, dbr), fma(qi, v, dbi)
            dar = fma(qr, hr, fma(qi, hi, dar))
            dai = fma(qi, hr, fnma(qr, hi, dai))
            tr, ti = fma(ar, qr, mul(ai, qi)), fnma(ai, qr, mul(ar, qi))
        if piece > 0:
            tr, ti = zero, zero
    store_first(dh, i, tr, lanes)
    store_first(dh, i + M, ti, lanes)
    accumulate(dp, m, dar, lanes)
    accumulate(dp, m + M, dai, lanes)
    accumulate(dp, m + 2 * M, dbr, lanes)
    accumulate(dp, m + 3 * M, dbi, lanes)
    accumulate(dp, m + 4 * M, dcr, lanes)
    accumulate(dp, m + 5 * M, dci, lanes)


@compiled
def backward_tasks(
    u: Any, ur: int, ut: int, g: Any, gr: int, gt: int, p: Any, saved: Any, dh: Any, du: Any, dp: Any, lengths: Any,
    starts: Any, T: int, D: int, N: int, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g is the gradient into y, dh (B, 2, N, D) that into the last state and then that of the first,
    du (B, T, D), dp (B, 3, 2, N, D) is added to."""
    W, M = width(du), N * D
    blocks, chunks = -(-D // W), -(-T // CHUNK)
    x, into, out = (
        np.empty(CHUNK * LANES, du.dtype),
        np.empty(CHUNK * LANES, du.dtype),
        np.empty(CHUNK * LANES, du.dtype),
    )
    re, im, cuts = np.empty(CHUNK * LANES, du.dtype), np.empty(CHUNK * LANES, du.dtype), np.empty(CHUNK + 2, np.int64)
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
                one_mode_back(
                    x, into, out, re, im, cuts, pieces, p, n * D + e, saved, 2 * (r * chunks + chunk) * M + n * D + e,
                    dh, 2 * r * M + n * D + e, dp, 6 * r * M + n * D + e, M, lanes,
                )  # fmt: skip
            for s in range(size):
                store_first(du, (r * T + t0 + s) * D + e, load(out, s * W), lanes)


def forward(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Tensor | None, starts: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, T, D), the last state (B, D, N), and with `save` the states before the chunks (B, chunks, 2, N, D); nothing empty."""
    (B, T, D), N = u.shape, a.shape[1]
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    state = _apart(h)
    saved = u.new_empty(B, -(-T // CHUNK) if save else 0, 2, N, D)
    if lengths is not None:
        saved.zero_()
    p = torch.stack([_apart(t) for t in (a, b, c)])
    args = *rows(u), *(array(t).reshape(-1) for t in (p, state, y, saved)), *_ragged(u, lengths, starts), T, D, N
    tasks, work = _tasks(u, N)
    spread(lambda first, end: forward_tasks(*args, first, end), tasks, 8 * work)
    return y, _together(state), saved


def backward(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    before: Tensor,
    lengths: Tensor | None,
    starts: Tensor | None,
    gy: Tensor,
    gh: Tensor,
) -> Five:
    """Gradients to u, a, b, c and h from those into y and the last state."""
    (B, T, D), N = u.shape, a.shape[1]
    du, dh = torch.empty_like(u, memory_format=torch.contiguous_format), _apart(gh)
    p, dp = torch.stack([_apart(t) for t in (a, b, c)]), u.new_zeros(B, 3, 2, N, D)
    flat = (array(t).reshape(-1) for t in (p, before, dh, du, dp))
    args = *rows(u), *rows(gy), *flat, *_ragged(u, lengths, starts), T, D, N
    tasks, work = _tasks(u, N)
    spread(lambda first, end: backward_tasks(*args, first, end), tasks, 22 * work)
    da, db, dc = (_together(t) for t in dp.sum(0))
    return du, da, db, dc, _together(dh)


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        u, a = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype.to_complex())
        y, h, before = forward(u, a, a, a, a[None], None, None, True)
        backward(u, a, a, a, before, None, None, y, h)


def _apart(z: Tensor) -> Tensor:
    """(..., D, N) complex as a new (..., 2, N, D) real."""
    pair = torch.view_as_real(z.detach().resolve_conj())
    return torch.stack([pair[..., 0].mT, pair[..., 1].mT], -3)


def _together(pair: Tensor) -> Tensor:
    """The inverse of `_apart`."""
    return torch.complex(pair[..., 0, :, :].mT.contiguous(), pair[..., 1, :, :].mT.contiguous())


def _ragged(u: Tensor, lengths: Tensor | None, starts: Tensor | None) -> tuple[Any, Any]:
    """Lengths (B,) within 0..T, and starts (B, T), or (B, 0) where there are none."""
    B, T, _ = u.shape
    ends = torch.full((B,), T) if lengths is None else lengths.clamp(0, T)
    return array(ends), array(torch.empty(B, 0, dtype=torch.bool) if starts is None else starts)


def _tasks(u: Tensor, N: int) -> tuple[int, int]:
    """How many tasks there are, and mode-steps in all of them."""
    B, T, D = u.shape
    lanes = 64 // u.element_size()
    blocks = -(-D // lanes)
    return B * blocks, B * T * blocks * lanes * N
