"""A vector of 64 bytes as a Numba type: 16 float32 or 8 float64, with its loads, stores and arithmetic.

Lanes run over neighbouring channels. Loads and stores take an element offset into a flat contiguous array and do not check it,
except under NUMBA_BOUNDSCHECK=1. With a count they touch only the first lanes, for the last channels of a row. A vector of
complex numbers holds pairs of neighbouring lanes, real part first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.core.datamodel import models

from conca.kernels.compiled import inlined, maker

__all__ = [
    "accumulate",
    "add",
    "add_halves",
    "div",
    "evens",
    "everywhere",
    "fma",
    "fnma",
    "larger",
    "load",
    "load_first",
    "mul",
    "neg",
    "odds",
    "pair_conj_fma",
    "pair_fma",
    "prefetch",
    "smaller",
    "splat",
    "store",
    "store_first",
    "sub",
    "width",
    "zip_high",
    "zip_low",
]

BYTES = 64
CHECKED = os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")
FLAGS = ("contract", "nsz")
intrinsic: Any = extending.intrinsic
insert: Any = cgutils.get_or_insert_function
INT32 = ir.IntType(32)
Code = tuple[Any, Callable[..., Any]]


class Lanes(types.Type):
    """Sixteen float32 or eight float64."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.size = dtype, BYTES * 8 // dtype.bitwidth
        super().__init__(f"Lanes({dtype})")


def vector(kind: Any) -> ir.VectorType:
    """The LLVM type of a Numba one."""
    element = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
    return ir.VectorType(element, kind.size)


@extending.register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """Lanes live in registers."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, vector(kind))  # type: ignore[no-untyped-call]


def constant(kind: ir.VectorType, values: list[Any]) -> ir.Constant:
    """The same values repeated over all lanes."""
    return ir.Constant(kind, values * (kind.count // len(values)))


def order(kind: ir.VectorType, lane: Callable[[int], int]) -> ir.Constant:
    """A shuffle: lane i is taken from `lane(i)`."""
    return ir.Constant(ir.VectorType(INT32, kind.count), [lane(i) for i in range(kind.count)])


def address(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """A pointer to the vector at an element offset."""
    data = context.make_array(kind)(context, builder, array).data
    lanes = Lanes(kind.dtype)
    return builder.bitcast(builder.gep(data, [offset]), vector(lanes).as_pointer())


def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, in one where the processor can; which product is fused is not left to the compiler, as a chain waits for it."""
    kind = x.type
    name = f"llvm.fmuladd.v{kind.count}f{32 if kind.element == ir.FloatType() else 64}"
    program = ir.FunctionType(kind, [kind] * 3)
    return builder.call(insert(builder.module, program, name), (x, y, z))


@intrinsic
def width(_: Any, array: Any) -> Code:
    """Lanes in a vector of the elements of `array`."""
    size = Lanes(array.dtype).size
    return types.intp(array), lambda context, builder, sig, args: context.get_constant(types.intp, size)


@intrinsic
def raw_load(_: Any, array: Any, offset: Any) -> Code:
    """The vector at an element offset, unchecked."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], *args)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, types.intp), code


@intrinsic
def raw_store(_: Any, array: Any, offset: Any, lanes: Any) -> Code:
    """Put a vector at an element offset, unchecked."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = address(context, builder, sig.args[0], args[0], args[1])
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


@intrinsic
def prefetch(_: Any, array: Any, offset: Any) -> Code:
    """Ask for the cache line of an element that is needed soon. It may lie outside of the array: then nothing happens."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        place = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
        call = insert(builder.module, ir.FunctionType(ir.VoidType(), [byte, *[INT32] * 3]), "llvm.prefetch.p0i8")
        builder.call(call, [builder.bitcast(place, byte), INT32(0), INT32(3), INT32(1)])  # to read, nearest cache, data
        return context.get_dummy_value()

    return types.none(array, types.intp), code


@intrinsic
def raw_everywhere(_: Any, array: Any, offset: Any) -> Code:
    """The number at an element offset in every lane, unchecked."""
    kind = Lanes(array.dtype)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one = builder.load(builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]]))
        empty = ir.Constant(vector(kind), ir.Undefined)
        return builder.shuffle_vector(
            builder.insert_element(empty, one, INT32(0)), empty, order(vector(kind), lambda i: 0)
        )

    return kind(array, types.intp), code


@intrinsic
def splat(_: Any, x: Any) -> Code:
    """A number in every lane."""
    kind = Lanes(x)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        empty = ir.Constant(vector(kind), ir.Undefined)
        one = builder.insert_element(empty, args[0], INT32(0))
        return builder.shuffle_vector(one, empty, order(vector(kind), lambda i: 0))

    return kind(x), code


@intrinsic
def put(_: Any, lanes: Any, i: Any, x: Any) -> Code:
    """The vector with lane i replaced."""
    return lanes(lanes, types.intp, lanes.dtype), lambda context, builder, sig, args: builder.insert_element(
        args[0], args[2], args[1]
    )


@intrinsic
def get(_: Any, lanes: Any, i: Any) -> Code:
    """Lane i."""
    return lanes.dtype(lanes, types.intp), lambda context, builder, sig, args: builder.extract_element(*args)


@intrinsic
def mul(_: Any, x: Any, y: Any) -> Code:
    """x y"""
    return x(x, x), lambda context, builder, sig, args: builder.fmul(*args, flags=FLAGS)


@intrinsic
def add(_: Any, x: Any, y: Any) -> Code:
    """x + y"""
    return x(x, x), lambda context, builder, sig, args: builder.fadd(*args, flags=FLAGS)


@intrinsic
def sub(_: Any, x: Any, y: Any) -> Code:
    """x - y"""
    return x(x, x), lambda context, builder, sig, args: builder.fsub(*args, flags=FLAGS)


@intrinsic
def neg(_: Any, x: Any) -> Code:
    """-x"""
    return x(x), lambda context, builder, sig, args: builder.fneg(*args)


@intrinsic
def div(_: Any, x: Any, y: Any) -> Code:
    """x / y"""
    return x(x, x), lambda context, builder, sig, args: builder.fdiv(*args, flags=FLAGS)


@intrinsic
def fma(_: Any, x: Any, y: Any, z: Any) -> Code:
    """x y + z"""
    return x(x, x, x), lambda context, builder, sig, args: multiply_add(builder, *args)


@intrinsic
def fnma(_: Any, x: Any, y: Any, z: Any) -> Code:
    """z - x y"""
    return x(x, x, x), lambda context, builder, sig, args: multiply_add(builder, builder.fneg(args[0]), *args[1:])


def chosen(relation: str) -> Callable[..., Any]:
    """An LLVM program that picks x where it stands in `relation` to y, and y elsewhere; what is not a number stays, in either."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, y = args
        picked = builder.select(builder.fcmp_unordered(relation, x, y), x, y)
        return builder.select(builder.fcmp_unordered("uno", y, y), y, picked)

    return code


@intrinsic
def larger(_: Any, x: Any, y: Any) -> Code:
    """The larger of x and y; NaN where either is."""
    return x(x, x), chosen(">")


@intrinsic
def smaller(_: Any, x: Any, y: Any) -> Code:
    """The smaller of x and y; NaN where either is."""
    return x(x, x), chosen("<")


def pairs(conjugate: bool) -> Callable[..., Any]:
    """An LLVM program of x y + z on complex numbers, x conjugated on demand."""
    signs = [1.0, -1.0] if conjugate else [-1.0, 1.0]

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, y, z = args
        real = builder.shuffle_vector(x, x, order(x.type, lambda i: i - i % 2))
        imag = builder.shuffle_vector(x, x, order(x.type, lambda i: i - i % 2 + 1))
        swapped = builder.shuffle_vector(y, y, order(x.type, lambda i: i + 1 - 2 * (i % 2)))
        imag = builder.fmul(imag, constant(x.type, signs), flags=FLAGS)
        return multiply_add(builder, real, y, multiply_add(builder, imag, swapped, z))

    return code


@intrinsic
def pair_fma(_: Any, x: Any, y: Any, z: Any) -> Code:
    """x y + z on complex numbers."""
    return x(x, x, x), pairs(False)


@intrinsic
def pair_conj_fma(_: Any, x: Any, y: Any, z: Any) -> Code:
    """conj(x) y + z on complex numbers."""
    return x(x, x, x), pairs(True)


def shuffled(lane: Callable[[int, int], int]) -> Callable[..., Any]:
    """An LLVM program that picks lanes of two vectors x, y: lane i of the result is number `lane(i, size)` of x and then y."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, y = args
        return builder.shuffle_vector(x, y, order(x.type, lambda i: lane(i, x.type.count)))

    return code


@intrinsic
def zip_low(_: Any, x: Any, y: Any) -> Code:
    """The first halves of x and y as pairs: x0 y0 x1 y1 ..."""
    return x(x, x), shuffled(lambda i, size: i // 2 + i % 2 * size)


@intrinsic
def zip_high(_: Any, x: Any, y: Any) -> Code:
    """The second halves of x and y as pairs."""
    return x(x, x), shuffled(lambda i, size: size // 2 + i // 2 + i % 2 * size)


@intrinsic
def evens(_: Any, x: Any, y: Any) -> Code:
    """The first of each pair of neighbours in x, and then in y: undoes `zip_low` and `zip_high`."""
    return x(x, x), shuffled(lambda i, size: 2 * i)


@intrinsic
def odds(_: Any, x: Any, y: Any) -> Code:
    """The second of each pair of neighbours in x, and then in y."""
    return x(x, x), shuffled(lambda i, size: 2 * i + 1)


@intrinsic
def raw_add_halves(_: Any, array: Any, offset: Any, lanes: Any) -> Code:
    """Add the first and the second half of a vector to memory, unchecked."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = args[2].type
        half = ir.VectorType(whole.element, whole.count // 2)
        pointer = builder.bitcast(address(context, builder, sig.args[0], args[0], args[1]), half.as_pointer())
        total = builder.load(pointer, align=array.dtype.bitwidth // 8)
        for begin in (0, half.count):
            picked = ir.Constant(ir.VectorType(INT32, half.count), list(range(begin, begin + half.count)))
            total = builder.fadd(total, builder.shuffle_vector(args[2], args[2], picked), flags=FLAGS)
        builder.store(total, pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


@maker
def scratch(size: int, like: Any) -> Any:
    """New room for `size` elements of the type of `like`, on a border of 64 bytes: a vector then never lies on two cache lines."""
    room = np.empty(size + width(like), like.dtype)
    skip = (-room.ctypes.data % BYTES) // room.itemsize
    return room[skip : skip + size]


@inlined
def load(array: Any, offset: Any) -> Any:
    """The vector at an element offset."""
    if CHECKED and (offset < 0 or offset + width(array) > array.size):
        raise IndexError("lanes out of bounds")
    return raw_load(array, offset)


@inlined
def everywhere(array: Any, offset: Any) -> Any:
    """The number at an element offset in every lane."""
    if CHECKED and (offset < 0 or offset >= array.size):
        raise IndexError("lanes out of bounds")
    return raw_everywhere(array, offset)


@inlined
def store(array: Any, offset: Any, lanes: Any) -> None:
    """Put a vector at an element offset."""
    if CHECKED and (offset < 0 or offset + width(array) > array.size):
        raise IndexError("lanes out of bounds")
    raw_store(array, offset, lanes)


@inlined
def load_first(array: Any, offset: Any, count: Any) -> Any:
    """The first `count` lanes at an element offset, 0 in the others."""
    if count == width(array):
        return load(array, offset)
    lanes = splat(array.dtype.type(0))
    for i in range(count):
        lanes = put(lanes, i, array[offset + i])
    return lanes


@inlined
def store_first(array: Any, offset: Any, lanes: Any, count: Any) -> None:
    """Put the first `count` lanes at an element offset."""
    if count == width(array):
        store(array, offset, lanes)
    else:
        for i in range(count):
            array[offset + i] = get(lanes, i)


@inlined
def add_halves(array: Any, offset: Any, lanes: Any) -> None:
    """Add both halves of a vector to half a vector at an element offset: a sum over lanes, but for the last half."""
    if CHECKED and (offset < 0 or offset + width(array) // 2 > array.size):
        raise IndexError("lanes out of bounds")
    raw_add_halves(array, offset, lanes)


@inlined
def accumulate(array: Any, offset: Any, lanes: Any) -> None:
    """Add to a vector in memory."""
    store(array, offset, add(load(array, offset), lanes))
