"""A network that takes noise away, read as the slope of a landscape at each noise level, or as the landscape itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from conca.energy.energy import Energy, Score
from conca.types import BadInput

__all__ = ["DenoiserEnergy", "DenoiserScore"]

Denoise = Callable[[Tensor, Tensor], Tensor]


class _Around(nn.Module):
    """Holds a function or a module that takes noise away."""

    denoise: Denoise

    def hold(self, denoise: Denoise, shape: tuple[int, ...] | None) -> None:
        """Keep it; raises BadInput where it cannot be called."""
        if not callable(denoise):
            raise BadInput(
                f"a denoiser is called with (x, noise level), and a {type(denoise).__name__} cannot be called"
            )
        self.denoise, self.shape = denoise, shape

    def clean(self, x: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor]:
        """D(x, t), shaped like x, and t as (B, 1, ...). Raises BadInput for a level that is not positive, or another shape."""
        level = torch.as_tensor(t, dtype=x.dtype, device=x.device)
        if level.dim() > 1 or (level.dim() == 1 and len(level) not in (1, len(x))) or not bool((level > 0).all()):
            raise BadInput(f"a noise level is a positive number, or one per row, ({len(x)},), not {t}")
        level = level.expand(len(x))
        found = self.denoise(x, level)
        if not isinstance(found, Tensor) or found.shape != x.shape:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise BadInput(f"a denoiser must give what is shaped like x, {tuple(x.shape)}, not {what}")
        return found, level.reshape(-1, *[1] * (x.dim() - 1))


class DenoiserScore(_Around, Score):
    """score(x, t) = (D(x, t) - x) / t^2: the slope of the density of data with noise of standard deviation t.

    Exact for the best denoiser, the mean of the data given x (Tweedie). A learnt one need not be the slope of any landscape:
    around a loop it may add up to something. `at(t)` binds the noise level.

    Args:
        denoise: D(x, t), a module or a function of x (B, ...) and levels (B,), gives what is shaped like x.
        shape: of one point, where it matters.

    Raises:
        BadInput: for what cannot be called, levels that are not positive, results of another shape.

    Source: Robbins 1956 and Miyasawa 1961 for the identity; Vincent 2011, "A Connection Between Score Matching and Denoising
    Autoencoders"; Karras et al. 2022 for the form.
    """

    def __init__(self, denoise: Denoise, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.hold(denoise, shape)

    def score(self, x: Tensor, /, t: float | Tensor) -> Tensor:  # type: ignore[override]
        """(B, ...) at the level t, a number or (B,)."""
        clean, level = self.clean(x, t)
        return (clean - x) / level.square()


class DenoiserEnergy(_Around, Energy):
    """E(x, t) = |x - D(x, t)|^2 / (2 t^2): a landscape made of a denoiser, whose slope comes from autograd and has no curl.

    It adds, mixes and is sampled exactly, at about twice the price of `DenoiserScore`; its slope is not that of the noised
    data unless it was trained through it (`denoising_score_matching`). Arguments and errors as in `DenoiserScore`.

    Source: Salimans & Ho 2021, "Should EBMs model the energy or the score?"; Du et al. 2023, "Reduce, Reuse, Recycle".
    """

    def __init__(self, denoise: Denoise, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.hold(denoise, shape)

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """A small network at a level that is bound."""
        return (cls(_Small(), (2,)).at(0.8),)

    def forward(self, x: Tensor, t: float | Tensor) -> Tensor:
        clean, level = self.clean(x, t)
        return ((x - clean) / level).square().unsqueeze(-1).flatten(1).sum(1) / 2


class _Small(nn.Module):
    """A denoiser of a plane, for samples."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """(B, 2) and (B,) to (B, 2)."""
        found: Tensor = self.net(torch.cat([x, t[:, None]], 1))
        return x + found
