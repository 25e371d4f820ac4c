"""HiPPO: matrices of the memories that are the best polynomial approximation of the past.

Gu, Dao, Ermon, Rudra and Re, HiPPO: Recurrent Memory with Optimal Polynomial Projections, 2020. The memory is x' = A x + B u; A carries
its minus sign. LegS, the scaled Legendre measure: all of the past counts alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["legs", "legs_normal"]


def legs(size: int) -> tuple[Tensor, Tensor]:
    """A (N, N) and B (N,) of HiPPO-LegS in float64, without the division by time: A[n, k] = -sqrt((2n+1)(2k+1)) below the diagonal."""
    n = torch.arange(size, dtype=torch.float64)
    b = torch.sqrt(2 * n + 1)
    return -(torch.outer(b, b).tril(-1) + torch.diag(n + 1)), b


def legs_normal(size: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues and input of the normal part of LegS, one of each conjugate pair: complex128 (N/2,), float64 (N/2,).

    A + P P^T with P_n = sqrt(n + 1/2) is -1/2 plus a skew matrix, so it is unitarily diagonal (Gu et al., S4, 2021, appendix C.3;
    S4D, 2022). The free phase of each eigenvector is chosen so that its input is real and not negative. Imaginary parts are positive,
    in increasing order.

    Raises:
        ValueError: if `size` is not even and positive.
    """
    if size < 2 or size % 2:
        raise ValueError(f"the state size must be even and at least 2, got {size}")
    a, b = legs(size)
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    skew = a + torch.outer(p, p) + 0.5 * torch.eye(size, dtype=torch.float64)
    imaginary, vectors = torch.linalg.eigh(-1j * skew)
    keep = imaginary > 0
    eigenvalues = torch.complex(torch.full((size // 2,), -0.5, dtype=torch.float64), imaginary[keep])
    return eigenvalues, (vectors[:, keep].mH @ b.to(vectors.dtype)).abs()
