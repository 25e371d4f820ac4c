"""Two valleys and the barrier between them: the smallest landscape that a chain can fail to cross."""

from __future__ import annotations

import math

from torch import Tensor

from conca.energy.closed_form import ClosedForm
from conca.energy.energy import Energy, squares
from conca.types import BadInput

__all__ = ["DoubleWell"]


class DoubleWell(ClosedForm):
    """E(x) = height * sum_d (x_d^2 - 1)^2: valleys at -1 and +1 in every coordinate, a barrier of `height` at 0.

    One coordinate has E[x^2] = 0.83275, 0.85214, 0.91767 and log Z = 0.67993, 0.34424, -0.05357 at height 1, 2, 4.
    Its slope grows as the cube, so an unadjusted chain with a coarse step leaves the finite numbers.

    Args:
        height: positive.
        shape: the shape of one point where it matters (laws); points of any shape are read.

    Raises:
        BadInput: where the height is not positive and finite.
    """

    def __init__(self, height: float = 1.0, *, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        if not (height > 0 and math.isfinite(height)):
            raise BadInput(f"the barrier of a double well must be positive and finite, not {height}")
        self.height = float(height)
        self.shape = shape

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """A line of scalars, a plane, a tiny image."""
        return cls(2.0, shape=()), cls(1.0, shape=(2,)), cls(0.5, shape=(1, 2, 2))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        over = x.square() - 1
        return self.height * squares(over), (-4 * self.height) * (over * x)

    def extra_repr(self) -> str:
        return f"height={self.height:g}"
