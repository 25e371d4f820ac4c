"""A forecaster's network: a causal stack reads a series, and at every row says the quantiles of the steps ahead.

    h_t, state = stack(W x_t + sum of embeddings, state)
    q_t = anchor_t + head(norm(h_t)) + ahead(norm(h_t), z_t+1 ... z_t+H)

z is what is known in advance of the steps ahead, if anything; quantiles go outward from the middle one by softplus, so that they
never cross.

Several members of one form, trained from different beginnings, are averaged (Lakshminarayanan et al., Simple and Scalable
Predictive Uncertainty Estimation using Deep Ensembles, 2017). Loss: Koenker and Bassett, Regression Quantiles, 1978.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.norm import RMSNorm
from conca.models.stack import pattern
from conca.models.structural import Structural, Structure
from conca.types import BadInput, State, nearest

__all__ = ["ForecastNetwork", "NetworkConfig", "Tower", "pinball"]

LARGEST = 12.0
"""Bent values are cut off here before they are straightened: sinh(12) is 80,000."""


@dataclass(frozen=True)
class NetworkConfig:
    """What a network is made of; K targets, Q quantiles, C categorical columns.

    layers      pattern of the stack, such as "lstm" or "s4d*2 attention(window=64)"
    d_model     width
    horizon     steps ahead
    inputs      numbers in a row
    categories  number of codes of each categorical column
    levels      of the quantiles, Q increasing numbers between 0 and 1
    bends, means, scales   per target, how normalised values become values of the target (`ForecastNetwork.straighten`)
    members     networks that are averaged
    dropout     on what a block adds
    known       numbers that are known in advance of each step ahead
    structure   of a structural forecaster, which has no layers; None for a network
    """

    layers: str
    d_model: int
    horizon: int
    inputs: int
    categories: tuple[int, ...]
    levels: tuple[float, ...]
    bends: tuple[float, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    members: int = 1
    dropout: float = 0.0
    known: int = 0
    structure: Structure | None = None

    @property
    def middle(self) -> int:
        """Which of the levels is nearest to a half."""
        return min(range(len(self.levels)), key=lambda i: abs(self.levels[i] - 0.5))

    def as_dict(self) -> dict[str, Any]:
        """Lists, strings and numbers, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "structure" or value is not None}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> NetworkConfig:
        """The inverse of `as_dict`, also after a trip through JSON. Raises BadInput on an unknown or missing key."""
        known = [f.name for f in fields(cls)]
        for key in saved:
            if key not in known:
                raise BadInput(f"network: unknown key '{key}'; {nearest(key, known)}")
        try:
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()}
            if values.get("structure") is not None:
                values["structure"] = Structure.from_dict(values["structure"])
            return cls(**values)
        except TypeError:
            lost = [name for name in known[:9] if name not in saved]
            raise BadInput(f"network: the key '{lost[0]}' is missing") from None


class Ahead(nn.Module):
    """What is known in advance of a step, read in the light of the past: W silu(A h_t + B z_{t+k}), the same for every step k."""

    def __init__(self, width: int, known: int, outputs: int) -> None:
        super().__init__()
        self.past = nn.Linear(width, width)
        self.step = nn.Linear(known, width, bias=False)
        self.out = nn.Linear(width, outputs)
        nn.init.normal_(self.out.weight, std=0.1 * width**-0.5)
        nn.init.zeros_(self.out.bias)

    def forward(self, h: Tensor, known: Tensor) -> Tensor:
        """What it adds (..., H, outputs): h (..., D), known (..., H, number known)."""
        found: Tensor = self.out(F.silu(self.past(h)[..., None, :] + self.step(known)))
        return found


class Tower(nn.Module):
    """One member: rows to hidden rows, and these to quantiles."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        self.enter = nn.Linear(config.inputs, width)
        self.embeddings = nn.ModuleList(nn.Embedding(n, width, padding_idx=0) for n in config.categories)
        self.stack = pattern(config.layers, width, dropout=config.dropout)
        self.norm = RMSNorm(width, eps=1e-6)
        each = len(config.bends) * len(config.levels)
        self.head = nn.Linear(width, config.horizon * each)
        for embedding in self.embeddings:
            nn.init.normal_(cast(nn.Embedding, embedding).weight[1:], std=0.1)
        nn.init.normal_(self.head.weight, std=0.1 * width**-0.5)
        nn.init.zeros_(self.head.bias)
        self.ahead = Ahead(width, config.known, each) if config.known else None

    @property
    def bounded(self) -> bool:
        """Whether the state does not grow."""
        return self.stack.bounded

    def init_state(self, batch: int) -> tuple[State, ...]:
        """The state of `batch` series of which nothing has been read."""
        return self.stack.init_state(batch)

    def forward(
        self,
        inputs: Tensor,
        codes: Tensor,
        state: tuple[State, ...] | None = None,
        *,
        lengths: Tensor | None = None,
        elapsed: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, tuple[State, ...]]:
        """Hidden rows (B, T, D) and the state; arguments as in `ForecastNetwork.read`."""
        elapsed = elapsed if self.stack.timed else None
        h, state = self.stack(self.entered(inputs, codes), state, lengths=lengths, elapsed=elapsed)
        return self.norm(h if rows is None else h[:, rows]), state

    def step(
        self, inputs: Tensor, codes: Tensor, state: tuple[State, ...], *, elapsed: Tensor | None = None
    ) -> tuple[Tensor, tuple[State, ...]]:
        """One row of each series, by the step of the layers: inputs (B, I), codes (B, C), elapsed (B,) give (B, D)."""
        h, state = self.stack.step(self.entered(inputs, codes), state, elapsed=elapsed if self.stack.timed else None)
        return self.norm(h), state

    def entered(self, inputs: Tensor, codes: Tensor) -> Tensor:
        """What the layers read, (..., D)."""
        x: Tensor = self.enter(inputs)
        for column, embedding in enumerate(self.embeddings):
            x = x + embedding(codes[..., column])
        return x

    def quantiles(self, h: Tensor, anchor: Tensor, known: Tensor | None = None) -> Tensor:
        """Normalised quantiles (..., H, K, Q), outward from the middle one.

        h (..., D), anchor (..., H or 1, K), and, if the network wants them, known (..., H, number known).
        """
        config, middle = self.config, self.config.middle
        raw = self.head(h).reshape(*h.shape[:-1], config.horizon, len(config.bends), len(config.levels))
        if self.ahead is not None:
            if known is None:
                raise ValueError(f"the network wants {config.known} known numbers of every step ahead")
            raw = raw + self.ahead(h, known).reshape(raw.shape)
        below = -F.softplus(raw[..., :middle]).flip(-1).cumsum(-1).flip(-1)
        above = F.softplus(raw[..., middle + 1 :]).cumsum(-1)
        centre = anchor[..., None] + raw[..., middle : middle + 1]
        return torch.cat([centre + below, centre, centre + above], -1)


def tower(config: NetworkConfig) -> Tower | Structural:
    """One member."""
    if config.structure is None:
        return Tower(config)
    return Structural(
        config.structure,
        targets=len(config.bends),
        horizon=config.horizon,
        levels=config.levels,
        known=config.known,
        sizes=config.categories,
    )


class ForecastNetwork(nn.Module):
    """Quantile forecasts at every row of a series; state goes in and comes out.

    Args:
        config: see `NetworkConfig`.

    Raises:
        BadInput: for a pattern that cannot be built.
    """

    spread: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.middle = config.middle
        self.towers = nn.ModuleList(tower(config) for _ in range(config.members))
        self.register_buffer("spread", torch.ones(len(config.bends), len(config.levels)))
        if any(p.is_meta for p in self.parameters()):
            raise BadInput(f"layers {config.layers!r}: the parameters are nowhere; name another device, or none")
        self.to("cpu", torch.float32)

    @property
    def bounded(self) -> bool:
        """Whether the state does not grow."""
        return all(cast(Tower, tower).bounded for tower in self.towers)

    def read(
        self,
        inputs: Tensor,
        codes: Tensor,
        state: tuple[tuple[State, ...], ...] | None = None,
        *,
        lengths: Tensor | None = None,
        elapsed: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, tuple[tuple[State, ...], ...]]:
        """Read rows: inputs (B, T, I) and codes (B, T, C) give hidden rows (members, B, T, D) and the state.

        Args:
            state: what was read before.
            lengths: (B,) of right-padded rows.
            elapsed: (B, T) time since the previous row in nominal steps.
            rows: (R,) increasing indices of the rows whose hidden rows are wanted; None: all.
        """
        before: Sequence[Any] = [None] * len(self.towers) if state is None else state
        results = [
            tower(inputs, codes, own, lengths=lengths, elapsed=elapsed, rows=rows)
            for tower, own in zip(self.towers, before)
        ]
        return torch.stack([h for h, _ in results]), tuple(own for _, own in results)

    def members(self, h: Tensor, anchor: Tensor, known: Tensor | None = None) -> Tensor:
        """Normalised quantiles of every member: h (members, ..., D), anchor (..., H or 1, K) give (members, ..., H, K, Q)."""
        return torch.stack([cast(Tower, tower).quantiles(own, anchor, known) for tower, own in zip(self.towers, h)])

    def normalised(self, h: Tensor, anchor: Tensor, known: Tensor | None = None) -> Tensor:
        """Normalised quantiles (..., H, K, Q): the mean of the members, with the calibrated spread."""
        q = self.members(h, anchor, known).mean(0)
        centre = q[..., self.middle : self.middle + 1]
        return (centre + self.spread * (q - centre)).sort(-1).values

    def shape(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bend, mean and scale of the targets, each (K, 1)."""
        config = self.config
        bend, mean, scale = (
            torch.tensor(v, dtype=like.dtype, device=like.device)[:, None]
            for v in (config.bends, config.means, config.scales)
        )
        return bend, mean, scale

    def straighten(self, q: Tensor) -> Tensor:
        """Normalised values (..., K, Q) as values of the scaled target: undo `(asinh(b v) / b - mean) / scale`."""
        bend, mean, scale = self.shape(q)
        w = q * scale + mean
        safe = torch.where(bend > 0, bend, 1.0)
        return torch.where(bend > 0, torch.sinh((w * safe).clamp(-LARGEST, LARGEST)) / safe, w)

    def bent(self, v: Tensor) -> Tensor:
        """The inverse of `straighten`."""
        bend, mean, scale = self.shape(v)
        safe = torch.where(bend > 0, bend, 1.0)
        return (torch.where(bend > 0, torch.asinh(v * safe) / safe, v) - mean) / scale

    def forward(self, h: Tensor, anchor: Tensor, known: Tensor | None = None) -> Tensor:
        """Quantiles of the scaled target, increasing: h (members, ..., D), anchor (..., H or 1, K) give (..., H, K, Q).

        known (..., H, number known) is what is known in advance of the steps ahead.

        Targets that are bent are never negative, nor are their forecasts.
        """
        q = self.straighten(self.normalised(h, anchor, known))
        return torch.where(self.shape(q)[0] > 0, q.clamp(min=0), q)


def pinball(y: Tensor, quantiles: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of max(p (y - q), (p - 1) (y - q)) over all known y and all levels, and how many these are.

    y (..., H, K) with NaN where missing, quantiles (..., H, K, Q), levels (Q,).
    """
    known = ~torch.isnan(y)
    error = torch.where(known, y, 0.0)[..., None] - quantiles
    loss = torch.maximum(levels * error, (levels - 1) * error) * known[..., None]
    return loss.sum(), known.sum() * quantiles.shape[-1]
