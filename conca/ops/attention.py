"""Softmax attention under a mask: y_t = sum_s softmax_s(q_t . k_s / sqrt(K)) v_s over the s that the mask allows.

`attend_plain` writes it out. `attend` calls PyTorch's fused kernel, whose derivative has no derivative on a CPU; the second
derivative therefore goes through the plain body, so that energies may be trained through attention.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from conca.ops.doors import apply, opened, plain_wanted
from conca.types import BadInput

__all__ = ["attend", "attend_plain"]

Triple = tuple[Tensor, Tensor, Tensor]


def attend(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """Attention outputs (B, H, T, V); mask is bool, True where a query may look.

    mask (B, T, S) is shared by the heads; (T, S) and (B or 1, H or 1, T or 1, S) are taken too, None hides nothing. A query that may look
    nowhere gives 0, and gives no gradient. `causal` is the mask s <= t of equally many queries and keys, of which no T x T tensor is
    made; it stands alone. Raises BadInput where the shapes do not fit.
    """
    mask = _heads(q_BHTK, k_BHSK, v_BHSV, mask, causal)
    if q_BHTK.numel() == 0 or v_BHSV.numel() == 0 or plain_wanted():
        return attend_plain(q_BHTK, k_BHSK, v_BHSV, mask, causal=causal)
    blind = None
    if mask is not None:
        blind = ~mask.any(-1, keepdim=True)
        mask = mask | blind
    if opened(q_BHTK, k_BHSK, v_BHSV):
        y = cast(Tensor, apply(_Attend, q_BHTK, k_BHSK, v_BHSV, mask, causal))
    else:
        y = F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSV, attn_mask=mask, is_causal=causal)
    return y if blind is None else y.masked_fill(blind, 0)


def attend_plain(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """`attend` written out: T S numbers of memory, differentiable any number of times."""
    mask = _heads(q_BHTK, k_BHSK, v_BHSV, mask, causal)
    if causal:
        T = q_BHTK.shape[2]
        mask = torch.ones(1, 1, T, T, dtype=torch.bool, device=q_BHTK.device).tril()
    scores = q_BHTK @ k_BHSK.mT / math.sqrt(max(q_BHTK.shape[-1], 1))
    if mask is None:
        return scores.softmax(-1) @ v_BHSV
    blind = ~mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~(mask | blind), -math.inf).softmax(-1)
    return (weights @ v_BHSV).masked_fill(blind, 0)


def _heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """The mask with an axis for heads; the shapes are checked."""
    if q.ndim != 4 or k.shape != (*q.shape[:2], k.shape[-2], q.shape[-1]) or v.shape[:-1] != k.shape[:-1]:
        raise BadInput(f"attend: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} must be BHTK, BHSK, BHSV")
    if causal and (mask is not None or q.shape[2] != k.shape[2]):
        raise BadInput(f"attend: causal takes no mask and as many keys as queries, got {k.shape[2]} for {q.shape[2]}")
    if mask is None:
        return None
    whole = (*q.shape[:3], k.shape[2])
    wide = mask[:, None] if mask.ndim == 3 else mask.expand(1, 1, *mask.shape) if mask.ndim == 2 else mask
    if mask.dtype != torch.bool or wide.ndim != 4 or any(m not in (1, w) for m, w in zip(wide.shape, whole)):
        raise BadInput(f"attend: mask {tuple(mask.shape)} {mask.dtype} must be bool and broadcast to {whole}")
    return wide


class _Attend(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.causal = inputs[4]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return *apply(_AttendBackward, *ctx.saved_tensors, g, ctx.causal), None, None


class _AttendBackward(Function):
    """The first derivative by PyTorch's kernel, the second by the plain body."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, g: Tensor, causal: bool) -> Triple:
        def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

        return cast(Triple, torch.func.vjp(fused, q, k, v)[1](g))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Triple) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.causal = inputs[5]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, mask, g), causal = ctx.saved_tensors, ctx.causal

        def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_plain(q, k, v, mask, causal=causal)

        def first(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Triple:
            return cast(Triple, torch.func.vjp(plain, q, k, v)[1](g))

        dq, dk, dv, dg = torch.func.vjp(first, q, k, v, g)[1](grads)
        return dq, dk, dv, None, dg, None
