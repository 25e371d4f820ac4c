"""Kernels of the decaying memory of matrices, forward and backward: small products in registers, a chunk of steps at a time.

A task is some heads of a group in one row. It goes through the chunks with its states at hand, backward in turn, from the states
that were kept. The scores q k^T of a chunk are computed once for all heads of a task. The mask of decays M_ts = a_{s+1} .. a_t arises
row by row, each row the one before times a_t, so it forgets exactly; what decays from chunk to chunk is summed in float64. A start
cuts a chunk: what comes after it begins with a state that is set to 0, so nothing passes a start, not even what is not finite. The
gradient of a decay is a sum over the paths through its step, each counted where it stands: differences of larger sums would leave
noise where it is 0.

Rows of a chunk, steps times rank, are M; matrices of a chunk lie in whole vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled
from conca.kernels.duality_parts import (
    added,
    anew,
    cleared,
    fetch,
    keep,
    masks,
    padded,
    paths,
    row_sums,
    scaled,
    scaled_rows,
    since,
    suffixes,
    through,
    upto,
    weighted,
)
from conca.kernels.lanes import scratch, width
from conca.kernels.pool import spread
from conca.kernels.tiles import BELOW, COLUMNS, FROM, FULL, product, transposed
from conca.kernels.views import array, ragged
from conca.ops.duality_bodies import steps_of

__all__ = ["backward", "forward", "warm"]

HEADS = 4
"""Heads of a group in a task."""


@compiled
def forward_tasks(
    q: Any, qs: Any, k: Any, ks: Any, v: Any, vs: Any, log_a: Any, weight: Any, S: Any, y: Any, ys: Any, last: Any, saved: Any, kept: int,
    lengths: Any, starts: Any, strict: bool, n: Any, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end. q, k, v and y (B, T, R, .., ..) flat with their strides, log_a (B, T, H), weight (B, T, H or 0), S and last
    (B, H, K, V), saved (B, kept) with kept = 0 or at least chunks * H * V * K in whole vectors; lengths (B,), starts (B, T or 0)."""
    _, T, R, G, H, K, V, L = n
    W, M = width(y), L * R
    Mp, Kp, Vp = padded(M, W), padded(K, W), padded(V, W)
    per = H // G
    parts = -(-per // HEADS)
    Q, X, XT = scratch(Mp * Kp, y), scratch(Mp * Kp, y), scratch(Kp * Mp, y)
    A, P = scratch(Mp * Mp, y), scratch(Mp * Mp, y)
    v1, out, room, m = scratch(Mp * Vp, y), scratch(Mp * Vp, y), scratch(2 * W * W, y), scratch(Mp, y)
    state, reach, rest = scratch(HEADS * Kp * Vp, y), np.empty(L, y.dtype), np.empty(L, y.dtype)
    for task in range(first, end):
        b, g, h0 = task // (G * parts), task // parts % G, task % parts * HEADS
        heads, length = min(HEADS, per - h0), lengths[b]
        h0 += g * per
        for h in range(heads):
            fetch(S, ((b * H + h0 + h) * K) * V, V, 0, K, 1, V, state, h * Kp * Vp, Vp)
        t0 = size = 0
        while t0 + size < length:
            t0 += size
            size, fresh = upto(starts, b, t0, length, L) - t0, anew(starts, b, t0)
            rows = size * R
            wide = padded(rows, W)
            fetch(q, b * qs[0] + t0 * qs[1] + g * qs[3], qs[1], qs[2], size, R, K, Q, 0, Kp)
            fetch(k, b * ks[0] + t0 * ks[1] + g * ks[3], ks[1], ks[2], size, R, K, X, 0, Kp)
            transposed(X, 0, Kp, XT, 0, Mp, wide, Kp, room)
            cleared(A, 0, rows * Mp)
            product(Q, 0, Kp, 1, XT, 0, Mp, A, 0, Mp, rows, wide, K, COLUMNS, R)
            for h in range(heads):
                head, s0 = h0 + h, h * Kp * Vp
                if fresh:
                    cleared(state, s0, Kp * Vp)
                elif kept > 0:
                    place = b * kept + (t0 // L * H + head) * Vp * Kp
                    transposed(state, s0, Vp, saved, place, Kp, Kp, Vp, room)
                fetch(v, b * vs[0] + t0 * vs[1] + head * vs[3], vs[1], vs[2], size, R, V, v1, 0, Vp)
                weighted(v1, weight, (b * T + t0) * H + head, H, size, R, Vp)
                masks(
                    log_a, (b * T + t0) * H + head, H, starts, b, t0, size, R, m, reach, rest, A, P, Mp, False, A, A, strict,
                )  # fmt: skip
                cleared(out, 0, rows * Vp)
                product(Q, 0, Kp, 1, state, s0, Vp, out, 0, Vp, rows, Vp, K, FULL, R)
                scaled_rows(out, reach, size, R, Vp)
                product(P, 0, Mp, 1, v1, 0, Vp, out, 0, Vp, rows, Vp, rows, BELOW, R)
                keep(out, 0, Vp, y, b * ys[0] + t0 * ys[1] + head * ys[3], ys[1], ys[2], size, R, V)
                scaled_rows(v1, rest, size, R, Vp)
                scaled(state, s0, Kp * Vp, reach[size - 1])
                product(X, 0, 1, Kp, v1, 0, Vp, state, s0, Vp, K, Vp, rows, FULL, R)
        for h in range(heads):
            keep(state, h * Kp * Vp, Vp, last, ((b * H + h0 + h) * K) * V, V, 0, K, 1, V)


@compiled
def backward_tasks(
    q: Any, qs: Any, k: Any, ks: Any, v: Any, vs: Any, log_a: Any, weight: Any, saved: Any, kept: int, gy: Any, gs: Any, dq: Any, dk: Any,
    dv: Any, ds: Any, da: Any, dw: Any, dS: Any, lengths: Any, starts: Any, strict: bool, n: Any, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; gy is the gradient into y, dS (B, H, K, V) that into the last state and then that of the first, dq and dk
    (B, T, R, G, parts, K) by the parts of a group, dv with strides ds, da (B, T, H), dw (B, T, H or 0)."""
    _, T, R, G, H, K, V, L = n
    W, M = width(dv), L * R
    Mp, Kp, Vp = padded(M, W), padded(K, W), padded(V, W)
    per = H // G
    parts = -(-per // HEADS)
    Q, X, XT = scratch(Mp * Kp, dv), scratch(Mp * Kp, dv), scratch(Kp * Mp, dv)
    dQ, dX, one = scratch(Mp * Kp, dv), scratch(Mp * Kp, dv), scratch(Mp * Kp, dv)
    A, P, dA, dP = scratch(Mp * Mp, dv), scratch(Mp * Mp, dv), scratch(Mp * Mp, dv), scratch(Mp * Mp, dv)
    v1, vt, g1, out = scratch(Mp * Vp, dv), scratch(Vp * Mp, dv), scratch(Mp * Vp, dv), scratch(Mp * Vp, dv)
    room, m, acc, turned = scratch(2 * W * W, dv), scratch(Mp, dv), scratch(Mp, dv), scratch(Vp * Kp, dv)
    state, reach, rest = scratch(HEADS * Kp * Vp, dv), np.empty(L, dv.dtype), np.empty(L, dv.dtype)
    ends, begins = np.empty(L, dv.dtype), np.empty(L, dv.dtype)
    for task in range(first, end):
        b, g, part = task // (G * parts), task // parts % G, task % parts
        heads, length, h0 = min(HEADS, per - part * HEADS), lengths[b], g * per + part * HEADS
        for h in range(heads):
            fetch(dS, ((b * H + h0 + h) * K) * V, V, 0, K, 1, V, state, h * Kp * Vp, Vp)
        t0 = length
        while t0 > 0:
            stop, t0 = t0, since(starts, b, t0, L)
            size, fresh = stop - t0, anew(starts, b, t0)
            rows = size * R
            wide = padded(rows, W)
            fetch(q, b * qs[0] + t0 * qs[1] + g * qs[3], qs[1], qs[2], size, R, K, Q, 0, Kp)
            fetch(k, b * ks[0] + t0 * ks[1] + g * ks[3], ks[1], ks[2], size, R, K, X, 0, Kp)
            transposed(X, 0, Kp, XT, 0, Mp, wide, Kp, room)
            for x in (A, dA):
                cleared(x, 0, rows * Mp)
            for x in (dQ, dX):
                cleared(x, 0, rows * Kp)
            product(Q, 0, Kp, 1, XT, 0, Mp, A, 0, Mp, rows, wide, K, COLUMNS, R)
            for h in range(heads):
                head, s0 = h0 + h, h * Kp * Vp
                fetch(v, b * vs[0] + t0 * vs[1] + head * vs[3], vs[1], vs[2], size, R, V, v1, 0, Vp)
                weighted(v1, weight, (b * T + t0) * H + head, H, size, R, Vp)
                fetch(gy, b * gs[0] + t0 * gs[1] + head * gs[3], gs[1], gs[2], size, R, V, g1, 0, Vp)
                transposed(v1, 0, Vp, vt, 0, Mp, wide, Vp, room)
                cleared(dP, 0, rows * Mp)
                product(g1, 0, Vp, 1, vt, 0, Mp, dP, 0, Mp, rows, wide, V, COLUMNS, R)
                masks(
                    log_a, (b * T + t0) * H + head, H, starts, b, t0, size, R, m, reach, rest, A, P, Mp, True, dP, dA, strict,
                )  # fmt: skip
                paths(P, dP, Mp, size, R, acc, da, (b * T + t0) * H + head, H)
                cleared(out, 0, rows * Vp)
                product(X, 0, Kp, 1, state, s0, Vp, out, 0, Vp, rows, Vp, K, FULL, R)
                scaled_rows(out, rest, size, R, Vp)
                row_sums(out, v1, size, R, Vp, begins, 0, 1)
                product(P, 0, 1, Mp, g1, 0, Vp, out, 0, Vp, rows, Vp, rows, FROM, R)
                if weight.size > 0:
                    fetch(v, b * vs[0] + t0 * vs[1] + head * vs[3], vs[1], vs[2], size, R, V, vt, 0, Vp)
                    row_sums(out, vt, size, R, Vp, dw, (b * T + t0) * H + head, H)
                    weighted(out, weight, (b * T + t0) * H + head, H, size, R, Vp)
                keep(out, 0, Vp, dv, b * ds[0] + t0 * ds[1] + head * ds[3], ds[1], ds[2], size, R, V)
                scaled_rows(v1, rest, size, R, Vp)
                transposed(state, s0, Vp, turned, 0, Kp, Kp, Vp, room)
                product(v1, 0, Vp, 1, turned, 0, Kp, dX, 0, Kp, rows, Kp, V, FULL, R)
                if fresh:
                    ends[:size] = 0
                    suffixes(ends, begins, 0.0, size, da, (b * T + t0) * H + head, H)
                    cleared(state, s0, Kp * Vp)
                    continue
                scaled_rows(g1, reach, size, R, Vp)
                cleared(one, 0, rows * Kp)
                place = b * kept + (t0 // L * H + head) * Vp * Kp
                product(g1, 0, Vp, 1, saved, place, Kp, one, 0, Kp, rows, Kp, V, FULL, R)
                row_sums(one, Q, size, R, Kp, ends, 0, 1)
                added(dQ, one, rows * Kp)
                whole = float(through(turned, saved, place, Vp * Kp) * reach[size - 1])
                suffixes(ends, begins, whole, size, da, (b * T + t0) * H + head, H)
                scaled(state, s0, Kp * Vp, reach[size - 1])
                product(Q, 0, 1, Kp, g1, 0, Vp, state, s0, Vp, K, Vp, rows, FULL, R)
            product(dA, 0, Mp, 1, X, 0, Kp, dQ, 0, Kp, rows, Kp, rows, BELOW, R)
            product(dA, 0, 1, Mp, Q, 0, Kp, dX, 0, Kp, rows, Kp, rows, FROM, R)
            place, step = (b * T + t0) * R * G * parts * K + (g * parts + part) * K, G * parts * K
            keep(dQ, 0, Kp, dq, place, R * step, step, size, R, K)
            keep(dX, 0, Kp, dk, place, R * step, step, size, R, K)
        for h in range(heads):
            keep(state, h * Kp * Vp, Vp, dS, ((b * H + h0 + h) * K) * V, V, 0, K, 1, V)


def strided(t: Tensor) -> tuple[Any, tuple[int, ...]]:
    """A tensor (.., E) as a flat array and the strides of all axes but the last; a view where E is contiguous."""
    if t.stride(-1) != 1 and t.shape[-1] != 1:
        t = t.contiguous()
    strides = tuple(0 if size == 1 else step for size, step in zip(t.shape[:-1], t.stride()[:-1]))
    span = sum((size - 1) * step for size, step in zip(t.shape, strides)) + t.shape[-1]
    return array(t.as_strided((span,), (1,))), strides


def none(like: Tensor, t: Tensor | None) -> Tensor:
    """An empty tensor where there is none."""
    return like.new_empty(0) if t is None else t


def flat(t: Tensor) -> Any:
    """All numbers of a tensor in a row."""
    return array(t).reshape(-1)


def sizes_of(q: Tensor, v: Tensor) -> tuple[int, ...]:
    """B rows, T steps, R rank, G groups, H heads, widths K and V, steps of a chunk."""
    (B, T, R, H, V), (G, K) = v.shape, q.shape[3:]
    return B, T, R, G, H, K, V, steps_of(T, R)


def tasks_of(n: tuple[int, ...], factor: int) -> tuple[int, int]:
    """How many tasks there are, and an estimate of the multiply-adds in all."""
    B, T, R, G, H, K, V, _ = n
    return B * G * -(-H // G // HEADS), factor * B * T * R * H * K * V


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    S: Tensor,
    weight: Tensor | None,
    lengths: Tensor | None,
    starts: Tensor | None,
    strict: bool,
    saved: Tensor,
) -> tuple[Tensor, Tensor]:
    """y (B, T, R, H, V) and the last state; `saved` (B, 0 or enough) receives the states before the chunks. Nothing is empty."""
    n = sizes_of(q, v)
    y = (torch.empty if lengths is None else torch.zeros)(v.shape, dtype=v.dtype)
    last = torch.empty(S.shape, dtype=S.dtype)
    inputs = *strided(q), *strided(k), *strided(v), flat(log_a), flat(none(log_a, weight)), flat(S)
    args = *inputs, *strided(y), flat(last), flat(saved), saved.shape[1], *ragged(v.shape, lengths, starts), strict, n
    spread(lambda first, end: forward_tasks(*args, first, end), *tasks_of(n, 2))
    return y, last


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    S: Tensor,
    weight: Tensor | None,
    lengths: Tensor | None,
    starts: Tensor | None,
    strict: bool,
    saved: Tensor,
    gy: Tensor,
    gS: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients to q, k, v, log_a, S and weight from those into y and the last state."""
    n = sizes_of(q, v)
    B, T, R, G, H, K = n[:6]
    shape = B, T, R, G, -(-H // G // HEADS), K
    fresh = torch.empty if lengths is None else torch.zeros
    dq, dk, dv, da = (fresh(size, dtype=v.dtype) for size in (shape, shape, v.shape, log_a.shape))
    dw = da[:, :, :0] if weight is None else torch.zeros_like(weight, memory_format=torch.contiguous_format)
    dS = gS.clone(memory_format=torch.contiguous_format)
    inputs = (
        *strided(q),
        *strided(k),
        *strided(v),
        flat(log_a),
        flat(none(log_a, weight)),
        flat(saved),
        saved.shape[1],
        *strided(gy),
    )
    args = (
        *inputs,
        flat(dq),
        flat(dk),
        *strided(dv),
        flat(da),
        flat(dw),
        flat(dS),
        *ragged(v.shape, lengths, starts),
        strict,
        n,
    )
    spread(lambda first, end: backward_tasks(*args, first, end), *tasks_of(n, 5))
    dq, dk = (t[:, :, :, :, 0] if t.shape[4] == 1 else t.sum(4) for t in (dq, dk))
    return dq, dk, dv, da, dS, None if weight is None else dw


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        x, a = torch.ones(1, 1, 1, 1, 1, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype)
        saved = x.new_empty(1, 4096 // x.element_size() ** 2)
        y, S = forward(x, x, x, a, x[0], None, None, None, False, saved)
        backward(x, x, x, a, S, None, None, None, False, saved, y, S)
