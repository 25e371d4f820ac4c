"""Kernels of the state space h_t = a h_{t-1} - sum_r p_r s_r + b u_t, s_r = Re(sum_n q_r h_{t-1}), y_t = Re(sum_n c h_t), both ways.

Lanes run over channels, as in `conca.kernels.diagonal`, which explains tasks and blocks. The feedback s couples the modes, so going
forward time is outermost, and the modes of a block with their factors stay in the first cache. With `saved` the state before each
chunk is kept, and s at every step. Going backward, a first pass over a chunk, last step first, finds the gradients into states and
feedback; a second takes the modes one by one, which no longer wait for each other, and computes their states anew in registers.

The first feedback stays in registers, those after it (rank above 1) in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.diagonal import advance, blocks_of, clear, cut, fetch, modes_of, six, tasks_of
from conca.kernels.lanes import accumulate, add, fma, fnma, load, mul, scratch, splat, store, store_first, width
from conca.kernels.pool import spread
from conca.kernels.views import array, ragged, rows
from conca.ops.diagonal_bodies import CHUNK

__all__ = ["backward", "forward", "warm"]

Seven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
ROOM = CHUNK + 1
"""Steps of a feedback that are kept: those of a chunk, and the next."""


@inlined
def four(p: Any, k: int) -> Any:
    """Real and imaginary parts of p and q of one mode and feedback."""
    W = width(p)
    return load(p, k), load(p, k + W), load(p, k + 2 * W), load(p, k + 3 * W)


@inlined
def wipe(x: Any, start: int, end: int) -> None:
    """Zeros in vectors."""
    zero = splat(x.dtype.type(0))
    for i in range(start, end, width(x)):
        store(x, i, zero)


@inlined
def read(p: Any, k: int, K: int, N: int, R: int, h: Any, i: int, feed: Any) -> None:
    """The feedback of a state, into step 0 of `feed`."""
    W, zero = width(p), splat(p.dtype.type(0))
    for r in range(R):
        sr, si = zero, zero
        for n in range(N):
            _, _, qr, qi = four(p, k + n * K + (6 + 4 * r) * W)
            sr, si = fma(qr, load(h, i + n * 2 * W), sr), fnma(qi, load(h, i + n * 2 * W + W), si)
        store(feed, r * ROOM * W, add(sr, si))


@inlined
def one_step(p: Any, k: int, K: int, N: int, R: int, h: Any, i: int, v: Any, feed: Any, s: int) -> Any:
    """All modes one step on, under the input v and the feedback of step s; that of step s + 1, and the output."""
    W, zero = width(p), splat(p.dtype.type(0))
    first = load(feed, s)
    yr, yi, sr, si = zero, zero, zero, zero
    for r in range(1, R):
        store(feed, s + (r * ROOM + 1) * W, zero)
    for n in range(N):
        m, j = k + n * K, i + n * 2 * W
        ar, ai, br, bi, cr, ci = six(p, m)
        pr, pi, qr, qi = four(p, m + 6 * W)
        hr, hi = advance(ar, ai, br, bi, load(h, j), load(h, j + W), v)
        hr, hi = fnma(pr, first, hr), fnma(pi, first, hi)
        for r in range(1, R):
            more = load(feed, s + r * ROOM * W)
            hr = fnma(load(p, m + (6 + 4 * r) * W), more, hr)
            hi = fnma(load(p, m + (7 + 4 * r) * W), more, hi)
        store(h, j, hr)
        store(h, j + W, hi)
        yr, yi = fma(cr, hr, yr), fnma(ci, hi, yi)
        sr, si = fma(qr, hr, sr), fnma(qi, hi, si)
        for r in range(1, R):
            f = s + (r * ROOM + 1) * W
            now = fma(load(p, m + (8 + 4 * r) * W), hr, load(feed, f))
            store(feed, f, fnma(load(p, m + (9 + 4 * r) * W), hi, now))
    store(feed, s + W, add(sr, si))
    return add(yr, yi)


@compiled
def forward_tasks(
    u: Any, ur: int, ut: int, p: Any, h: Any, y: Any, saved: Any, row: int, lengths: Any, starts: Any, T: int, D: int,
    N: int, R: int, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end. Flat arrays: u with strides, y (B, T, D); in blocks p (blocks, N, 6 + 4 R, W), h (B, blocks, N, 2, W) (the
    state, old and then new), saved (B, row) with row = 0 or blocks * (chunks * 2 N + T R) * W; lengths (B,), starts (B, T or 0)."""
    W = width(y)
    blocks, chunks, K = -(-D // W), -(-T // CHUNK), (6 + 4 * R) * W
    x, feed = scratch(CHUNK * W, y), scratch(R * ROOM * W, y)
    for task in range(first, end):
        r, block = task // blocks, task % blocks
        e, lanes, length = block * W, min(W, D - block * W), lengths[r]
        k, i = block * N * K, task * N * 2 * W
        keep = r * row + block * (chunks * 2 * N + T * R) * W
        read(p, k, K, N, R, h, i, feed)
        for t0 in range(0, length, CHUNK):
            size = min(CHUNK, length - t0)
            fetch(u, r * ur + t0 * ut + e, ut, size, lanes, x)
            if row > 0:
                for j in range(0, N * 2 * W, W):
                    store(saved, keep + t0 // CHUNK * N * 2 * W + j, load(h, i + j))
            for s in range(size):
                if starts.shape[1] > 0 and starts[r, t0 + s]:
                    wipe(h, i, i + N * 2 * W)
                    for f in range(R):
                        wipe(feed, (f * ROOM + s) * W, (f * ROOM + s + 1) * W)
                out = one_step(p, k, K, N, R, h, i, load(x, s * W), feed, s * W)
                store_first(y, (r * T + t0 + s) * D + e, out, lanes)
            for f in range(R):
                if row > 0:
                    for s in range(size):
                        j = keep + (chunks * 2 * N + f * T + t0 + s) * W
                        store(saved, j, load(feed, (f * ROOM + s) * W))
                store(feed, f * ROOM * W, load(feed, (f * ROOM + size) * W))
        clear(y, (r * T + length) * D + e, D, T - length, lanes)


@inlined
def last_step_back(
    p: Any, k: int, K: int, N: int, R: int, g: Any, later: Any, i: int, live: bool, grown: Any, back: Any, s: int
) -> None:
    """Into `grown` the gradient into the last state of a piece, from g and, if `live`, from later on; into `back` the feedback's."""
    W, zero = width(p), splat(p.dtype.type(0))
    for r in range(R):
        store(back, s + r * ROOM * W, splat(p.dtype.type(0)))
    for n in range(N):
        m, j = k + n * K, n * 2 * W
        tr, ti = zero, zero
        if live:
            tr, ti = load(later, i + j), load(later, i + j + W)
        gr, gi = fma(g, load(p, m + 4 * W), tr), fnma(g, load(p, m + 5 * W), ti)
        store(grown, s * N * 2 + j, gr)
        store(grown, s * N * 2 + j + W, gi)
        for r in range(R):
            f, o = s + r * ROOM * W, m + (6 + 4 * r) * W
            store(back, f, fnma(load(p, o), gr, fnma(load(p, o + W), gi, load(back, f))))


@inlined
def one_step_back(p: Any, k: int, K: int, N: int, R: int, g: Any, grown: Any, back: Any, s: int) -> None:
    """As `last_step_back`, from the gradient into the state and the feedback one step later."""
    W, zero = width(p), splat(p.dtype.type(0))
    first = load(back, s + W)
    sr, si = zero, zero
    for r in range(1, R):
        store(back, s + r * ROOM * W, zero)
    for n in range(N):
        m, j = k + n * K, n * 2 * W
        ar, ai, _, _, cr, ci = six(p, m)
        pr, pi, qr, qi = four(p, m + 6 * W)
        after = (s + W) * N * 2 + j
        tr, ti = load(grown, after), load(grown, after + W)
        gr = fma(g, cr, fma(first, qr, fma(ar, tr, mul(ai, ti))))
        gi = fnma(g, ci, fnma(first, qi, fnma(ai, tr, mul(ar, ti))))
        for r in range(1, R):
            more = load(back, s + (r * ROOM + 1) * W)
            gr = fma(more, load(p, m + (8 + 4 * r) * W), gr)
            gi = fnma(more, load(p, m + (9 + 4 * r) * W), gi)
        store(grown, s * N * 2 + j, gr)
        store(grown, s * N * 2 + j + W, gi)
        sr, si = fnma(pr, gr, sr), fnma(pi, gi, si)
        for r in range(1, R):
            f, o = s + r * ROOM * W, m + (6 + 4 * r) * W
            store(back, f, fnma(load(p, o), gr, fnma(load(p, o + W), gi, load(back, f))))
    store(back, s, add(sr, si))


@inlined
def feedback_back(
    p: Any, k: int, K: int, N: int, R: int, into: Any, cuts: Any, pieces: int, dh: Any, i: int, grown: Any, back: Any
) -> None:
    """The gradient into the states (in `grown`) and the feedback at every step of a chunk, from that into outputs and last state."""
    W = width(p)
    for piece in range(pieces - 1, -1, -1):
        begin, end = cuts[piece] * W, cuts[piece + 1] * W
        if end > begin:
            live = piece == pieces - 1
            last_step_back(p, k, K, N, R, load(into, end - W), dh, i, live, grown, back, end - W)
        for s in range(end - 2 * W, begin - 1, -W):
            one_step_back(p, k, K, N, R, load(into, s), grown, back, s)


@inlined
def one_mode_back(
    x: Any, into: Any, out: Any, feed: Any, back: Any, grown: Any, o: int, stride: int, cuts: Any, pieces: int, p: Any,
    k: int, R: int, re: Any, im: Any, saved: Any, j: int, dp: Any, m: int,
) -> None:  # fmt: skip
    """One mode in one chunk, when the feedback and the gradients into it and into the states are known; re, im keep states for others."""
    W, zero = width(x), splat(x.dtype.type(0))
    ar, ai, br, bi, _, _ = six(p, k)
    pr, pi, _, _ = four(p, k + 6 * W)
    dar, dai, dbr, dbi, dcr, dci = zero, zero, zero, zero, zero, zero
    dpr, dpi, dqr, dqi = zero, zero, zero, zero
    hr, hi = load(saved, j), load(saved, j + W)
    for piece in range(pieces):
        if piece > 0:
            hr, hi = zero, zero
        for t in range(cuts[piece], cuts[piece + 1]):
            s = t * W
            v, first, sigma = load(x, s), load(feed, s), load(back, s)
            gr, gi = load(grown, o + t * stride), load(grown, o + t * stride + W)
            store(out, s, fma(gr, br, fma(gi, bi, load(out, s))))
            dbr, dbi = fma(gr, v, dbr), fma(gi, v, dbi)
            dar, dai = fma(gr, hr, fma(gi, hi, dar)), fma(gi, hr, fnma(gr, hi, dai))
            dpr, dpi = fnma(gr, first, dpr), fnma(gi, first, dpi)
            dqr, dqi = fma(sigma, hr, dqr), fnma(sigma, hi, dqi)
            if R > 1:
                store(re, s, hr)
                store(im, s, hi)
            hr, hi = advance(ar, ai, br, bi, hr, hi, v)
            hr, hi = fnma(pr, first, hr), fnma(pi, first, hi)
            for r in range(1, R):
                more = load(feed, s + r * ROOM * W)
                hr = fnma(load(p, k + (6 + 4 * r) * W), more, hr)
                hi = fnma(load(p, k + (7 + 4 * r) * W), more, hi)
            g = load(into, s)
            dcr, dci = fma(g, hr, dcr), fnma(g, hi, dci)
    for i, d in enumerate((dar, dai, dbr, dbi, dcr, dci, dpr, dpi, dqr, dqi)):
        accumulate(dp, m + i * W, d)


@inlined
def other_feedback_back(
    feed: Any, back: Any, grown: Any, o: int, stride: int, size: int, R: int, re: Any, im: Any, dp: Any, m: int
) -> None:
    """Gradients to p and q of one mode, of the feedbacks after the first."""
    W, zero = width(feed), splat(feed.dtype.type(0))
    for r in range(1, R):
        dpr, dpi, dqr, dqi = zero, zero, zero, zero
        for t in range(size):
            s, j = t * W, o + t * stride
            value, sigma = load(feed, s + r * ROOM * W), load(back, s + r * ROOM * W)
            dpr, dpi = fnma(load(grown, j), value, dpr), fnma(load(grown, j + W), value, dpi)
            dqr, dqi = fma(sigma, load(re, s), dqr), fnma(sigma, load(im, s), dqi)
        for i, d in enumerate((dpr, dpi, dqr, dqi)):
            accumulate(dp, m + (6 + 4 * r + i) * W, d)


@inlined
def first_state_back(
    p: Any, k: int, K: int, N: int, R: int, grown: Any, back: Any, live: bool, dh: Any, i: int
) -> None:
    """The gradient into the state before a chunk, from that into its first state and feedback; 0 where a start lies between."""
    W, zero = width(p), splat(p.dtype.type(0))
    for n in range(N):
        m, j = k + n * K, n * 2 * W
        tr, ti = zero, zero
        if live:
            ar, ai, gr, gi = load(p, m), load(p, m + W), load(grown, j), load(grown, j + W)
            tr, ti = fma(ar, gr, mul(ai, gi)), fnma(ai, gr, mul(ar, gi))
            for r in range(R):
                sigma = load(back, r * ROOM * W)
                tr = fma(sigma, load(p, m + (8 + 4 * r) * W), tr)
                ti = fnma(sigma, load(p, m + (9 + 4 * r) * W), ti)
        store(dh, i + j, tr)
        store(dh, i + j + W, ti)


@compiled
def backward_tasks(
    u: Any, ur: int, ut: int, g: Any, gr: int, gt: int, p: Any, saved: Any, row: int, dh: Any, du: Any, dp: Any,
    lengths: Any, starts: Any, T: int, D: int, N: int, R: int, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g is the gradient into y with strides, dh (B, blocks, N, 2, W) that into the last state and then that of
    the first, du (B, T, D), dp (B, blocks, N, 6 + 4 R, W) is added to."""
    W = width(du)
    blocks, chunks, K = -(-D // W), -(-T // CHUNK), (6 + 4 * R) * W
    x, into, out = scratch(CHUNK * W, du), scratch(CHUNK * W, du), scratch(CHUNK * W, du)
    re, im, cuts = scratch(CHUNK * W, du), scratch(CHUNK * W, du), np.empty(CHUNK + 2, np.int64)
    feed, back, grown = scratch(R * ROOM * W, du), scratch(R * ROOM * W, du), scratch(CHUNK * N * 2 * W, du)
    for task in range(first, end):
        r, block = task // blocks, task % blocks
        e, lanes, length = block * W, min(W, D - block * W), lengths[r]
        k, keep = block * N * K, r * row + block * (chunks * 2 * N + T * R) * W
        clear(du, (r * T + length) * D + e, D, T - length, lanes)
        for chunk in range(-(-length // CHUNK) - 1, -1, -1):
            t0 = chunk * CHUNK
            size = min(CHUNK, length - t0)
            fetch(u, r * ur + t0 * ut + e, ut, size, lanes, x)
            fetch(g, r * gr + t0 * gt + e, gt, size, lanes, into)
            for f in range(R):
                for s in range(size):
                    j = keep + (chunks * 2 * N + f * T + t0 + s) * W
                    store(feed, (f * ROOM + s) * W, load(saved, j))
            out[:] = 0
            pieces = cut(starts, r, t0, size, cuts)
            feedback_back(p, k, K, N, R, into, cuts, pieces, dh, task * N * 2 * W, grown, back)
            for n in range(N):
                j, m = keep + (chunk * N + n) * 2 * W, (task * N + n) * K
                one_mode_back(
                    x,
                    into,
                    out,
                    feed,
                    back,
                    grown,
                    n * 2 * W,
                    N * 2 * W,
                    cuts,
                    pieces,
                    p,
                    k + n * K,
                    R,
                    re,
                    im,
                    saved,
                    j,
                    dp,
                    m,
                )
                other_feedback_back(feed, back, grown, n * 2 * W, N * 2 * W, size, R, re, im, dp, m)
            first_state_back(p, k, K, N, R, grown, back, cuts[1] > 0, dh, task * N * 2 * W)
            for s in range(size):
                store_first(du, (r * T + t0 + s) * D + e, load(out, s * W), lanes)


def forward(
    u: Tensor,
    a: Tensor,
    p: Tensor,
    q: Tensor,
    b: Tensor,
    c: Tensor,
    h: Tensor,
    lengths: Tensor | None,
    starts: Tensor | None,
    saved: Tensor,
) -> tuple[Tensor, Tensor]:
    """y (B, T, D) and the last state (B, D, N); `saved` (B, 0 or enough) receives states and feedback. Nothing is empty."""
    (_, T, D), N, R = u.shape, a.shape[1], len(p)
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    state, flat = blocks_of(h), array(saved).reshape(-1)
    outputs = array(_joined(a, p, q, b, c)).reshape(-1), array(state).reshape(-1), array(y).reshape(-1)
    args = *rows(u), *outputs, flat, saved.shape[1], *ragged(u.shape, lengths, starts), T, D, N, R
    tasks, work = tasks_of(u, N)
    spread(lambda first, end: forward_tasks(*args, first, end), tasks, (8 + 4 * R) * work)
    return y, modes_of(state, D)


def backward(
    u: Tensor,
    a: Tensor,
    p: Tensor,
    q: Tensor,
    b: Tensor,
    c: Tensor,
    h: Tensor,
    lengths: Tensor | None,
    starts: Tensor | None,
    saved: Tensor,
    gy: Tensor,
    gh: Tensor,
) -> Seven:
    """Gradients to u, by row to a, p, q, b and c, (B, D, N) or (B, R, D, N), and to h, from those into y and the last state."""
    (B, T, D), N, R = u.shape, a.shape[1], len(p)
    du, dh = torch.empty_like(u, memory_format=torch.contiguous_format), blocks_of(gh)
    joined = _joined(a, p, q, b, c)
    d = joined.new_zeros(B, *joined.shape)
    outputs = (array(t).reshape(-1) for t in (dh, du, d))
    flat = array(joined).reshape(-1), array(saved).reshape(-1), saved.shape[1], *outputs
    args = *rows(u), *rows(gy), *flat, *ragged(u.shape, lengths, starts), T, D, N, R
    tasks, work = tasks_of(u, N)
    spread(lambda first, end: backward_tasks(*args, first, end), tasks, (32 + 14 * R) * work)
    da, db, dc = (modes_of(d[..., k : k + 2, :], D) for k in (0, 2, 4))
    dp, dq = (torch.stack([modes_of(d[..., k + 4 * r : k + 4 * r + 2, :], D) for r in range(R)], 1) for k in (6, 8))
    return du, da, dp, dq, db, dc, modes_of(dh, D)


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        u, a = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype.to_complex())
        saved = u.new_empty(1, 48)
        y, h = forward(u, a, a[None], a[None], a, a, a[None], None, None, saved)
        backward(u, a, a[None], a[None], a, a, a[None], None, None, saved, y, h)


def _joined(a: Tensor, p: Tensor, q: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a, b and c, then p and q of each feedback, as blocks side by side: (blocks, N, 6 + 4 R, W)."""
    feedback = (t[r] for r in range(len(p)) for t in (p, q))
    return torch.cat([blocks_of(t) for t in (a, b, c, *feedback)], -2)
