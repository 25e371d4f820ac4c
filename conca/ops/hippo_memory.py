"""HiPPO memories at work: a sequence read into coefficients, step by step, translated or scaled.

Translated: x' = A x + B u over steps of length dt, time-invariant. Scaled (LegS): c' = (A c + B u) / t, where the k-th update, k samples
read before it, goes from t = k to k + 1; with A_k = A / k, B_k = B / k and a = alpha,

    c_{k+1} = (1 - a A_{k+1})^-1 ((1 + (1 - a) A_k) c_k + ((1 - a) B_k + a B_{k+1}) u_k)      a 0, 1, 1/2: Euler forward, back, bilinear
    c_{k+1} = exp(A log((k+1) / k)) (c_k + A^-1 B u_k) - A^-1 B u_k                             zero-order hold, exact for held input

and the first sample makes the past constant, c_1 = (u, 0, 0, ...), in every method. (Published code takes A_k on both sides of the
bilinear rule, whose error then falls no faster than that of Euler.)

Gu, Dao, Ermon, Rudra and Re, HiPPO, 2020, appendices B.3 and E. The update of LegS in time linear in N is `legs_advance`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conca.ops.discretise import dense_generalised_bilinear, dense_zero_order_hold
from conca.ops.doors import raised
from conca.ops.hippo import LAGUERRE, root, transition
from conca.ops.hippo_rebuild import SCALED, legendre
from conca.ops.scan import scan
from conca.types import BadInput, nearest

__all__ = [
    "ALPHAS",
    "METHODS",
    "legs_advance",
    "legs_stretch",
    "project",
    "scaled_steps",
    "translated_steps",
]

ALPHAS = {"forward": 0.0, "backward": 1.0, "bilinear": 0.5}
"""The generalised bilinear transforms by name."""

METHODS = (*ALPHAS, "zoh")
"""Forward and backward Euler, bilinear (the trapezoid rule), zero-order hold."""

BLOCK = 256
"""Steps whose matrices are computed at once."""

Pair = tuple[Tensor, Tensor]


def project(
    u: Tensor,
    measure: str,
    size: int,
    *,
    dt: float = 1.0,
    scaled: bool | None = None,
    method: str = "zoh",
    state: Tensor | None = None,
    seen: int = 0,
    every: bool = False,
    alpha: float = 0.0,
    beta: float | None = None,
) -> Tensor:
    """The memory of a sequence u (B, T) or (B, T, D) after its last sample: (B, N) or (B, D, N).

    Args:
        u: samples, each held until the next.
        measure: one of `conca.ops.hippo.MEASURES`.
        size: N, numbers of memory of each channel.
        dt: the time between samples in the units of the measure; without effect where the memory is scaled.
        scaled: whether the update is divided by the time read so far; None is True for "legs" and "legsd", which alone can.
        method: one of `METHODS`.
        state: the memory of what was read before, of the shape that is returned; None is nothing.
        seen: samples read before, where the memory is scaled.
        every: give the memory after each sample, (B, T, N) or (B, T, D, N).
        alpha, beta: as in `conca.ops.hippo.transition`.

    Raises:
        BadInput: for an unknown measure or method, a scaled memory that does not exist, a step that is not above 0, less than
            nothing seen, and a state of another shape.
    """
    scaled = measure in SCALED if scaled is None else scaled
    if scaled:
        scalable(measure)
    if method not in METHODS:
        raise BadInput(f"HiPPO: no method is called {method!r}; {nearest(method, METHODS)}")
    if not 0 < dt < math.inf:
        raise BadInput(f"HiPPO: dt is the time between samples, above 0 and finite, got {dt}")
    if not 0 <= seen < math.inf:
        raise BadInput(f"HiPPO: seen is how many samples were read before, at least 0, got {seen}")
    if u.dim() not in (2, 3):
        raise BadInput(f"HiPPO: u has shape {tuple(u.shape)}; it must be (batch, time) or (batch, time, channels)")
    system = transition(measure, size, alpha=alpha, beta=beta)
    u = u.to(raised(u.dtype))
    x = u.new_zeros(len(u), *u.shape[2:], size) if state is None else state
    if x.shape != (len(u), *u.shape[2:], size):
        raise BadInput(f"HiPPO: the state has shape {tuple(x.shape)}, expected {(len(u), *u.shape[2:], size)}")
    steps = None if scaled else translated_steps(*system, torch.tensor(dt, dtype=torch.float64), method)
    kept = []
    for begin in range(0, u.shape[1], BLOCK):
        block = u[:, begin : begin + BLOCK]
        before = torch.arange(seen + begin, seen + begin + block.shape[1]).double()
        if steps is not None:
            a, b = steps
        elif measure == "legs" and method == "zoh":
            a, b = legs_stretch(before / (before + 1), size)
        else:
            a, b = scaled_steps(*system, before, torch.ones_like(before), method)
        a, b = a.to(u).expand(len(before), -1, -1), b.to(u).expand(len(before), -1)
        for t, u_B in enumerate(block.unbind(1)):
            x = x @ a[t].mT + u_B[..., None] * b[t]
            if every:
                kept.append(x)
    if not every:
        return x
    return torch.stack(kept, 1) if kept else x.new_zeros(*u.shape, size)


def scalable(measure: str) -> None:
    """Raise BadInput for a measure that has no scaled form, with the reason."""
    if measure in SCALED:
        return
    reasons = dict.fromkeys(
        LAGUERRE,
        "does not close at finite N: dilating the past raises the degree by one under an exponential weight",
    )
    reasons["chebt"] = "under a uniform weight spans the polynomials of LegS, under its own does not close"
    reasons |= dict.fromkeys(("legt", "lmu"), "is the measure of LegS")
    reason = reasons.get(measure, "does not close: dilating the past multiplies a wave by the place in it")
    raise BadInput(f"HiPPO {measure!r} is translated only; scaled it {reason}; use 'legs'")


def translated_steps(A_NN: Tensor, B_N: Tensor, dt: Tensor, method: str) -> Pair:
    """x_t = a x_{t-1} + b u_t over steps dt of any shape: a (*dt, N, N), b (*dt, N)."""
    if method == "zoh":
        a, b = dense_zero_order_hold(A_NN, B_N[:, None], dt)
    else:
        a, b = dense_generalised_bilinear(A_NN, B_N[:, None], dt, ALPHAS[method])
    return a, b[..., 0]


def scaled_steps(A_NN: Tensor, B_N: Tensor, before: Tensor, passed: Tensor, method: str) -> Pair:
    """As `translated_steps` for the scaled memory, which has read for `before` and reads for `passed`, of any common shape.

    Where nothing was read before, b is (1, 0, ...) and a is 0.
    """
    fresh = before == 0
    begin = passed / torch.where(fresh, 1, before)
    end = passed / torch.where(before + passed == 0, 1, before + passed)
    if method == "zoh":
        a, b = dense_zero_order_hold(A_NN, B_N[:, None], torch.log1p(begin))
    else:
        alpha, eye = ALPHAS[method], torch.eye(len(B_N)).to(A_NN)
        early, late = (1 - alpha) * begin[..., None, None], alpha * end[..., None, None]
        both = torch.cat([eye + early * A_NN, (early + late) * B_N[:, None]], -1)
        a, b = torch.linalg.solve(eye - late * A_NN, both).split([len(B_N), 1], -1)
    constant = torch.eye(1, len(B_N)).to(A_NN)
    return a.masked_fill(fresh[..., None, None], 0), torch.where(fresh[..., None], constant, b[..., 0])


def legs_advance(c: Tensor, u: Tensor, before: Tensor, passed: Tensor, alpha: float) -> Tensor:
    """One update of scaled LegS by the rule above, in time linear in N: A is triangular, with one factor on either side.

    With s_n = sum_{m<n} r_m y_m the solution y of (1 - a A) y = x is

        y_n = (x_n - a r_n s_n) / (1 + a (n+1)),    s_{n+1} = ((1 - a n) s_n + r_n x_n) / (1 + a (n+1)).

    Args:
        c: (B, M, N), the memory of M channels.
        u: (B, M), their input.
        before, passed: (B,), time read before, and time that the step takes, positive.
        alpha: 0 forward Euler, 1 backward Euler, 1/2 bilinear.
    """
    r, fresh = root(c.shape[-1]).to(c), (before == 0)[:, None, None]
    n = torch.arange(c.shape[-1], dtype=c.dtype, device=c.device)
    begin = torch.where(fresh, 0, (passed / torch.where(before == 0, 1, before))[:, None, None])
    a = alpha * (passed / (before + passed))[:, None, None]
    inner = r * c
    slope = r * (u[..., None] - inner.cumsum(-1) + inner) - (n + 1) * c  # A c + B u
    x = c + (1 - alpha) * begin * slope + a * r * u[..., None]
    below = 1 + a * (n + 1)
    sums = scan(((1 - a * n) / below).mT, (r * x / below).mT, torch.zeros_like(u)).mT
    y = (x - a * r * torch.nn.functional.pad(sums[..., :-1], (1, 0))) / below
    return torch.where(fresh, u[..., None] * (n == 0), y)


def legs_stretch(ratio: Tensor, size: int) -> Pair:
    """Zero-order hold of scaled LegS in closed form: the past shrinks to `ratio` = t / (t + dt) of all, the rest is held input.

    Both are polynomials in the ratio, here by Gauss's quadrature with N nodes, which is exact: a (*ratio, N, N), b (*ratio, N), in
    float64; ratio 0 gives c = (u, 0, ...). Equal to exp(-A log ratio), without the exponential of a matrix far from normal.
    """
    rho, r = ratio.double()[..., None], root(size).to(ratio.device)
    nodes, weights = (t.to(ratio.device) for t in gauss(size))
    old = r * legendre(2 * nodes - 1, size)  # the functions on the past as it was, at places 0..1 of it
    new = r * legendre(2 * rho * nodes - 1, size)  # the same places, in the past as it is now
    a = rho[..., None] * (new * weights[:, None]).mT @ old
    rest = rho + (1 - rho) * nodes
    return a, (1 - rho) * (r * legendre(2 * rest - 1, size)).mT.matmul(weights[:, None])[..., 0]


def gauss(size: int) -> Pair:
    """Nodes and weights of Gauss's quadrature on 0..1, exact for degrees below 2 `size` (Golub and Welsch, 1969)."""
    n = torch.arange(1, size, dtype=torch.float64)
    off = n / torch.sqrt(4 * n * n - 1)
    places, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (1 + places) / 2, vectors[0] ** 2
