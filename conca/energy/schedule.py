"""Noise schedules: how much of the data and how much noise there is at each level of a diffusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from conca.energy.draws import positive, whole
from conca.types import BadInput

__all__ = ["Schedule", "Spacing"]

Spacing = Literal["even", "leading"]

LARGEST_BETA = 0.999
"""Of a cosine schedule, as in its paper."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """x_t = signal_t x_0 + noise_t z for t = 1 .. T; level 0 is the data. Tables are float64, whatever x is.

    >>> schedule = Schedule.linear(1000)
    >>> len(schedule), f"{schedule.signal[-1]**2:.2e}"  # what is left of the data at the end
    (1000, '4.04e-05')
    >>> f"{Schedule.linear(100).signal[-1]**2:.2e}"  # rates are scaled with the number of levels
    '2.04e-05'

    Made by `linear`, `cosine` (variance preserving) and `geometric` (variance exploding).

    Args:
        signal, noise: (T,) each, both positive; noise over signal rises.
        name: what it is called in runs.

    Raises:
        BadInput: for tables that are none of a diffusion.
    """

    signal: Tensor = field(repr=False)
    noise: Tensor = field(repr=False)
    name: str = ""
    _ratio: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.signal, Tensor) or not isinstance(self.noise, Tensor):
            raise BadInput(
                "signal and noise of a schedule are two tables (T,) of float64; see Schedule.linear() and its kin"
            )
        shaped = self.signal.dim() == 1 and len(self.signal) > 0 and self.signal.shape == self.noise.shape
        if not shaped or self.signal.dtype != torch.float64 or self.noise.dtype != torch.float64:
            raise BadInput("signal and noise of a schedule are two tables (T,) of float64, T at least 1")
        ratio = self.noise / self.signal
        fine = bool((self.signal > 0).all() & (self.noise > 0).all() & ratio.isfinite().all())
        if not fine or not bool((ratio.diff() > 0).all()):
            raise BadInput("signal and noise of a schedule must be positive, and noise over signal must rise with t")
        object.__setattr__(self, "_ratio", ratio)

    def __len__(self) -> int:
        return len(self.signal)

    @classmethod
    def linear(cls, levels: int = 1000, low: float = 1e-4, high: float = 0.02, *, rescale: bool = True) -> Schedule:
        """beta_t rises evenly from `low` to `high`, both times 1000 / levels, so that little data is left in the end.

        `rescale=False` keeps the rates as they are, as is often done by mistake: with 100 levels 36% of the variance is
        still data. Raises BadInput where a beta would reach 1.

        Source: Ho, Jain & Abbeel 2020, "Denoising Diffusion Probabilistic Models".
        """
        whole(levels, "the number of levels")
        scale = 1000 / levels if rescale else 1.0
        beta = scale * torch.linspace(positive(low, "low"), positive(high, "high"), levels, dtype=torch.float64)
        if not bool((beta < 1).all()):
            raise BadInput(
                f"{levels} levels are too few for a linear schedule: beta would reach {float(beta.max()):.2g}, and must stay "
                "below 1; take more levels, or cosine"
            )
        return cls.of_betas(beta, "linear")

    @classmethod
    def cosine(cls, levels: int = 1000, offset: float = 0.008) -> Schedule:
        """signal_t^2 falls as a squared cosine of (t / T + offset) / (1 + offset); beta is at most 0.999.

        Source: Nichol & Dhariwal 2021, "Improved Denoising Diffusion Probabilistic Models".
        """
        whole(levels, "the number of levels")
        t = torch.arange(levels + 1, dtype=torch.float64) / levels
        if not 0 <= offset < math.inf:
            raise BadInput(f"the offset of a cosine schedule is 0 or more, not {offset!r}")
        left = torch.cos((t + offset) / (1 + offset) * math.pi / 2).square()
        return cls.of_betas((1 - left[1:] / left[:-1]).clamp(max=LARGEST_BETA), "cosine")

    @classmethod
    def geometric(cls, levels: int = 1000, low: float = 0.01, high: float = 50.0) -> Schedule:
        """The data are kept whole and noise grows by one factor a level, from `low` to `high` (variance exploding).

        Source: Song & Ermon 2019, "Generative Modeling by Estimating Gradients of the Data Distribution"; its follower
        (2020) advises a highest level as large as the largest distance of two samples.
        """
        whole(levels, "the number of levels")
        if not positive(low, "low") < positive(high, "high"):
            raise BadInput(f"low must be below high, not {low} and {high}")
        noise = torch.logspace(math.log10(low), math.log10(high), levels, dtype=torch.float64)
        return cls(torch.ones_like(noise), noise, "geometric")

    @classmethod
    def of_betas(cls, beta: Tensor | Sequence[float], name: str = "") -> Schedule:
        """signal_t^2 = prod (1 - beta), noise_t^2 = 1 - signal_t^2. Raises BadInput unless all beta lie between 0 and 1."""
        beta = torch.as_tensor(beta, dtype=torch.float64)
        if beta.dim() != 1 or not bool(((beta > 0) & (beta < 1)).all()):
            raise BadInput("betas are a table (T,) of numbers between 0 and 1")
        logs = torch.log1p(-beta).cumsum(0)
        return cls((logs / 2).exp(), (-torch.expm1(logs)).sqrt(), name)

    @property
    def ratio(self) -> Tensor:
        """noise over signal, (T,): the standard deviation of the noise where the data are kept whole."""
        return self._ratio

    def level(self, t: int) -> tuple[float, float]:
        """(signal, noise) at t = 0 .. T; (1, 0) at 0. Raises BadInput for another t."""
        if isinstance(t, bool) or not isinstance(t, (int, Integral)) or not 0 <= t <= len(self):
            raise BadInput(f"a level of this schedule is a whole number from 0 to {len(self)}, not {t}")
        return (float(self.signal[t - 1]), float(self.noise[t - 1])) if t else (1.0, 0.0)

    def step(self, t: int, before: int) -> tuple[float, float]:
        """(a, v) of q(x_t | x_before) = N(a x_before, v), before < t; one level apart, v is beta_t. Raises BadInput unless it is."""
        (signal, noise), (signal_b, noise_b) = self.level(t), self.level(before)
        if not before < t:
            raise BadInput(f"a step goes from a level to a lower one, not from {t} to {before}")
        a = signal / signal_b
        return a, noise**2 - (a * noise_b) ** 2

    def levels(self, steps: int | None = None, spacing: Spacing = "even") -> list[int]:
        """The levels that a sampler of so many steps visits, from high to low.

        Args:
            steps: at most T; None: all.
            spacing: "even": from T to 1; "leading": every (T // steps)-th from 1 on, which leaves out the highest.

        Raises:
            BadInput: for more steps than there are levels, or another spacing.
        """
        T = len(self)
        count = T if steps is None else whole(steps, "the number of steps")
        if count > T:
            raise BadInput(f"{count} steps of a schedule of {T} levels; take {T} or fewer")
        if spacing == "leading":
            return [1 + k * (T // count) for k in reversed(range(count))]
        if spacing != "even":
            raise BadInput(f"spacing must be 'even' or 'leading', not {spacing!r}")
        return [round(t) for t in torch.linspace(T, 1, count, dtype=torch.float64).tolist()]

    def noised(self, x: Tensor, t: int | Tensor, z: Tensor) -> Tensor:
        """signal_t x + noise_t z: x and z (B, ...), t a level from 1, or one per row."""
        signal, noise = self.at(t, x)
        return signal * x + noise * z

    def at(self, t: int | Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(signal, noise) at level t (a number, or one per row of x), in the precision of x, ready to be multiplied with it.

        Raises BadInput for what is no level of this schedule.
        """
        place = torch.as_tensor(t, device="cpu")
        if place.is_floating_point() or place.dtype == torch.bool or place.shape not in ((), (1,), (len(x),)):
            raise BadInput(f"a level is a whole number from 1 to {len(self)}, or one per row, ({len(x)},), not {t}")
        if not bool(((place >= 1) & (place <= len(self))).all()):
            raise BadInput(f"a level of this schedule is a whole number from 1 to {len(self)}, not {t}")
        tables = (self.signal[place - 1], self.noise[place - 1])
        signal, noise = (v.to(x.device, x.dtype).reshape(-1, *[1] * (x.dim() - 1)) for v in tables)
        return signal, noise
