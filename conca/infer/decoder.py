"""Decoding: one token after the other through a whole model, the threads woken once for each, not once for each product.

With one row a product costs what reading its weights costs, and waking threads for a hundred of them costs as much again. Layers that are
known become one program (`conca.ops.program`), and run as one piece with the last norm and the head; all others run by their own `step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, cast

import torch
from torch import Tensor, nn

from conca.infer.lowering import Lowering, Watch, finished, lowered, precision_of
from conca.layers.mixer import Mixer
from conca.layers.narrow_embedding import NarrowEmbedding
from conca.layers.quantised import linear_row
from conca.layers.tied_embedding import TiedEmbedding
from conca.models.stack import Stack
from conca.ops import bodies
from conca.ops.doors import traced
from conca.ops.one_row import FEW
from conca.ops.program import Program, run_program
from conca.types import BadInput, S, State

__all__ = ["Decoder"]

SHAPE, DTYPE, ON_CPU = attrgetter("shape"), attrgetter("dtype"), attrgetter("is_cpu")


@dataclass(frozen=True)
class Fused:
    """Neighbouring parts of a stack as one program; `kinds`: the class of each one's state, and its leaves, from and to."""

    program: Program
    kinds: tuple[tuple[Any, int, int], ...]


@dataclass(frozen=True)
class Plan:
    """What runs: pieces and single parts in turn, of a stack or of one mixer; whether the last piece holds the norm and the head."""

    pieces: tuple[Fused | Mixer[Any], ...]
    ends: bool
    roots: tuple[nn.Module | None, ...]
    watch: Watch
    dtype: torch.dtype
    stack: bool


class Decoder(Generic[S]):
    """Steps of a mixer, from an embedding and to a head where they are given, in the numbers and states of its own `step`.

    States are those of the mixer: they may come from its `forward`, and go back to it; an old one stays valid. The layers that become
    programs are `Mamba` (with hold "euler") and `Mamba2`, plain or in a `Block`. All others, those that are hooked or replaced, and all
    where gradients are on or tensors are of another device or precision, run by their own `step`, and gain nothing. What changes in
    the model (training, another weight, a hook) is noticed at the next step; what is written through `.data`, or another option of a
    layer (`eps`), is not.

    Args:
        mixer: a stack, or any mixer.
        embedding: gives vectors (B, D) for tokens (B,), `nn.Embedding` for one.
        norm: before the head.
        head: a linear map, or an embedding that is its own head (`TiedEmbedding`, `NarrowEmbedding`); its output is what `step` gives.

    >>> from conca.models.stack import pattern
    >>> decoder = Decoder(pattern("mamba*2", 8).eval(), head=nn.Linear(8, 5))
    >>> with torch.no_grad():
    ...     y, state = decoder.step(torch.zeros(1, 8), decoder.init_state(1))
    >>> y.shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        mixer: Mixer[S],
        *,
        embedding: nn.Module | None = None,
        norm: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        self.mixer, self.embedding, self.norm, self.head = mixer, embedding, norm, head
        self._plan: Plan | None = None

    def init_state(self, batch: int) -> S:
        """The state of `batch` sequences of which nothing has been read."""
        return self.mixer.init_state(batch)

    def step(self, x: Tensor, state: S) -> tuple[Tensor, S]:
        """One token of every sequence: tokens (B,) where there is an embedding, or vectors (B, D), and the state.

        Raises:
            BadInput: for tokens where there is no embedding.
        """
        if not x.is_floating_point():
            if self.embedding is None:
                raise BadInput(f"Decoder: got tokens ({x.dtype}), but has no embedding; give it one, or vectors")
            x = self.embedding(x)
        plan = self._current(x)
        found = None if plan is None else self._leaves(plan, state, x)
        if plan is None or found is None:
            y, state = self.mixer.step(x, state)
            return self._end(y), state
        new: list[State] = []
        for piece, own in zip(plan.pieces, found):
            if isinstance(piece, Fused):
                x, made = run_program(piece.program, x, cast("list[Tensor]", own))
                new += [kind._make(made[first:end]) for kind, first, end in piece.kinds]
            else:
                x, after = piece.step(x, own)
                new.append(after)
        y = x if plan.ends else self._end(x)
        return y, cast(S, tuple(new) if plan.stack else new[0])

    def _end(self, x: Tensor) -> Tensor:
        """The last norm and the head, by themselves."""
        x = x if self.norm is None else self.norm(x)
        if isinstance(self.head, TiedEmbedding | NarrowEmbedding):
            return self.head.logits(x)
        return x if self.head is None else linear_row(self.head, x)

    def _leaves(self, plan: Plan, state: S, x: Tensor) -> list[Any] | None:
        """What each piece takes of a state; None where something of it does not fit a program, and has to meet the layer itself."""
        parts = cast("tuple[State, ...]", state) if plan.stack else (state,)
        if not isinstance(parts, tuple) or len(parts) != sum(
            len(p.kinds) if isinstance(p, Fused) else 1 for p in plan.pieces
        ):
            return None
        found: list[Any] = []
        at = iter(parts)
        for piece in plan.pieces:
            if not isinstance(piece, Fused):
                found.append(next(at))
                continue
            some = [next(at) for _ in piece.kinds]
            if any(type(part) is not kind for part, (kind, *_) in zip(some, piece.kinds)):
                return None
            flat = list(chain.from_iterable(some))
            shapes = [(len(x), *shape) for shape in piece.program.leaves]
            if list(map(SHAPE, flat)) != shapes or {x.dtype} != set(map(DTYPE, flat)) or not all(map(ON_CPU, flat)):
                return None
            found.append(list(map(Tensor.contiguous, flat)))
        return found

    def _current(self, x: Tensor) -> Plan | None:
        """The plan, made again if the model has changed; None where x is not for it, or it would be of no use."""
        served = (
            not torch.is_grad_enabled()
            and type(x) is Tensor
            and x.is_cpu
            and x.ndim == 2
            and 0 < len(x) <= FEW
            and x.shape[1] == self.mixer.d_model
            and not traced()
            and not torch.is_autocast_enabled("cpu")
            and not bodies.plain_wanted()
        )
        if not served:
            return None
        roots = self.mixer, self.norm, self.head
        if self._plan is None or self._plan.roots != roots or not self._plan.watch.unchanged():
            self._plan = self._planned()
        return self._plan if self._plan.dtype == x.dtype else None

    def _planned(self) -> Plan:
        """Neighbours that are known in one piece, the others by themselves, and the end with the last piece if that is possible."""
        roots = self.mixer, self.norm, self.head
        there = [module for module in roots if module is not None]
        dtype, watch = precision_of(there), Watch(there)
        stack = type(self.mixer) is Stack and "step" not in vars(self.mixer)
        pieces: list[Fused | Mixer[Any]] = []
        low, kinds = Lowering(self.mixer.d_model, dtype), list[tuple[Any, int, int]]()

        def close(output: int) -> None:
            nonlocal low, kinds
            if kinds:
                pieces.append(Fused(low.program(output), tuple(kinds)))
            low, kinds = Lowering(self.mixer.d_model, dtype), []

        parts = [*cast(Stack, self.mixer).parts] if stack else [self.mixer]
        for part in parts:
            first = len(low.leaves)
            if lowered(low, part):
                kinds.append((type(part.init_state(0)), first, len(low.leaves)))
            else:
                close(0)
                pieces.append(part)
        out = finished(low, self.norm, self.head) if kinds else None
        close(0 if out is None else out.room)
        if any(isinstance(piece, Fused) for piece in pieces) and bodies.kernel("program", "cpu") is None:
            return Plan(tuple(parts), False, roots, watch, dtype, stack)
        return Plan(tuple(pieces), out is not None, roots, watch, dtype, stack)
