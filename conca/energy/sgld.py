"""The noisy descent that trains energy networks: its step and its noise are chosen apart, so it has a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from conca.energy.chain import Info
from conca.energy.draws import normal, positive
from conca.energy.energy import Score
from conca.energy.langevin import Place, Standing, arrive
from conca.types import BadInput

__all__ = ["SGLD", "sgld"]


@dataclass(frozen=True)
class SGLD:
    """x <- x + size * clip(score(x)) + noise * z. Made by `sgld`."""

    size: float
    noise: float
    clip: float | None = None
    bounds: tuple[float, float] | None = None
    noise_first: bool = False
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self.size)
        positive(self.noise, "the noise of sgld")
        if self.clip is not None:
            positive(self.clip, "the clip of sgld")
        if self.bounds is not None and (len(self.bounds) != 2 or not self.bounds[0] < self.bounds[1]):
            raise BadInput(f"bounds of sgld are (low, high), low below high, not {self.bounds}")

    @classmethod
    def samples(cls) -> tuple[SGLD, ...]:
        """Small instances, for laws and tests."""
        return cls(0.1, 0.2), cls(0.1, 0.1, clip=0.5, bounds=(-9.0, 9.0)), cls(0.1, 0.1, noise_first=True)

    @property
    def temperature(self) -> float:
        """noise^2 / (2 step): a small step walks exp(-E / temperature), where nothing is clipped."""
        return self.noise**2 / (2 * self.size)

    def init(self, energy: Score, x: Tensor, /) -> Place | Standing:
        return Standing(x) if self.noise_first else Place(x, *energy.evaluate(x))

    def step(
        self, energy: Score, state: Place | Standing, generator: torch.Generator | None, /
    ) -> tuple[Place | Standing, Info]:
        noise = normal(state.x, generator)
        info: Info = {"temperature": state.x.new_full((len(state.x),), self.temperature)}
        if isinstance(state, Place):
            x = torch.add(state.x, self._clipped(state.score), alpha=self.size).add_(noise, alpha=self.noise)
            place, told = arrive(energy, self._inside(x))
            return place, {**told, **info}
        x = energy.clamp(self._inside(state.x + self.noise * noise))
        x = torch.add(x, self._clipped(energy.evaluate(x)[1]), alpha=self.size)
        return Standing(energy.clamp(self._inside(x))), info

    def _clipped(self, score: Tensor) -> Tensor:
        return score if self.clip is None else score.clamp(-self.clip, self.clip)

    def _inside(self, x: Tensor) -> Tensor:
        return x if self.bounds is None else x.clamp(*self.bounds)


def sgld(
    step: float,
    noise: float,
    *,
    clip: float | None = None,
    bounds: tuple[float, float] | None = None,
    noise_first: bool = False,
) -> SGLD:
    """Noisy descent with step and noise chosen freely: x <- x + step * score(x) + noise * z.

    It does not sample exp(-E): for small steps it samples exp(-E / T) at the temperature T = noise^2 / (2 step), which it
    reports (`.temperature`, and "temperature" in info). Energy networks are trained with T far below 1: (10, 0.005) is
    T = 1.25e-6, (1, 0.01) is T = 5e-5. With T = 1 it is `ula`.

    Args:
        step: positive.
        noise: standard deviation of what is added, positive.
        clip: each coordinate of the slope is cut off at +-clip.
        bounds: (low, high) that no coordinate leaves.
        noise_first: noise is added before the slope is asked, so that the slope has the last word.

    Info: "temperature", and but for noise_first, where the landscape is asked before the step, "energy" (where known) and "slope".

    Source: Welling & Teh 2011 for the noisy descent; Du & Mordatch 2019, "Implicit Generation and Modeling with Energy
    Based Models", for step and noise apart, clipped slopes, bounds, and the noise first.
    """
    return SGLD(step, noise, clip, bounds, noise_first)
