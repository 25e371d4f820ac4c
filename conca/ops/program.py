"""A step of many layers as one list of instructions on vectors, so that all of it can run as one piece of work.

A `Vector` is a part of a room, and a room has one row per sequence. What an instruction means is its `run`, in PyTorch; a kernel does the
same without leaving its threads (`run_program`). Instructions that stand together in a job work on the same units (rows of a matrix,
channels, heads), so that one thread may do them for some units while others do others; the jobs of a phase do not depend on each
other; and what a phase prepares, each thread prepares for itself. Leaves of a state are never changed: an instruction reads one and
makes its successor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops import bodies
from conca.ops.one_row import one_row_plain

__all__ = [
    "Convolve", "Forget", "Instruction", "Job", "Norm", "Phase", "Product", "Program", "Select", "Vector", "run_plain",
    "run_program",
]  # fmt: skip

Rooms = list[Tensor]
LOG2E = 1.4426950408889634


class Vector(NamedTuple):
    """Columns first..first + size of a room; room 0 is the step's input, and its output unless `Program.output` says otherwise."""

    room: int
    first: int
    size: int

    def part(self, first: int, size: int) -> Vector:
        """Some of its columns."""
        return Vector(self.room, self.first + first, size)

    def of(self, rooms: Rooms) -> Tensor:
        """The columns (B, size), a view."""
        return rooms[self.room][:, self.first : self.first + self.size]


class Instruction(Protocol):
    """Something done to vectors, and to leaves of the state."""

    def run(self, rooms: Rooms, old: Sequence[Tensor], new: list[Tensor]) -> None:
        """Do it, in PyTorch: vectors are written in place, `new` gets the next leaves."""
        ...


@dataclass(frozen=True)
class Norm:
    """y = x / sqrt(mean(x^2) + eps) * weight in each group of neighbours, times silu(gate) where there is one."""

    x: Vector
    weight: Tensor
    y: Vector
    eps: float
    gate: Vector | None = None
    groups: int = 1

    def run(self, rooms: Rooms, old: Sequence[Tensor], new: list[Tensor]) -> None:
        """In PyTorch."""
        x = self.x.of(rooms).reshape(len(rooms[0]), self.groups, -1)
        y = F.rms_norm(x, x.shape[2:], eps=self.eps).flatten(1) * self.weight
        self.y.of(rooms).copy_(y if self.gate is None else y * F.silu(self.gate.of(rooms)))


@dataclass(frozen=True)
class Product:
    """y = scale (W x) + bias, or that added to y; see `conca.ops.one_row`."""

    x: Vector
    weight: Tensor
    y: Vector
    scale: Tensor | None = None
    bias: Tensor | None = None
    adds: bool = False

    def run(self, rooms: Rooms, old: Sequence[Tensor], new: list[Tensor]) -> None:
        """In PyTorch."""
        y = one_row_plain(self.x.of(rooms), self.weight, self.bias, self.scale)
        self.y.of(rooms).copy_(self.y.of(rooms) + y if self.adds else y)


@dataclass(frozen=True)
class Convolve:
    """y = bias + w_0 x + sum_k w_k x_{t - k}, through SiLU if it is active; the leaf is the tail (B, W - 1, E), weights are (W, E)."""

    x: Vector
    weight: Tensor
    bias: Tensor | None
    leaf: int
    y: Vector
    active: bool

    def run(self, rooms: Rooms, old: Sequence[Tensor], new: list[Tensor]) -> None:
        """In PyTorch."""
        x = self.x.of(rooms).clone()
        line = torch.cat([old[self.leaf], x[:, None]], 1)
        y = (line * self.weight.flip(0)).sum(1)
        y = y if self.bias is None else y + self.bias
        self.y.of(rooms).copy_(F.silu(y) if self.active else y)
        new[self.leaf] = line[:, 1:].clone()


@dataclass(frozen=True)
class Select:
    """h = exp(dt A) h + dt x B, y = (C h + D x) silu(z), with dt through softplus; the leaf is h (B, E, N).

    `rate` is A log2(e), so that powers of two do.
    """

    x: Vector
    dt: Vector
    rate: Tensor
    B: Vector
    C: Vector
    D: Tensor | None
    z: Vector | None
    leaf: int
    y: Vector

    def run(self, rooms: Rooms, old: Sequence[Tensor], new: list[Tensor]) -> None:
        """In PyTorch."""
        x, dt = self.x.of(rooms), F.softplus(self.dt.of(rooms))
        h = torch.exp2(dt[..., None] * self.rate) * old[self.leaf]
        h = h + (dt * x)[..., None] * self.B.of(rooms)[:, None]
        y = (h * self.C.of(rooms)[:, None]).sum(2)
        y = y if self.D is None else y + self.D * x
        new[self.leaf] = h
        self.y.of(rooms).copy_(y if self.z is None else y * F.silu(self.z.of(rooms)))


@dataclass(frozen=True)
class Forget:
    """S = exp(dt A) S + B (dt x)^T, y = (S^T C + D x) silu(z) in each head, with dt = clamp(softplus(dt + bias)).

    The leaf is S (B, H, N, P). Heads of a group share B and C. `rate` (H,) is A log2(e).
    """

    x: Vector
    dt: Vector
    bias: Tensor
    rate: Tensor
    B: Vector
    C: Vector
    D: Tensor
    z: Vector | None
    leaf: int
    y: Vector
    groups: int
    limit: tuple[float, float]

    def run(self, rooms: Rooms, old: Sequence[Tensor], new: list[Tensor]) -> None:
        """In PyTorch."""
        H = len(self.rate)
        dt = F.softplus(self.dt.of(rooms) + self.bias).clamp(*self.limit)
        x = self.x.of(rooms).reshape(len(dt), H, -1)
        pair = (v.of(rooms).reshape(len(dt), self.groups, -1) for v in (self.B, self.C))
        k, q = (v.repeat_interleave(H // self.groups, 1) for v in pair)
        S = torch.exp2(dt * self.rate)[..., None, None] * old[self.leaf]
        S = S + k[..., None] * (dt[..., None] * x)[:, :, None]
        y = ((q[..., None] * S).sum(2) + self.D[:, None] * x).flatten(1)
        new[self.leaf] = S
        self.y.of(rooms).copy_(y if self.z is None else y * F.silu(self.z.of(rooms)))


@dataclass(frozen=True)
class Job:
    """Instructions on the same units, what a unit costs in numbers read, and of how many a piece is made at least."""

    instructions: tuple[Instruction, ...]
    units: int
    cost: int
    grain: int = 16


@dataclass(frozen=True)
class Phase:
    """What each thread prepares for itself, in rooms of its own, and the jobs."""

    jobs: tuple[Job, ...]
    prepared: tuple[Instruction, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """Phases, one after the other.

    Room 0 holds the input x (B, D), and `output` is the room of what comes out; `private` rooms are each thread's own. The leaves have
    a shape without the batch.
    """

    phases: tuple[Phase, ...]
    rooms: tuple[int, ...]
    private: frozenset[int]
    output: int
    leaves: tuple[tuple[int, ...], ...]
    dtype: torch.dtype


def run_program(program: Program, x_BD: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The output of a program and the next leaves, from x and the leaves before, contiguous and of its type, without gradients."""
    body = bodies.kernel("program", "cpu")
    return (
        run_plain(program, x_BD, leaves)
        if body is None
        else cast("tuple[Tensor, list[Tensor]]", body(program, x_BD, leaves))
    )


def run_plain(program: Program, x_BD: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """`run_program` by PyTorch, one instruction after the other."""
    rooms = [x_BD.new_empty(len(x_BD), size) for size in program.rooms]
    rooms[0].copy_(x_BD)
    new = list(leaves)
    for phase in program.phases:
        for instruction in (*phase.prepared, *(i for job in phase.jobs for i in job.instructions)):
            instruction.run(rooms, leaves, new)
    return rooms[program.output], new
