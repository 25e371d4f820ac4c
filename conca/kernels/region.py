"""What threads need to work through one list of pieces together, without the interpreter: counters, waiting, memory by address.

Pieces belong to phases, and a phase begins when all pieces of the one before are done; it does not matter by whom. So a thread that
comes late, or never, holds nobody up, and no thread is waited for that has not taken a piece.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np import arrayobj

from conca.kernels.compiled import inlined
from conca.kernels.lanes import INT32, Code, intrinsic

__all__ = ["APART", "finish", "operand", "take", "wait"]

APART = 16
"""Numbers of 8 bytes between two counters: two cache lines, so that counting the one does not hold up the other."""

SPINS = 2000
"""Looks at a counter before a thread gives way to others: a phase ends within microseconds, or this thread's core is wanted."""

GIVE_WAY = "SwitchToThread" if os.name == "nt" else "sched_yield"
declared: Any = cgutils.get_or_insert_function
populate: Any = arrayobj.populate_array
PAUSE = "llvm.x86.sse2.pause" if platform.machine() in ("x86_64", "AMD64") else None


def place(context: Any, builder: Any, kind: Any, args: Any) -> Any:
    """A pointer to an element of an array of int64."""
    return builder.gep(context.make_array(kind)(context, builder, args[0]).data, [args[1]])


@intrinsic
def add_one(_: Any, counters: Any, i: Any) -> Code:
    """Count up by one, at once for all threads; what was written before is seen by those who see the count. The count before."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", place(context, builder, sig.args[0], args), one, "acq_rel")

    return types.int64(counters, types.intp), code


@intrinsic
def look(_: Any, counters: Any, i: Any) -> Code:
    """A count, and with it all that was written before."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(place(context, builder, sig.args[0], args), "acquire", 8)

    return types.int64(counters, types.intp), code


def called(name: str | None, result: ir.Type) -> Any:
    """An LLVM program that calls a function without arguments; none where there is no name."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if name is not None:
            builder.call(declared(builder.module, ir.FunctionType(result, []), name), [])
        return context.get_dummy_value()

    return code


@intrinsic
def pause(_: Any) -> Code:
    """Leave the core's other half to somebody else for some cycles."""
    return types.none(), called(PAUSE, ir.VoidType())


@intrinsic
def give_way(_: Any) -> Code:
    """Let the operating system run somebody else on this core."""
    return types.none(), called(GIVE_WAY, INT32)


@intrinsic
def operand(_: Any, where: Any, sizes: Any, i: Any, like: Any) -> Code:
    """The flat array, of the type of `like`, whose address and size stand at place i of two tables."""
    array = types.Array(like.dtype, 1, "C")

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, size = (
            builder.load(place(context, builder, kind, (table, args[2]))) for kind, table in zip(sig.args, args[:2])
        )
        made = context.make_array(array)(context, builder)
        data = builder.inttoptr(address, context.get_data_type(array.dtype).as_pointer())
        bytes_ = context.get_constant(types.intp, array.dtype.bitwidth // 8)
        populate(made, data=data, shape=[size], strides=[bytes_], itemsize=bytes_, meminfo=None)
        return made._getvalue()

    return array(where, sizes, types.intp, like), code


@inlined
def take(counters: Any, phase: int) -> Any:
    """The number of a piece of a phase that nobody else has; past the last there are none left."""
    return add_one(counters, 2 * phase * APART)


@inlined
def finish(counters: Any, phase: int) -> None:
    """Say that a piece is done."""
    add_one(counters, (2 * phase + 1) * APART)


@inlined
def wait(counters: Any, phase: int, pieces: int) -> None:
    """Until all pieces of a phase are done."""
    spins = 0
    while look(counters, (2 * phase + 1) * APART) < pieces:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            give_way()
