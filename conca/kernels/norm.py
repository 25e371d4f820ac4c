"""Kernels of the root mean square norm over the last axis, forward and backward.

A task is a piece of the steps of one row. The channels of a step are read twice, the second time from the nearest cache; the gradient
to the weight is added up over the steps of a piece, so it does not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lanes import (
    add,
    evens,
    fma,
    fnma,
    get,
    load,
    load_first,
    mul,
    odds,
    scratch,
    splat,
    store,
    store_first,
    width,
)
from conca.kernels.pool import spread
from conca.kernels.views import array, rows

__all__ = ["backward", "forward", "warm"]

PIECE = 256
"""Steps of a row in one task."""


@inlined
def total(x: Any, like: Any) -> Any:
    """The sum over the lanes of a vector, as a number; `like` is an array of its type."""
    done, W = 1, width(like)
    while done < W:
        x = add(evens(x, x), odds(x, x))
        done *= 2
    return get(x, 0)


@inlined
def inverse_root(squares: Any, D: int, eps: float, like: Any) -> Any:
    """1 / sqrt(mean + eps) of a sum of squares over D channels, in the type of `like`; 0 where the sum is infinite."""
    one = like.dtype.type(1)
    if squares == np.inf:  # a fast root refines its guess with infinity times 0
        return one - one
    return one / np.sqrt(squares / like.dtype.type(D) + like.dtype.type(eps))


@compiled
def forward_tasks(
    x: Any, xr: int, xt: int, weight: Any, eps: float, y: Any, T: int, D: int, first: int, end: int
) -> None:
    """Tasks first..end. Flat arrays: x with strides, weight (D), y (B, T, D)."""
    W = width(y)
    pieces, zero = -(-T // PIECE), splat(y.dtype.type(0))
    for task in range(first, end):
        r, t0 = task // pieces, task % pieces * PIECE
        for t in range(t0, min(t0 + PIECE, T)):
            i, o, squares = r * xr + t * xt, (r * T + t) * D, zero
            for e in range(0, D, W):
                v = load_first(x, i + e, min(W, D - e))
                squares = fma(v, v, squares)
            scale = splat(inverse_root(total(squares, y), D, eps, y))
            for e in range(0, D, W):
                lanes = min(W, D - e)
                v = mul(load_first(x, i + e, lanes), scale)
                store_first(y, o + e, mul(v, load_first(weight, e, lanes)), lanes)


@compiled
def backward_tasks(
    x: Any, xr: int, xt: int, weight: Any, eps: float, g: Any, gr: int, gt: int, dx: Any, dweight: Any, T: int, D: int,
    first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g with strides is the gradient into y, dx (B, T, D), dweight (B, pieces, D)."""
    W = width(dx)
    pieces, zero = -(-T // PIECE), splat(dx.dtype.type(0))
    sums = scratch(-(-D // W) * W, dx)
    for task in range(first, end):
        r, t0 = task // pieces, task % pieces * PIECE
        sums[:] = 0
        for t in range(t0, min(t0 + PIECE, T)):
            i, j, o = r * xr + t * xt, r * gr + t * gt, (r * T + t) * D
            squares, products = zero, zero
            for e in range(0, D, W):
                lanes = min(W, D - e)
                v = load_first(x, i + e, lanes)
                squares = fma(v, v, squares)
                products = fma(mul(v, load_first(g, j + e, lanes)), load_first(weight, e, lanes), products)
            r1 = inverse_root(total(squares, dx), D, eps, dx)
            scale, back = splat(r1), splat(r1 * r1 * r1 * total(products, dx) / dx.dtype.type(D))
            for e in range(0, D, W):
                lanes = min(W, D - e)
                v, into = load_first(x, i + e, lanes), mul(load_first(g, j + e, lanes), scale)
                store(sums, e, fma(into, v, load(sums, e)))
                store_first(dx, o + e, fnma(v, back, mul(into, load_first(weight, e, lanes))), lanes)
        for e in range(D):
            dweight[task * D + e] = sums[e]


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y (B, T, D) of x (B, T, D) and weight (D,), of one type. Nothing is empty."""
    B, T, D = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    args = *rows(x), array(weight), eps, array(y).reshape(-1), T, D
    spread(lambda first, end: forward_tasks(*args, first, end), B * -(-T // PIECE), 4 * x.numel())
    return y


def backward(x: Tensor, weight: Tensor, eps: float, g: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients to x, and to the weight by row (B, D), from that into y."""
    B, T, D = x.shape
    pieces = -(-T // PIECE)
    dx, dweight = torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(B, pieces, D)
    outputs = array(dx).reshape(-1), array(dweight).reshape(-1)
    args = *rows(x), array(weight), eps, *rows(g), *outputs, T, D
    spread(lambda first, end: backward_tasks(*args, first, end), B * pieces, 10 * x.numel())
    return dx, dweight.sum(1)


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(1, 1, 1, dtype=dtype)
        backward(x, x[0, 0], 1e-6, forward(x, x[0, 0], 1e-6))
