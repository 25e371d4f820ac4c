"""HiPPO: the matrix of a memory of polynomials, why it is not diagonalised, and the normal part that is."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.layers.s4d import S4D
from conca.ops.hippo import legs
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["polynomials"]

SIZES = (2, 4, 6, 8, 10, 12, 14, 16)
CONDITION = 8.3198591e10
"""Of the eigenvectors at N = 16, computed once from the recursion of a triangular matrix with 60 digits; 1e10 is its order."""


def polynomials() -> Stop:
    """Eigenvalues and eigenvectors of HiPPO-LegS and of its normal part, 16 numbers of memory."""
    a, _ = legs(16)
    normal = normal_part(16)
    poles = torch.linalg.eigvals(normal)
    conditions = {size: condition(legs(size)[0]) for size in SIZES}
    layer = S4D(3, d_state=16, dtype=torch.float64)
    started = layer.frequency.detach()[0]
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
        Claim("S4D at its start: imaginary parts less these, at most", 0.0, gap(started, upper), 1e-10),
        Claim(
            "S4D at its start: real parts less -1/2, at most", 0.0, gap(-layer.log_decay.detach().exp(), -0.5), 1e-12
        ),
    ]
    reading = (
        "HiPPO-LegS keeps the best polynomial through all of the past. Its matrix has distinct eigenvalues, and eigenvectors so nearly "
        "parallel that floating point cannot use them; a matrix of rank one away lies a normal one, whose eigenvectors are at right "
        "angles. From its eigenvalues S4D starts."
    )
    return Stop("HiPPO and its normal part", reading, claims, picture(conditions, poles))


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
    """Condition over size, and the eigenvalues of both matrices."""
    figure, (above, below) = canvas(2, 2.2)
    above.semilogy(SIZES, [float(c) for c in conditions.values()], "o-", color=COLOURS[1], ms=3.5, label="HiPPO-LegS")
    above.semilogy(
        SIZES, [float(condition(normal_part(n))) for n in SIZES], "o-", color=COLOURS[0], ms=3.5, label="normal part"
    )
    label(above, "numbers of memory N", "condition of eigenvectors")
    key(above)
    below.plot(-torch.arange(1, 17), [0] * 16, "o", color=COLOURS[1], ms=3.5)
    below.plot(poles.real.tolist(), poles.imag.tolist(), "o", color=COLOURS[0], ms=3.5)
    label(below, "real part of the eigenvalues, N = 16", "imaginary part")
    words = f"At N = 16 the eigenvectors of HiPPO-LegS have condition {float(conditions[16]):.1e}, those of its normal part 1; "
    words += "the eigenvalues of the one are -1 to -16, those of the other -1/2 and imaginary."
    return Picture(svg_of(figure, "polynomials"), words, words)
