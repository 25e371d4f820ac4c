"""Cross entropy of a linear head, -log softmax(W x)_target, of which only a piece of the logits exists at any time.

The gradient to the logits is (softmax - one at the target) times a number per row, so it takes their place, and is used up in two
products before the next piece is made: with logits l, scale s and p = s (softmax(l) - e_target)
  dx = p W,  dW = sum over pieces of p^T x.
A mean or a sum makes both in the forward pass, where the logits are; single losses, and derivatives asked for again, make the logits
again. Conventions are those of torch.nn.functional.cross_entropy. Rows that are ignored are left out before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.doors import apply, opened, plain_wanted, raised, rows_of_all, transformed
from conca.ops.embedding import announced
from conca.types import BadInput, nearest

__all__ = ["check_shapes", "linear_cross_entropy", "linear_cross_entropy_plain", "softmax_rows"]

Two = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]
Reduction = Literal["mean", "sum", "none"]

PIECE = 2**24
"""Logits in a piece, at most, unless that is less than"""

ROWS = 128
"""rows: the gradient of the weight is read and written once for each piece."""


def linear_cross_entropy(
    x_BD: Tensor, w_VD: Tensor, target_B: Tensor, *, ignore: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """Cross entropy of the logits x W^T at the labels; a number, or one for each row if `reduction` is "none".

    Args:
        x_BD: features (..., D).
        w_VD: one row for each of V labels.
        target_B: labels 0..V-1 (...), int64; a row labelled `ignore` does not count, whatever stands in it.
        ignore: that label.
        reduction: "mean" over the rows that count (NaN if none does), "sum", or "none" (0 where a row does not count).

    Half precisions are computed, and answered, in float32.

    Raises:
        BadInput: for shapes and types that do not fit, and an unknown reduction.
        IndexError: for a label that is neither in range nor ignored.
    """
    check_shapes(x_BD, w_VD, target_B, reduction)
    if plain_wanted() or not x_BD.dtype.is_floating_point:
        return linear_cross_entropy_plain(x_BD, w_VD, target_B, ignore=ignore, reduction=reduction)
    dtype = torch.promote_types(raised(x_BD.dtype), raised(w_VD.dtype))
    x, w, target = x_BD.reshape(-1, x_BD.shape[-1]).to(dtype), w_VD.to(dtype), target_B.reshape(-1)
    if reduction == "none":
        loss = (
            apply(_Rows, x, w, target, ignore) if opened(x, w) else _pieces(x, w, target, None, ignore, False, False)[0]
        )
        return cast(Tensor, loss).view(target_B.shape)
    count = (target != ignore).sum().to(dtype) if reduction == "mean" else x.new_ones(())
    if not opened(x, w):
        return cast(Tensor, _pieces(x, w, target, None, ignore, False, False)[0].sum() / count)
    return cast(Tensor, apply(_Total, x, w, target, count, ignore, *_wanted(x, w))[0])


def linear_cross_entropy_plain(
    x_BD: Tensor, w_VD: Tensor, target_B: Tensor, *, ignore: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """`linear_cross_entropy` by PyTorch, all logits at once. Differentiable any number of times."""
    check_shapes(x_BD, w_VD, target_B, reduction)
    dtype = torch.promote_types(raised(x_BD.dtype), raised(w_VD.dtype))
    x, target = x_BD.reshape(-1, x_BD.shape[-1]).to(dtype), target_B.reshape(-1)
    x = torch.where((target == ignore)[:, None], 0, x)
    loss = F.cross_entropy(F.linear(x, w_VD.to(dtype)), target, ignore_index=ignore, reduction=reduction)
    return loss.view(target_B.shape if reduction == "none" else ())


def check_shapes(x: Tensor, w: Tensor, target: Tensor, reduction: str) -> None:
    """Raises BadInput where the arguments do not fit together."""
    if x.ndim == 0 or w.ndim != 2 or x.shape[-1] != w.shape[1] or x.shape[:-1] != target.shape or w.shape[0] == 0:
        line = (
            f"x {tuple(x.shape)} must be (..., D), weight {tuple(w.shape)} (V, D), target {tuple(target.shape)} (...)"
        )
        raise BadInput(f"linear_cross_entropy: {line}")
    if target.dtype != torch.int64:
        raise BadInput(f"linear_cross_entropy: target is {target.dtype}, but labels are torch.int64")
    if reduction not in ("mean", "sum", "none"):
        raise BadInput(
            f"linear_cross_entropy: unknown reduction {reduction!r}; {nearest(reduction, get_args(Reduction))}"
        )


def _wanted(x: Tensor, w: Tensor) -> tuple[bool, bool]:
    """Whether the forward pass makes the gradients of x and w: not under a transform, nor for the compiler, which ask again."""
    return (False, False) if transformed() else (x.requires_grad, w.requires_grad)


def softmax_rows(logits: Tensor, target: Tensor, scale: Tensor, keep: bool) -> Tensor:
    """What the kernel does, in PyTorch: the cross entropy (B,) of each row; with `keep` the logits become their gradient."""
    goal = target[:, None]
    mass = logits.logsumexp(-1, keepdim=True)
    loss = (mass - logits.gather(-1, goal))[:, 0]
    if keep:
        logits.sub_(mass).exp_().mul_(scale[:, None]).scatter_add_(-1, goal, -scale[:, None])
    return loss


@torch.library.custom_op("conca::linear_cross_entropy", mutates_args=())
def _pieces(
    x: Tensor, w: Tensor, target: Tensor, scale: Tensor | None, ignore: int, want_x: bool, want_w: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (B,), and the gradients of x (B, D) and w of the sum of losses times scale (B,), empty where not wanted."""
    valid = target != ignore
    wrong = valid & ((target < 0) | (target >= len(w)))
    if wrong.any():
        raise IndexError(f"linear_cross_entropy: label {target[wrong][0].item()} is not in 0..{len(w) - 1}")
    keep, every = want_x or want_w, bool(valid.all())
    scale = x.new_ones(len(x)) if scale is None else scale
    if not every:
        x, target, scale = x[valid], target[valid], scale[valid]
    loss, dx = x.new_empty(len(x)), torch.empty_like(x) if want_x else x.new_empty(0)
    dw = torch.empty_like(w, memory_format=torch.contiguous_format) if want_w else w.new_empty(0)
    body = bodies.kernel("cross_entropy", x.device.type) or softmax_rows
    count = max(1, -(-len(x) * len(w) // max(PIECE, ROWS * len(w))))
    edges = [len(x) * i // count for i in range(count + 1)]
    logits = x.new_empty(max(b - a for a, b in pairwise(edges)), len(w))
    for a, b in pairwise(edges) if len(x) else ():
        p = logits[: b - a]
        torch.mm(x[a:b], w.T, out=p)
        loss[a:b] = body(p, target[a:b], scale[a:b].contiguous(), keep)
        if want_x:
            torch.mm(p, w, out=dx[a:b])
        if want_w:
            torch.addmm(dw, p.T, x[a:b], beta=0 if a == 0 else 1, out=dw)
    if want_w and not len(x):
        dw.zero_()
    if every:
        return loss, dx, dw
    return _back(loss, valid), _back(dx, valid) if want_x else dx, dw


def _back(rows: Tensor, valid: Tensor) -> Tensor:
    """The rows at the places that are valid, 0 elsewhere."""
    found = rows.new_zeros(len(valid), *rows.shape[1:])
    found[valid] = rows
    return found


@_pieces.register_fake
def _(x: Tensor, w: Tensor, target: Tensor, scale: Tensor | None, ignore: int, want_x: bool, want_w: bool) -> Three:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if want_x else x.new_empty(0)
    dw = torch.empty_like(w, memory_format=torch.contiguous_format) if want_w else w.new_empty(0)
    return x.new_empty(x.shape[0]), dx, dw


@_pieces.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    return rows_of_all(_pieces, info.batch_size, dims, args, tuple(range(len(args))))


def _given(ctx: Any, found: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and w that somebody asks for; rows of an embedding on the same weight may be added to that of w."""
    dx, dw = (t if want else None for t, want in zip(found, ctx.needs_input_grad))
    if dw is not None and not (torch.is_grad_enabled() or transformed()):
        announced(ctx, 1, dw)
    return dx, dw


class _Total(Function):
    """The sum of losses over `count`. Gradients made on the way are given away by the first backward pass; later ones ask again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, target: Tensor, count: Tensor, ignore: int, want_x: bool, want_w: bool) -> Three:
        loss, dx, dw = _pieces(x, w, target, (1 / count).expand(len(x)), ignore, want_x, want_w)
        return loss.sum() / count, dx, dw

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Three) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.ignore, ctx.made = inputs[4], output[1:] if any(inputs[5:]) else None

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * 7
        made, ctx.made = ctx.made, None
        if made is None or torch.is_grad_enabled():
            x, w, target, count = ctx.saved_tensors
            scale = (g / count).expand(len(x))
            found = apply(_Gradient, x, w, target, scale, ctx.ignore, *ctx.needs_input_grad[:2])
        else:
            found = made if g.device.type == "cpu" and float(g) == 1 else [t.mul_(g) for t in made]
        return *_given(ctx, found), *(None,) * 5


class _Rows(Function):
    """The losses of the rows; the backward pass makes the logits again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, target: Tensor, ignore: int) -> Tensor:
        return cast(Tensor, _pieces(x, w, target, None, ignore, False, False)[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.ignore = inputs[3]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        found = apply(_Gradient, *ctx.saved_tensors, g, ctx.ignore, *ctx.needs_input_grad[:2])
        return *_given(ctx, found), None, None


class _Gradient(Function):
    """The gradients of the sum of losses times scale, empty where not wanted; their own derivative is that of the plain body."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, target: Tensor, scale: Tensor, ignore: int, want_x: bool, want_w: bool) -> Two:
        return cast(Two, _pieces(x, w, target, scale, ignore, want_x, want_w)[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Two) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.ignore, ctx.want = inputs[4], inputs[5:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w, target, scale = ctx.saved_tensors
        wanted = tuple(i for i in (0, 1) if ctx.want[i])

        def first(x: Tensor, w: Tensor, scale: Tensor) -> Two:
            def total(*some: Tensor) -> Tensor:
                xw = {0: x, 1: w} | dict(zip(wanted, some))
                plain = linear_cross_entropy_plain(xw[0], xw[1], target, ignore=ctx.ignore, reduction="none")
                return (plain * scale).sum()

            return cast(Two, torch.func.grad(total, tuple(range(len(wanted))))(*((x, w)[i] for i in wanted)))

        found = torch.func.vjp(first, x, w, scale)[1](tuple(grads[i] for i in wanted))
        return found[0], found[1], None, found[2], None, None, None
