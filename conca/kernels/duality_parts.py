"""What the kernels of the decaying memory of matrices do between their products: masks, their gradients, rows that are moved.

Matrices of a chunk have `steps` steps of `R` rows each; their rows are whole vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conca.kernels.compiled import apart, inlined
from conca.kernels.lanes import add, fma, load, load_first, mul, prefetch, splat, store, store_first, width
from conca.kernels.norm import total
from conca.kernels.tiles import alone

__all__ = [
    "added",
    "anew",
    "cleared",
    "fetch",
    "keep",
    "masks",
    "padded",
    "paths",
    "row_sums",
    "scaled",
    "scaled_rows",
    "since",
    "suffixes",
    "through",
    "upto",
    "weighted",
]


SOON = 6
"""Steps between the row that is read and the one that is asked for: rows lie far apart, where the processor does not look by itself."""


@inlined
def padded(size: int, lanes: int) -> int:
    """Up to whole vectors."""
    return (size + lanes - 1) // lanes * lanes


@inlined
def anew(starts: Any, b: int, t: int) -> bool:
    """Whether the state is set to 0 before step t."""
    return bool(starts.shape[1] > 0 and starts[b, t])


@inlined
def upto(starts: Any, b: int, t: int, length: int, L: int) -> int:
    """Where the chunk that begins at t ends: at a multiple of L, at the next start, or with the row."""
    end = min(t // L * L + L, length)
    t += 1
    while t < end and not anew(starts, b, t):
        t += 1
    return min(t, end)


@inlined
def since(starts: Any, b: int, end: int, L: int) -> int:
    """Where the chunk that ends at `end` began."""
    t, first = end - 1, (end - 1) // L * L
    while t > first and not anew(starts, b, t):
        t -= 1
    return t


@inlined
def cleared(x: Any, start: int, size: int) -> None:
    """Zeros in whole vectors."""
    zero = splat(x.dtype.type(0))
    for i in range(start, start + size, width(x)):
        store(x, i, zero)


@inlined
def added(x: Any, y: Any, size: int) -> None:
    """x + y in x."""
    for i in range(0, size, width(x)):
        store(x, i, add(load(x, i), load(y, i)))


@inlined
def scaled(x: Any, start: int, size: int, factor: Any) -> None:
    """x times a number, in x."""
    f = splat(factor)
    for i in range(start, start + size, width(x)):
        store(x, i, mul(load(x, i), f))


@inlined
def scaled_rows(x: Any, factors: Any, steps: int, R: int, wide: int) -> None:
    """The rows of each step times its factor."""
    for t in range(steps):
        scaled(x, t * R * wide, R * wide, factors[t])


@inlined
def weighted(x: Any, weight: Any, i0: int, step: int, steps: int, R: int, wide: int) -> None:
    """The rows of each step times its weight, if there are weights."""
    if weight.size > 0:
        for t in range(steps):
            scaled(x, t * R * wide, R * wide, weight[i0 + t * step])


@apart
def row_sums(x: Any, y: Any, steps: int, R: int, wide: int, out: Any, o: int, step: int) -> None:
    """The sum of x y over the rows of each step, put `step` apart."""
    alone()
    W = width(x)
    for t in range(steps):
        v = splat(x.dtype.type(0))
        for i in range(t * R * wide, (t + 1) * R * wide, W):
            v = fma(load(x, i), load(y, i), v)
        out[o + t * step] = total(v, x)


@inlined
def through(x: Any, y: Any, start: int, size: int) -> Any:
    """The sum of x y, y from `start`."""
    v = splat(x.dtype.type(0))
    for i in range(0, size, width(x)):
        v = fma(load(x, i), load(y, start + i), v)
    return total(v, x)


@apart
def fetch(x: Any, start: int, ts: int, rs: int, steps: int, R: int, size: int, out: Any, o: int, wide: int) -> None:
    """Rows of `size` numbers of a tensor, steps ts and ranks rs apart, as a matrix; 0 up to a whole number of vectors both ways."""
    alone()
    W = width(out)
    zero = splat(out.dtype.type(0))
    for t in range(steps):
        for r in range(R):
            for i in range(0, size if t + SOON < steps else 0, W):
                prefetch(x, start + (t + SOON) * ts + r * rs + i)
            for i in range(0, size, W):
                store(out, o + (t * R + r) * wide + i, load_first(x, start + t * ts + r * rs + i, min(W, size - i)))
    for i in range(steps * R * wide, padded(steps * R, W) * wide, W):
        store(out, o + i, zero)


@apart
def keep(x: Any, o: int, wide: int, out: Any, start: int, ts: int, rs: int, steps: int, R: int, size: int) -> None:
    """The inverse of `fetch`."""
    alone()
    W = width(x)
    for t in range(steps):
        for r in range(R):
            for i in range(0, size, W):
                store_first(out, start + t * ts + r * rs + i, load(x, o + (t * R + r) * wide + i), min(W, size - i))


@inlined
def decay(log_a: Any, i: int, starts: Any, b: int, t: int) -> float:
    """The logarithm of a decay, minus infinity at a start."""
    return -np.inf if anew(starts, b, t) else float(log_a[i])


@inlined
def exponential(x: float, like: Any) -> Any:
    """e^x in the type of `like`, 0 instead of what is subnormal."""
    y = np.exp(x)
    return like.dtype.type(0) if y < (2.0**-120 if width(like) == 16 else 2.0**-1020) else like.dtype.type(y)


@apart
def masks(
    log_a: Any, i0: int, step: int, starts: Any, b: int, t0: int, steps: int, R: int, m: Any, reach: Any, rest: Any, A: Any, P: Any,
    wide: int, back: bool, dP: Any, dA: Any, strict: bool,
) -> None:  # fmt: skip
    """P = mask * A; reach = a_1 .. a_t, rest = a_{t+1} .. a_l; with `back` also dA += mask * dP. The mask is 1 for
    the rows of the same step, or 0 with `strict`.

    The row m of the mask is the one before times a_t. Adding and taking away a small number leaves nothing subnormal in it.
    """
    alone()
    W = width(m)
    size = padded(steps * R, W)
    tiny = m.dtype.type(2.0**-86 if W == 16 else 2.0**-960)
    up, down, zero, far = splat(tiny), splat(-tiny), splat(m.dtype.type(0)), 0.0
    cleared(m, 0, size)
    for t in range(steps):
        now = decay(log_a, i0 + t * step, starts, b, t0 + t)
        far += now
        reach[t] = exponential(far, m)
        a = splat(exponential(now, m))
        for i in range(0, t * R, W):
            store(m, i, add(fma(load(m, i), a, up), down))
        if not strict:
            m[t * R : t * R + R] = 1
        for j in range(t * R * wide, (t + 1) * R * wide, wide):
            for i in range(0, (t + 1) * R, W):
                v = load(m, i)
                store(P, j + i, mul(v, load(A, j + i)))
                if back:
                    store(dA, j + i, fma(v, load(dP, j + i), load(dA, j + i)))
            for i in range(padded((t + 1) * R, W), size, W):
                store(P, j + i, zero)
        m[t * R : t * R + R] = 1
    far = 0.0
    for t in range(steps - 1, -1, -1):
        rest[t] = exponential(far, m)
        far += decay(log_a, i0 + t * step, starts, b, t0 + t)


@apart
def paths(P: Any, dP: Any, wide: int, steps: int, R: int, acc: Any, da: Any, i0: int, step: int) -> None:
    """The gradient into the logarithm of a_t from within the chunk: the sum of P dP over outputs from t on and writings before t."""
    alone()
    W = width(P)
    cleared(acc, 0, padded(steps * R, W))
    for t in range(steps - 1, -1, -1):
        before = t * R
        for j in range(before * wide, (before + R) * wide, wide):
            for i in range(0, before, W):
                store(acc, i, fma(load(P, j + i), load(dP, j + i), load(acc, i)))
        v, whole = splat(P.dtype.type(0)), before // W * W
        for i in range(0, whole, W):
            v = add(v, load(acc, i))
        last = total(v, P)
        for i in range(whole, before):
            last += acc[i]
        da[i0 + t * step] = last


@inlined
def suffixes(ends: Any, begins: Any, whole: Any, steps: int, da: Any, i0: int, step: int) -> None:
    """Adds the paths that leave the chunk: those that come from before it and end from t on, those that begin before t, and through."""
    late, early = 0.0, float(whole)
    for t in range(steps - 1, -1, -1):
        late += ends[t]
        da[i0 + t * step] += late
    for t in range(steps):
        da[i0 + t * step] += early
        early += begins[t]
