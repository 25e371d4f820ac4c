"""Bowls under noise, in closed form: what a perfect network of a diffusion would say; and the product of two mixtures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.energy import Energy, GaussianMixture, Schedule

__all__ = ["Noised", "product"]


class Noised(Energy):
    """A mixture of round bowls at the levels t = 0 .. T of a schedule: at each it is such a mixture again.

    Args:
        bowls: the data.
        schedule: of the noise; raises BadInput for a t that is none of its levels.
    """

    def __init__(self, bowls: GaussianMixture, schedule: Schedule) -> None:
        super().__init__()
        self.bowls, self.schedule, self.shape = bowls, schedule, bowls.shape

    def level(self, t: int) -> GaussianMixture:
        """Of x_t = signal x_0 + noise z."""
        signal, noise = self.schedule.level(t)
        scales = ((signal * self.bowls.scales).square() + noise**2).sqrt()
        return GaussianMixture(signal * self.bowls.means, scales, self.bowls.log_weights.exp())

    def forward(self, x: Tensor, t: int) -> Tensor:
        return self.level(t)(x)

    def _bind(self, values: dict[str, Any]) -> Energy:
        return self.level(values["t"])


def product(one: GaussianMixture, other: GaussianMixture) -> GaussianMixture:
    """Of two densities, normalised: each pair of bowls gives one, of the sum of their precisions."""
    wide = one.scales.square()[:, None] + other.scales.square()  # of each pair, both noises together
    share = one.scales.square()[:, None] / wide
    axes = [1] * len(one.shape)
    share_x = share.reshape(*share.shape, *axes)
    means = (1 - share_x) * one.means[:, None] + share_x * other.means
    apart = (one.means[:, None] - other.means).square().flatten(2).sum(2)
    logs = one.log_weights[:, None] + other.log_weights - apart / (2 * wide) - wide.log() * one.means[0].numel() / 2
    scales = (share * other.scales.square()).sqrt()
    return GaussianMixture(means.flatten(0, 1), scales.flatten(), torch.softmax(logs.flatten(), 0))
