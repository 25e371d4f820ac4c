"""A structural forecaster: level, trend, memory and seasons of every target as a linear-Gaussian state space, fitted by gradient.

    y_t = level_t - trend_t + memory_t + sum over harmonics of (a_t cos + b_t sin)(angle_t) + effect . known_t + eps_t

level, a, b    random walks
trend          what a gradual change still has to bring: it decays, and its noise is a part of the level's (a damped local linear
               trend: its slope times phi / (1 - phi))
memory         decays towards 0: what is remembered for a while (autoregressive of order 1)
angle          of the day, the week and the year, as the calendar of the row says

All components decay on their own, so samples that are missing and uneven times are exact (`conca.ops.kalman_diagonal`). Targets are
modelled one by one, each bent and normalised as for every network (`conca.data.encoding`); the anchor is not used, since the level
is one. Learnt are the variances, the two rates, the effects of what is known in advance, and what is believed before the first row:
a series that begins has the seasons of the others. Covariates that are not known in advance are not used.

The loss is that of all forecasters, pinball at every step ahead, and the filter is inside it. The one-step likelihood, by which such
models are fitted where they are true, trusts them too far ahead where they are not: on the demo's table it gives a pinball loss
that is 15% higher. (Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 1989; West and Harrison, Bayesian
Forecasting and Dynamic Models, 1997.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conca.layers.mixer import Role
from conca.models.words import HARMONICS
from conca.ops.kalman_diagonal import Belief, DiagonalModel, Read, diagonal_filter, spread_of
from conca.types import BadInput

__all__ = ["Structural", "Structure"]

SHARES = 1.0, 1.5, 0.5
"""How many the first cycle, the second and the third have, as a share of that."""
NEAR = 10
"""A cycle of at most so many shorter ones changes their course."""
BLOCK = 2**22
"""Numbers of covariances that are kept at once."""
RATE = 30.0
"""Learning rate as a multiple of that of networks: a few numbers, most of them logarithms."""
LEAST = 1e-6
"""Variance of eps in normalised units, at least."""
FIXED = 3
"""Components that are not seasonal."""


@dataclass(frozen=True)
class Structure:
    """What a structural forecaster knows of the table, K targets.

    turns       of each cycle of the calendar in a nominal step
    numbers     numeric covariates among the inputs of a row
    known_numbers, known_categories   places of those known in advance
    harmonics   of the shortest cycle, at most (`SHARES` of it of the others)
    """

    turns: tuple[float, ...]
    numbers: int = 0
    known_numbers: tuple[int, ...] = ()
    known_categories: tuple[int, ...] = ()
    harmonics: int = HARMONICS

    def __post_init__(self) -> None:
        for name in ("turns", "known_numbers", "known_categories"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def from_dict(cls, saved: Any) -> Structure:
        """The inverse of `dataclasses.asdict`, also after a trip through JSON. Raises BadInput on anything else."""
        try:
            return cls(**saved)
        except TypeError as error:
            raise BadInput(f"network: structure cannot be read ({error})") from None

    @property
    def waves(self) -> list[tuple[int, int]]:
        """Cycle and harmonic of each wave, no two of them of one frequency, none too fast for the rows."""
        found: list[tuple[int, int]] = []
        for cycle, turn in enumerate(self.turns):
            others = self.turns[:cycle]
            fit = [
                k
                for k in range(1, int((0.5 + 1e-9) / turn) + 1)
                if all(abs(k * turn / other - round(k * turn / other)) > 1e-6 for other in others)
            ]
            ratio = others[-1] / turn if others else math.inf
            fit.sort(key=lambda k: (rank(k, ratio), k))
            most = math.ceil(self.harmonics * SHARES[cycle])
            found += [(cycle, k) for k in sorted(fit[:most])]
        return found


def rank(harmonic: int, ratio: float) -> float:
    """What comes first among the harmonics of a cycle of `ratio` shorter ones.

    Days of the week differ in their course: beside the slow waves there are those near the harmonics of the day.
    """
    if ratio > NEAR:
        return harmonic
    whole = round(harmonic / ratio)
    return whole + abs(harmonic - whole * ratio)


class Structural(nn.Module):
    """A member that is a state space: rows to forecasts of every step ahead, mean and deviation, and these to quantiles.

    Args:
        structure: what it knows of the table.
        targets, horizon, levels, known: K, H, Q and G of `conca.models.forecast.NetworkConfig`.
    """

    bounded = True
    frequency: Tensor

    def __init__(
        self,
        structure: Structure,
        *,
        targets: int,
        horizon: int,
        levels: Sequence[float],
        known: int,
        sizes: Sequence[int],
    ) -> None:
        super().__init__()
        self.structure, self.targets, self.horizon, self.levels = structure, targets, horizon, tuple(levels)
        self.sizes = tuple(sizes)
        self.waves = structure.waves
        self.places = tuple(zip(*self.waves)) or ((), ())
        cycles = len(structure.turns)
        self.size = FIXED + 2 * len(self.waves)

        def start(value: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.full((targets, *shape), value, dtype=torch.float32))

        self.error = start(-4.0)
        """Logarithms of variances, (K): of eps; of the noise of level and trend, of memory at rest, of each cycle's waves (K, C)."""
        self.level, self.trend, self.memory, self.seasons = start(-5.0), start(-5.0), start(-1.0), start(-10.0, cycles)
        self.trend_rate, self.memory_rate = start(1.0), start(2.0)
        """Logits of what is left after one step."""
        self.mean, self.spread = start(0.0, self.size), start(-2.0, self.size)
        """Before the first row: mean, and logarithm of the variance."""
        self.effect = start(0.0, known) if known else None

    def roles(self) -> dict[str, Role]:
        """All parameters in float32, without decay, at a rate of their own."""
        return {name: Role(decay=False, rate=RATE, float32=True) for name, _ in self.named_parameters()}

    def decays(self) -> Tensor:
        """What is left of each component after one step, (K, N)."""
        trend, memory = self.trend_rate.double().sigmoid(), self.memory_rate.double().sigmoid()
        fixed = torch.stack([torch.ones_like(trend), trend, memory], -1)
        return torch.cat([fixed, fixed.new_ones(self.targets, self.size - FIXED)], -1)

    def noises(self, decay: Tensor) -> tuple[Tensor, Tensor]:
        """Variance of the noise of each component in one step (K, N), and the covariance of the first two (K,)."""
        level, trend = self.level.double().exp(), self.trend.double().exp()
        memory = self.memory.double().exp() * (1 - decay[:, 2] ** 2)
        each = [level + trend, trend, memory]
        seasons = self.seasons.double().exp()
        each += [seasons[:, cycle] for cycle, _ in self.waves for _ in range(2)]
        return torch.stack(each, -1), trend

    def model(self, rows: int) -> DiagonalModel:
        """What the filter needs, for `rows` series of K targets each: batch axes of rows K."""
        decay = self.decays()
        noise, shared = self.noises(decay)
        matrix = torch.diag_embed(noise)
        both = torch.stack([torch.zeros_like(shared), shared, shared, torch.zeros_like(shared)], -1).reshape(-1, 2, 2)
        matrix = matrix + nn.functional.pad(both, (0, self.size - 2, 0, self.size - 2))
        error = self.error.double().exp() + LEAST
        return DiagonalModel(*(part.repeat(rows, *[1] * (part.dim() - 1)) for part in (decay, matrix, error)))

    def init_state(self, batch: int) -> Belief:
        """What is believed of `batch` series before their first row: mean (B, K, N), covariance (B, K, N, N), float64."""
        covariance = torch.diag_embed(self.spread.double().exp())
        mean = self.mean.double()
        return Belief(mean.expand(batch, -1, -1).clone(), covariance.expand(batch, -1, -1, -1).clone())

    def design(self, turns: Tensor) -> Tensor:
        """What of each component is seen, (..., N), where each cycle has made so many turns (..., C)."""
        cycles, harmonics = (torch.tensor(part, dtype=torch.int64, device=turns.device) for part in self.places)
        angles = 2 * math.pi * harmonics * turns[..., cycles]
        waves = torch.stack([torch.cos(angles), torch.sin(angles)], -1).flatten(-2)
        fixed = turns.new_tensor([1.0, -1.0, 1.0]).expand(*turns.shape[:-1], FIXED)
        return torch.cat([fixed, waves], -1)

    def read(
        self,
        inputs: Tensor,
        codes: Tensor,
        state: Belief | None = None,
        *,
        lengths: Tensor | None = None,
        elapsed: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Read, Tensor]:
        """The filter over rows, series and targets on one axis (B K), and the turns (B, R, C) of the rows asked for."""
        B, T, _ = inputs.shape
        K = self.targets
        x = inputs.double()
        value, missing, turns = x[..., :K], inputs[..., 2 * K : 3 * K] > 0, self.turns(x)
        if self.effect is not None:
            value = value - self.known(x, codes) @ self.effect.double().mT
        value = value.masked_fill(missing, torch.nan)
        design = self.design(turns).repeat_interleave(K, 0)
        belief = self.init_state(B) if state is None else state
        found = diagonal_filter(
            value.transpose(1, 2).reshape(B * K, T),
            design,
            self.model(B),
            Belief(belief.mean_BN.flatten(0, 1), belief.covariance_BNN.flatten(0, 1)),
            lengths=None if lengths is None else lengths.repeat_interleave(K),
            elapsed=None if elapsed is None else elapsed.double().repeat_interleave(K, 0),
            rows=rows,
        )
        return found, turns if rows is None else turns[:, rows]

    def turns(self, x: Tensor) -> Tensor:
        """Where in each cycle rows (..., I) lie, as the calendar among their inputs says, (..., C)."""
        begin = 3 * self.targets + 2 * self.structure.numbers
        places = x[..., begin : begin + 2 * len(self.structure.turns)]
        return torch.atan2(places[..., 0::2], places[..., 1::2]) / (2 * math.pi)

    def known(self, x: Tensor, codes: Tensor) -> Tensor:
        """What was known in advance of rows (..., I) with codes (..., C): (..., G), as `Encoding.known` gives it."""
        structure, begin = self.structure, 3 * self.targets
        places = torch.tensor(structure.known_numbers, dtype=torch.int64, device=x.device)
        missing = x[..., begin + structure.numbers + places]
        parts = [torch.where(missing > 0, 0.0, x[..., begin + places]), missing]
        for column in structure.known_categories:
            every = torch.arange(1, self.sizes[column], device=x.device)
            parts.append((codes[..., column, None] == every).to(x.dtype))
        return torch.cat(parts, -1)

    def forward(
        self,
        inputs: Tensor,
        codes: Tensor,
        state: Belief | None = None,
        *,
        lengths: Tensor | None = None,
        elapsed: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Belief]:
        """Mean and deviation of every step ahead and target, without what is known in advance, (B, R, H K 2), and the state."""
        B, T, _ = inputs.shape
        belief = self.init_state(B) if state is None else state
        every = torch.arange(T) if rows is None else rows.cpu()
        parts = [inputs.new_zeros(B, 0, self.horizon * self.targets * 2)]
        each = B * self.targets * self.size * max(self.size, self.horizon) * max(len(every), 1)
        block = max(16, BLOCK * T // max(each, 1))
        for begin in range(0, T, block):
            cut = slice(begin, begin + block)
            here = every[(every >= begin) & (every < begin + block)] - begin
            found, turns = self.read(
                inputs[:, cut],
                codes[:, cut],
                belief,
                lengths=None if lengths is None else (lengths - begin).clamp(0, inputs[:, cut].shape[1]),
                elapsed=None if elapsed is None else elapsed[:, cut],
                rows=here,
            )
            parts.append(self.ahead(found.asked, turns).to(inputs.dtype))
            belief = Belief(*(leaf.reshape(B, self.targets, *leaf.shape[1:]) for leaf in found.last))
        return torch.cat(parts, 1), belief

    def step(
        self, inputs: Tensor, codes: Tensor, state: Belief, *, elapsed: Tensor | None = None
    ) -> tuple[Tensor, Belief]:
        """One row of each series: inputs (B, I), codes (B, C), elapsed (B,)."""
        late = None if elapsed is None else elapsed[:, None]
        h, state = self(inputs[:, None], codes[:, None], state, elapsed=late)
        return h[:, 0], state

    def ahead(self, belief: Belief, turns: Tensor) -> Tensor:
        """The forecasts (B, R, H K 2) from rows with these beliefs, (B K, R, ...), and turns (B, R, C)."""
        B, R, _ = turns.shape
        K, H = self.targets, self.horizon
        steps = torch.arange(1, H + 1, dtype=torch.float64, device=turns.device)
        each = torch.tensor(self.structure.turns, dtype=torch.float64, device=turns.device)
        seen = self.design(turns[:, :, None] + steps[:, None] * each)[:, None]
        decay = self.decays()
        noise, shared = self.noises(decay)
        pull = seen * (decay[:, None, None] ** steps[:, None])
        mean, covariance = (leaf.reshape(B, K, *leaf.shape[1:]) for leaf in belief)
        centre = torch.matmul(pull, mean[..., None])[..., 0]
        variance = (torch.matmul(pull, covariance) * pull).sum(-1)
        gathered = noise[:, None] * spread_of(decay[:, None] ** 2, steps[:, None])
        variance = variance + (seen**2 * gathered[:, None]).sum(-1)
        both = 2 * shared[:, None] * spread_of(decay[:, 1, None], steps)
        variance = variance + seen[..., 0] * seen[..., 1] * both[:, None]
        deviation = (variance + (self.error.double().exp() + LEAST)[:, None, None]).sqrt()
        return torch.stack([centre, deviation], -1).permute(0, 2, 3, 1, 4).reshape(B, R, H * K * 2)

    def quantiles(self, h: Tensor, anchor: Tensor, known: Tensor | None = None) -> Tensor:
        """Normalised quantiles (..., H, K, Q) of Gaussians: h (..., H K 2), known (..., H, G); the anchor is not used."""
        centre, deviation = h.reshape(*h.shape[:-1], self.horizon, self.targets, 2).unbind(-1)
        if self.effect is not None:
            if known is None:
                raise ValueError(f"the forecaster wants {self.effect.shape[1]} known numbers of every step ahead")
            centre = centre + known @ self.effect.mT.to(known.dtype)
        levels: Tensor = torch.special.ndtri(torch.tensor(self.levels, dtype=torch.float64)).to(h)
        return torch.addcmul(centre[..., None], deviation[..., None], levels)

    def log_likelihood(
        self,
        inputs: Tensor,
        codes: Tensor,
        state: Belief | None = None,
        *,
        lengths: Tensor | None = None,
        elapsed: Tensor | None = None,
    ) -> Tensor:
        """log p of the normalised targets of each series, each sample given those before it: (B, K)."""
        none = torch.arange(0)
        found, _ = self.read(inputs, codes, state, lengths=lengths, elapsed=elapsed, rows=none)
        seen = found.seen_BT
        each = torch.log(2 * math.pi * found.variance_BT) + found.innovation_BT**2 / found.variance_BT
        total: Tensor = torch.where(seen, each, 0.0).sum(1)
        return -0.5 * total.reshape(len(inputs), self.targets)
