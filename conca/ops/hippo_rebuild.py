"""The past rebuilt from a HiPPO state: the functions that its numbers are the coefficients of.

At an age s, the time since, u(t - s) is about sum_n c_n g_n(s). The g_n are Legendre and Chebyshev polynomials of the place in the
window, Laguerre polynomials, waves. Sources as in `conca.ops.hippo`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from conca.ops.hippo import LAGUERRE, checked, norms, root, tilt, waves
from conca.types import BadInput

__all__ = ["SCALED", "basis", "chebyshev", "laguerre", "legendre", "reach", "rebuild"]

SCALED = ("legs", "legsd")
"""The measures that keep all of the past alike, if their update is divided by time."""

WINDOWS = {"legt": 2.0, "lmu": 1.0, "chebt": 2.0, "fourier": 2.0, "fourier_decay": 2.0}


def reach(measure: str, span: float | None = None) -> float:
    """How far back a measure reaches, in its time units: its window, or infinity. `span` is the past that "legs" scaled has seen."""
    return WINDOWS.get(measure, math.inf) if span is None else float(span)


def rebuild(
    measure: str,
    coefficients: Tensor,
    ages: Tensor,
    *,
    span: float | None = None,
    alpha: float = 0.0,
    beta: float | None = None,
) -> Tensor:
    """u(t - s) at the ages s (K,), from the state (..., N): shape (..., K).

    Args:
        measure: one of `conca.ops.hippo.MEASURES`.
        coefficients: the state, as `conca.ops.hippo_memory.project` gives it.
        ages: time since, in the units of the measure, from 0 to `reach`.
        span: for "legs" and "legsd": how long the past is, if the update was divided by time (in the units of `ages`); None if not.
        alpha, beta: as in `conca.ops.hippo.transition`.

    Raises:
        BadInput: for ages outside the memory, or not in a list (K,), coefficients that are not floating point, and a span for a
            measure that has none.
    """
    if coefficients.dim() < 1 or not coefficients.is_floating_point():
        raise BadInput(
            f"HiPPO: coefficients must be floating point of shape (..., N), got {coefficients.dtype} {tuple(coefficients.shape)}"
        )
    g_KN = basis(measure, coefficients.shape[-1], ages, span=span, alpha=alpha, beta=beta)
    return coefficients @ g_KN.to(coefficients).mT


def basis(
    measure: str, size: int, ages: Tensor, *, span: float | None = None, alpha: float = 0.0, beta: float | None = None
) -> Tensor:
    """g_n(s) at the ages s (K,), in float64: shape (K, N). Arguments and errors as in `rebuild`.

    "foud" lays laps of one time unit over each other and cannot tell them apart; of all the pasts with this state it gives the one of
    least energy, which is exp(s/2 - floor(s)) times its waves, up to a factor.
    """
    checked(measure, size, alpha, beta)
    if span is not None and (measure not in SCALED or not 0 < span < math.inf):
        raise BadInput(
            f"HiPPO {measure!r}: span is {span}; only {' and '.join(SCALED)} take it, and it must be positive"
        )
    if ages.dim() != 1:
        raise BadInput(f"HiPPO: ages must be a list (K,), got shape {tuple(ages.shape)}; of one age, give ages[None]")
    s, longest = ages.double(), reach(measure, span)
    least, most = (float(end) for end in torch.aminmax(s.detach())) if s.numel() else (0.0, 0.0)
    if not (least >= 0 and most <= longest * (1 + 1e-9)):
        raise BadInput(f"HiPPO {measure!r}: ages must lie in 0..{longest:g}, got {least:g}..{most:g}")
    if measure in LAGUERRE:
        return fading(size, s, *tilt(measure, alpha, beta))
    if span is not None:
        return root(size) * legendre(1 - 2 * s / span, size)
    return FUNCTIONS[measure](size, s)


def legendre(x: Tensor, size: int) -> Tensor:
    """P_0(x), ..., P_{size-1}(x), on a new last axis."""
    return _three_terms(x, size, lambda n, x, p, q: ((2 * n + 1) * x * p - n * q) / (n + 1), x)


def chebyshev(x: Tensor, size: int) -> Tensor:
    """T_0(x), ..., T_{size-1}(x), on a new last axis."""
    return _three_terms(x, size, lambda n, x, p, q: 2 * x * p - q, x)


def laguerre(x: Tensor, size: int, alpha: float = 0.0) -> Tensor:
    """The generalised Laguerre polynomials L_0^(alpha)(x), ..., on a new last axis."""
    return _three_terms(
        x, size, lambda n, x, p, q: ((2 * n + 1 + alpha - x) * p - (n + alpha) * q) / (n + 1), 1 + alpha - x
    )


def _three_terms(x: Tensor, size: int, following: Callable[..., Tensor], first: Tensor) -> Tensor:
    """Orthogonal polynomials by their recurrence, p_{n+1} from p_n and p_{n-1}."""
    values = [torch.ones_like(x), first]
    for n in range(1, size - 1):
        values.append(following(n, x, values[n], values[n - 1]))
    return torch.stack(values[:size], -1)


def fading(size: int, s: Tensor, measure: str, alpha: float, beta: float, gain: float) -> Tensor:
    """Laguerre: p_n(s) s^alpha exp(-(1 - beta) s / 2) over the gain of the input; for "lagt" beta is 0."""
    n = torch.arange(size, dtype=torch.float64)
    weight = s**alpha * torch.exp(-(1 - beta) / 2 * s) / gain
    return weight[:, None] * laguerre(s, size, alpha) / norms(n, alpha)


def circles(size: int, s: Tensor, rate: float) -> Tensor:
    """(1, 0, sqrt 2 cos, sqrt 2 sin, ...) of rate k s, k = 0, 1, ..."""
    turn = rate * s[:, None] * torch.arange(size // 2, dtype=torch.float64)
    return (waves(size // 2)[:, None] * torch.stack([turn.cos(), turn.sin()], -1)).flatten(1)


def laps(size: int, s: Tensor) -> Tensor:
    """The least energy for "foud"; s is the age."""
    return ((1 - math.exp(-1)) * torch.exp(s / 2 - s.floor()))[:, None] * circles(size, s, 2 * math.pi)


def faded(size: int, s: Tensor) -> Tensor:
    """LegS without its division by time: Legendre in the warped time 2 exp(-s) - 1."""
    return root(size) * legendre(2 * torch.exp(-s) - 1, size)


FUNCTIONS: dict[str, Callable[[int, Tensor], Tensor]] = {
    "legs": faded,
    "legsd": faded,
    "legt": lambda size, s: root(size) * legendre(1 - s, size),
    "lmu": lambda size, s: legendre(2 * s - 1, size),
    "chebt": lambda size, s: waves(size) * chebyshev(1 - s, size),
    "fourier": lambda size, s: circles(size, s, math.pi),
    "fourier_decay": lambda size, s: circles(size, s, math.pi),
    "foud": laps,
}
