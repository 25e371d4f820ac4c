"""Products of small matrices that stay near the processor: four rows by four vectors of the result in registers.

For kernels that go through a sequence chunk by chunk on one thread each; a product as large as memory is PyTorch's. All matrices lie
in flat arrays. Of the left one any two strides are given; rows of the right one and of the result are whole vectors, filled up with
what does not count.
"""

from __future__ import annotations

from typing import Any

from numba import types

from conca.kernels.compiled import apart, inlined
from conca.kernels.lanes import Code, fma, intrinsic, load, splat, store, width, zip_high, zip_low

__all__ = ["BELOW", "COLUMNS", "FROM", "FULL", "alone", "product", "transposed"]

FULL, BELOW, FROM, COLUMNS = 0, 1, 2, 3
"""What of a product counts: all; only terms up to the row (the left matrix is lower triangular); only those from the row on (upper);
only columns up to the row (of the result the lower triangle is wanted)."""


@intrinsic
def alone(_: Any) -> Code:
    """Says that LLVM must not merge the function in which it stands into its callers: it would be compiled once for each call."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), code


@inlined
def four(c0: Any, c1: Any, c2: Any, c3: Any, x: Any, b0: Any, b1: Any, b2: Any, b3: Any) -> Any:
    """A row of a tile and x times four vectors."""
    return fma(x, b0, c0), fma(x, b1, c1), fma(x, b2, c2), fma(x, b3, c3)


@inlined
def tile_four(a: Any, i: int, ai: int, ak: int, b: Any, j: int, bk: int, c: Any, o: int, ci: int, depth: int) -> None:
    """Four rows by four vectors."""
    W = width(c)
    c00, c01, c02, c03 = load(c, o), load(c, o + W), load(c, o + 2 * W), load(c, o + 3 * W)
    c10, c11, c12, c13 = load(c, o + ci), load(c, o + ci + W), load(c, o + ci + 2 * W), load(c, o + ci + 3 * W)
    p = o + 2 * ci
    c20, c21, c22, c23 = load(c, p), load(c, p + W), load(c, p + 2 * W), load(c, p + 3 * W)
    c30, c31, c32, c33 = load(c, p + ci), load(c, p + ci + W), load(c, p + ci + 2 * W), load(c, p + ci + 3 * W)
    for _ in range(depth):
        b0, b1, b2, b3 = load(b, j), load(b, j + W), load(b, j + 2 * W), load(b, j + 3 * W)
        c00, c01, c02, c03 = four(c00, c01, c02, c03, splat(a[i]), b0, b1, b2, b3)
        c10, c11, c12, c13 = four(c10, c11, c12, c13, splat(a[i + ai]), b0, b1, b2, b3)
        c20, c21, c22, c23 = four(c20, c21, c22, c23, splat(a[i + 2 * ai]), b0, b1, b2, b3)
        c30, c31, c32, c33 = four(c30, c31, c32, c33, splat(a[i + 3 * ai]), b0, b1, b2, b3)
        i += ak
        j += bk
    row(c, o, c00, c01, c02, c03)
    row(c, o + ci, c10, c11, c12, c13)
    row(c, p, c20, c21, c22, c23)
    row(c, p + ci, c30, c31, c32, c33)


@inlined
def row(c: Any, o: int, c0: Any, c1: Any, c2: Any, c3: Any) -> None:
    """Put a row of a tile."""
    W = width(c)
    store(c, o, c0)
    store(c, o + W, c1)
    store(c, o + 2 * W, c2)
    store(c, o + 3 * W, c3)


@inlined
def tile_one(a: Any, i: int, ai: int, ak: int, b: Any, j: int, bk: int, c: Any, o: int, ci: int, depth: int) -> None:
    """Four rows by one vector."""
    c0, c1, c2, c3 = load(c, o), load(c, o + ci), load(c, o + 2 * ci), load(c, o + 3 * ci)
    for _ in range(depth):
        v = load(b, j)
        c0, c1 = fma(splat(a[i]), v, c0), fma(splat(a[i + ai]), v, c1)
        c2, c3 = fma(splat(a[i + 2 * ai]), v, c2), fma(splat(a[i + 3 * ai]), v, c3)
        i += ak
        j += bk
    store(c, o, c0)
    store(c, o + ci, c1)
    store(c, o + 2 * ci, c2)
    store(c, o + 3 * ci, c3)


@apart
def product(
    a: Any, a0: int, ai: int, ak: int, b: Any, b0: int, bk: int, c: Any, c0: int, ci: int, rows: int, columns: int,
    depth: int, kind: int, rank: int,
) -> None:  # fmt: skip
    """c[r, :] += sum_k a[r, k] b[k, :] for r < rows, k < depth; rows are filled up to fours, `columns` to whole vectors.

    Element (r, k) of a is a[a0 + r ai + k ak], rows of b and c are bk and ci apart. With `kind` other than FULL, rows and terms stand
    in groups of `rank` neighbours that count together.
    """
    alone()
    W = width(c)
    for r in range(0, rows, 4):
        high = min(rows, r + 4)
        first, last, wide = 0, depth, columns
        if kind == BELOW:
            last = min(depth, (high + rank - 1) // rank * rank)
        elif kind == FROM:
            first = r // rank * rank
        elif kind == COLUMNS:
            wide = min(columns, (high + rank - 1) // rank * rank)
        i, j, o, e = a0 + r * ai + first * ak, b0 + first * bk, c0 + r * ci, 0
        while e + 3 * W < wide:
            tile_four(a, i, ai, ak, b, j + e, bk, c, o + e, ci, last - first)
            e += 4 * W
        while e < wide:
            tile_one(a, i, ai, ak, b, j + e, bk, c, o + e, ci, last - first)
            e += W


@apart
def transposed(x: Any, x0: int, xi: int, y: Any, y0: int, yi: int, rows: int, columns: int, room: Any) -> None:
    """y[c, r] = x[r, c] for r < rows and c < columns, both filled up to whole vectors; rows are xi and yi apart.

    A square of vectors by perfect shuffles, log2(lanes) times: each takes a half and the other half, lane by lane. `room` has space
    for two squares.
    """
    alone()
    W = width(x)
    half = W // 2 * W
    for r in range(0, rows, W):
        for c in range(0, columns, W):
            for i in range(W):
                store(room, i * W, load(x, x0 + (r + i) * xi + c))
            now, then, done = 0, W * W, 1
            while done < W:
                for i in range(0, half, W):
                    p, q = load(room, now + i), load(room, now + half + i)
                    store(room, then + 2 * i, zip_low(p, q))
                    store(room, then + 2 * i + W, zip_high(p, q))
                now, then, done = then, now, 2 * done
            for i in range(W):
                store(y, y0 + (c + i) * yi + r, load(room, now + i * W))
