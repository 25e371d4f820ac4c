"""Vectors of numbers kept in few bits: bfloat16 and int8 become lanes of float32 or float64 as they are read.

bfloat16 is the upper half of float32, and arrives as int16. Reading weights is what a product with one row costs, so the conversion
is free there.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from conca.kernels.compiled import inlined
from conca.kernels.lanes import CHECKED, INT32, Code, Lanes, intrinsic, put, splat, vector, width

__all__ = ["first_of", "load_as", "load_last", "number", "total"]


declared: Any = cgutils.get_or_insert_function


def widened(builder: Any, x: Any, bits: int, to: Any) -> Any:
    """Integers of 8 bits, or bfloat16 in those of 16, one or a vector of them, as numbers of the LLVM type `to`."""
    many = isinstance(x.type, ir.VectorType)
    whole = ir.VectorType(INT32, x.type.count) if many else INT32
    single = ir.VectorType(ir.FloatType(), x.type.count) if many else ir.FloatType()
    if bits == 8:
        return builder.sitofp(builder.sext(x, whole), to)
    shift = ir.Constant(whole, [16] * x.type.count) if many else INT32(16)
    value = builder.bitcast(builder.shl(builder.zext(x, whole), shift), single)
    return value if to == single else builder.fpext(value, to)


@intrinsic
def raw_load_as(_: Any, array: Any, offset: Any, like: Any) -> Code:
    """Elements from an offset as lanes of the type of the array `like`, unchecked."""
    lanes, bits = Lanes(like.dtype), array.dtype.bitwidth

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        element = vector(lanes).element if array.dtype == like.dtype else ir.IntType(bits)
        kind = ir.VectorType(element, lanes.size)
        x = builder.load(builder.bitcast(builder.gep(data, [args[1]]), kind.as_pointer()), align=bits // 8)
        return x if array.dtype == like.dtype else widened(builder, x, bits, vector(lanes))

    return lanes(array, types.intp, like), code


@intrinsic
def number(_: Any, x: Any, like: Any) -> Code:
    """One element as a number of the type of the array `like`."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0] if x == like.dtype else widened(builder, args[0], x.bitwidth, vector(Lanes(like.dtype)).element)

    return like.dtype(x, like), code


@intrinsic
def total(_: Any, x: Any) -> Code:
    """The sum over the lanes of a vector."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = args[0].type
        name = f"llvm.vector.reduce.fadd.v{kind.count}f{x.dtype.bitwidth}"
        reduce = declared(builder.module, ir.FunctionType(kind.element, [kind.element, kind]), name)
        return builder.call(reduce, [ir.Constant(kind.element, -0.0), args[0]], fastmath=("reassoc", "nsz"))

    return x.dtype(x), code


@inlined
def load_as(array: Any, offset: Any, like: Any) -> Any:
    """The vector at an element offset, in the type of `like`."""
    if CHECKED and (offset < 0 or offset + width(like) > array.size):
        raise IndexError("lanes out of bounds")
    return raw_load_as(array, offset, like)


@inlined
def load_last(x: Any, offset: Any, size: Any) -> Any:
    """The vector that ends with the last of `size` elements, without those before its last `size % width`: these lanes are 0.

    A shorter one than the vector begins at `offset`, its lanes past the end are 0.
    """
    W, lanes = width(x), splat(x.dtype.type(0))
    for i in range(size % W):
        lane = i if size < W else W - size % W + i
        lanes = put(lanes, lane, x[offset + size - size % W + i])
    return lanes


@inlined
def first_of(array: Any, offset: Any, count: Any, like: Any) -> Any:
    """The first `count` lanes at an element offset, 0 in the others."""
    lanes = splat(like.dtype.type(0))
    for i in range(count):
        lanes = put(lanes, i, number(array[offset + i], like))
    return lanes
