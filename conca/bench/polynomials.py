"""HiPPO: the matrix of a memory of polynomials, the past rebuilt from it, why it is not diagonalised, and the normal part that is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.layers.s4d import S4D
from conca.ops.hippo import legs, root, transition
from conca.ops.hippo_memory import project
from conca.ops.hippo_rebuild import legendre, rebuild
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["polynomials"]

SIZES = (2, 4, 6, 8, 10, 12, 14, 16)
FEW = SIZES[:6]
CONDITION = 8.3198591e10
"""Of the eigenvectors at N = 16, computed once from the recursion of a triangular matrix with 60 digits; 1e10 is its order."""
KINK = 0.4
RATE = 2.0
SAMPLES, LONG = 2048, 40.0


def polynomials() -> Stop:
    """Eigenvalues and eigenvectors of HiPPO-LegS and of its normal part, 16 numbers of memory."""
    a, _ = legs(16)
    normal = normal_part(16)
    poles = torch.linalg.eigvals(normal)
    conditions = {size: condition(legs(size)[0]) for size in SIZES}
    layer = S4D(3, d_state=16, dtype=torch.float64)
    started = layer.eigenvalues().detach()[0]
    upper = poles.imag[poles.imag > 0].sort().values
    distinct = torch.linalg.eigvals(a).real.sort(descending=True).values
    claims = [
        Claim("A[3, 1] = -sqrt(7 * 3)", -4.58257569495584, float(a[3, 1]), 1e-12),
        Claim("eigenvalues less -1, -2, ..., -16, at most", 0.0, gap(distinct, -torch.arange(1.0, 17.0)), 1e-9),
        Claim(
            "condition of the eigenvectors, N = 16 (the theory: 1e10)",
            CONDITION,
            float(conditions[16]),
            1e-4 * CONDITION,
        ),
        Claim("normal part: A A' less A' A, at most", 0.0, gap(normal @ normal.T, normal.T @ normal), 1e-11),
        Claim("normal part: real parts of the eigenvalues less -1/2, at most", 0.0, gap(poles.real, -0.5), 1e-12),
        Claim("normal part: condition of the eigenvectors", 1.0, float(condition(normal)), 1e-9),
        Claim("S4D at its start: imaginary parts less these, at most", 0.0, gap(started.imag, upper), 1e-10),
        Claim("S4D at its start: real parts less -1/2, at most", 0.0, gap(started.real, -0.5), 1e-12),
        *rebuilt(),
    ]
    reading = (
        "HiPPO keeps the best approximation of the past under a measure, and the past is rebuilt from it to the error that the theory "
        "gives. HiPPO-LegS, of all of the past alike, has a matrix with distinct eigenvalues, and eigenvectors so nearly "
        "parallel that floating point cannot use them; a matrix of rank one away lies a normal one, whose eigenvectors are at right "
        "angles. From its eigenvalues S4D starts."
    )
    return Stop("HiPPO and its normal part", reading, claims, picture(conditions, poles))


def rebuilt() -> list[Claim]:
    """What the memories still know, against closed forms: of a kink, of a fading past, of a delay, of a polynomial."""
    A, B = transition("legt", 2)
    far = root(2) * torch.tensor([1.0, -1.0], dtype=torch.float64)
    delayed = torch.linalg.solve(1j * torch.eye(2) - A, B + 0j) @ (far + 0j)
    pade = (1 - 2j / 3) / (1 + 4j / 3 - 4 / 6)
    A, B = transition("chebt", 4)
    half = math.sqrt(0.5)
    fourth, slope = (torch.tensor(c, dtype=torch.float64) for c in ((3 / 8, 0, half / 2, 0), (0, 3 * half, 0, half)))
    legs_error, lagt_error = left(8)
    return [
        Claim(
            "LegS, 8 numbers, a kink in the past: rms error of what is rebuilt", kink(8), legs_error, 0.005 * kink(8)
        ),
        Claim("LagT, 8 numbers, a past exp(-2 s): error of what is rebuilt", fade(8), lagt_error, 0.01 * fade(8)),
        Claim(
            "LegT, 2 numbers: far end of the window at frequency 1, less Pade's delay",
            0.0,
            abs(complex(delayed) - pade),
            1e-12,
        ),
        Claim(
            "Chebyshev, 4 numbers, a past t^4: A c + B u less the derivative, at most",
            0.0,
            gap(A @ fourth + B, slope),
            1e-12,
        ),
    ]


def middles() -> Tensor:
    """The middles of the samples of a past that is 1 long."""
    return (torch.arange(SAMPLES, dtype=torch.float64) + 0.5) / SAMPLES


def left(size: int) -> tuple[float, float]:
    """Errors of the past rebuilt from so many numbers: LegS, rms over a kink; LagT, root of the integral over exp(-2 s)."""
    y = middles()
    u = (y - KINK).abs()
    error = rebuild("legs", project(u[None], "legs", size)[0], 1 - y, span=1.0) - u
    ages = LONG * y.flip(0)
    faded = torch.exp(-RATE * ages)
    rest = rebuild("lagt", project(faded[None], "lagt", size, dt=LONG / SAMPLES)[0], ages) - faded
    return float(error.square().mean().sqrt()), float((rest.square().mean() * LONG).sqrt())


def kink(size: int) -> float:
    """What Legendre polynomials below degree N > 1 leave of |y - 0.4|, rms over 0..1: 2 q_n is the integral of |x - b| P_n."""
    n = torch.arange(size, 4000, dtype=torch.float64)
    p = legendre(torch.tensor(2 * KINK - 1, dtype=torch.float64), 4002)
    here, up, down = p[size:4000], p[size + 2 :], p[size - 2 : 3998]
    q = ((up - here) / (2 * n + 3) - (here - down) / (2 * n - 1)) / (2 * n + 1)
    return float(((2 * n + 1) / 4 * q.square()).sum().sqrt())


def fade(size: int) -> float:
    """What N Laguerre functions leave of exp(-a s): their coefficients are (a - 1/2)^n / (a + 1/2)^(n + 1)."""
    return ((RATE - 0.5) / (RATE + 0.5)) ** size / math.sqrt((RATE + 0.5) ** 2 - (RATE - 0.5) ** 2)


def normal_part(size: int) -> Tensor:
    """A + P P' with P_n = sqrt(n + 1/2): a half on the diagonal, negative, and a skew matrix."""
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    return legs(size)[0] + torch.outer(p, p)


def condition(matrix: Tensor) -> Tensor:
    """Condition number of the eigenvectors, each of length 1."""
    found: Tensor = torch.linalg.cond(torch.linalg.eig(matrix).eigenvectors)
    return found


def gap(a: Tensor, b: Tensor | float) -> float:
    """The greatest difference."""
    return float((a - b).abs().max())


def picture(conditions: dict[int, Tensor], poles: Tensor) -> Picture:
    """Errors of the past rebuilt over size, condition over size, and the eigenvalues of both matrices."""
    figure, (top, above, below) = canvas(3, 2.2)
    errors = [left(n) for n in FEW]
    for theory, which, colour, name in ((kink, 0, 1, "LegS, a kink"), (fade, 1, 2, "LagT, exp(-2 s)")):
        top.semilogy(FEW, [theory(n) for n in FEW], "-", color=COLOURS[colour], lw=1.0)
        top.semilogy(FEW, [e[which] for e in errors], "o", color=COLOURS[colour], ms=3.5, label=name)
    label(top, "numbers of memory N", "error of the past rebuilt")
    key(top)
    above.semilogy(SIZES, [float(c) for c in conditions.values()], "o-", color=COLOURS[1], ms=3.5, label="HiPPO-LegS")
    above.semilogy(
        SIZES, [float(condition(normal_part(n))) for n in SIZES], "o-", color=COLOURS[0], ms=3.5, label="normal part"
    )
    label(above, "numbers of memory N", "condition of eigenvectors")
    key(above)
    below.plot(-torch.arange(1, 17), [0] * 16, "o", color=COLOURS[1], ms=3.5)
    below.plot(poles.real.tolist(), poles.imag.tolist(), "o", color=COLOURS[0], ms=3.5)
    label(below, "real part of the eigenvalues, N = 16", "imaginary part")
    words = "Dots: the past rebuilt from N numbers; lines: what the theory leaves. "
    words += f"At N = 16 the eigenvectors of HiPPO-LegS have condition {float(conditions[16]):.1e}, those of its normal part 1; "
    words += "the eigenvalues of the one are -1 to -16, those of the other -1/2 and imaginary."
    return Picture(svg_of(figure, "polynomials"), words, words)
