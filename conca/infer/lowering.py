"""Layers as instructions of a program: what `Decoder` runs in one piece, and what it must watch so that it never runs an old copy.

Only layers whose every part is known are lowered: exact classes without hooks, in one precision, on the CPU. All else keeps its `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter, getitem, is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registry

from conca.layers.mamba import Mamba
from conca.layers.mamba2 import Mamba2
from conca.layers.mixer import Mixer
from conca.layers.narrow_embedding import NarrowEmbedding
from conca.layers.norm import GatedNorm, RMSNorm
from conca.layers.quantised import HalfLinear, Int8Linear, plain_linear, unobserved
from conca.layers.short_conv import ShortConv
from conca.layers.tied_embedding import TiedEmbedding
from conca.models.stack import Block
from conca.ops.program import (
    LOG2E,
    Convolve,
    Forget,
    Instruction,
    Job,
    Norm,
    Phase,
    Product,
    Program,
    Select,
    Vector,
)

__all__ = ["Lowering", "Watch", "finished", "lowered", "precision_of"]

Prepared = tuple[Instruction, ...]
NARROW = (Int8Linear, HalfLinear, NarrowEmbedding)
VERSION, TRAINING = attrgetter("_version"), itemgetter("training")
OPTIONS = "eps", "activation", "hold", "norm_first", "groups", "decay", "gate", "select_norm"
"""Attributes of known layers that their numbers depend on."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Watch:
    """Modules as they were when instructions were made of them: their tensors, parts, hooks, and whether they are in training."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        found = {id(m): m for root in roots for m in root.modules()}.values()
        modules = [m for m in found if isinstance(m._parameters, dict)]  # what is compiled beforehand cannot change
        slots = [(d, k, v) for m in modules for d in (m._parameters, m._buffers, m._modules) for k, v in d.items()]
        self.places, self.keys, self.values = (list(some) for some in zip(*slots)) if slots else ([], [], [])
        self.tensors = [v for v in self.values if isinstance(v, Tensor)]
        self.counted = [t for t in self.tensors if not t.is_inference()]
        self.owns = [vars(m) for m in modules]
        self.hooks = [vars(m)[name] for m in modules for name in HOOKS]
        self.options = [(d, key) for d in self.owns for key in OPTIONS if key in d]
        self.hooks += [getattr(registry, f"_global{name}") for name in HOOKS]
        self.facts = self.now()

    def now(self) -> tuple[list[Any], ...]:
        """What may change in place."""
        return (
            list(map(Tensor.data_ptr, self.tensors)),
            list(map(VERSION, self.counted)),
            list(map(len, self.owns)),
            list(map(TRAINING, self.owns)),
            list(map(len, self.hooks)),
            [own[key] for own, key in self.options],
        )

    def unchanged(self) -> bool:
        """Whether all is as it was. What is written through `.data` cannot be seen."""
        try:
            same = all(map(is_, map(getitem, self.places, self.keys), self.values))
        except KeyError:
            return False
        return same and self.now() == self.facts


@dataclass
class Lowering:
    """A program in the making: the stream is room 0."""

    d_model: int
    dtype: torch.dtype
    rooms: list[int] = field(default_factory=list)
    names: dict[tuple[str, int], Vector] = field(default_factory=dict)
    private: set[int] = field(default_factory=set)
    phases: list[Phase] = field(default_factory=list)
    leaves: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = self.room("stream", self.d_model)

    def room(self, name: str, size: int, *, private: bool = False) -> Vector:
        """A room by its name and size; layers of one size share it."""
        if (name, size) not in self.names:
            self.names[name, size] = Vector(len(self.rooms), 0, size)
            if private:
                self.private.add(len(self.rooms))
            self.rooms.append(size)
        return self.names[name, size]

    def leaf(self, *shape: int) -> int:
        """The next leaf of the state."""
        self.leaves.append(shape)
        return len(self.leaves) - 1

    def phase(self, *jobs: Job, prepared: Prepared = ()) -> None:
        """The next phase."""
        self.phases.append(Phase(jobs, prepared))

    def program(self, output: int) -> Program:
        """All of it, with the room that comes out."""
        rooms = tuple(self.rooms), frozenset(self.private), output
        return Program(tuple(self.phases), *rooms, tuple(self.leaves), self.dtype)

    def norm(self, module: nn.Module, x: Vector, name: str, gate: Vector | None = None, groups: int = 1) -> Norm:
        """A norm into a room that each thread has for itself."""
        eps = module.eps if module.eps is not None else torch.finfo(self.dtype).eps
        weight = module.weight
        assert isinstance(weight, Tensor)
        return Norm(x, weight.detach(), self.room(name, x.size, private=True), float(eps), gate, groups)  # type: ignore[arg-type]


def rows(linear: nn.Module, first: int, count: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Weights, scales and bias of some rows of a linear map."""
    parts = linear.weight, getattr(linear, "scale", None), getattr(linear, "bias", None)
    weight, scale, bias = (t.detach()[first : first + count] if isinstance(t, Tensor) else None for t in parts)
    assert weight is not None
    return weight, scale, bias


def product(x: Vector, linear: nn.Module, y: Vector, first: int = 0, *, adds: bool = False) -> Product:
    """Rows of a linear map from `first` on, as many as y has."""
    weight, scale, bias = rows(linear, first, y.size)
    return Product(x, weight, y, scale, bias, adds)


def maps(linear: nn.Module, x: Vector, y: Vector, first: int = 0, *, adds: bool = False) -> Job:
    """A linear map by itself."""
    return Job((product(x, linear, y, first, adds=adds),), y.size, x.size)


def convolution(conv: ShortConv, leaf: int, x: Vector, y: Vector) -> Convolve:
    """A step of a short convolution."""
    bias = None if conv.bias is None else conv.bias.detach()
    return Convolve(x, conv.weight.detach().T.contiguous(), bias, leaf, y, conv.activation)


def lower_mamba(low: Lowering, m: Mamba, x: Vector, prepared: Prepared, adds: bool) -> None:
    """Four phases: into the layer and through its convolution, what is selected, the scan, out of it."""
    E, N, R = m.d_inner, m.d_state, m.dt_rank
    both, u, y = low.room("both", 2 * E), low.room("inner", E), low.room("read", E)
    into, z, dt, chosen = both.part(0, E), both.part(E, E), low.room("dt", E), low.room("chosen", R + 2 * N)
    tail, h = low.leaf(m.conv.d_conv - 1, E), low.leaf(E, N)
    first = Job((product(x, m.in_proj, into), convolution(m.conv, tail, into, u)), E, x.size + 8)
    low.phase(first, maps(m.in_proj, x, z, E), prepared=prepared)
    low.phase(maps(m.x_proj, u, chosen))
    weight, scale, bias = rows(m.dt_proj, 0, E)
    bias = m.dt_bias.detach() if bias is None else bias + m.dt_bias.detach()
    select = Select(
        u, dt, -LOG2E * m.A_log.detach().exp(), chosen.part(R, N), chosen.part(R + N, N), m.D.detach(), z, h, y
    )
    low.phase(Job((Product(chosen.part(0, R), weight, dt, scale, bias), select), E, R + 8 * N))
    low.phase(maps(m.out_proj, y, low.stream, adds=adds))


def lower_mamba2(low: Lowering, m: Mamba2, x: Vector, prepared: Prepared, adds: bool) -> None:
    """Three phases: into the layer and through its convolution, the memories, the norm and out of it."""
    (E, C, H), GN = m.widths, m.n_groups * m.d_state
    wide, inner, y = low.room("wide", E + C + H), low.room("inner", C), low.room("read", E)
    z, into, dt = wide.part(0, E), wide.part(E, C), wide.part(E + C, H)
    tail, S = low.leaf(m.conv.d_conv - 1, C), low.leaf(H, m.d_state, m.d_head)
    first = Job((product(x, m.in_proj, into, E), convolution(m.conv, tail, into, inner)), C, x.size + 8)
    low.phase(first, maps(m.in_proj, x, z), maps(m.in_proj, x, dt, E + C), prepared=prepared)
    late = m.norm is not None and m.norm.norm_first
    forget = Forget(
        inner.part(0, E), dt, m.dt_bias.detach(), -LOG2E * m.A_log.detach().exp(), inner.part(E, GN),
        inner.part(E + GN, GN), m.D.detach(), None if late else z, S, y, m.n_groups, m.decay.limit,
    )  # fmt: skip
    low.phase(Job((forget,), H, 2 * m.d_state * m.d_head, 1))
    if m.norm is None:
        low.phase(maps(m.out_proj, y, low.stream, adds=adds))
    else:
        norm = low.norm(m.norm, y, "normed", z if late else None, m.norm.groups)
        low.phase(maps(m.out_proj, norm.y, low.stream, adds=adds), prepared=(norm,))


LOWER: dict[type[Mixer[Any]], Callable[..., None]] = {Mamba: lower_mamba, Mamba2: lower_mamba2}
"""How each family is lowered."""


def lowered(low: Lowering, part: Mixer[Any]) -> bool:
    """Put a layer into a program; False, and nothing is put there, where it is not known."""
    inner = part.inner if type(part) is Block else part
    if type(inner) not in LOWER or not known(part, low.dtype):
        return False
    if type(inner) is Mamba and (inner.hold != "euler" or inner.select_norm is not None):
        return False
    if type(part) is Block:
        norm = low.norm(part.norm, low.stream, "own")
        LOWER[type(inner)](low, inner, norm.y, (norm,), True)
    else:
        LOWER[type(inner)](low, inner, low.stream, (), False)
    return True


def known(root: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a module and its parts are of known classes, unwatched, of one precision, and do nothing by chance."""
    return all(_known(module, dtype) for module in root.modules())


def _known(module: nn.Module, dtype: torch.dtype) -> bool:
    kind = type(module)
    own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    if not unobserved(module) or "step" in vars(module) or not all(t.is_cpu and t.is_contiguous() for t in own):
        return False
    if any(t.is_inference() for t in own):  # changes of it are not counted
        return False
    if kind is nn.Linear:
        return plain_linear(module) and all(t.dtype == dtype for t in own)
    if kind in NARROW:
        return all(t.dtype == dtype for name, t in module._buffers.items() if t is not None and name != "weight")
    if isinstance(module, nn.Dropout) and kind is nn.Dropout:
        return not module.training or module.p == 0
    if kind in (RMSNorm, nn.RMSNorm, GatedNorm):
        return bool(own) and all(t.dtype == dtype and t.dim() == 1 for t in own)
    return kind in (Mamba, Mamba2, ShortConv, Block, TiedEmbedding) and all(t.dtype == dtype for t in own)


def precision_of(roots: Iterable[nn.Module]) -> torch.dtype:
    """float64 where a parameter is of it, else float32."""
    found = {p.dtype for root in roots for p in root.parameters()}
    return torch.float64 if torch.float64 in found else torch.float32


def finished(low: Lowering, norm: nn.Module | None, head: nn.Module | None) -> Vector | None:
    """Put a last norm and a head behind the layers; the vector that comes out, or None where one of them is not known."""
    if not all(known(module, low.dtype) for module in (norm, head) if module is not None):
        return None
    if head is None:
        if norm is not None:
            own = low.norm(norm, low.stream, "own")
            low.phase(Job((replace(own, y=low.stream),), 1, low.d_model, 1))
        return low.stream
    out = low.room("out", len(head.weight))  # type: ignore[arg-type]
    if norm is None:
        low.phase(maps(head, low.stream, out))
    else:
        own = low.norm(norm, low.stream, "own")
        low.phase(maps(head, own.y, out), prepared=(own,))
    return out
