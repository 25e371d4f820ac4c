"""Cosine and sine of vectors, float32 and float64, for angles of some turns.

The angle less the nearest multiple of a quarter turn goes through the series of both; the number of quarters says which of them is the
cosine, and with which sign. Errors: under 1.5e-7 (float32) and 2e-15 (float64) for up to ten thousand turns; beyond a million quarters
the digits of the angle are gone, and so are those of the result. NaN stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from conca.kernels.compiled import inlined
from conca.kernels.lane_math import bits, count, fill, polynomial, whole
from conca.kernels.lanes import constant, fnma, intrinsic, mul

__all__ = ["cosine", "eighth", "quarters", "sine"]

Code = tuple[Any, Callable[..., Any]]

QUARTER = math.pi / 2
PARTS = 1.5703125, 4.837512969970703e-4, 7.54978995489188e-8
"""A quarter turn in three parts; the products of the first two with small whole numbers are exact, also in float32."""


def series(first: int, degree: int) -> list[float]:
    """Coefficients, highest first, of z^k in the series of the cosine (first 0) or of sin(r) / r (first 1), z = r^2."""
    return [(-1) ** k / math.factorial(2 * k + first) for k in range(degree, -1, -1)]


SINE = {32: series(1, 4), 64: series(1, 8)}
COSINE = {32: series(0, 5), 64: series(0, 9)}


@intrinsic
def sine_of(_: Any, z: Any) -> Code:
    """sin(r) / r for z = r^2."""
    return z(z), polynomial(SINE)


@intrinsic
def cosine_of(_: Any, z: Any) -> Code:
    """cos(r) for z = r^2."""
    return z(z), polynomial(COSINE)


def placed(shift: int) -> Callable[..., Any]:
    """An LLVM program of (m, s, c): the sine of k quarters and r, k in the `count` m, of sin r and cos r; `shift` is added to k."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size, (m, s, c) = bits(sig.args[0]), args
        kind = ir.VectorType(ir.IntType(size), m.type.count)
        k = builder.add(builder.bitcast(m, kind), constant(kind, [shift]))
        odd = builder.trunc(k, ir.VectorType(ir.IntType(1), m.type.count))
        value = builder.bitcast(builder.select(odd, c, s), kind)
        sign = builder.shl(builder.and_(k, constant(kind, [2])), constant(kind, [size - 2]))
        return builder.bitcast(builder.xor(value, sign), m.type)

    return code


@intrinsic
def sine(_: Any, m: Any, s: Any, c: Any) -> Code:
    """The sine of an angle in `quarters` m, of what `eighth` gives for the rest of it."""
    return m(m, m, m), placed(0)


@intrinsic
def cosine(_: Any, m: Any, s: Any, c: Any) -> Code:
    """The cosine, as `sine`."""
    return m(m, m, m), placed(1)


@inlined
def quarters(x: Any) -> Any:
    """The number of quarter turns next to an angle, as a `count`."""
    return count(mul(x, fill(x, 1 / QUARTER)))


@inlined
def eighth(x: Any, m: Any) -> Any:
    """Sine and cosine of an angle less its `quarters` m."""
    k = whole(m)
    r = fnma(k, fill(x, PARTS[2]), fnma(k, fill(x, PARTS[1]), fnma(k, fill(x, PARTS[0]), x)))
    z = mul(r, r)
    return mul(sine_of(z), r), cosine_of(z)
