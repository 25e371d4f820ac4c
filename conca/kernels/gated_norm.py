"""Kernels of the gated, grouped root mean square norm, forward and backward, in one pass over memory each way.

As `conca.kernels.norm`: a task is a piece of the steps of one row. What is normed, and where it is needed once more the gate, wait in
the nearest cache until the sum of squares of their group is known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.kernels.compiled import compiled
from conca.kernels.lane_math import fill, sigmoid, silu
from conca.kernels.lanes import fma, fnma, load, load_first, mul, scratch, splat, store, store_first, sub, width
from conca.kernels.norm import PIECE, inverse_root, total
from conca.kernels.pool import spread
from conca.kernels.views import array, rows

__all__ = ["backward", "forward", "warm"]


@compiled
def forward_tasks(
    x: Any, xr: int, xt: int, z: Any, zr: int, zt: int, weight: Any, eps: float, y: Any, T: int, E: int, size: int,
    norm_first: bool, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end. Flat arrays: x and z with strides, weight (E,), y (B, T, E); groups of `size` channels."""
    W, zero = width(y), splat(y.dtype.type(0))
    pieces, normed, gate = -(-T // PIECE), scratch(size + W, y), scratch(size + W, y)
    for task in range(first, end):
        r, t0 = task // pieces, task % pieces * PIECE
        for t in range(t0, min(t0 + PIECE, T)):
            for e0 in range(0, E, size):
                i, j, o = r * xr + t * xt + e0, r * zr + t * zt + e0, (r * T + t) * E + e0
                squares = zero
                for e in range(0, size, W):
                    lanes = min(W, size - e)
                    v, s = load_first(x, i + e, lanes), silu(load_first(z, j + e, lanes))
                    v = v if norm_first else mul(v, s)
                    store(normed, e, v)
                    store(gate, e, s)
                    squares = fma(v, v, squares)
                scale = splat(inverse_root(total(squares, y), size, eps, y))
                for e in range(0, size, W):
                    lanes = min(W, size - e)
                    v = mul(mul(load(normed, e), scale), load_first(weight, e0 + e, lanes))
                    store_first(y, o + e, mul(v, load(gate, e)) if norm_first else v, lanes)


@compiled
def backward_tasks(
    x: Any, xr: int, xt: int, z: Any, zr: int, zt: int, weight: Any, eps: float, g: Any, gr: int, gt: int, dx: Any,
    dz: Any, dweight: Any, T: int, E: int, size: int, norm_first: bool, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g with strides is the gradient into y, dx and dz (B, T, E), dweight (B, pieces, E)."""
    W, zero = width(dx), splat(dx.dtype.type(0))
    pieces, sums, turned = -(-T // PIECE), scratch(E + W, dx), scratch(size + W, dx)
    for task in range(first, end):
        r, t0 = task // pieces, task % pieces * PIECE
        sums[:] = 0
        for t in range(t0, min(t0 + PIECE, T)):
            for e0 in range(0, E, size):
                i, j, k, o = r * xr + t * xt + e0, r * zr + t * zt + e0, r * gr + t * gt + e0, (r * T + t) * E + e0
                squares, products = zero, zero
                for e in range(0, size, W):
                    lanes = min(W, size - e)
                    v, q = load_first(x, i + e, lanes), sigmoid(load_first(z, j + e, lanes))
                    s, d = mul(load_first(z, j + e, lanes), q), load_first(g, k + e, lanes)
                    store(turned, e, q)
                    v, d = (v, mul(d, s)) if norm_first else (mul(v, s), d)
                    squares = fma(v, v, squares)
                    products = fma(mul(v, d), load_first(weight, e0 + e, lanes), products)
                r1 = inverse_root(total(squares, dx), size, eps, dx)
                scale, back = splat(r1), splat(r1 * r1 * r1 * total(products, dx) / dx.dtype.type(size))
                for e in range(0, size, W):
                    lanes = min(W, size - e)
                    a, b, q = load_first(x, i + e, lanes), load_first(z, j + e, lanes), load(turned, e)
                    s, d = mul(b, q), mul(load_first(g, k + e, lanes), scale)
                    slope, w = mul(q, fma(b, sub(fill(q, 1.0), q), fill(q, 1.0))), load_first(weight, e0 + e, lanes)
                    v = a if norm_first else mul(a, s)
                    n = mul(d, s) if norm_first else d
                    u = fnma(v, back, mul(n, w))
                    store_first(sums, e0 + e, fma(n, v, load_first(sums, e0 + e, lanes)), lanes)
                    store_first(dx, o + e, u if norm_first else mul(u, s), lanes)
                    store_first(dz, o + e, mul(mul(mul(d, w), a) if norm_first else mul(u, a), slope), lanes)
        for e in range(E):
            dweight[task * E + e] = sums[e]


def forward(x: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int, norm_first: bool) -> Tensor:
    """y (B, T, E) of x, z (B, T, E) and weight (E,), of one type. Nothing is empty."""
    B, T, E = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    args = *rows(x), *rows(z), array(weight), eps, array(y).reshape(-1), T, E, E // groups, norm_first
    spread(lambda first, end: forward_tasks(*args, first, end), B * -(-T // PIECE), 8 * x.numel())
    return y


def backward(
    x: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int, norm_first: bool, g: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to x and z, and to the weight by row (B, E), from that into y."""
    B, T, E = x.shape
    pieces = -(-T // PIECE)
    dx, dz = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, z))
    dweight = x.new_empty(B, pieces, E)
    outputs = (array(t).reshape(-1) for t in (dx, dz, dweight))
    args = *rows(x), *rows(z), array(weight), eps, *rows(g), *outputs, T, E, E // groups, norm_first
    spread(lambda first, end: backward_tasks(*args, first, end), B * pieces, 20 * x.numel())
    return dx, dz, dweight.sum(1)


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(1, 1, 1, dtype=dtype)
        backward(x, x, x[0, 0], 1e-6, 1, False, forward(x, x, x[0, 0], 1e-6, 1, False))
