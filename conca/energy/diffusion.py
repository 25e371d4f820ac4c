"""Diffusion read as landscapes: a network that tells the noise is the slope of an energy at each noise level.

NoiseScore      the slope alone: grad E_t(x) = net(x, t) / noise_t
NoiseEnergy     a number, |out|^2 / 2, whose slope is followed by autograd: no curl, exact samplers, composition
noise_loss      what both are trained by
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from conca.energy.draws import positive
from conca.energy.energy import Energy, Score
from conca.energy.losses import Reduction, averaged, checked
from conca.energy.schedule import Schedule
from conca.types import BadInput

__all__ = ["NoiseEnergy", "NoiseScore", "noise_loss"]


class _Noised(nn.Module):
    """Holds a network that reads noisy samples, and a schedule."""

    net: nn.Module
    schedule: Schedule

    def hold(self, net: nn.Module, schedule: Schedule, shape: tuple[int, ...] | None) -> None:
        """Keep both; raises BadInput where the network is none."""
        if not isinstance(net, nn.Module):
            raise BadInput(f"a network that tells the noise is a torch.nn.Module, not a {type(net).__name__}")
        if not isinstance(schedule, Schedule):
            raise BadInput(f"the schedule is made by Schedule.linear() and its kin, not a {type(schedule).__name__}")
        self.net, self.schedule, self.shape = net, schedule, shape

    def told(self, x: Tensor, t: int | Tensor, y: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """What the network says, like x; signal and noise of the levels. Raises BadInput for a result of another shape."""
        signal, noise = self.schedule.at(t, x)
        whole = (signal.square() + noise.square()).sqrt()
        level = (noise / signal).log().reshape(-1).expand(len(x))
        given = x / whole
        found = self.net(given, level) if y is None else self.net(given, level, y)
        if not isinstance(found, Tensor) or found.shape != x.shape:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise BadInput(f"a network that tells the noise gives what is shaped like x, {tuple(x.shape)}, not {what}")
        return found, signal, noise


class NoiseScore(_Noised, Score):
    """score(x, t) = -net(x, log ratio) / noise_t: the slope of the density of data with the noise of level t.

    The network reads x scaled to the variance of its schedule's kind (x / sqrt(signal^2 + noise^2)) and the logarithm of
    noise over signal, so it knows nothing of the number of levels: the same network walks another schedule.
    A learnt one need not be the slope of any landscape. `at(t)` binds the level, `on(y=...)` the class.

    >>> import torch
    >>> class Gauss(torch.nn.Module):  # of data N(0, 1) the noise in x is noise * x
    ...     def forward(self, x, level): return x * level.exp()[:, None] / (1 + (2 * level).exp()).sqrt()[:, None]
    >>> NoiseScore(Gauss(), Schedule.linear(100)).at(50).score(torch.tensor([[2.0]], dtype=torch.float64))
    tensor([[-2.]], dtype=torch.float64)

    Args:
        net: called with x (B, ...), the logarithms of noise over signal (B,) and, under a class, y (B,).
        schedule: whose levels 1 .. T are the conditions t.
        shape: of one point, where it matters.

    Raises:
        BadInput: for what is no network or schedule, levels that are none, results of another shape.

    Source: Ho, Jain & Abbeel 2020, "Denoising Diffusion Probabilistic Models", eq. 11.
    """

    def __init__(self, net: nn.Module, schedule: Schedule, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.hold(net, schedule, shape)

    def score(self, x: Tensor, /, t: int | Tensor, y: Tensor | None = None) -> Tensor:  # type: ignore[override]
        found, _, noise = self.told(x, t, y)
        return -found / noise


class NoiseEnergy(_Noised, Energy):
    """E(x, t) = |x / sqrt((signal spread)^2 + noise^2) + net(x, log ratio)|^2 / 2, a landscape at each noise level.

    A network that says nothing leaves the energy of round Gaussian data of deviation `spread`. Its slope comes from autograd, at
    about twice the price of `NoiseScore`, is trained through by second derivatives (`noise_loss`), and has no curl.

    Args:
        net, schedule, shape: as in `NoiseScore`.
        spread: standard deviation of the data, about.

    Raises:
        BadInput: as `NoiseScore` does.

    Source: Salimans & Ho 2021, "Should EBMs model the energy or the score?"; Du et al. 2023, "Reduce, Reuse, Recycle".
    """

    def __init__(
        self, net: nn.Module, schedule: Schedule, shape: tuple[int, ...] | None = None, *, spread: float = 1.0
    ) -> None:
        super().__init__()
        self.hold(net, schedule, shape)
        self.spread = positive(spread, "the spread of the data")

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """A small network at a level that is bound."""
        return (cls(_Small(), Schedule.cosine(10), (2,)).at(6),)

    def forward(self, x: Tensor, t: int | Tensor, y: Tensor | None = None) -> Tensor:
        found, signal, noise = self.told(x, t, y)
        out = found + x / ((signal * self.spread).square() + noise.square()).sqrt()
        return out.square().unsqueeze(-1).flatten(1).sum(1) / 2


class _Small(nn.Module):
    """Tells noise in a plane, for samples."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """(B, 2) and (B,) to (B, 2)."""
        return cast(Tensor, self.net(torch.cat([x, level[:, None]], 1)))


def noise_loss(
    score: Score,
    schedule: Schedule,
    x: Tensor,
    *,
    t: Tensor | None = None,
    generator: torch.Generator,
    reduction: Reduction = "mean",
) -> Tensor:
    """Mean over coordinates of (noise_t score(x_t, t) + z)^2, x_t = signal_t x + noise_t z: the noise is to be told.

    Args:
        score: a `NoiseScore` or `NoiseEnergy` (trained through its slope, by second derivatives), of levels t.
        schedule: of the noise.
        x: data, (B, ...).
        t: levels (B,); None: drawn evenly from 1 .. T.
        generator: of levels and noise, on the device of x.
        reduction: "mean", or "none" for (B,).

    Raises:
        Divergence: where a loss is not finite.
        BadInput: for levels that are none, and data that are not floating point.

    Source: Ho, Jain & Abbeel 2020, eq. 14 (the simple loss).
    """
    if not x.is_floating_point():
        raise BadInput(f"noise is added to floating-point data, such as images from -1 to 1, not to {x.dtype}")
    if t is None:
        t = torch.randint(1, len(schedule) + 1, (len(x),), generator=generator, device=generator.device)
    z = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    _, noise = schedule.at(t, x)
    told = noise * score.at(t).score(schedule.noised(x.detach(), t, z))
    return averaged(checked((told + z).square().unsqueeze(-1).flatten(1).mean(1)), reduction)
