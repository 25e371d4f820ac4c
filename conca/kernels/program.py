"""Kernel of a whole token: a table of instructions, from the first norm to the last product, run by all threads in one region.

Waking the threads for each of a hundred products would cost as much as the products. Here they are woken once. An instruction is a row
of numbers: what to do, the operands, sizes. An operand is the number of a vector, whose address, size and step from one sequence
to the next stand in tables of their own. `conca.ops.program` has the meaning of each instruction in PyTorch.
"""

from __future__ import annotations

from typing import Any

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lane_math import exp2, fill, silu, softplus
from conca.kernels.lanes import (
    add,
    fma,
    larger,
    load,
    load_first,
    mul,
    scratch,
    smaller,
    splat,
    store,
    store_first,
    width,
)  # fmt: skip
from conca.kernels.narrow import total
from conca.kernels.norm import inverse_root
from conca.kernels.one_row import products, sums
from conca.kernels.region import finish, operand, take, wait

__all__ = ["run"]

NORM, PRODUCT, PRODUCT_16, PRODUCT_8, CONVOLVE, SELECT, FORGET = range(7)


@inlined
def norm(x: Any, i: int, weight: Any, gate: Any, k: int, y: Any, j: int, D: int, groups: int, eps: float) -> None:
    """Each group of x over its root mean square, times the weight, and times SiLU of the gate where there is one."""
    W, size = width(y), D // groups
    for g in range(groups):
        squares = splat(y.dtype.type(0))
        for e in range(g * size, (g + 1) * size, W):
            v = load_first(x, i + e, min(W, (g + 1) * size - e))
            squares = fma(v, v, squares)
        scale = splat(inverse_root(total(squares), size, eps, y))
        for e in range(g * size, (g + 1) * size, W):
            lanes = min(W, (g + 1) * size - e)
            v = mul(mul(load_first(x, i + e, lanes), scale), load_first(weight, e, lanes))
            if gate.size > 0:
                v = mul(v, silu(load_first(gate, k + e, lanes)))
            store_first(y, j + e, v, lanes)


@inlined
def conv(
    x: Any, i: int, weight: Any, bias: Any, tail: Any, new: Any, t: int, y: Any, j: int, E: int, window: int,
    active: int, first: int, end: int,
) -> None:  # fmt: skip
    """A step of the short convolution on channels first..end, and its new tail; weight (W, E) has the present first."""
    W = width(y)
    for e in range(first, end, W):
        lanes = min(W, end - e)
        now = load_first(x, i + e, lanes)
        v = mul(load_first(weight, e, lanes), now)
        if bias.size > 0:
            v = add(v, load_first(bias, e, lanes))
        for k in range(1, window):
            old = load_first(tail, t + (window - 1 - k) * E + e, lanes)
            v = fma(load_first(weight, k * E + e, lanes), old, v)
            if k < window - 1:
                store_first(new, t + (window - 2 - k) * E + e, old, lanes)
        if window > 1:
            store_first(new, t + (window - 2) * E + e, now, lanes)
        store_first(y, j + e, silu(v) if active else v, lanes)


@inlined
def select(
    u: Any, i: int, dt: Any, k: int, rate: Any, B: Any, m: int, C: Any, n0: int, D: Any, z: Any, g: int, h: Any, new: Any,
    o0: int, y: Any, j: int, N: int, room: Any, first: int, end: int,
) -> None:  # fmt: skip
    """A step of the selective scan on channels first..end: h = 2^(dt rate) h + dt u B, y = (C h + D u) silu(z), dt by softplus."""
    W, zero = width(y), splat(y.dtype.type(0))
    S = W * W
    for e in range(first, end, W):
        lanes = min(W, end - e)
        step, x = softplus(load_first(dt, k + e, lanes)), load_first(u, i + e, lanes)
        store(room, S, step)
        store(room, S + W, mul(step, x))
        for c in range(lanes):
            o, s, inside, outside = o0 + (e + c) * N, zero, splat(room[S + c]), splat(room[S + W + c])
            for n in range(0, N, W):
                count = min(W, N - n)
                a = exp2(mul(inside, load_first(rate, (e + c) * N + n, count)))
                v = fma(a, load_first(h, o + n, count), mul(outside, load_first(B, m + n, count)))
                store_first(new, o + n, v, count)
                s = fma(v, load_first(C, n0 + n, count), s)
            store(room, c * W, s)
        v = sums(room)
        if D.size > 0:
            v = fma(load_first(D, e, lanes), x, v)
        if z.size > 0:
            v = mul(v, silu(load_first(z, g + e, lanes)))
        store_first(y, j + e, v, lanes)


@inlined
def forget(
    x: Any, i: int, dt: Any, k: int, bias: Any, rate: Any, B: Any, m: int, C: Any, n0: int, D: Any, z: Any, g: int, S: Any,
    new: Any, o0: int, y: Any, j: int, N: int, P: int, shared: int, low: float, high: float, room: Any, first: int,
    end: int,
) -> None:  # fmt: skip
    """A step of heads first..end: S = 2^(dt rate) S + B (dt x)^T, y = (S^T C + D x) silu(z); `shared` heads have one B and C."""
    W = width(y)
    for h in range(first, end):
        step = softplus(splat(dt[k + h] + bias[h]))
        step = smaller(larger(step, fill(step, low)), fill(step, high))
        a, o, n1, written = exp2(mul(step, splat(rate[h]))), o0 + h * N * P, h // shared * N, -(-P // W) * W
        for p in range(0, P, W):
            v = load_first(x, i + h * P + p, min(W, P - p))
            store(room, p, mul(splat(D[h]), v))
            store(room, written + p, mul(step, v))
        for n in range(N):
            key, query = splat(B[m + n1 + n]), splat(C[n0 + n1 + n])
            for p in range(0, P, W):
                lanes = min(W, P - p)
                s = fma(a, load_first(S, o + n * P + p, lanes), mul(key, load(room, written + p)))
                store_first(new, o + n * P + p, s, lanes)
                store(room, p, fma(query, s, load(room, p)))
        for p in range(0, P, W):
            lanes = min(W, P - p)
            v = load(room, p)
            if z.size > 0:
                v = mul(v, silu(load_first(z, g + h * P + p, lanes)))
            store_first(y, j + h * P + p, v, lanes)


@inlined
def multiply(
    row: Any, where: Any, sizes: Any, x: Any, i: int, y: Any, j: int, half: Any, byte: Any, room: Any, first: int, end: int
) -> None:  # fmt: skip
    """A product with weights of any kind."""
    code, w, K, adds = row[0], row[3], row[12], row[13] > 0
    scale, bias = operand(where, sizes, row[4], y), operand(where, sizes, row[5], y)
    if code == PRODUCT:
        products(operand(where, sizes, w, y), scale, bias, x, i, y, j, K, adds, room, first, end)
    elif code == PRODUCT_16:
        products(operand(where, sizes, w, half), scale, bias, x, i, y, j, K, adds, room, first, end)
    else:
        products(operand(where, sizes, w, byte), scale, bias, x, i, y, j, K, adds, room, first, end)


@inlined
def do(
    row: Any, number: Any, where: Any, sizes: Any, steps: Any, B: int, like: Any, half: Any, byte: Any, room: Any,
    first: int, end: int,
) -> None:  # fmt: skip
    """One instruction on its units first..end, for B sequences. Its row: code, x, y, up to nine more operands, up to four sizes."""
    code, p, q, r = row[0], operand(where, sizes, row[4], like), operand(where, sizes, row[5], like), row[3]
    x, y, w = operand(where, sizes, row[1], like), operand(where, sizes, row[2], like), operand(where, sizes, r, like)
    s, t, u = (
        operand(where, sizes, row[6], like),
        operand(where, sizes, row[7], like),
        operand(where, sizes, row[8], like),
    )
    for b in range(B):
        i, j, o = b * steps[row[1]], b * steps[row[2]], b * steps[row[4]]
        if code == NORM:
            norm(x, i, w, p, o, y, j, row[12], row[13], number[0])
        elif code <= PRODUCT_8:
            multiply(row, where, sizes, x, i, y, j, half, byte, room, first, end)
        elif code == CONVOLVE:
            conv(x, i, w, q, p, s, o, y, j, row[12], row[13], row[14], first, end)
        else:
            m, n, g = b * steps[row[5]], b * steps[row[6]], b * steps[row[7]]
            dt, k = operand(where, sizes, row[9], like), b * steps[row[9]]
            new, D = operand(where, sizes, row[10], like), operand(where, sizes, row[11], like)
            if code == SELECT:
                select(x, i, dt, k, w, q, m, s, n, D, t, g, p, new, o, y, j, row[12], room, first, end)
            else:
                forget(
                    x, i, dt, k, u, w, q, m, s, n, D, t, g, p, new, o, y, j, row[12], row[13], row[14], number[0],
                    number[1], room, first, end,
                )  # fmt: skip


@compiled
def run(
    table: Any, numbers: Any, phases: Any, pieces: Any, where: Any, sizes: Any, steps: Any, counters: Any, B: int,
    extra: int, like: Any, half: Any, byte: Any,
) -> None:  # fmt: skip
    """All phases, by as many threads as call this with the same counters.

    table (I, 16) and numbers (I, 2) are the instructions; phases (P, 4): what each thread does for itself, from and to, the first piece
    and how many; pieces (C, 4): instructions from, to, units from, to. Operands: where they lie, their sizes, steps between sequences.
    """
    room = scratch((width(like) + 2) * width(like) + extra, like)
    for phase in range(len(phases)):
        begin, start, count = phases[phase, 0], phases[phase, 2], phases[phase, 3]
        own = phases[phase, 1] - begin
        piece = take(counters, phase)
        while piece < count:
            p = start + piece
            for k in range(own + pieces[p, 1] - pieces[p, 0]):
                row = begin + k if k < own else pieces[p, 0] + k - own
                do(
                    table[row], numbers[row], where, sizes, steps, B, like, half, byte, room, pieces[p, 2], pieces[p, 3],
                )  # fmt: skip
            own = 0
            finish(counters, phase)
            piece = take(counters, phase)
        wait(counters, phase, count)
