"""A wide state space: h_t = a h_{t-1} + W u_t, y_t = C h_t + skip u_t, with all channels of u in every mode and in every output.

a is diagonal and complex, h_t is read as pairs of real numbers, so W and C are real matrices: two matrix products with a scan between.
`wide_ssm_plain` is that composition. `wide_ssm` computes the same; its gradient writes each large tensor once, where autograd would
write the parts of a sum apart and add them, and it takes little longer than the matrix products in it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.doors import apply, has_kernel, opened, transformed
from conca.ops.scan import scan

__all__ = ["paired", "wide_ssm", "wide_ssm_plain"]

PIECE = 2048
"""Steps whose products are summed at once."""

Pair = tuple[Tensor, Tensor]
Maybe = Tensor | None


def wide_ssm(
    u_BTD: Tensor,
    w_ED: Tensor,
    a_P: Tensor,
    h_BP: Tensor,
    c_DE: Tensor,
    skip_D: Maybe = None,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> Pair:
    """Outputs (B, T, D') and the state after the last step, complex (B, P).

    u real (B, T, D), w (2P, D), c (D', 2P) with real and imaginary parts of a mode side by side, a (P,) and h (B, P) complex, skip
    (D,), only where D' is D; all of one precision. `lengths` and `starts` as in `conca.ops.scan.scan`; u has no NaN in its padding.
    Derivatives of any order.
    """
    args = u_BTD, w_ED, a_P, h_BP, c_DE, skip_D
    fast = opened(*(t for t in args if t is not None)) and u_BTD.numel() > 0 and has_kernel("scan", u_BTD.device.type)
    if not fast or transformed():
        return wide_ssm_plain(*args, lengths=lengths, starts=starts)
    return cast(Pair, apply(_Wide, *args, lengths, starts))


def wide_ssm_plain(
    u_BTD: Tensor,
    w_ED: Tensor,
    a_P: Tensor,
    h_BP: Tensor,
    c_DE: Tensor,
    skip_D: Maybe = None,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> Pair:
    """`wide_ssm` as it is written."""
    h_BTP = scan(a_P, paired(F.linear(u_BTD, w_ED)), h_BP, lengths=lengths, starts=starts)
    y = F.linear(torch.view_as_real(h_BTP).flatten(-2), c_DE)
    last = h_BTP[:, -1].clone() if h_BTP.shape[1] else h_BP.clone()
    return (y if skip_D is None else torch.addcmul(y, skip_D, u_BTD)), last


def paired(v: Tensor) -> Tensor:
    """Real numbers (..., 2P) as complex ones (..., P)."""
    return torch.view_as_complex(v.reshape(*v.shape[:-1], v.shape[-1] // 2, 2))


class _Wide(Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, w: Tensor, a: Tensor, h: Tensor, c: Tensor, skip: Maybe, lengths: Maybe, starts: Maybe
    ) -> Pair:
        body = bodies.required("scan", u.device.type)
        states = body(a.expand_as(h), paired(F.linear(u, w)), h, lengths, starts, inplace=True)
        y = F.linear(torch.view_as_real(states).flatten(-2), c)
        if skip is not None:
            y.addcmul_(skip, u)
        ctx.save_for_backward(u, w, a, h, c, skip, lengths, starts, states)
        return y, states[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, gy: Tensor, gh: Tensor) -> tuple[Maybe, ...]:
        u, w, a, h, c, skip, lengths, starts, states = ctx.saved_tensors
        if torch.is_grad_enabled():  # this gradient will be differentiated itself
            args = u, w, a, h, c, skip
            wanted = [t for t, need in zip(args, ctx.needs_input_grad) if need]
            results = wide_ssm_plain(*args, lengths=lengths, starts=starts)
            found = iter(torch.autograd.grad(results, wanted, (gy, gh), create_graph=True, materialize_grads=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:6]), None, None
        return *_gradients(u, w, a, h, c, skip, lengths, starts, states, gy, gh), None, None


def _gradients(
    u: Tensor, w: Tensor, a: Tensor, h: Tensor, c: Tensor, skip: Maybe, lengths: Maybe, starts: Maybe, states: Tensor,
    gy: Tensor, gh: Tensor,
) -> tuple[Maybe, ...]:  # fmt: skip
    """Gradients to u, w, a, h, c and skip."""
    u_MD, g_MD = u.reshape(-1, u.shape[-1]), gy.reshape(-1, gy.shape[-1])
    into = paired((g_MD @ c).view(*gy.shape[:-1], -1))
    into[:, -1] += gh
    body = bodies.required("scan_backward", u.device.type)
    da, dv, dh = body(a.expand_as(h), h, states, into, lengths, starts, inplace=True)
    dv_ME = torch.view_as_real(dv).view(len(u_MD), -1)
    dc = g_MD.T @ torch.view_as_real(states).view(len(u_MD), -1)
    dw = dv_ME.T @ u_MD
    if skip is None:
        du, dskip = dv_ME @ w, None
    else:
        du, dskip = (g_MD * skip).addmm_(dv_ME, w), _dot(g_MD, u_MD)
    return du.view(u.shape), dw, da.sum(0), dh, dc, dskip


def _dot(x_MD: Tensor, y_MD: Tensor) -> Tensor:
    """The sum of x y over M, without room for all products."""
    pieces = [(x * y).sum(0) for x, y in zip(torch.split(x_MD, PIECE), torch.split(y_MD, PIECE))]
    return torch.stack(pieces).sum(0)
