"""Kernels of products of a matrix with one row, or a few: the weights are read once, in float32, float64, bfloat16 or int8.

Such a product costs what reading its weights costs. A thread follows one stream, row after row of the weights (several rows side by
side were two to three times slower), and multiplies each by all rows of x while it lies in the nearest cache. Narrow weights are
widened in registers, and x is not rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lanes import (
    add,
    evens,
    fma,
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
from conca.kernels.narrow import first_of, load_as, load_last
from conca.kernels.pool import spread
from conca.kernels.views import Array

__all__ = ["forward", "products", "sums", "warm"]

GROUP = 16
"""Rows of the weights in a task: what they give is a cache line, which no two threads write."""

EASY = 4
"""Multiply-adds of one weight that cost as much as one elsewhere: reading it is the work."""


@inlined
def dot(w: Any, o: Any, x: Any, i: Any, last: Any, K: Any) -> Any:
    """The product of K weights from o with K numbers from i, as lanes to be summed; four sums keep the processor from waiting."""
    W = width(x)
    zero = splat(x.dtype.type(0))
    a, b, c, d, k = zero, zero, zero, zero, 0
    while k + 4 * W <= K:
        a = fma(load_as(w, o + k, x), load(x, i + k), a)
        b = fma(load_as(w, o + k + W, x), load(x, i + k + W), b)
        c = fma(load_as(w, o + k + 2 * W, x), load(x, i + k + 2 * W), c)
        d = fma(load_as(w, o + k + 3 * W, x), load(x, i + k + 3 * W), d)
        k += 4 * W
    while k + W <= K:
        a = fma(load_as(w, o + k, x), load(x, i + k), a)
        k += W
    if k < K:
        end = load_as(w, o + K - W, x) if K >= W else first_of(w, o, K, x)
        b = fma(end, last, b)
    return add(add(a, b), add(c, d))


@inlined
def sums(room: Any) -> Any:
    """The sums over the lanes of as many vectors as a vector has lanes, which lie one after the other, and are used up."""
    W = width(room)
    count = W // 2
    while count > 0:
        for i in range(count):
            x, y = load(room, 2 * i * W), load(room, (2 * i + 1) * W)
            store(room, i * W, add(evens(x, y), odds(x, y)))
        count //= 2
    return load(room, 0)


@inlined
def products(
    w: Any, scale: Any, bias: Any, x: Any, i: Any, y: Any, j: Any, K: Any, adds: Any, room: Any, first: Any, end: Any
) -> None:
    """y[j + r] = scale[r] (w x)[r] + bias[r] for rows first..end of w (O, K), or that added to it; scale and bias may be empty.

    The room is for a square of lanes.
    """
    W, last = width(x), load_last(x, i, K)
    for r in range(first, end, W):
        lanes = min(W, end - r)
        for k in range(lanes):
            store(room, k * W, dot(w, (r + k) * K, x, i, last, K))
        value = sums(room)
        if scale.size > 0:
            value = mul(value, load_first(scale, r, lanes))
        if bias.size > 0:
            value = add(value, load_first(bias, r, lanes))
        if adds:
            value = add(value, load_first(y, j + r, lanes))
        store_first(y, j + r, value, lanes)


@compiled
def forward_tasks(
    w: Any, scale: Any, bias: Any, x: Any, y: Any, B: int, rows: int, K: int, first: int, end: int
) -> None:
    """Tasks first..end: `GROUP` rows of w each. Flat arrays: w (O, K), x (B, K), y (B, O)."""
    room = scratch(width(y) * width(y), y)
    for task in range(first, end):
        for b in range(B):
            products(
                w, scale, bias, x, b * K, y, b * rows, K, False, room, task * GROUP, min(task * GROUP + GROUP, rows)
            )


def forward(x: Tensor, w: Tensor, bias: Tensor | None, scale: Tensor | None) -> Tensor:
    """y (B, O) of x (B, K), w (O, K), bias and scale (O,) or None, contiguous; all but bfloat16 or int8 weights of the type of x."""
    (B, K), rows = x.shape, w.shape[0]
    y = torch.empty(B, rows, dtype=x.dtype)
    none = y[:0, 0]
    args = *(flat(t) for t in (w, none if scale is None else scale, none if bias is None else bias, x, y)), B, rows, K
    spread(lambda first, end: forward_tasks(*args, first, end), -(-rows // GROUP), B * rows * K // EASY)
    return y


def flat(t: Tensor) -> Array:
    """All elements; those of bfloat16 as int16."""
    t = t.detach().resolve_neg()
    return (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).view(-1).numpy()


def warm() -> None:
    """Compile it in both precisions, for all weights."""
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(1, 1, dtype=dtype)
        for w in (x, x.bfloat16(), x.to(torch.int8)):
            forward(x, w, x[0], x[0])
