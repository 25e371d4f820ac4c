"""The landscape of a normal distribution: a bowl."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conca.energy.closed_form import ClosedForm
from conca.energy.compose import hold
from conca.energy.energy import Energy, fits
from conca.types import BadInput

__all__ = ["Gaussian"]


class Gaussian(ClosedForm):
    """E(x) = (x - mean)' C^-1 (x - mean) / 2 + log det(2 pi C) / 2, normalised: exp(-E) is the density itself.

    Args:
        mean: the shape of one point, (D,) or any other with D entries; a `nn.Parameter` is trained.
        covariance: C, shape (D, D) over the flattened point, symmetric and positive definite.

    Raises:
        BadInput: where mean and covariance are not floating point of one dtype, or the covariance has another shape
            or is not symmetric and positive definite.
    """

    mean: Tensor
    precision: Tensor
    log_z: Tensor

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        super().__init__()
        if not mean.is_floating_point() or covariance.dtype != mean.dtype:
            raise BadInput(
                "mean and covariance of a Gaussian must be floating point and of one dtype, "
                f"not {mean.dtype} and {covariance.dtype}; use .float() or .to(dtype)"
            )
        size = mean.numel()
        if covariance.shape != (size, size):
            raise BadInput(f"the covariance of {size} coordinates is {(size, size)}, not {tuple(covariance.shape)}")
        covariance = covariance.detach()
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if int(failed) or not torch.allclose(covariance, covariance.mT):
            raise BadInput("the covariance of a Gaussian must be symmetric and positive definite")
        self.shape = tuple(mean.shape)
        hold(self, "mean", mean)
        hold(self, "precision", torch.cholesky_inverse(factor))
        hold(self, "log_z", factor.diagonal().log().sum() + 0.5 * size * math.log(2 * math.pi))

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """A plane, a line of scalars, a tiny image."""
        plane = cls(torch.tensor([1.0, -1.0]), torch.tensor([[2.0, 0.8], [0.8, 1.0]]))
        return plane, cls(torch.tensor(0.5), torch.tensor([[0.7]])), cls(torch.zeros(1, 2, 2), torch.eye(4) + 0.2)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fits(self, x, self.mean)
        apart_BD = (x - self.mean).reshape(len(x), self.mean.numel())
        pull_BD = apart_BD @ self.precision
        return 0.5 * (pull_BD * apart_BD).sum(-1) + self.log_z, -pull_BD.reshape(x.shape)

    def blocks(self) -> int:
        """One for each coordinate."""
        return self.mean.numel()

    def redraw(self, x: Tensor, block: int, generator: torch.Generator) -> Tensor:
        """`x`, (B, ...), with one coordinate drawn given the others: mean and variance by the precision P = C^-1."""
        fits(self, x, self.mean)
        flat_BD, mean_D = x.reshape(len(x), self.mean.numel()), self.mean.flatten()
        row_D, own = self.precision[block], self.precision[block, block]
        pull_B = (flat_BD - mean_D) @ row_D / own
        noise_B = torch.randn(len(x), generator=generator, dtype=x.dtype, device=x.device)
        new_BD = flat_BD.clone()
        new_BD[:, block] += noise_B / own.sqrt() - pull_B
        return new_BD.reshape(x.shape)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent points, (count, ...)."""
        factor: Tensor = torch.linalg.cholesky(torch.linalg.inv(self.precision))
        size, mean = self.mean.numel(), self.mean.detach()
        noise = torch.randn(count, size, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + (noise @ factor.mT).reshape(count, *mean.shape)
