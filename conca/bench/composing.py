"""Composition: energies add, densities multiply, and what both hold plausible is a valley of the sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from conca.bench.stop import Claim, Stop
from conca.energy import ClassifierEnergy, Energy, Gaussian, descent, sample
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["composing"]


class Told(Energy):
    """The energy of a concept, told by one coordinate of x."""

    def __init__(self, coordinate: int) -> None:
        super().__init__()
        self.coordinate = coordinate

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) to (B,)."""
        return x[:, self.coordinate]


def composing() -> Stop:
    """A sum of two told energies, and of two bowls."""
    both = Told(0) + Told(1)
    faces = torch.tensor([[3.0, 10.0], [3.0, 2.0]], dtype=torch.float64)
    left, right = bowl(0.0), bowl(2.0)
    joint = left + right
    x = torch.linspace(-6, 8, 1401, dtype=torch.float64)[:, None]
    product = (-left(x)).exp() * (-right(x)).exp()
    product = product / product.sum()
    density = torch.softmax(-joint(x), 0)
    mean = float((density * x[:, 0]).sum())
    start = torch.linspace(-5, 7, 13, dtype=torch.float64)[:, None]
    ends, _ = sample(joint, descent(0.2), start, steps=100, thin=100)
    with torch.no_grad():
        slope = joint.score(x) - left.score(x) - right.score(x)
    claims = [
        Claim("young 3 and smiling 10: the sum, a peak", 13.0, float(both(faces)[0]), 0.0),
        Claim("young 3 and smiling 2: the sum, a valley", 5.0, float(both(faces)[1]), 0.0),
        Claim("slope of the sum less the sum of slopes, at most", 0.0, float(slope.abs().max()), 1e-12),
        Claim(
            "density of the sum less the product of densities, at most",
            0.0,
            float((density - product).abs().max()),
            1e-12,
        ),
        Claim("two bowls of variance 1 around 0 and 2: mean of both together", 1.0, mean, 1e-9),
        Claim("and their variance", 0.5, float((density * (x[:, 0] - mean) ** 2).sum()), 1e-6),
        Claim("where every descent of the sum ends, distance from 1", 0.0, float((ends[-1] - 1).abs().max()), 1e-9),
        *classifier(),
    ]
    reading = (
        "A concept is an energy, low where it is met. The sum of two is low where both are, which is the product of their densities; to "
        "descend it one needs nothing but the sum of the slopes. A classifier is a mixture of its classes: its energy tells apart what "
        "its probabilities do not."
    )
    return Stop("Composition is a sum", reading, claims, picture(left, right, x))


def classifier() -> list[Claim]:
    """Logits read as an energy, -logsumexp, whose slope in the logits is the softmax."""
    classes = ClassifierEnergy(nn.Identity(), (3,))
    logits = torch.tensor([[8.0, 2.0, 1.0], [9.0, 3.0, 2.0], [8.0, 7.0, 7.0]], dtype=torch.float64)
    with torch.no_grad():
        heights, shares = -classes(logits), classes.score(logits)
    claims = [
        Claim(f"logsumexp of {logit}, minus the energy of a classifier", value, float(height), tolerance)
        for logit, value, height, tolerance in zip(
            ("(8, 2, 1)", "(9, 3, 2)", "(8, 7, 7)"), (8.003, 9.003, 8.55), heights, (5e-4, 5e-4, 5e-3)
        )
    ]
    claims += [
        Claim(f"probability {k + 1} of (8, 2, 1)", share, float(shares[0, k]), 5e-4)
        for k, share in enumerate((0.997, 0.002, 0.001))
    ]
    return [
        *claims,
        Claim("and of (9, 3, 2): differ by at most", 0.0, float((shares[0] - shares[1]).abs().max()), 1e-12),
    ]


def bowl(mean: float) -> Gaussian:
    """The energy of a normal distribution of variance 1."""
    return Gaussian(torch.tensor([mean], dtype=torch.float64), torch.eye(1, dtype=torch.float64))


def picture(left: Energy, right: Energy, x: Tensor) -> Picture:
    """Both bowls and their sum."""
    figure, (axes,) = canvas()
    line = x[:, 0].tolist()
    for colour, name, energy in zip(
        COLOURS[1:3] + COLOURS[:1], ("one", "the other", "their sum"), (left, right, left + right)
    ):
        axes.plot(line, energy(x).tolist(), color=colour, lw=2.0 if name == "their sum" else 1.2, label=name)
    axes.set(xlim=(-3, 5), ylim=(0, 12))
    label(axes, "x", "energy")
    key(axes, 3)
    words = "Two bowls around 0 and 2 and their sum, whose only valley lies at 1, narrower than either."
    return Picture(svg_of(figure, "composing"), words, words)
