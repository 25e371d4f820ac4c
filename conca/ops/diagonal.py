"""A diagonal state space: h_t = a h_{t-1} + b u_t, y_t = Re(sum_n c h_t), with N complex modes for every channel of u.

The door `diagonal_ssm`. Its readable bodies are in `conca.ops.diagonal_bodies`: the recurrence (the definition), the chunked
matrix form (what runs where there is no kernel, and gives the second derivative) and the convolution.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.diagonal_bodies import (
    CHUNK,
    aligned,
    diagonal_ssm_chunked,
    diagonal_ssm_convolution,
    diagonal_ssm_recurrence,
)
from conca.ops.doors import apply, has_kernel, opened, rows_of_all

__all__ = ["CHUNK", "diagonal_ssm", "diagonal_ssm_chunked", "diagonal_ssm_convolution", "diagonal_ssm_recurrence"]

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Maybe = Tensor | None


def diagonal_ssm(
    u_BTD: Tensor,
    a_DN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """Outputs y (B, T, D) of a diagonal state space from the state h (B, D, N), and the state after the last step.

    u real (B, T, D); a, b, c (D, N) and h complex (real ones are taken as complex). y has the dtype of u; the state is complex64,
    or complex128 where any argument is of double precision; half precisions are computed in float32.
    lengths (B,) integers: past the length of a row y is 0 and the state stays what it was after the last valid token; u there may
    be anything, NaN too, and gets gradient 0. starts (B, T) bool: the state is set to 0 before that step.
    Raises BadInput where the shapes do not fit. For the backward pass the kernel keeps its inputs and every 64th state, not all.
    """
    dtype = u_BTD.dtype
    u, a, b, c, h, lengths, starts = aligned(u_BTD, a_DN, b_DN, c_DN, h_BDN, lengths, starts)
    if u.numel() == 0 or a.numel() == 0 or not has_kernel("diagonal_ssm", u.device.type):
        y, last = diagonal_ssm_chunked(u, a, b, c, h, lengths=lengths, starts=starts)
    elif opened(u, a, b, c, h):
        y, last, _ = apply(_DiagonalSSM, u, a, b, c, h, lengths, starts)
    else:
        y, last, _ = _diagonal_ssm(u, a, b, c, h, lengths, starts, False)
    return y.to(dtype) if dtype.is_floating_point else y, last


@torch.library.custom_op("conca::diagonal_ssm", mutates_args=())
def _diagonal_ssm(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe, starts: Maybe, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and with `save` what the backward kernel needs of the states: those before each chunk, in its order."""
    saved = _room(u, a, lengths, save)
    y, last = bodies.required("diagonal_ssm", u.device.type)(u, a, b, c, h, lengths, starts, saved)
    return y, last, saved


def _room(u: Tensor, a: Tensor, lengths: Maybe, save: bool) -> Tensor:
    """(B, 0), or for each row a complex number per chunk, mode and channel, these in blocks of 64 bytes."""
    B, T, D = u.shape
    block = 64 // u.element_size()
    size = -(-T // CHUNK) * a.shape[1] * 2 * (-(-D // block) * block) if save else 0
    return u.new_empty(B, size) if lengths is None else u.new_zeros(B, size)


@_diagonal_ssm.register_fake
def _(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe, starts: Maybe, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    y, last = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, h))
    return y, last, _room(u, a, lengths, save)


@_diagonal_ssm.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return rows_of_all(_diagonal_ssm, info.batch_size, dims, args, (1, 2, 3, 7))


@torch.library.custom_op("conca::diagonal_ssm_backward", mutates_args=())
def _diagonal_ssm_backward(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    saved: Tensor,
    lengths: Maybe,
    starts: Maybe,
    gy: Tensor,
    gh: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients to u, to a, b and c by row (B, D, N), and to h; the states are computed anew from those before the chunks."""
    body = bodies.required("diagonal_ssm_backward", u.device.type)
    return cast(Five, body(u, a, b, c, saved, lengths, starts, gy, gh))


@_diagonal_ssm_backward.register_fake
def _(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, saved: Tensor, lengths: Maybe, starts: Maybe, gy: Tensor, gh: Tensor
) -> Five:
    new = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, gh, gh, gh, gh))
    return cast(Five, tuple(new))


@_diagonal_ssm_backward.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return rows_of_all(_diagonal_ssm_backward, info.batch_size, dims, args, (1, 2, 3))


class _DiagonalSSM(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe, starts: Maybe
    ) -> tuple[Tensor, Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor, Tensor], _diagonal_ssm(u, a, b, c, h, lengths, starts, True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[:5], output[2], *inputs[5:])

    @staticmethod
    def backward(ctx: Any, gy: Tensor, gh: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *apply(_DiagonalSSMBackward, *ctx.saved_tensors, gy, gh), None, None


class _DiagonalSSMBackward(Function):
    """The backward kernel; its own derivative is that of the chunked body's vjp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        h: Tensor,
        saved: Tensor,
        lengths: Maybe,
        starts: Maybe,
        gy: Tensor,
        gh: Tensor,
    ) -> Five:
        du, da, db, dc, dh = _diagonal_ssm_backward(u, a, b, c, saved, lengths, starts, gy, gh)
        return du, da.sum(0), db.sum(0), dc.sum(0), dh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Five) -> None:
        u, a, b, c, h, _, lengths, starts, gy, gh = inputs
        ctx.save_for_backward(u, a, b, c, h, lengths, starts, gy, gh)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, a, b, c, h, lengths, starts, gy, gh = ctx.saved_tensors

        def plain(*args: Tensor) -> tuple[Tensor, Tensor]:
            return diagonal_ssm_chunked(*args, lengths=lengths, starts=starts)

        def first(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, gy: Tensor, gh: Tensor) -> Five:
            return cast(Five, torch.func.vjp(plain, u, a, b, c, h)[1]((gy, gh)))

        du, da, db, dc, dh, dgy, dgh = torch.func.vjp(first, u, a, b, c, h, gy, gh)[1](grads)
        return du, da, db, dc, dh, None, None, None, dgy, dgh
