"""Rings in the plane: valleys that are curves, which no sum of few bowls describes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from conca.energy.closed_form import ClosedForm
from conca.energy.compose import hold
from conca.energy.energy import Energy, fits
from conca.types import BadInput

__all__ = ["Rings"]


class Rings(ClosedForm):
    """exp(-E(x)) = mean_k exp(-(|x| - radius_k)^2 / (2 width^2)) / Z_k, normalised: each ring holds the same share.

    At the centre, where the slope has no direction, it counts as 0.

    Args:
        radii: of the rings, positive.
        width: standard deviation across a ring, positive.

    Raises:
        BadInput: where there is no ring, or a number is not positive and finite.

    Source: Nijkamp et al. 2020, "On the Anatomy of MCMC-Based Maximum Likelihood Learning of Energy-Based Models", for rings
    as a target whose density can be looked at.
    """

    radii: Tensor
    log_z: Tensor

    def __init__(self, radii: Sequence[float] = (1.0, 2.0, 3.0, 4.0), width: float = 0.15) -> None:
        super().__init__()
        radii = tuple(float(radius) for radius in radii)
        if not radii or not all(radius > 0 and math.isfinite(radius) for radius in (*radii, width)):
            raise BadInput(f"rings need one positive radius or more and a positive width, not {radii} and {width}")
        self.width, self.shape = float(width), (2,)
        hold(self, "radii", torch.tensor(radii, dtype=torch.get_default_dtype()))
        hold(self, "log_z", torch.tensor([_log_z(r, self.width) for r in radii], dtype=torch.get_default_dtype()))

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """Two wide rings, so that finite differences see no kink."""
        return (cls((1.0, 2.5), 0.4),)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fits(self, x, self.radii.new_zeros(2))
        distance_B = x.square().sum(1)
        centre_B = distance_B == 0
        distance_B = torch.where(centre_B, 1, distance_B).sqrt() * ~centre_B
        apart_BK = (distance_B[:, None] - self.radii) / self.width
        logs_BK = -apart_BK.square() / 2 - self.log_z
        pull_B = -(torch.softmax(logs_BK, 1) * apart_BK).sum(1) / self.width
        direction_B2 = x / torch.where(centre_B, 1, distance_B)[:, None]
        return math.log(len(self.radii)) - torch.logsumexp(logs_BK, 1), pull_B[:, None] * direction_B2

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent points, (count, 2): a ring, a distance from the centre in proportion to r exp(-(r - radius)^2 / ...), an angle."""
        radii = self.radii
        grid = torch.linspace(0, 1, 4001, dtype=radii.dtype, device=radii.device)
        low = (radii - 8 * self.width).clamp(min=0)
        cells_KG = low[:, None] + (radii + 8 * self.width - low)[:, None] * grid
        shares_KG = torch.exp(-((cells_KG - radii[:, None]) / self.width).square() / 2) * cells_KG
        ring = torch.randint(len(radii), (count,), generator=generator, device=radii.device)
        cell = torch.multinomial(shares_KG[ring], 1, generator=generator)[:, 0]
        spread = (radii + 8 * self.width - low)[ring] / 4000
        chance = torch.rand(2, count, generator=generator, dtype=radii.dtype, device=radii.device)
        distance = (cells_KG[ring, cell] + spread * (chance[0] - 0.5)).abs()
        angle = 2 * math.pi * chance[1]
        return torch.stack([distance * angle.cos(), distance * angle.sin()], 1)

    def extra_repr(self) -> str:
        return f"radii={self.radii.tolist()}, width={self.width:g}"


def _log_z(radius: float, width: float) -> float:
    """log of 2 pi times the integral of r exp(-(r - radius)^2 / (2 width^2)) over r > 0."""
    tail = width**2 * math.exp(-((radius / width) ** 2) / 2)
    bulk = radius * width * math.sqrt(math.pi / 2) * (1 + math.erf(radius / (width * math.sqrt(2))))
    return math.log(2 * math.pi * (tail + bulk))
