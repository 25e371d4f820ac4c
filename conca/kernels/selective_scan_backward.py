"""Kernel of the gradient of the selective scan.

Tasks are those of `conca.kernels.selective_scan`; chunks are taken from the last to the first, and in each the states are computed anew
from the one kept before it. Where B and C are numbers their gradients are sums over the lanes, gathered over the blocks of a task;
where they are vectors, lanes are added up in their groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import apart, compiled, inlined
from conca.kernels.diagonal import clear, cut
from conca.kernels.lane_math import LOG2E, absolute, exp2, fill, pick, sigmoid
from conca.kernels.lanes import (
    add,
    add_halves,
    div,
    everywhere,
    fma,
    load,
    load_first,
    mul,
    scratch,
    splat,
    store,
    store_first,
    sub,
    width,
)
from conca.kernels.pool import spread
from conca.kernels.selective_scan import (
    BLOCKS,
    blocks_of,
    extras,
    growth,
    inputs,
    layout,
    prepare,
    spread_out,
    states_of,
)
from conca.kernels.views import array, ragged, rows
from conca.ops.selective_scan_bodies import CHUNK

__all__ = ["backward", "warm"]

Maybe = Tensor | None


@inlined
def gather(part: Any, N: int, size: int, e: int, share: int, lanes: int, out: Any, i: int, step: int) -> None:
    """The way back of `spread_out`: lanes are added up in their groups."""
    W = width(part)
    for s in range(size):
        for n in range(N):
            for j in range(lanes):
                out[i + s * step + (e + j) // share * N + n] += part[(n * CHUNK + s) * W + j]


@inlined
def sums(part: Any, N: int, size: int, out: Any, i: int, step: int) -> None:
    """Sums over half vectors (N, chunk, half) into the steps of one group, which are then 0 again."""
    V = width(part) // 2
    for s in range(size):
        for n in range(N):
            total = part.dtype.type(0)
            for j in range(V):
                total += part[(n * CHUNK + s) * V + j]
            out[i + s * step + n] = total
    part[:] = 0


@inlined
def growth_slope(rate: Any, decay: Any, grown: Any) -> Any:
    """The derivative of `growth`, (e^v - growth) / v; its series where nothing would be left of the difference."""
    series = fill(rate, 1 / 5760)
    for c in (1 / 840, 1 / 144, 1 / 30, 1 / 8, 1 / 3, 1 / 2):
        series = fma(series, rate, fill(rate, c))
    return pick(absolute(rate), fill(rate, 0.03), div(sub(decay, grown), rate), series)


@inlined
def retreat(
    td: Any, tp: Any, tx: Any, ty: Any, tg: Any, ta: Any, th: Any, gp: Any, gd: Any, B: Any, bi: int, bt: int, C: Any,
    ci: int, ct: int, tb: Any, tc: Any, pb: Any, pc: Any, mixed: bool, zoh: bool, gated: bool, A: Any, at: int, saved: Any,
    k: int, dh: Any, dA: Any, i: int, N: int, cuts: Any, pieces: int,
) -> None:  # fmt: skip
    """The states of one block in one chunk: decays into ta and states into th, forward in time, then the gradient back through them.

    Each piece has one more place in th than it has steps: before step s of piece p the state is number s + p.
    """
    W, V, zero = width(td), width(td) // 2, splat(td.dtype.type(0))
    for n in range(N):
        state, rate, m, q = load(saved, k + n * W), load(A, at + n * W), n * CHUNK * W, n * CHUNK * V
        rate2 = mul(rate, fill(rate, LOG2E))
        for piece in range(pieces):
            if piece > 0:
                state = zero
            store(th, (cuts[piece] + piece) * W, state)
            for s in range(cuts[piece], cuts[piece + 1]):
                j = s * W
                d, fed = load(td, j), load(tp, j)
                b = load(tb, m + j) if mixed else everywhere(B, bi + n + s * bt)
                if zoh:
                    fed = mul(fed, growth(mul(d, rate)))
                a = exp2(mul(d, rate2))
                state = fma(a, state, mul(fed, b))
                store(ta, j, a)
                store(th, j + (piece + 1) * W, state)
                if gated:
                    c = load(tc, m + j) if mixed else everywhere(C, ci + n + s * ct)
                    store(ty, j, fma(state, c, load(ty, j)))
        g, sum_A = load(dh, i + n * W), load(dA, i + n * W)
        for piece in range(pieces - 1, -1, -1):
            for s in range(cuts[piece + 1] - 1, cuts[piece] - 1, -1):
                j = s * W
                d, fed, G, a = load(td, j), load(tp, j), load(tg, j), load(ta, j)
                b = load(tb, m + j) if mixed else everywhere(B, bi + n + s * bt)
                c = load(tc, m + j) if mixed else everywhere(C, ci + n + s * ct)
                g = fma(G, c, g)
                by_u = mul(g, b)
                if zoh:
                    v = mul(d, rate)
                    grown = growth(v)
                    sum_A = fma(mul(by_u, fed), mul(d, growth_slope(v, a, grown)), sum_A)
                    store(gd, j, fma(mul(by_u, load(tx, j)), a, load(gd, j)))
                    by_u, fed = mul(by_u, grown), mul(fed, grown)
                by_b, by_c = mul(g, fed), mul(G, load(th, j + (piece + 1) * W))
                if mixed:
                    store(tb, m + j, by_b)
                    store(tc, m + j, by_c)
                else:
                    add_halves(pb, q + s * V, by_b)
                    add_halves(pc, q + s * V, by_c)
                store(gp, j, add(load(gp, j), by_u))
                g = mul(g, a)
                through = mul(g, load(th, j + piece * W))
                store(gd, j, fma(through, rate, load(gd, j)))
                sum_A = fma(through, d, sum_A)
            if piece > 0:
                g = zero
        store(dh, i + n * W, g)
        store(dA, i + n * W, sum_A)


@apart
def retreat_fast(
    td: Any, tp: Any, tx: Any, ty: Any, tg: Any, ta: Any, th: Any, gp: Any, gd: Any, B: Any, bi: int, bt: int, C: Any,
    ci: int, ct: int, tb: Any, tc: Any, pb: Any, pc: Any, mixed: bool, zoh: bool, gated: bool, A: Any, at: int, saved: Any,
    k: int, dh: Any, dA: Any, i: int, N: int, cuts: Any, pieces: int,
) -> None:  # fmt: skip
    """`retreat`, with loops free of branches where B and C are numbers and inputs are weighed by dt."""
    room = td, tp, tx, ty, tg, ta, th, gp, gd, B, bi, bt, C, ci, ct, tb, tc, pb, pc
    states = A, at, saved, k, dh, dA, i, N, cuts, pieces
    if mixed or zoh:
        retreat(*room, mixed, zoh, gated, *states)
    elif gated:
        retreat(*room, False, False, True, *states)
    else:
        retreat(*room, False, False, False, *states)


@inlined
def prepare_back(
    g: Any, j: int, gt: int, z: Any, i: int, zt: int, lanes: int, size: int, gated: bool, tg: Any, gp: Any, gd: Any
) -> None:
    """The gradients into the outputs before the gate; zeros where those into inputs and steps will be added up."""
    W = width(tg)
    for s in range(size):
        v = load_first(g, j + s * gt, lanes)
        if gated:
            gate = load_first(z, i + s * zt, lanes)
            v = mul(v, mul(gate, sigmoid(gate)))
        store(tg, s * W, v)
    gp[:] = 0
    gd[:] = 0


@inlined
def finish_back(
    td: Any, tx: Any, ty: Any, tg: Any, gp: Any, gd: Any, g: Any, gi: int, gt: int, dt: Any, di: int, dtt: int, z: Any,
    zi: int, zt: int, D: Any, bias: Any, e: int, lanes: int, size: int, gated: bool, smooth: bool, zoh: bool, dx: Any,
    ddt: Any, dz: Any, o: int, E: int, dD: Any, dbias: Any, i: int,
) -> None:  # fmt: skip
    """The gradients to input, steps, gate, D and bias of a chunk of one block."""
    W, skip, shift = width(td), load(D, e), load(bias, e)
    sum_D, sum_bias = load(dD, i), load(dbias, i)
    for s in range(size):
        j = s * W
        u, G, p, d = load(tx, j), load(tg, j), load(gp, j), load(gd, j)
        store_first(dx, o + s * E, fma(p, load(td, j), mul(G, skip)), lanes)
        if not zoh:
            d = fma(p, u, d)
        if smooth:
            d = mul(d, sigmoid(add(load_first(dt, di + s * dtt, lanes), shift)))
        store_first(ddt, o + s * E, d, lanes)
        sum_D, sum_bias = fma(G, u, sum_D), add(d, sum_bias)
        if gated:
            v = load_first(z, zi + s * zt, lanes)
            q = sigmoid(v)
            bend = mul(q, fma(v, sub(fill(q, 1.0), q), fill(q, 1.0)))
            store_first(dz, o + s * E, mul(mul(load_first(g, gi + s * gt, lanes), load(ty, j)), bend), lanes)
    store(dD, i, sum_D)
    store(dbias, i, sum_bias)


@compiled
def backward_tasks(
    x: Any, xr: int, xt: int, dt: Any, dr: int, dtt: int, A: Any, B: Any, br: int, bt: int, C: Any, cr: int, ct: int,
    D: Any, z: Any, zr: int, zt: int, bias: Any, gated: bool, smooth: bool, zoh: bool, mixed: bool, share_b: int,
    share_c: int, per_group: int, g: Any, gr: int, gt: int, saved: Any, row: int, dx: Any, ddt: Any, dA: Any, dB: Any,
    dbt: int, dC: Any, dct: int, dh: Any, dD: Any, dz: Any, dbias: Any, lengths: Any, starts: Any, T: int, E: int, N: int,
    groups: int, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g with strides is the gradient into y. dx, ddt, dz (B, T, E); dh (B, blocks, N, W), the gradient into the
    last state and then that of the first; dA (B, blocks, N, W), dD and dbias (B, blocks, W) are added to, and dB and dC, one for each
    part of a row's tasks (parts, B, T or 1, G, N), with strides of time."""
    W, V = width(dx), width(dx) // 2
    blocks, chunks, parts, rows_ = -(-E // W), -(-T // CHUNK), -(-per_group // BLOCKS), lengths.shape[0]
    size_b, size_c = E // share_b * N, E // share_c * N
    td, tp, tx, ty = scratch(CHUNK * W, dx), scratch(CHUNK * W, dx), scratch(CHUNK * W, dx), scratch(CHUNK * W, dx)
    tg, ta, gp, gd = scratch(CHUNK * W, dx), scratch(CHUNK * W, dx), scratch(CHUNK * W, dx), scratch(CHUNK * W, dx)
    th, cuts = scratch((2 * CHUNK + 2) * W, dx), np.empty(CHUNK + 2, np.int64)
    room = N * CHUNK * W if mixed else W
    tb, tc = scratch(room, dx), scratch(room, dx)
    room = W if mixed else N * CHUNK * V
    pb, pc = scratch(room, dx), scratch(room, dx)
    pb[:] = 0
    pc[:] = 0
    for task in range(first, end):
        part, group, r = task % parts, task // parts % groups, task // parts // groups
        low = group * per_group + part * BLOCKS
        high = min(low + BLOCKS, (group + 1) * per_group)
        length = lengths[r]
        for block in range(low, high):
            o, lanes = (r * T + length) * E + block * W, min(W, E - block * W)
            clear(dx, o, E, T - length, lanes)
            clear(ddt, o, E, T - length, lanes)
            if gated:
                clear(dz, o, E, T - length, lanes)
        for chunk in range(-(-length // CHUNK) - 1, -1, -1):
            t0 = chunk * CHUNK
            size = min(CHUNK, length - t0)
            pieces = cut(starts, r, t0, size, cuts)
            ob = (part * rows_ + r) * max(T * (dbt > 0), 1) * size_b + t0 * dbt
            oc = (part * rows_ + r) * max(T * (dct > 0), 1) * size_c + t0 * dct
            for block in range(low, high):
                e, lanes, at = block * W, min(W, E - block * W), r * blocks + block
                xi, di = r * xr + t0 * xt + e, r * dr + t0 * dtt + e
                gi, zi = r * gr + t0 * gt + e, r * zr + t0 * zt + e
                bi, ci = r * br + t0 * bt, r * cr + t0 * ct
                prepare(x, xi, xt, dt, di, dtt, bias, D, e, lanes, size, smooth, td, tp, tx, ty)
                prepare_back(g, gi, gt, z, zi, zt, lanes, size, gated, tg, gp, gd)
                if mixed:
                    spread_out(B, bi, bt, N, size, e, share_b, lanes, tb)
                    spread_out(C, ci, ct, N, size, e, share_c, lanes, tc)
                bn, cn = bi + e // share_b * N, ci + e // share_c * N
                room = td, tp, tx, ty, tg, ta, th, gp, gd, B, bn, bt, C, cn, ct, tb, tc, pb, pc
                k = r * row + (block * chunks + chunk) * N * W
                states = A, block * N * W, saved, k, dh, dA, at * N * W, N, cuts, pieces
                retreat_fast(*room, mixed, zoh, gated, *states)
                finish_back(
                    td, tx, ty, tg, gp, gd, g, gi, gt, dt, di, dtt, z, zi, zt, D, bias, e, lanes, size, gated, smooth,
                    zoh, dx, ddt, dz, (r * T + t0) * E + e, E, dD, dbias, at * W,
                )  # fmt: skip
                if mixed:
                    gather(tb, N, size, e, share_b, lanes, dB, ob, dbt)
                    gather(tc, N, size, e, share_c, lanes, dC, oc, dct)
            if not mixed:
                sums(pb, N, size, dB, ob + low * W // share_b * N, dbt)
                sums(pc, N, size, dC, oc + low * W // share_c * N, dct)


def backward(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, D: Maybe, z: Maybe, bias: Maybe, lengths: Maybe,
    starts: Maybe, smooth: bool, zoh: bool, saved: Tensor, gy: Tensor, gh: Tensor,
) -> tuple[Maybe, ...]:  # fmt: skip
    """Gradients to x, dt, A by row, B, C, h, D by row, z and bias by row, from those into y and the last state."""
    (rows_, T, E), N, how = x.shape, A.shape[1], layout(x, B, C)
    dx, ddt, dz = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(3))
    dh, blocks = blocks_of(gh), -(-E * x.element_size() // 64)
    W = 64 // x.element_size()
    dA, dD, dbias = x.new_zeros(dh.shape), x.new_zeros(rows_, blocks * W), x.new_zeros(rows_, blocks * W)
    new = x.new_zeros if how.mixed or lengths is not None else x.new_empty
    dB, dC = (new(how.parts, *t.shape) for t in (B, C))
    steps = [0 if t.shape[1] == 1 else t.shape[2] * N for t in (B, C)]
    flat = [array(t).reshape(-1) for t in (dx, ddt, dA, dB, dC, dh, dD, dz, dbias)]
    outputs = *flat[:4], steps[0], flat[4], steps[1], *flat[5:]
    args = *inputs(x, dt, A, B, C), *extras(x, D, z, bias), smooth, zoh, *how[:4], *rows(gy)
    args = (
        *args,
        array(saved).reshape(-1),
        saved.shape[1],
        *outputs,
        *ragged(x.shape, lengths, starts),
        T,
        E,
        N,
        how.groups,
    )
    tasks = rows_ * how.groups * how.parts
    spread(lambda first, end: backward_tasks(*args, first, end), tasks, 40 * x.numel() * N)
    by_row = (None if t is None else d[:, :E].contiguous() for t, d in ((D, dD), (bias, dbias)))
    back_D, back_bias = by_row
    gate = None if z is None else dz
    return dx, ddt, states_of(dA, E), dB.sum(0), dC.sum(0), states_of(dh, E), back_D, gate, back_bias


def warm() -> None:
    """Compile the kernel in both precisions."""
    for dtype in (torch.float32, torch.float64):
        x, A = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
        saved = x.new_zeros(1, 16)
        backward(x, x, A, x[:, :, None], x[:, :, None], x, None, None, None, None, None, True, False, saved, x, x)
