"""The convolution kernel of a state space of diagonal plus low rank, from its generating function at the roots of unity.

x' = A x + B u, y = Re(sum c x), with A x = lambda x - sum_r p_r Re(sum q_r x): the bilinear transform over steps dt gives the kernel
K_l = c Abar^l Bbar. Its first L numbers are the inverse Fourier transform of what the *truncated* generating function
  sum_{l < L} K_l omega^l = c~ (1 - omega Abar)^-1 Bbar,   c~ = c (1 - Abar^L)
takes at omega = exp(-2 i phi), phi = pi j / L. With h = dt / 2 it is, exactly and at every node,
  exp(i phi) c~ (i sin phi - cos phi h A)^-1 h B,
a Cauchy sum over the modes of h lambda, and one step of Sherman and Morrison (Woodbury's formula) for every rank. At phi = pi / 2,
the Nyquist frequency of an even L, where the usual node 2 (1 - omega) / (1 + omega) is infinite, it is h c~ B: no case of its own.

Gu, Goel and Re, Efficiently Modeling Long Sequences with Structured State Spaces, 2022, appendix C; the scaling by cos phi is ours.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from conca.ops.cauchy import low_rank_cauchy
from conca.ops.dplr import dplr_generalised_bilinear
from conca.types import BadInput

__all__ = [
    "DPLR",
    "advanced",
    "dense",
    "doubled",
    "dplr_kernel",
    "dplr_kernel_recurrence",
    "nodes",
    "state_inputs",
    "truncate",
    "untruncate",
]


class DPLR(NamedTuple):
    """x' = lambda x - sum_r p_r Re(sum_n q_rn x_n) and a step: complex (D, N), (R, D, N), (R, D, N) and real (D,).

    One of each conjugate pair of modes is kept, so q (like c) carries the factor 2 of its pair: q = 2 conj(p) for HiPPO.
    """

    eigenvalues_DN: Tensor
    p_RDN: Tensor
    q_RDN: Tensor
    dt_D: Tensor

    def at(self, rate: float | Tensor) -> Self:
        """The same system read at another sampling rate: every step takes `rate` times as long."""
        return self._replace(dt_D=self.dt_D * rate)

    def discretised(self, b_MDN: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a (D, N), p, q (R, D, N), b (M, D, N) of h_t = a h - sum_r p_r Re(sum q_r h) + b u, by the bilinear transform."""
        parts = [dplr_generalised_bilinear(*self[:3], b_DN, self.dt_D[:, None]) for b_DN in b_MDN]
        return *parts[0][:3], torch.stack([part[3] for part in parts])


def dplr_kernel(system: DPLR, b_MDN: Tensor, c_VDN: Tensor, length: int, *, truncated: bool = False) -> Tensor:
    """K[v, m, d, l] = Re(c_v Abar^l Bbar_m): (V, M, D, length) real, of the bilinear transform.

    b (M, D, N) and c (V, D, N) complex. With `truncated`, c is c~ = c (1 - Abar^length) already, as `truncate` gives it: then no dense
    power is computed. Length 0 gives an empty kernel. Eigenvalues need negative real parts, however small: on the imaginary axis one
    may meet a node, as 0 does, and then nothing of the kernel is finite.
    Raises BadInput where the shapes do not fit, and for a negative length.
    """
    _check(system, b_MDN, c_VDN)
    if length < 0:
        raise BadInput(f"a kernel has a length of 0 or more, not {length}")
    tilde = c_VDN if truncated else truncate(system, c_VDN, length)
    half, (V, M, R) = system.dt_D[:, None] / 2, (len(c_VDN), len(b_MDN), len(system.p_RDN))
    if length < 1 or b_MDN.numel() == 0:
        return half.new_zeros(V, M, len(half), length)
    left, right = torch.cat([tilde, system.q_RDN]), torch.cat([b_MDN, system.p_RDN]) * half
    v_DVMN = (left.movedim(0, 1)[:, :, None] * right.movedim(0, 1)[:, None]) / 2
    sin, cos = nodes(length, half)
    spectrum = low_rank_cauchy(v_DVMN, system.eigenvalues_DN * half, sin, cos, rank=R) * torch.complex(cos, sin)
    numbers: Tensor = torch.fft.irfft(spectrum, length)
    return numbers.permute(1, 2, 0, 3)


def nodes(length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Sine and cosine of pi j / length for j = 0 .. length // 2; exactly 1 and 0 at the Nyquist frequency of an even length."""
    angle = torch.arange(length // 2 + 1, dtype=torch.float64, device=like.device) * (math.pi / length)
    sin, cos = angle.sin(), angle.cos()
    if length % 2 == 0:
        cos[-1] = 0
    return sin.to(like.dtype), cos.to(like.dtype)


def dplr_kernel_recurrence(
    system: DPLR, b_MDN: Tensor, c_VDN: Tensor, length: int, *, truncated: bool = False
) -> Tensor:
    """`dplr_kernel` as it is defined: the response to an impulse, one step after another."""
    _check(system, b_MDN, c_VDN)
    c = untruncate(system, c_VDN, length) if truncated else c_VDN
    a, p, q, h = system.discretised(b_MDN)
    numbers = []
    for _ in range(length):
        numbers.append((c[:, None] * h).sum(-1).real)
        h = a * h - (p[:, None] * (q[:, None] * h).sum(-1, keepdim=True).real).sum(0)
    return torch.stack(numbers, -1) if numbers else c.real.new_zeros(len(c), *b_MDN.shape[:2], 0)


def state_inputs(system: DPLR, h_BDN: Tensor) -> Tensor:
    """(B, D, N): the "b" whose kernel is what states h are still seen by, K[v, r, d, l] = Re(c_v Abar^(l+1) h_r).

    It is (1 + dt A / 2) h / dt, whose discrete form is Abar h.
    """
    eigenvalues, p, q, dt_D = system
    low_rank = (p[:, None] * (q[:, None] * h_BDN).sum(-1, keepdim=True).real).sum(0)
    return h_BDN / dt_D[:, None] + (eigenvalues * h_BDN - low_rank) / 2


def truncate(system: DPLR, c_VDN: Tensor, length: int) -> Tensor:
    """c~ = c (1 - Abar^length): what the generating function of the first `length` numbers of the kernel needs."""
    return c_VDN - advanced(system, c_VDN, length)


def untruncate(system: DPLR, tilde_VDN: Tensor, length: int) -> Tensor:
    """c from c~ = c (1 - Abar^length)."""
    power = torch.linalg.matrix_power(_step(system, tilde_VDN), length)
    kept = torch.eye(power.shape[-1], dtype=power.dtype, device=power.device) - power
    return _modes(torch.linalg.solve(kept, _row(tilde_VDN), left=False))


def doubled(system: DPLR, tilde_VDN: Tensor, length: int) -> Tensor:
    """The c~ of twice the length: c~ (1 + Abar^length)."""
    return tilde_VDN + advanced(system, tilde_VDN, length)


def advanced(system: DPLR, c_VDN: Tensor, length: int) -> Tensor:
    """c Abar^length (V, D, N): how outputs read the state of `length` steps ago. Exact and differentiable; the dense matrix is squared."""
    row = _row(c_VDN)
    square = _step(system, c_VDN) if length else None
    while square is not None:
        if length % 2:
            row = row @ square
        length //= 2
        square = square @ square if length else None
    return _modes(row)


def dense(a_DN: Tensor, p_RDN: Tensor, q_RDN: Tensor) -> Tensor:
    """(D, 2 N, 2 N) real: the step h -> a h - sum_r p_r Re(sum q_r h) as a matrix on `view_as_real(h).flatten(-2)`."""
    rotation = torch.stack([a_DN.real, -a_DN.imag, a_DN.imag, a_DN.real], 1).reshape(-1, 2, 2, a_DN.shape[-1])
    square = torch.diag_embed(rotation).permute(0, 3, 1, 4, 2)
    columns = torch.view_as_real(p_RDN.resolve_conj()).flatten(-2)
    size = columns.shape[-1]
    return square.reshape(-1, size, size) - torch.einsum("rdi,rdk->dik", columns, _real(q_RDN))


def _step(system: DPLR, like: Tensor) -> Tensor:
    a, p, q, _ = system.discretised(torch.zeros_like(like[:1]))
    return dense(a, p, q)


def _real(c: Tensor) -> Tensor:
    """Re(sum c h) as a row (..., 2 N) of numbers on `view_as_real(h).flatten(-2)`."""
    return torch.view_as_real(c.conj().resolve_conj()).flatten(-2)


def _row(c_VDN: Tensor) -> Tensor:
    """(D, V, 2 N)."""
    return _real(c_VDN).movedim(0, 1)


def _modes(row: Tensor) -> Tensor:
    """The inverse of `_row`."""
    return torch.view_as_complex(row.movedim(1, 0).reshape(*row.shape[1::-1], -1, 2).contiguous()).conj().resolve_conj()


def _check(system: DPLR, b_MDN: Tensor, c_VDN: Tensor) -> None:
    eigenvalues, p, q, dt = system
    for name, t in {"p": p, "q": q, "b": b_MDN, "c": c_VDN}.items():
        if t.ndim != 3 or t.shape[1:] != eigenvalues.shape:
            raise BadInput(
                f"dplr kernel: {name} has shape {tuple(t.shape)}, not (any, {', '.join(map(str, eigenvalues.shape))})"
            )
    if p.shape != q.shape or dt.shape != eigenvalues.shape[:1]:
        raise BadInput(
            f"dplr kernel: p {tuple(p.shape)} and q {tuple(q.shape)} must be alike, dt {tuple(dt.shape)} one number a channel"
        )
