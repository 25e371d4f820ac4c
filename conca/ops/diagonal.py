"""A diagonal state space: h_t = a h_{t-1} + b u_t, y_t = Re(sum_n c h_t), with N complex modes for every channel of u.

The door `diagonal_ssm`. Its readable bodies are in `conca.ops.diagonal_bodies`: the recurrence (the definition), the chunked
matrix form (what runs where there is no kernel, and gives the second derivative) and the convolution.
"""

from __future__ import annotations

from torch import Tensor

from conca.ops.diagonal_bodies import (
    CHUNK,
    aligned,
    diagonal_ssm_chunked,
    diagonal_ssm_convolution,
    diagonal_ssm_recurrence,
)
from conca.ops.doors import has_kernel
from conca.ops.operation import Operation

__all__ = ["CHUNK", "diagonal_ssm", "diagonal_ssm_chunked", "diagonal_ssm_convolution", "diagonal_ssm_recurrence"]

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
    else:
        y, last = _operation(u, a, b, c, h, lengths, starts)
    return y.to(dtype) if dtype.is_floating_point else y, last


def _plain(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe, starts: Maybe
) -> tuple[Tensor, Tensor]:
    return diagonal_ssm_chunked(u, a, b, c, h, lengths=lengths, starts=starts)


def _room(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe, starts: Maybe, save: bool) -> Tensor:
    """(B, 0), or for each row the states before each chunk: a complex number per mode and channel, these in blocks of 64 bytes."""
    B, T, D = u.shape
    block = 64 // u.element_size()
    size = -(-T // CHUNK) * a.shape[1] * 2 * (-(-D // block) * block) if save else 0
    return u.new_empty(B, size) if lengths is None else u.new_zeros(B, size)


_operation = Operation(
    "diagonal_ssm",
    _plain,
    inputs="Tensor u, Tensor a, Tensor b, Tensor c, Tensor h",
    options="Tensor? lengths, Tensor? starts",
    shared=("a", "b", "c"),
    outputs=("u", "h"),
    room=_room,
)
