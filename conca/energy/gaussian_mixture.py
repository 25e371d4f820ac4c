"""Many bowls in one landscape: a mixture of normal distributions, computed at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conca.energy.closed_form import ClosedForm
from conca.energy.compose import hold
from conca.energy.energy import Energy, fits
from conca.types import BadInput

__all__ = ["GaussianMixture"]


class GaussianMixture(ClosedForm):
    """exp(-E(x)) = sum_k weight_k N(x; mean_k, scale_k^2), normalised: exp(-E) is the density itself.

    What `mixture(Gaussian(...), ...)` is for few parts of any covariance, this is for many round ones.

    Args:
        means: shape (K, ...), K points; a `nn.Parameter` is trained.
        scale: standard deviation, a number or one per part, (K,).
        weights: positive, (K,), divided by their sum; alike where none are given.

    Raises:
        BadInput: where there is no part, means are not floating point, or a scale or weight is not positive and finite.
    """

    shape: tuple[int, ...]
    means: Tensor
    scales: Tensor
    log_weights: Tensor

    def __init__(self, means: Tensor, scale: float | Tensor = 1.0, weights: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(means, Tensor):
            raise BadInput(f"means are a tensor of shape (K, ...), not a {type(means).__name__}")
        if means.dim() == 0 or len(means) == 0 or not means.is_floating_point() or not bool(means.isfinite().all()):
            raise BadInput(
                f"means are floating point, finite, of shape (K, ...), not {means.dtype} of shape {tuple(means.shape)}"
            )
        count, like = len(means), means.detach()
        scales = torch.as_tensor(scale, dtype=like.dtype, device=like.device)
        scales = scales.expand(count).clone() if scales.dim() == 0 else scales
        shares = like.new_ones(count) if weights is None else weights.to(like)
        for what, values in (("a scale", scales), ("a weight", shares)):
            if values.shape != (count,) or not bool((values > 0).all() & values.isfinite().all()):
                raise BadInput(
                    f"{what} of each of the {count} parts must be positive and finite, not {values.tolist()}"
                )
        self.shape = tuple(means.shape[1:])
        hold(self, "means", means)
        hold(self, "scales", scales)
        hold(self, "log_weights", (shares / shares.sum()).log())

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """Three in a plane, two scalars, two tiny images."""
        plane = torch.tensor([[0.0, 1.0], [1.5, -0.5], [-1.0, -1.0]])
        images = torch.randn(2, 1, 2, 2, generator=torch.Generator().manual_seed(0))
        return (
            cls(torch.nn.Parameter(plane), 0.7, torch.tensor([1.0, 2.0, 0.5])),
            cls(torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.8])),
            cls(images, 1.2),
        )

    @classmethod
    def eight(cls, radius: float = 2.0, scale: float = 0.15) -> GaussianMixture:
        """Eight bowls on a circle in the plane: a common target, whose valleys a short chain does not leave."""
        angles = torch.arange(8, dtype=torch.get_default_dtype()) * (math.pi / 4)
        return cls(radius * torch.stack([angles.cos(), angles.sin()], 1), scale)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fits(self, x, self.means[0])
        x_BD = x.reshape(len(x), -1) if x.numel() else x.reshape(len(x), math.prod(self.shape))
        means_KD = self.means.reshape(len(self.means), -1)
        apart_BK = x_BD.square().sum(1, keepdim=True) - 2 * x_BD @ means_KD.mT + means_KD.square().sum(1)
        precision_K = self.scales**-2
        norm_K = means_KD.shape[1] * (0.5 * math.log(2 * math.pi) + self.scales.log())
        logs_BK = self.log_weights - norm_K - apart_BK * precision_K / 2
        pull_BK = torch.softmax(logs_BK, 1) * precision_K
        score = pull_BK @ means_KD - pull_BK.sum(1, keepdim=True) * x_BD
        return -torch.logsumexp(logs_BK, 1), score.reshape(x.shape)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent points, (count, ...)."""
        means = self.means.detach()
        part = torch.multinomial(self.log_weights.exp(), count, replacement=True, generator=generator)
        noise = torch.randn(count, *self.shape, generator=generator, dtype=means.dtype, device=means.device)
        return means[part] + self.scales[part].reshape(-1, *[1] * len(self.shape)) * noise

    def extra_repr(self) -> str:
        return f"{len(self.means)} parts of shape {self.shape}"
