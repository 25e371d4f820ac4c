"""Eigenvalues from which diagonal state spaces start, and what the input gives to each mode.

  legs     of the normal part of HiPPO-LegS            lin    -1/2 + i pi n
  fourier  -1/2 + 2 pi i n, of the diagonal HiPPO      inv    -1/2 + i (N/pi) (N/(2n+1) - 1)
           memory of waves ("foud")                    quad   -1/2 + i (2n+1)^2 / pi
  random   -1/2 + i exp(g), g standard normal          real   -(n+1), n = 0..N-1

One of each conjugate pair is kept: N/2 complex modes, imaginary parts not negative. "real" has no pairs: N real modes, so that a state
has N numbers in every case. Gu, Gupta, Goel and Re, On the Parameterization and Initialization of Diagonal State Space Models, 2022;
for the waves Gu, Johnson, Timalsina, Rudra and Re, How to Train Your HiPPO, 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from conca.ops.hippo import legs_normal
from conca.ops.hippo_forms import diagonal
from conca.types import BadInput, nearest

__all__ = ["SPECTRA", "spectrum"]

Pair = tuple[Tensor, Tensor]


def spectrum(name: str, size: int) -> Pair:
    """Eigenvalues and inputs of a start: complex128 and float64 (N/2,), both float64 (N,) for "real"; N is `size`.

    Raises:
        BadInput: for an unknown name and a size that is not even and positive.

    >>> spectrum("real", 4)[0]
    tensor([-1., -2., -3., -4.], dtype=torch.float64)
    >>> spectrum("lin", 4)[0]
    tensor([-0.5000+0.0000j, -0.5000+3.1416j], dtype=torch.complex128)
    """
    if name not in SPECTRA:
        raise BadInput(f"unknown init {name!r}; {nearest(name, SPECTRA)}")
    if size < 2 or size % 2:
        raise BadInput(f"the state size must be even and at least 2, got {size}")
    return SPECTRA[name](size)


def lin(size: int) -> Pair:
    """Frequencies evenly spaced: those of a Fourier series over 2 units of time."""
    return turning(math.pi * counted(size // 2))


def inv(size: int) -> Pair:
    """The spacing of LegS written as a law: many slow modes, few fast ones."""
    return turning(size / math.pi * (size / (2 * counted(size // 2) + 1) - 1))


def quad(size: int) -> Pair:
    """Frequencies that grow with the square."""
    return turning((2 * counted(size // 2) + 1).square() / math.pi)


def random(size: int) -> Pair:
    """Log-normal frequencies, from PyTorch's generator."""
    return turning(torch.randn(size // 2, dtype=torch.float64).exp())


def real(size: int) -> Pair:
    """The eigenvalues of LegS itself: modes that decay and do not turn."""
    return -(counted(size) + 1), torch.ones(size, dtype=torch.float64)


def fourier(size: int) -> Pair:
    """Waves of 1 unit of time, laid over each other as they fade."""
    return diagonal("foud", size)


def turning(frequency: Tensor) -> Pair:
    """Decay 1/2 and input 1 in every mode."""
    return torch.complex(torch.full_like(frequency, -0.5), frequency), torch.ones_like(frequency)


def counted(size: int) -> Tensor:
    """0, 1, ..., size - 1 in float64."""
    return torch.arange(size, dtype=torch.float64)


SPECTRA: dict[str, Callable[[int], Pair]] = {
    "legs": legs_normal, "lin": lin, "inv": inv, "quad": quad, "real": real, "fourier": fourier, "random": random,
}  # fmt: skip
"""The known starts."""
