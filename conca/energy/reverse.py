"""Diffusion backwards: from noise, level by level, to data; each level is a landscape and each move a kernel on it.

    ddpm()   ancestral steps (Ho et al. 2020), with either variance
    ddim()   the same marginals with less noise, or none (Song et al. 2021)
    None     no move at all: Langevin on each level alone (annealed Langevin, Song & Ermon 2019)

A corrector adds steps of any kernel at each level: Langevin on a slope, MALA or HMC on an energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from conca.energy.chain import Info, Kernel, sample
from conca.energy.draws import normal, whole
from conca.energy.energy import Score
from conca.energy.langevin import Standing
from conca.energy.schedule import Schedule, Spacing
from conca.types import BadInput

__all__ = ["DDIM", "DDPM", "Reverse", "ddim", "ddpm", "reverse_diffusion"]

Bounds = tuple[float, float]
Variance = Literal["large", "small"]


@dataclass(frozen=True)
class Reverse:
    """x <- keep x + data x_0 + spread z, where x_0 = (x + noise^2 score(x)) / signal: one move down. Made by `ddpm` and `ddim`.

    It reports nothing: the landscape is asked once, at the place that is left.
    """

    keep: float
    data: float
    spread: float
    signal: float
    noise: float
    bounds: Bounds | None = None
    exact: ClassVar[bool] = False

    @classmethod
    def samples(cls) -> tuple[Reverse, ...]:
        """Small instances, for laws and tests."""
        schedule = Schedule.linear(1000)
        return ddpm().move(schedule, 50, 49), ddim(0.5, bounds=(-9.0, 9.0)).move(schedule, 20, 15)

    def init(self, energy: Score, x: Tensor, /) -> Standing:
        return Standing(x)

    def step(self, energy: Score, state: Standing, generator: torch.Generator | None, /) -> tuple[Standing, Info]:
        score = energy.evaluate(state.x)[1]
        data = torch.add(state.x, score, alpha=self.noise**2) / self.signal
        if self.bounds is not None:
            data = data.clamp(*self.bounds)
        x = torch.add(self.keep * state.x, data, alpha=self.data)
        if self.spread:
            x = torch.add(x, normal(x, generator), alpha=self.spread)
        return Standing(energy.clamp(x)), {}


@dataclass(frozen=True)
class DDPM:
    """Made by `ddpm`."""

    variance: Variance
    bounds: Bounds | None = None

    def move(self, schedule: Schedule, t: int, before: int) -> Reverse:
        """The kernel from level t to the level `before`, which is lower; 0 is the data, and is reached without noise."""
        (signal, noise), (signal_b, noise_b) = schedule.level(t), schedule.level(before)
        a, v = schedule.step(t, before)
        spread = math.sqrt(v) * (noise_b / noise if self.variance == "small" else 1.0) if before else 0.0
        return Reverse(a * (noise_b / noise) ** 2, signal_b * v / noise**2, spread, signal, noise, self.bounds)


@dataclass(frozen=True)
class DDIM:
    """Made by `ddim`."""

    eta: float
    bounds: Bounds | None = None

    def move(self, schedule: Schedule, t: int, before: int) -> Reverse:
        """The kernel from level t to the level `before`, which is lower; 0 is the data, and is reached without noise."""
        (signal, noise), (signal_b, noise_b) = schedule.level(t), schedule.level(before)
        spread = self.eta * math.sqrt(schedule.step(t, before)[1]) * noise_b / noise
        keep = math.sqrt(max(noise_b**2 - spread**2, 0.0)) / noise
        return Reverse(keep, signal_b - keep * signal, spread, signal, noise, self.bounds)


def ddpm(variance: Variance = "large", *, bounds: Bounds | None = None) -> DDPM:
    """Ancestral sampling: the mean of x_before given x_t and the x_0 that the slope tells, and noise.

    Args:
        variance: "large": that of q(x_t | x_before), beta_t where they are neighbours, right for data of variance 1; "small":
            that of q(x_before | x_t, x_0), right for data that are one point. Data in between want one in between.
        bounds: between which x_0 is kept, such as (-1.0, 1.0) for images.

    Raises:
        BadInput: for another variance, or bounds the wrong way round.

    Source: Ho, Jain & Abbeel 2020, "Denoising Diffusion Probabilistic Models", eq. 7 and 11.
    """
    if variance not in ("large", "small"):
        raise BadInput(f"the variance is 'large' (beta) or 'small' (that of the posterior), not {variance!r}")
    return DDPM(variance, _bounds(bounds))


def ddim(eta: float = 0.0, *, bounds: Bounds | None = None) -> DDIM:
    """Implicit sampling: the noise that is told is put back, times what `eta` leaves; 0 draws nothing, 1 is `ddpm("small")`.

    Raises BadInput for an eta outside of 0 to 1, or bounds the wrong way round.

    Source: Song, Meng & Ermon 2021, "Denoising Diffusion Implicit Models", eq. 12 and 16.
    """
    if isinstance(eta, bool) or not isinstance(eta, (float, Real)) or not 0 <= eta <= 1:
        raise BadInput(f"eta lies between 0 (no noise) and 1 (ancestral), not {eta!r}")
    return DDIM(float(eta), _bounds(bounds))


def reverse_diffusion(
    score: Score,
    schedule: Schedule,
    kernel: DDPM | DDIM | None,
    x: Tensor,
    *,
    steps: int | None = None,
    spacing: Spacing = "even",
    corrector: Callable[[float], Kernel[Any, Any]] | None = None,
    corrections: int = 1,
    known: Tensor | None = None,
    mask: Tensor | None = None,
    watch: Callable[[int, Tensor], None] | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Samples (B, ...) of the data, from noise `x` (B, ...) of the highest level.

    >>> import torch
    >>> from conca.energy import Energy
    >>> class Data(Energy):  # N(0, 1) stays N(0, 1) under a schedule that preserves variance
    ...     def forward(self, x, t): return x.square().sum(1) / 2
    >>> draw = torch.Generator().manual_seed(0)
    >>> z = torch.randn(1000, 1, generator=draw)
    >>> x = reverse_diffusion(Data(), Schedule.cosine(50), ddpm(), z, generator=draw)
    >>> 0.9 < float(x.std()) < 1.1
    True

    Args:
        score: a landscape with levels t, such as `NoiseScore`, `NoiseEnergy`, and sums of these (composition).
        schedule: whose levels they are.
        kernel: `ddpm()`, `ddim()`; None: no move, only corrections, and in the end the mean of the data.
        x: the start; `torch.randn(...) * schedule.noise[-1]`.
        steps, spacing: which levels are visited, see `Schedule.levels`.
        corrector: the kernel of further steps on each level that was reached, as a function of its noise (a standard
            deviation): `lambda s: ula(0.1 * s**2)`, `lambda s: mala(...)` where all parts are energies.
        corrections: how many of them.
        known, mask: what is known of the samples, and where (bool, True is known): on each level it is put in with the noise of
            that level, in the end as it is, so it does not move.
        watch: called with (level reached, x) after each level.
        generator: as in `sample`.

    Raises:
        BadInput: for steps, masks or a start that cannot be; a None kernel without a corrector.
        TypeError: for what is no landscape, and for a corrector that needs an energy where a slope is given.
        Divergence: where a place stops being finite, with the level in a note.

    Source: Ho et al. 2020; Song & Ermon 2019; Song et al. 2021, "Score-Based Generative Modeling through Stochastic
    Differential Equations", for correctors; Du et al. 2023, "Reduce, Reuse, Recycle", for MCMC on composites.
    """
    _check(score, schedule, x, kernel, corrector)
    whole(corrections, "the number of corrections")
    visited = [*schedule.levels(steps, spacing), 0]
    value = _known(x, known, mask)

    def held(t: int) -> Score:
        landscape = score.at(max(t, visited[-2]))
        if value is None or mask is None:
            return landscape
        signal, noise = schedule.level(t)
        return landscape.given(signal * value + noise * normal(x, generator) if t else value, mask)

    def walk(landscape: Score, step: Kernel[Any, Any], x: Tensor, steps: int) -> Tensor:
        return sample(landscape, step, x, steps, steps, generator=generator)[0][-1]

    landscape = held(visited[0])
    for t, before in pairwise(visited):
        try:
            if kernel is None and corrector is not None:
                x = walk(landscape, corrector(schedule.level(t)[1]), x, corrections)
            below = held(before)
            if kernel is not None or before == 0:
                x = walk(landscape, (kernel or DDPM("large")).move(schedule, t, before), x, 1)
            x, landscape = below.clamp(x), below
            if kernel is not None and corrector is not None and before:
                x = walk(landscape, corrector(schedule.level(before)[1]), x, corrections)
        except ArithmeticError as error:
            error.add_note(f"between levels {t} and {before} of {len(schedule)}")
            raise
        if watch is not None:
            watch(before, x)
    return x


def _check(score: object, schedule: object, x: object, kernel: object, corrector: object) -> None:
    if not isinstance(score, Score):
        raise TypeError(f"a Score or an Energy is walked, not a {type(score).__name__}; wrap a network in NoiseScore")
    if not isinstance(schedule, Schedule):
        raise BadInput(f"the schedule is made by Schedule.linear() and its kin, not a {type(schedule).__name__}")
    if not isinstance(x, Tensor) or x.dim() == 0 or not x.is_floating_point():
        raise BadInput("the start is floating-point noise of shape (B, ...)")
    if kernel is not None and not isinstance(kernel, (DDPM, DDIM)):
        name = getattr(kernel, "__name__", type(kernel).__name__)
        raise BadInput(f"the kernel is ddpm(), ddim() or None, not {name}; other kernels are correctors")
    if corrector is not None and (not callable(corrector) or isinstance(corrector, type)):
        raise BadInput("the corrector is a function of the noise of a level, such as lambda s: ula(0.1 * s**2)")
    if kernel is None and corrector is None:
        raise BadInput(
            "without a kernel (ddpm, ddim) the corrector does all the work: give one, such as lambda s: ula(0.1 * s**2)"
        )


def _known(x: Tensor, known: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """What is known, like x, and 0 where it is not; raises BadInput where it does not fit."""
    if (known is None) != (mask is None):
        raise BadInput("what is known comes with a mask of where, and a mask with what is known")
    if known is None or mask is None:
        return None
    if mask.dtype != torch.bool:
        raise BadInput(f"the mask of what is known must be bool, not {mask.dtype}")
    try:
        return torch.where(mask, known.to(x), 0).broadcast_to(x.shape)
    except RuntimeError as error:
        shapes = f"known {tuple(known.shape)} and mask {tuple(mask.shape)}"
        raise BadInput(f"{shapes} do not broadcast to {tuple(x.shape)}") from error


def _bounds(bounds: Bounds | None) -> Bounds | None:
    if bounds is None:
        return None
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise BadInput(f"bounds are (low, high), low below high, not {bounds}")
    return float(bounds[0]), float(bounds[1])
