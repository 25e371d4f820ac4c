"""HiPPO: matrices of the memories that are the best approximation of the past by polynomials or waves.

Gu, Dao, Ermon, Rudra and Re, HiPPO: Recurrent Memory with Optimal Polynomial Projections, 2020; Voelker, Kajic and Eliasmith, Legendre
Memory Units, 2019; Gu, Johnson, Timalsina, Rudra and Re, How to Train Your HiPPO, 2022. The memory is x' = A x + B u; A carries its
minus sign. What a state says about the past is in `conca.ops.hippo_rebuild`, the running of it in `conca.ops.hippo_memory`.

  name           of the past it keeps                                        what weighs it
  legs           all of it, x' = (A x + B u) / t                             all alike (scaled); without the 1/t: exp(-s), s ago
  legsd          as legs, in the limit of large N (HiPPO-N)                  A + P P' and half of B; normal
  legt           a window of 2 time units (translated)                       all alike
  lmu            a window of 1 time unit (translated)                        all alike; legt in other units, newest sample at -1
  lagt           a fading past (translated)                                  Laguerre functions exp(-s/2) L_n(s)
  tlagt          a fading past (tilted)                                      exp(-beta s)
  glagt          a fading past (generalised)                                 s^-alpha exp(-beta s)
  chebt          a window of 2 time units (translated)                       Chebyshev's, both ends of the window more
  fourier        a window of 2 time units                                    all alike, as if periodic
  fourier_decay  as fourier; what leaves is taken for the mean of both ends
  foud           laps of 1 time unit laid over each other                    exp(-s/2)

Translated forms exist for Legendre, Laguerre and Chebyshev. Scaled, Laguerre does not close at finite N: dilating the past multiplies by
the place in it, and under an exponential weight that raises the degree by one. Scaled Chebyshev under a uniform weight spans the
polynomials of LegS: use "legs". LegS itself is often called time-invariant; its matrix is constant, its own update divides by time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from conca.types import BadInput, nearest

__all__ = ["LAGUERRE", "MEASURES", "legs", "legs_normal", "transition"]

Pair = tuple[Tensor, Tensor]


def transition(measure: str, size: int, *, alpha: float = 0.0, beta: float | None = None) -> Pair:
    """A (N, N) and B (N,) of a measure in float64; N is `size`.

    Args:
        measure: one of `MEASURES`.
        size: numbers of memory; even for the Fourier measures.
        alpha: of "glagt", in -1 < alpha < 1.
        beta: of "tlagt" (default 1) and "glagt" (default 0.01), positive: the rate at which the weight fades.

    Raises:
        BadInput: for an unknown measure, a size that does not fit, and alpha or beta that do not.
    """
    checked(measure, size, alpha, beta)
    if measure in LAGUERRE:
        return fading(size, *tilt(measure, alpha, beta)[1:])
    return MATRICES[measure](size)


def legs(size: int) -> Pair:
    """A (N, N) and B (N,) of HiPPO-LegS in float64, without the division by time: A[n, k] = -sqrt((2n+1)(2k+1)) below the diagonal."""
    b = root(size)
    return -(torch.outer(b, b).tril(-1) + torch.diag(counted(size) + 1)), b


def legs_normal(size: int) -> Pair:
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


def counted(size: int) -> Tensor:
    """0, 1, ..., N - 1 in float64."""
    return torch.arange(size, dtype=torch.float64)


def root(size: int) -> Tensor:
    """r_n = sqrt(2n + 1), which makes r_n P_n orthonormal under the mean over -1..1."""
    return torch.sqrt(2 * counted(size) + 1)


def legsd(size: int) -> Pair:
    """HiPPO-N, the normal matrix beside LegS: A + B B' / 2, and half of B, whose dynamics are those of LegS as N grows."""
    a, b = legs(size)
    return a + torch.outer(b, b) / 2, b / 2


def legt(size: int) -> Pair:
    """Translated Legendre, the window 2 long: A[n, k] = -r_n r_k / 2, below n < k times (-1)^(n-k); B = r / 2."""
    n, r = counted(size), root(size)
    sign = torch.where(n[:, None] >= n, 1.0, (-1.0) ** (n[:, None] - n))
    return -torch.outer(r, r) * sign / 2, r / 2


def lmu(size: int) -> Pair:
    """Legendre Memory Unit, the window 1 long: A[n, k] = (2n+1) (-1 if n < k else (-1)^(n-k+1)), B_n = (2n+1) (-1)^n."""
    n = counted(size)
    sign = torch.where(n[:, None] < n, -1.0, (-1.0) ** (n[:, None] - n + 1))
    return (2 * n + 1)[:, None] * sign, (2 * n + 1) * (-1.0) ** n


def fading(size: int, alpha: float, beta: float, gain: float) -> Pair:
    """Laguerre with weight s^-alpha exp(-beta s): -(1 + beta) / 2 on the diagonal, -1 below, in units in which p_n is orthonormal."""
    n = counted(size)
    a = (1 - beta) / 2 * torch.eye(size, dtype=torch.float64) - torch.ones(size, size, dtype=torch.float64).tril()
    half = norms(n, alpha)
    binomial = torch.exp(torch.lgamma(n + alpha + 1) - torch.lgamma(n + 1) - math.lgamma(alpha + 1))
    return a * half / half[:, None], gain * binomial / half


def norms(n: Tensor, alpha: float) -> Tensor:
    """The norm of the generalised Laguerre polynomial L_n^(alpha) under s^alpha exp(-s)."""
    return torch.exp(0.5 * (torch.lgamma(n + alpha + 1) - torch.lgamma(n + 1)))


def tilt(measure: str, alpha: float, beta: float | None) -> tuple[str, float, float, float]:
    """The measure with its alpha, its beta, and the factor of its input: of a Laguerre measure."""
    if measure == "lagt":
        return measure, 0.0, 0.0, 1.0
    if measure == "tlagt":
        return measure, 0.0, 1.0 if beta is None else beta, 1.0 if beta is None else beta
    beta = 0.01 if beta is None else beta
    return measure, alpha, beta, math.exp(-0.5 * math.lgamma(1 - alpha)) * beta ** ((1 - alpha) / 2)


def chebt(size: int) -> Pair:
    """Translated Chebyshev, the window 2 long, under the weight 1 / sqrt(1 - x^2) of the place x = 1 - s in it.

    With e_0 = 1, e_n = sqrt(2), the polynomials e_n T_n are orthonormal under the weight divided by pi; let c_n be the coefficients of
    u(t - s) = sum_n c_n e_n T_n(1 - s). As the window moves on, each value moves from x to x - dt, so d/dt = d/dx on the series, and
    T_k' = 2 k (T_{k-1} + T_{k-3} + ...), the constant halved, gives exactly

        c_n' = sum over k > n, k - n odd, of k e_n e_k c_k.

    Nothing of it knows the new sample; the infinite series does, by its value at the newest end, sum_k c_k e_k = u(t). Cut at N, with
    e_N T_N carrying all that is left, c_N e_N = u - sum_{k<N} c_k e_k (the tau method of Lanczos, 1938), and

        A[n, k] = e_n e_k (k [k > n, k - n odd] - N [N - n odd]),   B_n = e_n N [N - n odd].

    It is exact for a past that is a polynomial of degree N or less. (With the uniform weight instead, the T_n span the polynomials
    of LegT and nothing new comes out.)
    """
    n, e = counted(size), waves(size)
    up = ((n - n[:, None]) % 2 == 1) & (n > n[:, None])
    last = size * ((size - n) % 2)
    return torch.outer(e, e) * (torch.where(up, n, 0.0) - last[:, None]), e * last


def waves(size: int) -> Tensor:
    """1, sqrt(2), sqrt(2), ...: what makes cosines orthonormal."""
    e = torch.full((size,), math.sqrt(2), dtype=torch.float64)
    e[:1] = 1
    return e


def rotation(size: int) -> Pair:
    """A skew matrix that turns the pairs (2k, 2k+1) with frequency k, and the input (1, 0, sqrt 2, 0, sqrt 2, 0, ...)."""
    off = torch.zeros(size - 1, dtype=torch.float64)
    off[::2] = counted(size // 2)
    b = torch.zeros(size, dtype=torch.float64)
    b[::2] = waves(size // 2)
    return torch.diag(off, -1) - torch.diag(off, 1), b


def fourier(size: int) -> Pair:
    """Fourier, the window 2 long: what leaves it is read off the series, which gives the mean of both ends: A = pi S - b b'."""
    s, b = rotation(size)
    return math.pi * s - torch.outer(b, b), b


def fourier_decay(size: int) -> Pair:
    """Fourier with what leaves taken for the value of the series itself: A = pi S - b b' / 2, B = b / 2."""
    s, b = rotation(size)
    return math.pi * s - torch.outer(b, b) / 2, b / 2


def foud(size: int) -> Pair:
    """Fourier, diagonal: A = 2 pi S - 1/2, laps of 1 time unit under exp(-s/2)."""
    s, b = rotation(size)
    return 2 * math.pi * s - 0.5 * torch.eye(size, dtype=torch.float64), b


MATRICES: dict[str, Callable[[int], Pair]] = {
    "legs": legs, "legsd": legsd, "legt": legt, "lmu": lmu, "chebt": chebt,
    "fourier": fourier, "fourier_decay": fourier_decay, "foud": foud,
}  # fmt: skip

LAGUERRE = ("lagt", "tlagt", "glagt")
"""The measures of a fading past."""

MEASURES = (*MATRICES, *LAGUERRE)
"""The names that `transition` knows."""

WAVES = ("fourier", "fourier_decay", "foud")


def checked(measure: str, size: int, alpha: float, beta: float | None) -> None:
    """Raise BadInput for what no measure is."""
    if measure not in MEASURES:
        raise BadInput(f"HiPPO: no measure is called {measure!r}; {nearest(measure, MEASURES)}")
    if size < 1 or (measure in WAVES and size % 2):
        raise BadInput(f"HiPPO {measure!r}: the size is {size}, it must be {'even and ' * (measure in WAVES)}positive")
    if alpha != 0 and (measure != "glagt" or not -1 < alpha < 1):
        raise BadInput(f"HiPPO {measure!r}: alpha is {alpha}; only 'glagt' takes it, between -1 and 1")
    if beta is not None and (measure not in LAGUERRE[1:] or not 0 < beta < math.inf):
        raise BadInput(f"HiPPO {measure!r}: beta is {beta}; only 'tlagt' and 'glagt' take it, and it must be positive")
