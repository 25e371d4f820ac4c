"""Kernels of (y + c x) silu(z), forward and backward, in one pass over memory each way.

Lanes run over the channels of a head. A task is a piece of the steps of one row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.kernels.compiled import compiled
from conca.kernels.lane_math import fill, sigmoid
from conca.kernels.lanes import fma, load_first, mul, splat, store_first, sub, width
from conca.kernels.norm import total
from conca.kernels.pool import spread
from conca.kernels.views import array, rows

__all__ = ["backward", "forward", "warm"]

PIECE = 64
"""Steps of a row in one task."""

Four = tuple[Tensor, Tensor, Tensor, Tensor]


@compiled
def forward_tasks(
    y: Any, yr: int, yt: int, x: Any, xr: int, xt: int, c: Any, z: Any, zr: int, zt: int, out: Any, T: int, H: int,
    P: int, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end. Flat arrays: y, x, z with strides, c (B, T, H), out (B, T, H P)."""
    W, pieces = width(out), -(-T // PIECE)
    for task in range(first, end):
        b, t0 = task // pieces, task % pieces * PIECE
        for t in range(t0, min(t0 + PIECE, T)):
            for h in range(H):
                scale, at = splat(c[(b * T + t) * H + h]), h * P
                for i in range(at, at + P, W):
                    lanes = min(W, at + P - i)
                    v = fma(scale, load_first(x, b * xr + t * xt + i, lanes), load_first(y, b * yr + t * yt + i, lanes))
                    gate = load_first(z, b * zr + t * zt + i, lanes)
                    store_first(out, (b * T + t) * H * P + i, mul(v, mul(gate, sigmoid(gate))), lanes)


@compiled
def backward_tasks(
    y: Any, yr: int, yt: int, x: Any, xr: int, xt: int, c: Any, z: Any, zr: int, zt: int, g: Any, gr: int, gt: int,
    dy: Any, dx: Any, dc: Any, dz: Any, T: int, H: int, P: int, first: int, end: int,
) -> None:  # fmt: skip
    """As `forward_tasks`; g with strides is the gradient into out, dy, dx and dz (B, T, H P)."""
    W, pieces = width(dy), -(-T // PIECE)
    zero = splat(dy.dtype.type(0))
    one = fill(zero, 1.0)
    for task in range(first, end):
        b, t0 = task // pieces, task % pieces * PIECE
        for t in range(t0, min(t0 + PIECE, T)):
            for h in range(H):
                scale, at, sums = splat(c[(b * T + t) * H + h]), h * P, zero
                for i in range(at, at + P, W):
                    lanes, o = min(W, at + P - i), (b * T + t) * H * P + i
                    u = load_first(x, b * xr + t * xt + i, lanes)
                    v = fma(scale, u, load_first(y, b * yr + t * yt + i, lanes))
                    gate, into = load_first(z, b * zr + t * zt + i, lanes), load_first(g, b * gr + t * gt + i, lanes)
                    s = sigmoid(gate)
                    back = mul(into, mul(gate, s))
                    store_first(dy, o, back, lanes)
                    store_first(dx, o, mul(back, scale), lanes)
                    sums = fma(back, u, sums)
                    slope = mul(s, fma(gate, sub(one, s), one))
                    store_first(dz, o, mul(mul(into, v), slope), lanes)
                dc[(b * T + t) * H + h] = total(sums, dy)


def forward(y: Tensor, x: Tensor, c: Tensor, z: Tensor) -> Tensor:
    """(y + c x) silu(z) (B, T, E) of y, x, z (B, T, E) and c (B, T, H). Nothing is empty."""
    (B, T, E), H = y.shape, c.shape[2]
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    args = *rows(y), *rows(x), array(c).reshape(-1), *rows(z), array(out).reshape(-1), T, H, E // H
    spread(lambda first, end: forward_tasks(*args, first, end), B * -(-T // PIECE), 4 * y.numel())
    return out


def backward(y: Tensor, x: Tensor, c: Tensor, z: Tensor, g: Tensor) -> Four:
    """Gradients to y, x, c and z from that into the output."""
    (B, T, E), H = y.shape, c.shape[2]
    dy, dx, dc, dz = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (y, x, c, z))
    found = (array(t).reshape(-1) for t in (dy, dx, dc, dz))
    args = *rows(y), *rows(x), array(c).reshape(-1), *rows(z), *rows(g), *found, T, H, E // H
    spread(lambda first, end: backward_tasks(*args, first, end), B * -(-T // PIECE), 10 * y.numel())
    return dy, dx, dc, dz


def warm() -> None:
    """Compile both kernels in both precisions."""
    for dtype in (torch.float32, torch.float64):
        y = torch.ones(1, 1, 1, dtype=dtype)
        backward(y, y, y, y, forward(y, y, y, y))
