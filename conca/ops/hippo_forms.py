"""HiPPO in diagonal forms: normal plus low rank, and the normal part alone.

LegS has distinct eigenvalues, -1 to -N, but eigenvectors so nearly parallel (condition 1e10 at N = 16) that floating point cannot use
them. A matrix of rank 1 or 2 away lies one that is normal, a skew matrix and a multiple of 1, whose eigenvectors are at right angles:

    A + P P' = S,   S = V diag(lambda) V*,   x = V z,   z' = diag(lambda) z - p (p* z) + b u,   p = V* P, b = V* B

Everything is real, so the eigenvalues are conjugate in pairs and one of each pair is kept. Gu, Goel and Re, Efficiently Modeling Long
Sequences with Structured State Spaces (S4), 2021, appendix C.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from conca.ops.hippo import transition, waves
from conca.types import BadInput

__all__ = ["LowRank", "diagonal", "diagonal_plus_low_rank", "normal"]

FLAT = 1e-9
"""An eigenvalue below this, beside the largest, is zero: the Fourier measures have one pair of them."""

INSTEAD = {
    "lmu": "its units are not orthonormal; 'legt' is the same memory in units that are",
    "chebt": "its symmetric part has full rank; use the dense matrix of 'transition'",
}


class LowRank(NamedTuple):
    """A real system in complex coordinates, one of each conjugate pair: A = 2 Re(V diag(lambda) V*) - P P', P = 2 Re(V p')."""

    eigenvalues_N: Tensor
    """complex128 (N/2,), imaginary parts not negative, ascending."""
    p_RN: Tensor
    """complex128 (R, N/2)."""
    b_N: Tensor
    """complex128 (N/2,), real and not negative by choice of the eigenvectors' phases."""
    vectors_NN: Tensor
    """complex128 (N, N/2): V, with x = 2 Re(V z) and z = V* x."""


def normal(measure: str, size: int, *, alpha: float = 0.0, beta: float | None = None) -> Tensor:
    """S = A + P P' (N, N) in float64: skew plus a multiple of 1.

    Raises:
        BadInput: for an unknown measure, and for one without such a form.
    """
    p_RN = low_rank(measure, size, alpha)
    return transition(measure, size, alpha=alpha, beta=beta)[0] + p_RN.T @ p_RN


def low_rank(measure: str, size: int, alpha: float = 0.0) -> Tensor:
    """P (R, N) in float64, R = 0, 1 or 2: what has to be added as P' P to make A normal."""
    n = torch.arange(size, dtype=torch.float64)
    if measure == "legs":
        return torch.sqrt(n + 0.5)[None]
    if measure == "legt":
        p = torch.sqrt(n + 0.5)
        return torch.stack([p * (n % 2), p * (1 - n % 2)])
    if measure in ("lagt", "tlagt", "glagt"):
        if alpha:
            raise BadInput(f"HiPPO {measure!r} with alpha {alpha} is not normal plus low rank; with alpha 0 it is")
        return torch.full((1, size), 0.5**0.5, dtype=torch.float64)
    if measure in ("fourier", "fourier_decay"):
        b = torch.zeros(size, dtype=torch.float64)
        b[::2] = waves((size + 1) // 2)
        return b[None] * (1.0 if measure == "fourier" else 0.5**0.5)
    if measure in INSTEAD:
        raise BadInput(f"HiPPO {measure!r} is not normal plus low rank: {INSTEAD[measure]}")
    return torch.zeros(0, size, dtype=torch.float64)


def diagonal_plus_low_rank(
    measure: str, size: int, *, rank: int | None = None, alpha: float = 0.0, beta: float | None = None
) -> LowRank:
    """The system of a measure as diagonal plus low rank: rank 1, for "legt" 2, for "legsd" and "foud" 0.

    Args:
        measure: one of `conca.ops.hippo.MEASURES`.
        size: N, even.
        rank: rows of `p_RN`; zeros fill those that the measure does not need. None is as many as it needs.
        alpha, beta: as in `conca.ops.hippo.transition`.

    Raises:
        BadInput: for an odd size, a measure without this form, and a rank that is too small.
    """
    if size < 2 or size % 2:
        raise BadInput(f"HiPPO {measure!r}: the size is {size}; conjugate pairs need one that is even and at least 2")
    _, b_N = transition(measure, size, alpha=alpha, beta=beta)
    skew = normal(measure, size, alpha=alpha, beta=beta)
    p_RN = low_rank(measure, size, alpha)
    if rank is not None and rank < len(p_RN):
        raise BadInput(f"HiPPO {measure!r}: rank {rank} is asked for, it needs {len(p_RN)}")
    shift = skew.diagonal().mean().round(decimals=12)  # 0 where it is 0, never a little above
    frequencies, vectors = upper(skew - shift * torch.eye(size, dtype=torch.float64), b_N)
    p = p_RN.to(vectors.dtype) @ vectors.conj()
    if rank is not None:
        p = torch.nn.functional.pad(p, (0, 0, 0, rank - len(p)))
    inputs = (vectors.mH @ b_N.to(vectors.dtype)).abs()
    eigenvalues = torch.complex(shift.expand(len(frequencies)), frequencies)
    return LowRank(eigenvalues, p, inputs.to(vectors.dtype), vectors)


def diagonal(measure: str, size: int, *, alpha: float = 0.0, beta: float | None = None) -> tuple[Tensor, Tensor]:
    """The normal part alone: eigenvalues complex128 (N/2,) and inputs float64 (N/2,), one of each conjugate pair.

    For "legs" that is `conca.ops.hippo.legs_normal` (B is not halved). "fourier" does not decay at all without its low rank: for a
    diagonal memory of waves take "foud".

    Raises:
        BadInput: as `diagonal_plus_low_rank`.
    """
    form = diagonal_plus_low_rank(measure, size, alpha=alpha, beta=beta)
    return form.eigenvalues_N, form.b_N.real


def upper(skew_NN: Tensor, b_N: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies (N/2,), ascending, and eigenvectors (N, N/2) of the upper half of a skew matrix, V* b real and not negative.

    A double eigenvalue 0 has real eigenvectors: n along b and m across it make the pair (n - i m) / sqrt 2 and its conjugate.
    """
    frequencies, vectors = torch.linalg.eigh(-1j * skew_NN)
    flat = frequencies.abs() <= FLAT * frequencies.abs().max()
    keep = (frequencies > 0) & ~flat
    frequencies, kept = frequencies[keep], vectors[:, keep]
    pairs = int(flat.sum()) // 2
    if pairs:
        joined = torch.cat([vectors[:, flat].real, vectors[:, flat].imag], 1)
        real = torch.linalg.svd(joined, full_matrices=False).U[:, : 2 * pairs]
        turn = torch.linalg.qr(torch.cat([(real.T @ b_N)[:, None], torch.eye(2 * pairs, dtype=real.dtype)], 1)).Q
        real = real @ turn
        kept = torch.cat([torch.complex(real[:, ::2], -real[:, 1::2]) / 2**0.5, kept], 1)
        frequencies = torch.cat([frequencies.new_zeros(pairs), frequencies])
    inputs = kept.mH @ b_N.to(kept.dtype)
    phase = torch.where(inputs.abs() > FLAT, inputs, 1)
    return frequencies, kept * (phase / phase.abs())
