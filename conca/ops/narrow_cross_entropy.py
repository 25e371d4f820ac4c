"""Cross entropy of a head whose weights are kept in int8 or bfloat16: neither all logits nor the widened weights exist at any time.

    l = scale * (W x) + bias,   loss = -log softmax(l)_target,   dx = sum over pieces of (scale (softmax(l) - e_target))^T W

Some rows are taken at once, and for them the weights are widened piece by piece. The backward pass makes the logits again; nothing of
the head is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from conca.ops import bodies
from conca.ops.cross_entropy import PIECE, ROWS, Reduction, check_shapes, linear_cross_entropy, softmax_rows
from conca.ops.doors import apply, opened, plain_wanted, raised, transformed

__all__ = ["narrow_cross_entropy"]

WIDENED = 4096
"""Rows of the weights that are widened at once."""


def narrow_cross_entropy(
    x_BD: Tensor,
    w_VD: Tensor,
    scale_V: Tensor | None,
    bias_V: Tensor | None,
    target_B: Tensor,
    *,
    ignore: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """`linear_cross_entropy` of logits scale * (W x) + bias, in the precision of x or in float32.

    Args:
        x_BD: features (..., D); only they are given a gradient, once.
        w_VD: weights (V, D) of any type.
        scale_V, bias_V: a number for each label, or None.
        target_B: labels 0..V-1 (...), int64; a row labelled `ignore` does not count.
        ignore: that label.
        reduction: "mean", "sum", or "none".

    Raises:
        BadInput, IndexError: as `linear_cross_entropy`.
    """
    check_shapes(x_BD, w_VD, target_B, reduction)
    dtype = raised(x_BD.dtype)
    scale, bias = (None if t is None else t.detach().to(dtype) for t in (scale_V, bias_V))
    if transformed() or plain_wanted():
        return _plain(x_BD.to(dtype), w_VD, scale, bias, target_B, ignore, reduction)
    x, target = x_BD.reshape(-1, x_BD.shape[-1]).to(dtype), target_B.reshape(-1)
    valid = target != ignore
    wrong = valid & ((target < 0) | (target >= len(w_VD)))
    if wrong.any():
        raise IndexError(f"narrow_cross_entropy: label {target[wrong][0].item()} is not in 0..{len(w_VD) - 1}")
    args = x[valid], w_VD.detach(), scale, bias, target[valid]
    loss = cast(Tensor, apply(_Losses, *args)) if opened(x) else _losses(*args)
    if reduction == "none":
        return loss.new_zeros(len(x)).masked_scatter(valid, loss).view(target_B.shape)
    return loss.sum() if reduction == "sum" else loss.sum() / len(loss)


def _plain(
    x: Tensor, w: Tensor, scale: Tensor | None, bias: Tensor | None, target: Tensor, ignore: int, reduction: Reduction
) -> Tensor:
    """The same with widened weights, whose last column is the bias."""
    w = w.detach().to(x.dtype)
    w = w if scale is None else w * scale[:, None]
    if bias is not None:
        w, x = torch.cat([w, bias[:, None]], 1), torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
    return linear_cross_entropy(x, w, target, ignore=ignore, reduction=reduction)


def _some_rows(x: Tensor, w: Tensor, scale: Tensor | None, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Logits of some rows after the other, all in the same memory."""
    count = max(PIECE // len(w), ROWS)
    logits = x.new_empty(min(count, len(x)), len(w))
    for a in range(0, len(x), count):
        some = slice(a, min(a + count, len(x)))
        p = logits[: some.stop - a]
        for tokens in _pieces(w):
            p[:, tokens] = x[some] @ w[tokens].to(x.dtype).T
        p = p if scale is None else p.mul_(scale)
        yield some, p if bias is None else p.add_(bias)


def _pieces(w: Tensor) -> Iterator[slice]:
    return (slice(i, min(i + WIDENED, len(w))) for i in range(0, len(w), WIDENED))


def _losses(x: Tensor, w: Tensor, scale: Tensor | None, bias: Tensor | None, target: Tensor) -> Tensor:
    """The loss of each row."""
    body = bodies.kernel("cross_entropy", x.device.type) or softmax_rows
    loss = x.new_empty(len(x))
    for some, logits in _some_rows(x, w, scale, bias):
        loss[some] = body(logits, target[some], x.new_ones(len(logits)), False)
    return loss


class _Losses(Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, scale: Tensor | None, bias: Tensor | None, target: Tensor) -> Tensor:
        return _losses(x, w, scale, bias, target)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w, scale, bias, target = ctx.saved_tensors
        body = bodies.kernel("cross_entropy", x.device.type) or softmax_rows
        dx = torch.zeros_like(x)
        for some, p in _some_rows(x, w, scale, bias):
            body(p, target[some], g[some].contiguous(), True)
            p = p if scale is None else p.mul_(scale)
            for tokens in _pieces(w):
                dx[some] += p[:, tokens] @ w[tokens].to(x.dtype)
        return dx, None, None, None, None
