"""From continuous to discrete time: h' = A h + B u becomes h_t = a h_{t-1} + b u_t over a step of length `step`.

Diagonal A is a vector of eigenvalues (real or complex), and b is the factor of an input with B = 1; dense A is a matrix and
b has B in it. `step` broadcasts against the eigenvalues (in front of the matrices), so steps may differ by channel, row and time.

  zero-order hold       a = exp(step A)                                     b = A^-1 (a - 1) B, limit step B at A = 0
  generalised bilinear  a = (1 - alpha step A)^-1 (1 + (1 - alpha) step A)  b = (1 - alpha step A)^-1 step B
                        alpha 0: forward Euler, 1: backward Euler, 1/2: bilinear (Tustin)

(Gu et al., HiPPO, 2020, appendix B; Zhang et al. 2007 for the generalised bilinear transform.)
"""

from __future__ import annotations

from math import factorial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from conca.ops.doors import apply
from conca.types import BadInput

__all__ = [
    "backward_euler",
    "bilinear",
    "dense_generalised_bilinear",
    "dense_zero_order_hold",
    "expm1",
    "forward_euler",
    "generalised_bilinear",
    "irregular",
    "phi",
    "zero_order_hold",
]

Pair = tuple[Tensor, Tensor]


def zero_order_hold(eigenvalues: Tensor, step: Tensor) -> Pair:
    """(a, b) for an input held constant over each step; exact and differentiable at eigenvalue 0 too."""
    z = eigenvalues * step
    return torch.exp(z), step * phi(z)


def forward_euler(eigenvalues: Tensor, step: Tensor) -> Pair:
    """(a, b) = (1 + step A, step); stable only where |a| < 1."""
    return generalised_bilinear(eigenvalues, step, 0.0)


def backward_euler(eigenvalues: Tensor, step: Tensor) -> Pair:
    """(a, b) = (1, step) / (1 - step A)."""
    return generalised_bilinear(eigenvalues, step, 1.0)


def bilinear(eigenvalues: Tensor, step: Tensor) -> Pair:
    """(a, b) = (1 + step A / 2, step) / (1 - step A / 2), the trapezoid rule."""
    return generalised_bilinear(eigenvalues, step, 0.5)


def generalised_bilinear(eigenvalues: Tensor, step: Tensor, alpha: float) -> Pair:
    """(a, b) = (1 + (1 - alpha) step A, step) / (1 - alpha step A). Raises BadInput for alpha outside 0..1."""
    _check(alpha)
    z = eigenvalues * step
    below = 1 - alpha * z
    return (1 + (1 - alpha) * z) / below, step / below


def irregular(transform: str, eigenvalues: Tensor, dt: Tensor, elapsed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(a, factor, fixed) with b = factor * fixed, for steps of dt * elapsed; only `fixed` does not depend on the elapsed time.

    Few passes over the shape of eigenvalues * elapsed, and as few backward: what to use where steps differ at every time.
    Args:
        transform: "zoh" or "bilinear".
        eigenvalues, dt: of the modes; "zoh" divides by the eigenvalues, and takes one that is 0 as one that is next to it.
        elapsed: broadcasts against them.
    """
    if transform == "zoh":
        tiny = torch.finfo(eigenvalues.dtype).tiny ** 0.5
        eigenvalues = torch.where(eigenvalues.abs() < tiny, -tiny, eigenvalues)
    z = (eigenvalues * dt) * elapsed
    if transform == "zoh":
        grown = expm1(z)
        return grown + 1, grown, eigenvalues.reciprocal()
    below = (1 - z / 2).reciprocal()
    return 2 * below - 1, elapsed * below, dt


def dense_zero_order_hold(A_NN: Tensor, B_NM: Tensor, step: Tensor) -> Pair:
    """(a, b) of shapes (*step, N, N) and (*step, N, M): one exponential of [[A, B], [0, 0]], so A may be singular."""
    size = A_NN.shape[-1]
    block = torch.nn.functional.pad(torch.cat([A_NN, B_NM], -1), (0, 0, 0, B_NM.shape[-1]))
    joint = torch.linalg.matrix_exp(block * step[..., None, None])
    return joint[..., :size, :size], joint[..., :size, size:]


def dense_generalised_bilinear(A_NN: Tensor, B_NM: Tensor, step: Tensor, alpha: float = 0.5) -> Pair:
    """(a, b) of shapes (*step, N, N) and (*step, N, M). Raises BadInput for alpha outside 0..1."""
    _check(alpha)
    size, step = A_NN.shape[-1], step[..., None, None]
    eye = torch.eye(size, dtype=A_NN.dtype, device=A_NN.device)
    right = torch.cat([eye + (1 - alpha) * step * A_NN, step * B_NM], -1)
    joint = torch.linalg.solve(eye - alpha * step * A_NN, right)
    return joint[..., :size], joint[..., size:]


def _check(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise BadInput(f"generalised bilinear transform: alpha is {alpha}, it must lie in 0..1")


def expm1(z: Tensor) -> Tensor:
    """exp(z) - 1 without cancellation; for complex z made of real functions, several times faster than PyTorch's."""
    return cast(Tensor, apply(_Expm1, z)) if z.is_complex() else torch.expm1(z)


class _Expm1(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        grown, turn = torch.expm1(z.real), z.imag.contiguous()
        lack = 2 * torch.sin(turn / 2).square()  # 1 - cos
        return torch.complex(grown - (grown + 1) * lack, (grown + 1) * torch.sin(turn))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (grown,) = ctx.saved_tensors
        return cast(Tensor, g * (grown + 1).conj())


def phi(z: Tensor) -> Tensor:
    """(exp(z) - 1) / z, and 1 at z = 0, without cancellation in it or in its derivatives of any order."""
    return cast(Tensor, apply(_Phi, z, 1))


TERMS = 22


class _Phi(Function):
    """phi_k(z) = (phi_{k-1}(z) - 1 / (k-1)!) / z with phi_0 = exp; d phi_k / dz = phi_k - k phi_{k+1}."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, order: int) -> Tensor:
        flat = z.abs() < torch.finfo(z.dtype).tiny ** 0.5  # complex division fails on numbers that underflow
        safe = torch.where(flat, 1, z)
        value = torch.expm1(safe) / safe
        if order == 1:
            return torch.where(flat, 1 + z / 2, value)
        for k in range(1, order):
            value = (value - 1 / factorial(k)) / safe
        series, near = torch.zeros_like(z), torch.where(z.abs() < 2, z, 0)
        for k in range(TERMS, -1, -1):
            series = series * near + 1 / factorial(k + order)
        return torch.where(z.abs() < 2, series, value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.order = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        k = ctx.order
        return g * (apply(_Phi, z, k) - k * apply(_Phi, z, k + 1)).conj(), None
