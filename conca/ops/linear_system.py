"""A linear system in discrete time, run three ways: step by step, as a sum over the past, and from a warm state.

    x_t = a x_{t-1} + b u_t,   y_t = c x_t + d u_t          x_t has already read u_t: the sample counts at once

The response to a unit input is the kernel: k_0 = c b + d, k_l = c a^l b. As long as nothing varies in time the outputs are the
convolution of the inputs with it, plus c a^{t+1} x for the state x from which one began (t counted from 0).

M inputs, O outputs, N states. Matrices are constant, (N, N), or have a time axis in front, (T, N, N), or batch and time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.discretise import Pair, dense_generalised_bilinear, dense_zero_order_hold
from conca.types import BadInput, nearest

__all__ = ["TRANSFORMS", "applied", "convolve", "discretised", "kernel", "krylov", "over_time", "recur"]

TRANSFORMS = {"zoh": None, "forward_euler": 0.0, "bilinear": 0.5, "backward_euler": 1.0}
"""The named transforms: the alpha of the generalised bilinear one, and None for the zero-order hold."""


def discretised(A_NN: Tensor, B_NM: Tensor, dt: Tensor, transform: str = "zoh", alpha: float | None = None) -> Pair:
    """(a, b) of x' = A x + B u over steps of length `dt`; axes in front of the matrices, and those of dt, broadcast.

    Args:
        transform: "zoh", "forward_euler", "backward_euler" or "bilinear".
        alpha: the generalised bilinear transform with this alpha (0..1) in the place of `transform`.

    Raises:
        BadInput: for an unknown transform, and for alpha outside 0..1.
    """
    if transform not in TRANSFORMS:
        raise BadInput(f"unknown transform {transform!r}; {nearest(transform, TRANSFORMS)}")
    front = max(A_NN.shape[:-2], B_NM.shape[:-2], key=len)
    A_NN, B_NM = A_NN.expand(*front, *A_NN.shape[-2:]), B_NM.expand(*front, *B_NM.shape[-2:])
    chosen = TRANSFORMS[transform] if alpha is None else alpha
    if chosen is None:
        return dense_zero_order_hold(A_NN, B_NM, dt)
    return dense_generalised_bilinear(A_NN, B_NM, dt, chosen)


def applied(matrix: Tensor, vector: Tensor) -> Tensor:
    """matrix (..., R, C) times vector (..., C); axes in front broadcast."""
    if matrix.dim() == 2:
        return F.linear(vector, matrix)
    return (matrix @ vector[..., None]).squeeze(-1)


def over_time(value: Tensor, axes: int, length: int, time: int = 0) -> tuple[Tensor, ...]:
    """The `length` values from sample `time` on: a constant again and again, else the slices of the time axis.

    Args:
        value: its last `axes` axes are the matrix or vector itself; before them nothing, time, or batch and time.

    Raises:
        BadInput: where the time axis ends too early.
    """
    if value.dim() <= axes:
        return (value,) * length
    there = value.shape[-axes - 1]
    if there == 1 and value.dim() == axes + 2:
        return (value.squeeze(-axes - 1),) * length
    if time < 0 or time + length > there:
        raise BadInput(
            f"a parameter that varies in time is given for {there} samples, and samples {time} to {time + length - 1} "
            "are read: give it for all of them"
        )
    return value.narrow(-axes - 1, time, length).unbind(-axes - 1)


def recur(a: Tensor, b: Tensor, c: Tensor, d: Tensor | None, u_BTM: Tensor, x_BN: Tensor) -> Pair:
    """Outputs (B, T, O) and last state (B, N), sample after sample: the definition. Everything may vary in time."""
    drive_BTN = applied(b, u_BTM)
    states: list[Tensor] = []
    for a_t, drive_BN in zip(over_time(a, 2, u_BTM.shape[1]), drive_BTN.unbind(1)):
        x_BN = applied(a_t, x_BN) + drive_BN
        states.append(x_BN)
    x_BTN = torch.stack(states, 1) if states else drive_BTN
    y_BTO = applied(c, x_BTN)
    return y_BTO if d is None else y_BTO + applied(d, u_BTM), x_BN


def krylov(a_NN: Tensor, v_NK: Tensor, length: int) -> Tensor:
    """v, a v, a^2 v, ...: shape (length, N, K), by doubling: log2(length) products."""
    found, power = v_NK[None], a_NN
    while len(found) < length:
        if len(found) > 1:
            power = power @ power
        found = torch.cat([found, power @ found])
    return found[:length]


def kernel(a_NN: Tensor, b_NM: Tensor, c_ON: Tensor, d_OM: Tensor | None, length: int) -> Tensor:
    """The response to a unit input after 0, 1, ... samples, (length, O, M); d counts at 0 alone."""
    response = c_ON @ krylov(a_NN, b_NM, length)
    if d_OM is None or not length:
        return response
    return torch.cat([response[:1] + d_OM, response[1:]])


def convolve(
    a_NN: Tensor, b_NM: Tensor, c_ON: Tensor, d_OM: Tensor | None, u_BTM: Tensor, x_BN: Tensor
) -> tuple[Tensor, Tensor]:
    """What `recur` gives, all at once through Fourier transforms; nothing may vary in time."""
    T, M = u_BTM.shape[1:]
    if u_BTM.numel() == 0:  # nothing to transform
        return recur(a_NN, b_NM, c_ON, d_OM, u_BTM, x_BN)
    reached = krylov(a_NN, torch.cat([b_NM, x_BN.mT], 1), T + 1)
    from_input_TNM, from_state_TNB = reached[:T, :, :M], reached[1:, :, M:]
    kernel_TOM = c_ON @ from_input_TNM
    size = 2 * T
    bins = torch.einsum("fom,bfm->bfo", torch.fft.rfft(kernel_TOM, size, 0), torch.fft.rfft(u_BTM, size, 1))
    y_BTO = torch.fft.irfft(bins, size, 1)[:, :T] + (c_ON @ from_state_TNB).permute(2, 0, 1)
    last_BN = torch.einsum("tnm,btm->bn", from_input_TNM.flip(0), u_BTM) + from_state_TNB[-1].mT
    return y_BTO if d_OM is None else y_BTO + F.linear(u_BTM, d_OM), last_BN
