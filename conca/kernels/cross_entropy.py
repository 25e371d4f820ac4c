"""Kernel of the cross entropy of rows of logits, which become their own gradient in place.

A task is a piece of the rows. A row is read once for its largest logit, once to be replaced by exponentials and summed, and once
to be scaled; the second and third time it comes from the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.kernels.compiled import compiled, inlined
from conca.kernels.lane_math import exp
from conca.kernels.lanes import (
    add,
    evens,
    get,
    larger,
    load,
    load_first,
    mul,
    odds,
    splat,
    store,
    store_first,
    sub,
    width,
)
from conca.kernels.norm import total
from conca.kernels.pool import spread
from conca.kernels.views import array

__all__ = ["rows", "warm"]


@inlined
def highest(p: Any, o: int, V: int) -> Any:
    """The largest of V numbers from offset o on; NaN if one is."""
    W = width(p)
    top, whole = p[o], V // W * W
    if whole:
        most, done = load(p, o), 1
        for k in range(W, whole, W):
            most = larger(most, load(p, o + k))
        while done < W:
            most = larger(evens(most, most), odds(most, most))
            done *= 2
        top = get(most, 0)
    for k in range(whole, V):
        if p[o + k] > top or np.isnan(p[o + k]):
            top = p[o + k]
    return top


@inlined
def exponentials(p: Any, o: int, V: int, top: Any, keep: bool) -> Any:
    """The sum of e^(v - top) over V numbers from offset o on, which are replaced by the exponentials if `keep`."""
    W = width(p)
    whole, shift, rest = V // W * W, splat(top), p.dtype.type(0)
    sums = splat(p.dtype.type(0))
    for k in range(0, whole, W):
        v = exp(sub(load(p, o + k), shift))
        sums = add(sums, v)
        if keep:
            store(p, o + k, v)
    if whole < V:
        v = exp(sub(load_first(p, o + whole, V - whole), shift))
        for k in range(V - whole):
            rest += get(v, k)
        if keep:
            store_first(p, o + whole, v, V - whole)
    return total(sums, p) + rest


@compiled
def row_tasks(p: Any, target: Any, scale: Any, loss: Any, V: int, keep: bool, first: int, end: int) -> None:
    """Rows first..end of the logits p (B, V), flat; target, scale and loss (B)."""
    W = width(p)
    for i in range(first, end):
        o = i * V
        goal = p[o + target[i]]
        top = highest(p, o, V)
        mass = exponentials(p, o, V, top, keep)
        loss[i] = np.log(mass) + (top - goal)
        if keep:
            factor = splat(scale[i] / mass)
            for k in range(0, V, W):
                lanes = min(W, V - k)
                store_first(p, o + k, mul(load_first(p, o + k, lanes), factor), lanes)
            p[o + target[i]] -= scale[i]


def rows(logits: Tensor, target: Tensor, scale: Tensor, keep: bool) -> Tensor:
    """The cross entropy (B,) of each row of logits (B, V), contiguous, at its label.

    With `keep` the logits become (softmax - one at the label) * scale (B,), else they stay as they are. Nothing is empty.
    """
    B, V = logits.shape
    loss = logits.new_empty(B)
    args = array(logits).reshape(-1), array(target), array(scale), array(loss), V, keep
    spread(lambda first, end: row_tasks(*args, first, end), B, 8 * logits.numel())
    return loss


def warm() -> None:
    """Compile the kernel in both precisions."""
    for dtype in (torch.float32, torch.float64):
        rows(torch.zeros(1, 1, dtype=dtype), torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=dtype), True)
