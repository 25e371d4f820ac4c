"""From a program to tables of numbers, and the threads that work through them: the body of `conca.ops.program.run_program`.

Pieces of a phase become smaller towards its end, so that no thread waits long for another. What differs from step to step are only the
addresses of the input, the output and the leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.kernels import pool
from conca.kernels.lanes import CHECKED
from conca.kernels.program import CONVOLVE, FORGET, NORM, PRODUCT, PRODUCT_8, PRODUCT_16, SELECT, run
from conca.kernels.region import APART
from conca.ops.program import Convolve, Forget, Job, Norm, Phase, Product, Program, Select, Vector

__all__ = ["forward", "warm"]

Integers = NDArray[np.int64]
Row = list[int]
PRODUCTS = {torch.int8: PRODUCT_8, torch.bfloat16: PRODUCT_16}
HALF, BYTE = np.zeros(1, np.int16), np.zeros(1, np.int8)


class Room(NamedTuple):
    """Memory of one run: the rooms that all threads share, each thread's own, and the counters."""

    shared: list[Tensor]
    own: list[Tensor]
    counters: Integers


class Table:
    """A program for a batch and a number of threads.

    An operand has a place in the tables; its address is that of a base (nothing, a room, an old leaf, a new leaf) and an offset.
    """

    def __init__(self, program: Program, batch: int, threads: int) -> None:
        self.program, self.batch, self.threads = replace(program, phases=()), batch, threads  # without the weights
        self.places: dict[Any, int] = {None: 0}
        self.offsets, self.bases, self.spans, self.steps_list = [0], [0], [0], [0]
        self.rows: list[Row] = []
        self.numbers_list: list[tuple[float, float]] = []
        self.pieces_list: list[Row] = []
        self.extra = 0
        self.item = torch.empty(0, dtype=program.dtype).element_size()
        self.phases = np.array([self.phase(phase) for phase in program.phases], np.int64).reshape(-1, 4)
        self.table = np.array([row + [0] * (16 - len(row)) for row in self.rows], np.int64).reshape(-1, 16)
        self.numbers = np.array(self.numbers_list, np.float64).reshape(-1, 2)
        self.pieces = np.array(self.pieces_list, np.int64).reshape(-1, 4)
        self.sizes, self.steps = (np.array(some, np.int64) for some in (self.spans, self.steps_list))
        self.where, self.base = (np.array(some, np.int64) for some in (self.offsets, self.bases))
        self.like = np.zeros(1, torch.empty(0, dtype=program.dtype).numpy().dtype)
        self.spare: list[Room] = []

    def phase(self, phase: Phase) -> Row:
        """Instructions that are prepared, from and to; the first piece, and how many."""
        begin, start = len(self.rows), len(self.pieces_list)
        for instruction in phase.prepared:
            self.add(instruction)
        end, rest = len(self.rows), sum(job.units * job.cost for job in phase.jobs)
        for job in phase.jobs:
            rest = self.split(job, rest)
        return [begin, end, start, len(self.pieces_list) - start]

    def split(self, job: Job, rest: int) -> int:
        """The pieces of a job, each a share of what is left of the phase; what is left afterwards."""
        begin = len(self.rows)
        for instruction in job.instructions:
            self.add(instruction)
        at = 0
        while at < job.units:
            share = rest // (2 * self.threads * job.cost) // job.grain * job.grain
            size = min(max(share, job.grain), job.units - at)
            self.pieces_list.append([begin, len(self.rows), at, at + size])
            at, rest = at + size, rest - size * job.cost
        return rest

    def place(self, key: Any, base: int, offset: int, span: int, step: int) -> int:
        """The place of an operand."""
        if key not in self.places:
            self.places[key] = len(self.offsets)
            for some, value in zip((self.bases, self.offsets, self.spans, self.steps_list), (base, offset, span, step)):
                some.append(value)
        return self.places[key]

    def vector(self, v: Vector | None) -> int:
        """The place of a vector."""
        if v is None:
            return 0
        width = self.program.rooms[v.room]
        return self.place(v, 1 + v.room, v.first * self.item, self.batch * width - v.first, width)

    def tensor(self, t: Tensor | None) -> int:
        """The place of weights."""
        return 0 if t is None else self.place(id(t), 0, t.data_ptr(), t.numel(), 0)

    def leaf(self, i: int, new: bool) -> int:
        """The place of a leaf, old or new."""
        size = int(np.prod(self.program.leaves[i], dtype=np.int64))
        base = 1 + len(self.program.rooms) + i + new * len(self.program.leaves)
        return self.place(("leaf", i, new), base, 0, self.batch * size, size)

    def write(
        self, code: int, operands: Sequence[int], sizes: Sequence[int], numbers: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Put a row into the table."""
        self.rows.append([code, *operands, *[0] * (11 - len(operands)), *sizes])
        self.numbers_list.append(numbers)

    @singledispatchmethod
    def add(self, instruction: object) -> None:
        """Put an instruction into the table."""
        raise TypeError(f"no kernel for {type(instruction).__name__}")

    @add.register
    def _(self, i: Norm) -> None:
        operands = self.vector(i.x), self.vector(i.y), self.tensor(i.weight), self.vector(i.gate)
        self.write(NORM, operands, (i.x.size, i.groups), (i.eps, 0.0))

    @add.register
    def _(self, i: Product) -> None:
        operands = *map(self.vector, (i.x, i.y)), *map(self.tensor, (i.weight, i.scale, i.bias))
        self.write(PRODUCTS.get(i.weight.dtype, PRODUCT), operands, (i.weight.shape[1], i.adds))

    @add.register
    def _(self, i: Convolve) -> None:
        operands = (
            self.vector(i.x),
            self.vector(i.y),
            self.tensor(i.weight),
            self.leaf(i.leaf, False),
            self.tensor(i.bias),
        )
        self.write(CONVOLVE, (*operands, self.leaf(i.leaf, True)), (i.x.size, len(i.weight), i.active))

    @add.register
    def _(self, i: Select) -> None:
        first = self.vector(i.x), self.vector(i.y), self.tensor(i.rate), self.leaf(i.leaf, False)
        rest = *map(self.vector, (i.B, i.C, i.z)), 0, self.vector(i.dt), self.leaf(i.leaf, True), self.tensor(i.D)
        self.write(SELECT, (*first, *rest), (i.rate.shape[1],))

    @add.register
    def _(self, i: Forget) -> None:
        heads, rows, width = self.program.leaves[i.leaf]
        self.extra = max(self.extra, 2 * width)
        first = self.vector(i.x), self.vector(i.y), self.tensor(i.rate), self.leaf(i.leaf, False)
        last = self.tensor(i.bias), self.vector(i.dt), self.leaf(i.leaf, True), self.tensor(i.D)
        self.write(
            FORGET, (*first, *map(self.vector, (i.B, i.C, i.z)), *last), (rows, width, heads // i.groups), i.limit
        )

    def room(self) -> Room:
        """Memory that no other call is using."""
        try:
            return self.spare.pop()
        except IndexError:
            program = self.program
            sizes = [(1 if i in (0, program.output) else self.batch * size) for i, size in enumerate(program.rooms)]
            make = [torch.empty(size, dtype=program.dtype) for size in sizes]
            own = [torch.empty(self.threads, size, dtype=program.dtype) for size in sizes]
            return Room(make, own, np.zeros(2 * len(self.phases) * APART + 1, np.int64))

    def __call__(self, x: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run it."""
        program, room = self.program, self.room()
        stream = x.clone(memory_format=torch.contiguous_format)
        y = stream if program.output == 0 else x.new_empty(self.batch, program.rooms[program.output])
        new = fresh(program.leaves, self.batch, program.dtype)
        bases = np.empty((self.threads, 1 + len(program.rooms) + 2 * len(leaves)), np.int64)
        given = {0: stream, program.output: y}
        shared = [given.get(i, t).data_ptr() for i, t in enumerate(room.shared)]
        bases[:] = [0, *shared, *(t.data_ptr() for t in leaves), *(t.data_ptr() for t in new)]
        for i in program.private:
            bases[:, 1 + i] = [t.data_ptr() for t in room.own[i]]
        where = bases.take(self.base, axis=1) + self.where
        room.counters.fill(0)
        rest = self.sizes, self.steps, room.counters, self.batch, self.extra, self.like, HALF, BYTE
        pool.together(lambda i: run(self.table, self.numbers, self.phases, self.pieces, where[i], *rest), self.threads)
        self.spare.append(room)
        return y, new


def fresh(shapes: Sequence[tuple[int, ...]], batch: int, dtype: torch.dtype) -> list[Tensor]:
    """New leaves; those of one shape are cut from one piece of memory."""
    made = {shape: iter(torch.empty(shapes.count(shape), batch, *shape, dtype=dtype).unbind()) for shape in set(shapes)}
    return [next(made[shape]) for shape in shapes]


_tables: WeakKeyDictionary[Program, dict[tuple[int, int], Table]] = WeakKeyDictionary()


def forward(program: Program, x: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The output and the next leaves; the tables are made at the first call for a batch and a number of threads."""
    work = sum(job.units * job.cost for phase in program.phases for job in phase.jobs)
    many = work * len(x) >= pool.SMALL and not CHECKED  # an error of one thread would leave the others waiting
    key = len(x), torch.get_num_threads() if many else 1
    tables = _tables.setdefault(program, {})
    if key not in tables:
        tables[key] = Table(program, *key)
    return tables[key](x, leaves)


def warm() -> None:
    """Compile it in both precisions."""
    for dtype in (torch.float32, torch.float64):
        x = Vector(0, 0, 1)
        phase = Phase((Job((Norm(x, torch.ones(1, dtype=dtype), x, 1e-6),), 1, 1),))
        forward(Program((phase,), (1,), frozenset(), 0, (), dtype), torch.ones(1, 1, dtype=dtype), [])
