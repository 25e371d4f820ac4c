"""Kernels of the Cauchy sum over conjugate pairs, sum_n v / (i y - x w) + conj(v) / (i y - x conj(w)), forward and backward.

Lanes run over nodes. Forward, a vector of nodes has the reciprocals of all modes computed into a small table, each two numerators
are summed over the modes in registers, and the low rank is taken in before anything is stored. Backward does that again for what the
low rank adds to the gradient; then a mode goes through a tile of nodes twice: reciprocals, and for each two numerators both what they
get and what the reciprocals get. The formulas are in `conca.ops.cauchy_bodies`.

What belongs to a vector of nodes lies in memory as pairs of vectors, real and imaginary parts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lanes import (
    accumulate,
    add,
    div,
    evens,
    fma,
    fnma,
    load,
    load_first,
    mul,
    odds,
    scratch,
    splat,
    store,
    store_first,
    width,
    zip_high,
    zip_low,
)
from conca.kernels.pool import spread
from conca.kernels.views import array
from conca.ops.cauchy_bodies import chained, numerators

__all__ = ["backward", "forward", "warm"]

PIECE = 16
"""Vectors of nodes in a task forward."""

TILE = 8
"""Vectors of nodes in a tile backward: what four numerators get on it is 8 KB."""


@inlined
def reciprocal(a: Any, b: Any, y: Any, x: Any, one: Any) -> Any:
    """Real and imaginary part of 1 / ((x a)^2 + (x b - y)(x b + y) - 2 i x y a), for the pole a + i b."""
    p, q = mul(x, a), mul(y, a)
    re, im = fnma(fnma(x, b, y), fma(x, b, y), mul(p, p)), mul(x, add(q, q))
    inverse = div(one, fma(re, re, mul(im, im)))
    return mul(re, inverse), mul(im, inverse)


@inlined
def one_sum(table: Any, weights: Any, i: int, k: int, N: int) -> Any:
    """The sums over the modes of alpha r and of beta r: real, imaginary, real, imaginary."""
    W, zero = width(table), splat(table.dtype.type(0))
    ar, ai, br, bi = zero, zero, zero, zero
    for n in range(N):
        re, im = load(table, 2 * n * W), load(table, (2 * n + 1) * W)
        alpha, beta = splat(weights[i + n]), splat(weights[k + n])
        ar, ai, br, bi = fma(alpha, re, ar), fma(alpha, im, ai), fma(beta, re, br), fma(beta, im, bi)
    return ar, ai, br, bi


@inlined
def two_sums(table: Any, weights: Any, i: int, k: int, N: int) -> Any:
    """The same for two neighbouring numerators; eight sums keep the processor from waiting for any."""
    W, zero = width(table), splat(table.dtype.type(0))
    ar, ai, br, bi, cr, ci, dr, di = zero, zero, zero, zero, zero, zero, zero, zero
    for n in range(N):
        re, im = load(table, 2 * n * W), load(table, (2 * n + 1) * W)
        alpha, beta = splat(weights[i + n]), splat(weights[k + n])
        ar, ai, br, bi = fma(alpha, re, ar), fma(alpha, im, ai), fma(beta, re, br), fma(beta, im, bi)
        alpha, beta = splat(weights[i + N + n]), splat(weights[k + N + n])
        cr, ci, dr, di = fma(alpha, re, cr), fma(alpha, im, ci), fma(beta, re, dr), fma(beta, im, di)
    return ar, ai, br, bi, cr, ci, dr, di


@inlined
def finish(sums: Any, i: int, y: Any, x: Any, ar: Any, ai: Any, br: Any, bi: Any) -> None:
    """Put i y a - x b."""
    W, zero = width(sums), splat(sums.dtype.type(0))
    store(sums, i, fnma(y, ai, fnma(x, br, zero)))
    store(sums, i + W, fma(y, ar, fnma(x, bi, zero)))


@inlined
def all_sums(poles: Any, weights: Any, d: int, Q: int, N: int, y: Any, x: Any, table: Any, sums: Any) -> None:
    """The sums of all Q numerators of a channel at a vector of nodes; the table is room for the reciprocals of N modes."""
    W, one = width(sums), splat(sums.dtype.type(1))
    for n in range(N):
        a, b = splat(poles[2 * (d * N + n)]), splat(poles[2 * (d * N + n) + 1])
        re, im = reciprocal(a, b, y, x, one)
        store(table, 2 * n * W, re)
        store(table, (2 * n + 1) * W, im)
    i, k = 2 * d * Q * N, (2 * d + 1) * Q * N
    for v in range(0, Q - 1, 2):
        ar, ai, br, bi, cr, ci, dr, di = two_sums(table, weights, i + v * N, k + v * N, N)
        finish(sums, 2 * v * W, y, x, ar, ai, br, bi)
        finish(sums, 2 * (v + 1) * W, y, x, cr, ci, dr, di)
    if Q % 2:
        ar, ai, br, bi = one_sum(table, weights, i + (Q - 1) * N, k + (Q - 1) * N, N)
        finish(sums, 2 * (Q - 1) * W, y, x, ar, ai, br, bi)


@inlined
def product(a: Any, i: int, b: Any, k: int) -> Any:
    """The product of two vectors of complex numbers in memory."""
    W = width(a)
    ar, ai, br, bi = load(a, i), load(a, i + W), load(b, k), load(b, k + W)
    return fnma(ai, bi, mul(ar, br)), fma(ai, br, mul(ar, bi))


@inlined
def scale(a: Any, i: int, fr: Any, fi: Any) -> None:
    """Multiply a vector of complex numbers in memory."""
    W = width(a)
    ar, ai = load(a, i), load(a, i + W)
    store(a, i, fnma(ai, fi, mul(ar, fr)))
    store(a, i + W, fma(ai, fr, mul(ar, fi)))


@inlined
def lower(sums: Any, V: int, M: int, rank: int, x: Any) -> None:
    """Take in the last left and right vectors; where their sums were stay the column l and the row r of each, see the bodies."""
    W, one, zero = width(sums), splat(sums.dtype.type(1)), splat(sums.dtype.type(0))
    for step in range(1, rank + 1):
        i, k = V - step, M - step
        pivot = 2 * (i * M + k) * W
        re, im = fma(x, load(sums, pivot), one), mul(x, load(sums, pivot + W))
        gain = div(x, fma(re, re, mul(im, im)))
        fr, fi = fnma(gain, re, zero), mul(gain, im)
        for a in range(i):
            scale(sums, 2 * (a * M + k) * W, fr, fi)
            for c in range(k):
                re, im = product(sums, 2 * (a * M + k) * W, sums, 2 * (i * M + c) * W)
                accumulate(sums, 2 * (a * M + c) * W, re)
                accumulate(sums, 2 * (a * M + c) * W + W, im)
        for c in range(k):
            scale(sums, 2 * (i * M + c) * W, fr, fi)


@inlined
def widen(into: Any, sums: Any, V: int, M: int, rank: int) -> None:
    """From the gradient into the lowered sums, in the upper left, that into all; `sums` as `lower` left them."""
    W, zero = width(sums), splat(sums.dtype.type(0))
    for step in range(rank, 0, -1):
        i, k = V - step, M - step
        for a in range(i):
            re, im = zero, zero
            for c in range(k):
                pr, pi = product(into, 2 * (a * M + c) * W, sums, 2 * (i * M + c) * W)
                re, im = add(re, pr), add(im, pi)
            store(into, 2 * (a * M + k) * W, re)
            store(into, 2 * (a * M + k) * W + W, im)
        for c in range(k + 1):
            re, im = zero, zero
            for a in range(i):
                pr, pi = product(into, 2 * (a * M + c) * W, sums, 2 * (a * M + k) * W)
                re, im = add(re, pr), add(im, pi)
            store(into, 2 * (i * M + c) * W, re)
            store(into, 2 * (i * M + c) * W + W, im)


@compiled
def forward_tasks(
    poles: Any, weights: Any, nodes: Any, out: Any, J: int, V: int, M: int, rank: int, N: int, first: int, end: int
) -> None:
    """Tasks first..end: a channel and PIECE vectors of nodes. Flat arrays: poles (D, N, 2), weights (D, 2 V M, N),
    nodes (blocks, 2, W), y and then x, the last block filled up; out (D, V - rank, M - rank, J, 2)."""
    W, Q, rows, columns = width(out), V * M, V - rank, M - rank
    blocks, table, sums = -(-J // W), scratch(2 * N * W, out), scratch(2 * Q * W, out)
    pieces = -(-blocks // PIECE)
    for task in range(first, end):
        d, piece = task // pieces, task % pieces
        for block in range(piece * PIECE, min(blocks, (piece + 1) * PIECE)):
            y, x = load(nodes, 2 * block * W), load(nodes, (2 * block + 1) * W)
            all_sums(poles, weights, d, Q, N, y, x, table, sums)
            lower(sums, V, M, rank, x)
            size = 2 * min(W, J - block * W)
            for a in range(rows):
                for c in range(columns):
                    k, i = 2 * (a * M + c) * W, 2 * (((d * rows + a) * columns + c) * J + block * W)
                    re, im = load(sums, k), load(sums, k + W)
                    store_first(out, i, zip_low(re, im), min(W, size))
                    store_first(out, i + W, zip_high(re, im), max(0, size - W))


@inlined
def fetch(g: Any, i: int, size: int, into: Any, k: int) -> None:
    """The conjugates of the first `size` / 2 complex numbers."""
    W, zero = width(g), splat(g.dtype.type(0))
    low, high = load_first(g, i, min(W, size)), load_first(g, i + W, max(0, size - W))
    one = splat(g.dtype.type(1))
    store(into, k, evens(low, high))
    store(into, k + W, fnma(one, odds(low, high), zero))


@inlined
def spread_out(grads: Any, Q: int, y: Any, x: Any, into: Any, i: int, span: int) -> None:
    """i y g and -x g, real and imaginary, of every numerator."""
    W, zero = width(grads), splat(grads.dtype.type(0))
    for v in range(Q):
        re, im, k = load(grads, 2 * v * W), load(grads, (2 * v + 1) * W), i + v * span
        store(into, k, fnma(y, im, zero))
        store(into, k + W, mul(y, re))
        store(into, k + 2 * W, fnma(x, re, zero))
        store(into, k + 3 * W, fnma(x, im, zero))


@inlined
def one_back(into: Any, j: int, table: Any, vectors: int, alpha: Any, beta: Any, sums: Any, m: int) -> None:
    """One numerator on a tile: its gradients are added to sums, and to the table what it gives to the reciprocals."""
    W, zero = width(table), splat(table.dtype.type(0))
    da, db = zero, zero
    for t in range(0, 4 * W * vectors, 4 * W):
        re, im = load(table, t), load(table, t + W)
        pr, pi, qr, qi = load(into, j + t), load(into, j + t + W), load(into, j + t + 2 * W), load(into, j + t + 3 * W)
        da, db = fma(pr, re, fnma(pi, im, da)), fma(qr, re, fnma(qi, im, db))
        store(table, t + 2 * W, fma(alpha, pr, fma(beta, qr, load(table, t + 2 * W))))
        store(table, t + 3 * W, fma(alpha, pi, fma(beta, qi, load(table, t + 3 * W))))
    accumulate(sums, m, da)
    accumulate(sums, m + W, db)


@inlined
def two_back(
    into: Any,
    j: int,
    k: int,
    table: Any,
    vectors: int,
    alpha: Any,
    beta: Any,
    gamma: Any,
    delta: Any,
    sums: Any,
    m: int,
) -> None:
    """The same for two neighbouring numerators, alpha and beta of one, gamma and delta of the other."""
    W, zero = width(table), splat(table.dtype.type(0))
    da, db, dc, dd = zero, zero, zero, zero
    for t in range(0, 4 * W * vectors, 4 * W):
        re, im, sr, si = load(table, t), load(table, t + W), load(table, t + 2 * W), load(table, t + 3 * W)
        pr, pi, qr, qi = load(into, j + t), load(into, j + t + W), load(into, j + t + 2 * W), load(into, j + t + 3 * W)
        da, db = fma(pr, re, fnma(pi, im, da)), fma(qr, re, fnma(qi, im, db))
        sr, si = fma(alpha, pr, fma(beta, qr, sr)), fma(alpha, pi, fma(beta, qi, si))
        pr, pi, qr, qi = load(into, k + t), load(into, k + t + W), load(into, k + t + 2 * W), load(into, k + t + 3 * W)
        dc, dd = fma(pr, re, fnma(pi, im, dc)), fma(qr, re, fnma(qi, im, dd))
        store(table, t + 2 * W, fma(gamma, pr, fma(delta, qr, sr)))
        store(table, t + 3 * W, fma(gamma, pi, fma(delta, qi, si)))
    accumulate(sums, m, da)
    accumulate(sums, m + W, db)
    accumulate(sums, m + 2 * W, dc)
    accumulate(sums, m + 3 * W, dd)


@inlined
def begin_mode(table: Any, nodes: Any, i: int, vectors: int, a: Any, b: Any) -> None:
    """The reciprocals of a mode on a tile, and zeros beside them."""
    W, zero, one = width(table), splat(table.dtype.type(0)), splat(table.dtype.type(1))
    for t in range(vectors):
        re, im = reciprocal(a, b, load(nodes, i + 2 * t * W), load(nodes, i + (2 * t + 1) * W), one)
        store(table, 4 * t * W, re)
        store(table, (4 * t + 1) * W, im)
        store(table, (4 * t + 2) * W, zero)
        store(table, (4 * t + 3) * W, zero)


@inlined
def end_mode(table: Any, nodes: Any, i: int, vectors: int, sums: Any, m: int) -> None:
    """What the pole of a mode gets through its reciprocals, whose derivative is -r^2."""
    W, zero = width(table), splat(table.dtype.type(0))
    square, real = zero, zero
    for t in range(vectors):
        y, x = load(nodes, i + 2 * t * W), load(nodes, i + (2 * t + 1) * W)
        re, im, sr, si = (
            load(table, 4 * t * W), load(table, (4 * t + 1) * W), load(table, (4 * t + 2) * W), load(table, (4 * t + 3) * W)
        )  # fmt: skip
        tr, ti = fnma(im, si, mul(re, sr)), fma(im, sr, mul(re, si))
        hr, hi = fnma(im, ti, mul(re, tr)), fma(im, tr, mul(re, ti))
        square, real = fnma(mul(x, x), hr, square), fnma(mul(x, add(y, y)), hi, real)
    accumulate(sums, m, square)
    accumulate(sums, m + W, real)


@inlined
def total(sums: Any, i: int) -> Any:
    """The sum of the lanes of a vector in memory."""
    found = sums[i]
    for lane in range(1, width(sums)):
        found += sums[i + lane]
    return found


@inlined
def all_back(
    into: Any, span: int, table: Any, vectors: int, weights: Any, i: int, k: int, Q: int, N: int, sums: Any, m: int
) -> None:
    """All numerators of a mode on a tile."""
    W = width(table)
    for v in range(0, Q - 1, 2):
        alpha, beta = splat(weights[i + v * N]), splat(weights[k + v * N])
        gamma, delta = splat(weights[i + (v + 1) * N]), splat(weights[k + (v + 1) * N])
        two_back(into, v * span, (v + 1) * span, table, vectors, alpha, beta, gamma, delta, sums, m + 2 * v * W)
    if Q % 2:
        alpha, beta = splat(weights[i + (Q - 1) * N]), splat(weights[k + (Q - 1) * N])
        one_back(into, (Q - 1) * span, table, vectors, alpha, beta, sums, m + 2 * (Q - 1) * W)


@compiled
def backward_tasks(
    poles: Any, weights: Any, nodes: Any, g: Any, by_numerator: Any, by_pole: Any, J: int, V: int, M: int, rank: int,
    N: int, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end are channels. As `forward_tasks`; g like out, by_numerator (D, 2 V M, N), by_pole (D, 2, N)."""
    W, Q, rows, columns = width(by_pole), V * M, V - rank, M - rank
    blocks, row, span = -(-J // W), (2 * Q + 2) * W, 4 * TILE * W
    table, into, totals = scratch(span, by_pole), scratch(Q * span, by_pole), scratch(N * row, by_pole)
    modes, sums, grads = scratch(2 * N * W, by_pole), scratch(2 * Q * W, by_pole), scratch(2 * Q * W, by_pole)
    for d in range(first, end):
        totals[:] = 0
        for begin in range(0, blocks, TILE):
            vectors = min(TILE, blocks - begin)
            for t in range(vectors):
                j = (begin + t) * W
                y, x, size = load(nodes, 2 * j), load(nodes, 2 * j + W), 2 * min(W, J - j)
                for a in range(rows):
                    for c in range(columns):
                        fetch(g, 2 * (((d * rows + a) * columns + c) * J + j), size, grads, 2 * (a * M + c) * W)
                if rank > 0:
                    all_sums(poles, weights, d, Q, N, y, x, modes, sums)
                    lower(sums, V, M, rank, x)
                    widen(grads, sums, V, M, rank)
                spread_out(grads, Q, y, x, into, 4 * t * W, span)
            for n in range(N):
                a, b = splat(poles[2 * (d * N + n)]), splat(poles[2 * (d * N + n) + 1])
                begin_mode(table, nodes, 2 * begin * W, vectors, a, b)
                i, k = 2 * d * Q * N + n, (2 * d + 1) * Q * N + n
                all_back(into, span, table, vectors, weights, i, k, Q, N, totals, n * row)
                end_mode(table, nodes, 2 * begin * W, vectors, totals, n * row + 2 * Q * W)
        for n in range(N):
            for v in range(Q):
                by_numerator[(2 * d * Q + v) * N + n] = total(totals, n * row + 2 * v * W)
                by_numerator[((2 * d + 1) * Q + v) * N + n] = total(totals, n * row + (2 * v + 1) * W)
            by_pole[2 * d * N + n] = total(totals, n * row + 2 * Q * W)
            by_pole[(2 * d + 1) * N + n] = total(totals, n * row + (2 * Q + 1) * W)


def forward(v: Tensor, w: Tensor, y: Tensor, x: Tensor, rank: int) -> Tensor:
    """The sums (D, V - rank, M - rank, J); nothing is empty."""
    (D, V, M, N), J = v.shape, y.shape[0]
    out = torch.empty(D, V - rank, M - rank, J, dtype=v.dtype)
    args = *_inputs(v, w, y, x), array(out).reshape(-1), J, V, M, rank, N
    vectors = -(-J // (64 // y.element_size()))
    spread(lambda first, end: forward_tasks(*args, first, end), D * -(-vectors // PIECE), D * J * N * (12 + 4 * V * M))
    return out


def backward(v: Tensor, w: Tensor, y: Tensor, x: Tensor, g: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Gradients to v and w from that into the sums."""
    (D, V, M, N), J = v.shape, y.shape[0]
    by_numerator, by_pole = y.new_empty(D, 2 * V * M, N), y.new_empty(D, 2, N)
    outputs = (array(t).reshape(-1) for t in (g, by_numerator, by_pole))
    args = *_inputs(v, w, y, x), *outputs, J, V, M, rank, N
    spread(lambda first, end: backward_tasks(*args, first, end), D, D * J * N * (36 + 12 * V * M))
    return chained(v.detach(), w.detach(), by_numerator, by_pole)


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        y, v = torch.ones(1, dtype=dtype), torch.ones(1, 1, 1, 1, dtype=dtype.to_complex())
        backward(v, v[0, 0], y, y, forward(v, v[0, 0], y, y, 0), 0)


def _inputs(v: Tensor, w: Tensor, y: Tensor, x: Tensor) -> tuple[Any, ...]:
    """Poles (D, N, 2), weights (D, 2 V M, N), and nodes in vectors, the last filled up with points at infinity."""
    lanes = 64 // y.element_size()
    short = -y.shape[0] % lanes
    nodes = torch.stack([F.pad(y, (0, short), value=1.0), F.pad(x, (0, short))]).reshape(2, -1, lanes).movedim(0, 1)
    return tuple(array(t).reshape(-1) for t in (w, numerators(v, w), nodes))
