"""Rows of a table by their numbers, whose gradient joins that of a head on the same table instead of filling a table of its own.

Where tokens and the head that names them share one weight, autograd makes two gradients of its size and adds them. The head's
backward pass runs first, so its gradient waits with the weight's node for the others; `announced` leaves word of it there. The
lookup, when its turn comes in the same backward pass, adds its few rows to what waits. Where nothing waits (no head, one that came
later, a pass that is itself differentiated, a transform, the compiler) the gradient is PyTorch's.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from conca.ops.doors import apply, opened, transformed

__all__ = ["announced", "embedding"]

KEY = "conca: a gradient that waits here"


def embedding(ids_B: Tensor, w_VD: Tensor) -> Tensor:
    """Rows (..., D) of a table (V, D) at `ids` (...), integers in 0..V-1. Raises IndexError for others, as PyTorch does."""
    if transformed() or not opened(w_VD):
        return F.embedding(ids_B, w_VD)
    return cast(Tensor, apply(_Lookup, w_VD, ids_B))


def announced(ctx: Any, position: int, gradient: Tensor) -> Tensor:
    """The gradient that a Function returns for its input number `position`, to which lookups of this backward pass may add.

    It must belong to nobody else.
    """
    node, slot = ctx.next_functions[position]
    if node is not None:
        node.metadata[KEY] = torch._C._current_graph_task_id(), slot, weakref.ref(gradient)
    return gradient


class _Lookup(Function):
    @staticmethod
    def forward(w: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        g_BD = g.reshape(-1, ctx.shape[1])
        waiting = _waiting(ctx)
        if waiting is not None:
            waiting.index_add_(0, ids.flatten(), g_BD)
            return None, None
        return g.new_zeros(ctx.shape).index_add(0, ids.flatten(), g_BD), None


def _waiting(ctx: Any) -> Tensor | None:
    """The gradient of the table that was announced in this backward pass and still waits.

    Where it lives on only because somebody else holds it (a hook that logs), it no longer waits: autograd has gone on with a sum. Two
    count it if it waits: autograd, and its Python object.
    """
    node, slot = ctx.next_functions[0]
    task, place, found = node.metadata.get(KEY, (None, None, None))
    if (task, place) != (torch._C._current_graph_task_id(), slot):
        return None
    gradient: Tensor | None = found()
    if gradient is None or gradient._use_count() != 2:  # type: ignore[attr-defined]
        return None
    return gradient
