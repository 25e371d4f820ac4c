"""Exponentials of vectors: 2^t, e^v, e^v - 1, and the sigmoid, softplus and SiLU made of them, float32 and float64.

A whole number k next to the argument gives the exponent by adding to the bits of a number; what is left, at most half a step, goes
through a polynomial. It is that of (e^r - 1) / r, so e^0 is 1 exactly and small arguments of `expm1` keep their digits. Results
below the normal numbers are 0, those above are infinite, and NaN stays. Errors: under 3e-7 of the result (float32), 1e-14 (float64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.polynomial import Chebyshev, Polynomial, chebyshev
from numpy.typing import NDArray

from conca.kernels.compiled import inlined
from conca.kernels.lanes import FLAGS, add, constant, div, fma, fnma, intrinsic, larger, mul, multiply_add, neg, sub

__all__ = ["exp", "exp2", "expm1", "fill", "sigmoid", "silu", "softplus"]

Code = tuple[Any, Callable[..., Any]]
interpolate: Any = Chebyshev.interpolate

LN2 = float(np.log(2))
LOG2E = 1 / LN2
LN2_HIGH = 355 / 512
"""Short: its product with an exponent is exact in both types."""
LN2_LOW = -2.1219444005469058e-4
"""ln 2 - 355 / 512, to the precision of a float64 of its own."""


def growth(rate: float, degree: int) -> list[float]:
    """Coefficients, highest first, of (e^(rate f) - 1) / f on |f| <= 0.5 / (rate log2(e)): even relative error in the exponential."""
    half = 0.5 * LN2 / rate
    f = half * np.cos(np.pi * (np.arange(200) + 0.5) / 200)
    fitted = chebyshev.chebfit(f / half, np.expm1(rate * f) / f, degree, w=np.abs(f) / np.exp(rate * f))
    return _highest_first(chebyshev.cheb2poly(fitted) / half ** np.arange(degree + 1))


def logarithm(degree: int) -> list[float]:
    """Coefficients, highest first, of log(1 + u) / u on 0..1."""
    found = interpolate(lambda u: np.log1p(u) / u, degree, domain=[0, 1])
    return _highest_first(found.convert(kind=Polynomial).coef)


def _highest_first(coefficients: NDArray[np.float64]) -> list[float]:
    return [float(c) for c in coefficients[::-1]]


GROWTH2 = {32: growth(LN2, 4), 64: growth(LN2, 10)}
GROWTH = {32: growth(1.0, 5), 64: growth(1.0, 10)}
LOGARITHM = {32: logarithm(10), 64: logarithm(18)}
MANTISSA = {32: 23, 64: 52}
LIMITS2 = {32: (-126.0, 128.0), 64: (-1022.0, 1024.0)}
LIMITS = {32: (-126 * LN2 + 4e-6, 128 * LN2), 64: (-1022 * LN2 + 1e-13, 1024 * LN2)}
"""The exponential is 0 below the first and infinite from the second on."""


def bits(kind: Any) -> int:
    """Of one lane."""
    return int(kind.dtype.bitwidth)


def polynomial(table: dict[int, list[float]]) -> Callable[..., Any]:
    """An LLVM program of a polynomial."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, (first, *rest) = args[0], table[bits(sig.args[0])]
        p = constant(x.type, [first])
        for c in rest:
            p = multiply_add(builder, p, x, constant(x.type, [c]))
        return p

    return code


def bounded(table: dict[int, tuple[float, float]]) -> Callable[..., Any]:
    """An LLVM program of (t, p): p, but 0 where t lies below the limits and infinity where above."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        t, p = args
        low, high = (constant(t.type, [limit]) for limit in table[bits(sig.args[0])])
        p = builder.select(builder.fcmp_ordered("<", t, low), constant(t.type, [0.0]), p)
        return builder.select(builder.fcmp_ordered(">=", t, high), constant(t.type, [float("inf")]), p)

    return code


@intrinsic
def fill(_: Any, x: Any, number: Any) -> Code:
    """A number (a float64) in every lane of a vector of the type of x."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = args[0].type
        one = args[1] if bits(sig.args[0]) == 64 else builder.fptrunc(args[1], kind.element)
        empty = ir.Constant(kind, ir.Undefined)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
        return builder.shuffle_vector(builder.insert_element(empty, one, ir.IntType(32)(0)), empty, lanes)

    return x(x, types.float64), code


@intrinsic
def count(_: Any, t: Any) -> Code:
    """t + 1.5 2^m with m bits of mantissa: the last bits of the sum are the whole number next to t."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fadd(args[0], constant(args[0].type, [1.5 * 2.0 ** MANTISSA[bits(t)]]), flags=FLAGS)

    return t(t), code


@intrinsic
def whole(_: Any, m: Any) -> Code:
    """The whole number in a `count`."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fsub(args[0], constant(args[0].type, [1.5 * 2.0 ** MANTISSA[bits(m)]]), flags=FLAGS)

    return m(m), code


@intrinsic
def scaled(_: Any, p: Any, m: Any) -> Code:
    """p 2^k, k in a `count`, by adding to the exponent: p and the result are normal numbers."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = bits(sig.args[0])
        kind = ir.VectorType(ir.IntType(size), args[0].type.count)
        value, shift = (builder.bitcast(x, kind) for x in args)
        up = builder.shl(shift, constant(kind, [MANTISSA[size]]))
        return builder.bitcast(builder.add(value, up), args[0].type)

    return p(p, p), code


@intrinsic
def absolute(_: Any, x: Any) -> Code:
    """|x|"""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = bits(sig.args[0])
        kind = ir.VectorType(ir.IntType(size), args[0].type.count)
        rest = builder.and_(builder.bitcast(args[0], kind), constant(kind, [2 ** (size - 1) - 1]))
        return builder.bitcast(rest, args[0].type)

    return x(x), code


@intrinsic
def pick(_: Any, x: Any, y: Any, p: Any, q: Any) -> Code:
    """p where x > y, q elsewhere."""
    return x(x, x, x, x), lambda context, builder, sig, args: builder.select(
        builder.fcmp_ordered(">", *args[:2]), *args[2:]
    )


@intrinsic
def growth2_of(_: Any, f: Any) -> Code:
    """(2^f - 1) / f"""
    return f(f), polynomial(GROWTH2)


@intrinsic
def growth_of(_: Any, r: Any) -> Code:
    """(e^r - 1) / r"""
    return r(r), polynomial(GROWTH)


@intrinsic
def logarithm_of(_: Any, u: Any) -> Code:
    """log(1 + u) / u"""
    return u(u), polynomial(LOGARITHM)


@intrinsic
def bounded2(_: Any, t: Any, p: Any) -> Code:
    """p, but 0 or infinite where 2^t is."""
    return t(t, t), bounded(LIMITS2)


@intrinsic
def bounded_e(_: Any, v: Any, p: Any) -> Code:
    """p, but 0 or infinite where e^v is."""
    return v(v, v), bounded(LIMITS)


@inlined
def exp2(t: Any) -> Any:
    """2^t"""
    m = count(t)
    f = sub(t, whole(m))
    return bounded2(t, scaled(fma(growth2_of(f), f, fill(t, 1.0)), m))


@inlined
def reduced(v: Any, m: Any) -> Any:
    """v - k ln 2 with k in the `count` m."""
    k = whole(m)
    return fnma(k, fill(v, LN2_LOW), fnma(k, fill(v, LN2_HIGH), v))


@inlined
def exp(v: Any) -> Any:
    """e^v"""
    m = count(mul(v, fill(v, LOG2E)))
    r = reduced(v, m)
    return bounded_e(v, scaled(fma(growth_of(r), r, fill(v, 1.0)), m))


@inlined
def expm1(v: Any) -> Any:
    """e^v - 1, to its own relative precision: with v = k ln 2 + r it is (2^k - 1) + 2^k (e^r - 1), and e^v where that is large."""
    u, one = larger(v, fill(v, -60.0)), fill(v, 1.0)
    m = count(mul(u, fill(v, LOG2E)))
    r = reduced(u, m)
    small, power = mul(growth_of(r), r), scaled(one, m)
    near, far = fma(power, small, sub(power, one)), scaled(add(small, one), m)
    return bounded_e(u, pick(u, fill(v, 60.0), far, near))


@inlined
def sigmoid(v: Any) -> Any:
    """1 / (1 + e^-v)"""
    one = fill(v, 1.0)
    return div(one, add(one, exp(neg(v))))


@inlined
def silu(v: Any) -> Any:
    """v / (1 + e^-v), 0 where e^-v is infinite."""
    return div(v, add(fill(v, 1.0), exp(neg(v))))


@inlined
def softplus(v: Any) -> Any:
    """log(1 + e^v) = max(v, 0) + log(1 + u) with u = e^-|v|, to its own relative precision where it is small."""
    u = exp(neg(absolute(v)))
    return fma(logarithm_of(u), u, larger(v, fill(v, 0.0)))
