"""Kernels that turn queries and keys of all heads at once: bias, rotation, weight, and the gradients of all their parts.

Lanes run over channels. A task is a piece of the steps of one row. Cosine and sine of the angles of a step and head are computed once,
for queries and keys of every rank. The backward pass turns gradients back; the angle gets, from each pair of channels, the imaginary
part of conj(u) g, u before the rotation and g the gradient turned back; the weight of the keys gets the sum of the real parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lane_circle import cosine, eighth, quarters, sine
from conca.kernels.lanes import (
    accumulate,
    add,
    fma,
    fnma,
    load,
    load_first,
    mul,
    odds,
    pair_conj_fma,
    pair_fma,
    scratch,
    splat,
    store,
    store_first,
    width,
    zip_high,
    zip_low,
)
from conca.kernels.norm import total
from conca.kernels.pool import spread
from conca.kernels.views import array, rows

__all__ = ["backward", "forward", "warm"]

PIECE = 64
"""Steps of a row in one task."""

Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@inlined
def circle(angle: Any, at: int, S: int, paired: bool, e: Any) -> None:
    """Cosines and sines of S angles, side by side by pairs or by vectors; beyond S those of 0."""
    W = width(e)
    for i in range(0, S, W):
        v = load_first(angle, at + i, min(W, S - i))
        m = quarters(v)
        s, c = eighth(v, m)
        s, c = sine(m, s, c), cosine(m, s, c)
        if paired:
            store(e, 2 * i, zip_low(c, s))
            store(e, 2 * i + W, zip_high(c, s))
        else:
            store(e, 2 * i, c)
            store(e, 2 * i + W, s)


@inlined
def biased(base: Any, at: int, bias: Any, b: int, lanes: int) -> Any:
    """Some channels before the rotation."""
    return add(load_first(base, at, lanes), load_first(bias, b, lanes))


@inlined
def turn(
    base: Any, at: int, bias: Any, b: int, e: Any, S: int, N: int, paired: bool, weight: Any, out: Any, o: int
) -> None:
    """The N channels of one key, times its weight."""
    W, zero, w = width(e), splat(e.dtype.type(0)), splat(weight)
    if paired:
        for i in range(0, N, W):
            lanes = min(W, N - i)
            v = biased(base, at + i, bias, b + i, lanes)
            if i < 2 * S:
                v = pair_fma(load(e, i), v, zero)
            store_first(out, o + i, mul(v, w), lanes)
        return
    half = N // 2
    for i in range(0, S, W):
        lanes, j, c, s = min(W, S - i), i + half, load(e, 2 * i), load(e, 2 * i + W)
        x, y = biased(base, at + i, bias, b + i, lanes), biased(base, at + j, bias, b + j, lanes)
        store_first(out, o + i, mul(fnma(y, s, mul(x, c)), w), lanes)
        store_first(out, o + j, mul(fma(x, s, mul(y, c)), w), lanes)
    for first, end in ((S, half), (half + S, N)):
        for i in range(first, end, W):
            lanes = min(W, end - i)
            store_first(out, o + i, mul(biased(base, at + i, bias, b + i, lanes), w), lanes)


@compiled
def forward_tasks(
    q: Any, k: Any, q_bias: Any, k_bias: Any, angle: Any, weight: Any, q_out: Any, k_out: Any, paired: bool, T: int, R: int, G: int,
    H: int, N: int, S: int, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end. Flat arrays: q, k (B, T, R, G, N), biases (H, R, N), angle (B, T, H, S), weight (B, T, H),
    outputs (B, T, R, H, N)."""
    pieces = -(-T // PIECE)
    e = scratch(2 * (S + width(q)), q)
    for task in range(first, end):
        t0 = task % pieces * PIECE
        for t in range(task // pieces * T + t0, task // pieces * T + min(t0 + PIECE, T)):
            for h in range(H):
                circle(angle, (t * H + h) * S, S, paired, e)
                one, w = weight.dtype.type(1), weight[t * H + h]
                for r in range(R):
                    at, b, o = ((t * R + r) * G + h * G // H) * N, (h * R + r) * N, ((t * R + r) * H + h) * N
                    turn(q, at, q_bias, b, e, S, N, paired, one, q_out, o)
                    turn(k, at, k_bias, b, e, S, N, paired, w, k_out, o)


@inlined
def turn_back(
    base: Any, at: int, bias: Any, b: int, e: Any, S: int, N: int, paired: bool, weight: Any, g: Any, o: int, dbase: Any,
    d: int, dbias: Any, f: int, dangle: Any,
) -> Any:  # fmt: skip
    """The gradient g into one key, turned back and added to those of base, bias and the angles (pairs, or whole vectors).

    Returns that of the weight, in lanes.
    """
    W, zero, w = width(e), splat(e.dtype.type(0)), splat(weight)
    sums = zero
    if paired:
        for i in range(0, N, W):
            lanes = min(W, N - i)
            v, u = load_first(g, o + i, lanes), biased(base, at + i, bias, b + i, lanes)
            if i < 2 * S:
                v = pair_conj_fma(load(e, i), v, zero)
                accumulate(dangle, i, mul(pair_conj_fma(u, v, zero), w))
            sums, v = fma(u, v, sums), mul(v, w)
            accumulate(dbase, d + i, v)
            accumulate(dbias, f + i, v)
        return sums
    half = N // 2
    for i in range(0, S, W):
        lanes, j, c, s = min(W, S - i), i + half, load(e, 2 * i), load(e, 2 * i + W)
        gx, gy = load_first(g, o + i, lanes), load_first(g, o + j, lanes)
        vx, vy = fma(gy, s, mul(gx, c)), fnma(gx, s, mul(gy, c))
        x, y = biased(base, at + i, bias, b + i, lanes), biased(base, at + j, bias, b + j, lanes)
        sums, vx, vy = fma(x, vx, fma(y, vy, sums)), mul(vx, w), mul(vy, w)
        accumulate(dangle, i, fnma(y, vx, mul(x, vy)))
        accumulate(dbase, d + i, vx)
        accumulate(dbias, f + i, vx)
        accumulate(dbase, d + j, vy)
        accumulate(dbias, f + j, vy)
    for first, end in ((S, half), (half + S, N)):
        for i in range(first, end, W):
            lanes = min(W, end - i)
            v = load_first(g, o + i, lanes)
            sums, v = fma(biased(base, at + i, bias, b + i, lanes), v, sums), mul(v, w)
            accumulate(dbase, d + i, v)
            accumulate(dbias, f + i, v)
    return sums


@inlined
def copied(x: Any, at: int, N: int, out: Any, o: int) -> None:
    """N numbers out of scratch room."""
    W = width(x)
    for i in range(0, N, W):
        store_first(out, o + i, load(x, at + i), min(W, N - i))


@compiled
def backward_tasks(
    q: Any, k: Any, q_bias: Any, k_bias: Any, angle: Any, weight: Any, gq: Any, gqr: int, gqt: int, gk: Any, gkr: int, gkt: int,
    dq: Any, dk: Any, dq_bias: Any, dk_bias: Any, dangle: Any, dweight: Any, paired: bool, T: int, R: int, G: int, H: int, N: int,
    S: int, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; gq, gk with strides of row and time are the gradients into the outputs; dq, dk, dangle and dweight as
    their primals, those of the biases (B, pieces, H, R, N)."""
    W = width(q)
    pieces, M = -(-T // PIECE), (-(-N // W) + 1) * W
    e, turns = scratch(2 * (S + W), q), scratch(2 * (S + W), q)
    sums_q, sums_k, each_q, each_k = (
        scratch(R * G * M, q),
        scratch(R * G * M, q),
        scratch(H * R * M, q),
        scratch(H * R * M, q),
    )
    for task in range(first, end):
        row, t0 = task // pieces, task % pieces * PIECE
        each_q[:] = 0
        each_k[:] = 0
        for t in range(t0, min(t0 + PIECE, T)):
            u = row * T + t
            sums_q[:] = 0
            sums_k[:] = 0
            for h in range(H):
                g = h * G // H
                circle(angle, (u * H + h) * S, S, paired, e)
                turns[:] = 0
                one, w, sums = weight.dtype.type(1), weight[u * H + h], splat(weight.dtype.type(0))
                for r in range(R):
                    at, b, o = ((u * R + r) * G + g) * N, (h * R + r) * N, (r * H + h) * N
                    d, f, oq, ok = (r * G + g) * M, (h * R + r) * M, row * gqr + t * gqt + o, row * gkr + t * gkt + o
                    turn_back(q, at, q_bias, b, e, S, N, paired, one, gq, oq, sums_q, d, each_q, f, turns)
                    more = turn_back(k, at, k_bias, b, e, S, N, paired, w, gk, ok, sums_k, d, each_k, f, turns)
                    sums = add(sums, more)
                dweight[u * H + h] = total(sums, weight)
                for i in range(0, S, W):
                    v = odds(load(turns, 2 * i), load(turns, 2 * i + W)) if paired else load(turns, i)
                    store_first(dangle, (u * H + h) * S + i, v, min(W, S - i))
            for i in range(R * G):
                copied(sums_q, i * M, N, dq, (u * R * G + i) * N)
                copied(sums_k, i * M, N, dk, (u * R * G + i) * N)
        for i in range(H * R):
            copied(each_q, i * M, N, dq_bias, (task * H * R + i) * N)
            copied(each_k, i * M, N, dk_bias, (task * H * R + i) * N)


def forward(
    q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, angle: Tensor, weight: Tensor, pairing: str
) -> tuple[Tensor, Tensor]:
    """Queries and keys (B, T, R, H, N), from q, k (B, T, R, G, N), biases (H, R, N), angle (B, T, H, S) and weight (B, T, H).

    Nothing is empty.
    """
    (B, T, R, G, N), (H, S) = q.shape, angle.shape[2:]
    outputs = q.new_empty(B, T, R, H, N), q.new_empty(B, T, R, H, N)
    flat = (array(t).reshape(-1) for t in (q, k, q_bias, k_bias, angle, weight, *outputs))
    args = *flat, pairing == "neighbours", T, R, G, H, N, S
    spread(lambda first, end: forward_tasks(*args, first, end), B * -(-T // PIECE), 6 * outputs[0].numel())
    return outputs


def backward(
    q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, angle: Tensor, weight: Tensor, pairing: str, gq: Tensor,
    gk: Tensor,
) -> Six:  # fmt: skip
    """Gradients to q, k, the biases by row (B, H, R, N), the angles and the weights, from those into the outputs."""
    (B, T, R, G, N), (H, S) = q.shape, angle.shape[2:]
    pieces = -(-T // PIECE)
    dq, dk, dangle, dweight = (torch.empty(t.shape, dtype=q.dtype) for t in (q, k, angle, weight))
    dq_bias, dk_bias = q.new_empty(B, pieces, H, R, N), q.new_empty(B, pieces, H, R, N)
    inputs = (array(t).reshape(-1) for t in (q, k, q_bias, k_bias, angle, weight))
    found = (array(t).reshape(-1) for t in (dq, dk, dq_bias, dk_bias, dangle, dweight))
    args = *inputs, *rows(gq.flatten(2)), *rows(gk.flatten(2)), *found, pairing == "neighbours", T, R, G, H, N, S
    spread(lambda first, end: backward_tasks(*args, first, end), B * pieces, 12 * gq.numel())
    return dq, dk, dq_bias.sum(1), dk_bias.sum(1), dangle, dweight


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        shapes = (1, 1, 1, 1, 2), (1, 1, 2), (1, 1, 1, 1), (1, 1, 1)
        q, bias, angle, weight = (torch.ones(shape, dtype=dtype) for shape in shapes)
        args = q, q, bias, bias, angle, weight, "halves"
        backward(*args, *forward(*args))
