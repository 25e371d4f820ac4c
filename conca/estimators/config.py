"""What a forecaster is asked to be."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from conca.types import BadInput, nearest

__all__ = ["ForecastConfig"]


@dataclass(frozen=True)
class ForecastConfig:
    """Options of `Forecaster`, kept in its run.

    horizon       steps ahead
    layers        pattern of the network's stack, such as "lstm*2" or "s4d*2 attention(window=64)"
    d_model       its width
    quantiles     increasing, between 0 and 1; the one nearest to 0.5 is the forecast that errors are measured of
    members       networks that are trained side by side and averaged
    dropout       on what a block adds
    epochs        at most so many; an epoch reads each row about four times
    max_minutes   of training at most
    batch_size    pieces of series in a step, for each member
    length        rows of a piece
    lr, weight_decay  highest rate and decay of AdamW
    patience      epochs without a better validation error before training stops
    seed          not negative; same seed, same machine, same run
    devices       auto (a GPU if there is one), cpu, cuda, or one of several as cuda:1
    precision     as Lightning spells it: 32-true, bf16-mixed, 64-true
    """

    horizon: int = 24
    layers: str = "lstm*2"
    d_model: int = 64
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    members: int = 3
    dropout: float = 0.3
    epochs: int = 10
    max_minutes: float | None = None
    batch_size: int = 16
    length: int = 512
    lr: float = 3e-3
    weight_decay: float = 0.05
    patience: int = 4
    seed: int = 0
    devices: str = "auto"
    precision: str = "32-true"

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantiles", tuple(map(float, self.quantiles)))
        object.__setattr__(self, "devices", str(self.devices))
        for name in ("horizon", "d_model", "members", "epochs", "batch_size", "patience"):
            self.check(
                name, isinstance(getattr(self, name), int) and getattr(self, name) >= 1, "a whole number from 1 on"
            )
        self.check("length", isinstance(self.length, int) and self.length >= 2, "a whole number from 2 on")
        self.check("seed", isinstance(self.seed, int) and self.seed >= 0, "a whole number from 0 on")
        self.check("lr", 0 < self.lr < math.inf, "a positive number")
        self.check("weight_decay", 0 <= self.weight_decay < math.inf, "a number from 0 on")
        self.check("dropout", 0 <= self.dropout < 1, "at least 0 and less than 1")
        self.check("max_minutes", self.max_minutes is None or 0 < self.max_minutes < math.inf, "a positive number")
        q = self.quantiles
        fine = bool(q) and all(0 < level < 1 for level in q) and all(a < b for a, b in pairwise(q))
        self.check("quantiles", fine, "increasing numbers between 0 and 1")

    def check(self, name: str, fine: bool, needed: str) -> None:
        """Raise BadInput unless an option is fine."""
        if not fine:
            raise BadInput(f"{name} must be {needed}, not {getattr(self, name)!r}")

    def as_dict(self) -> dict[str, Any]:
        """Lists, strings and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> ForecastConfig:
        """The inverse of `as_dict`, also after a trip through JSON. Raises BadInput on an unknown key or an ill value."""
        known = [f.name for f in fields(cls)]
        for key in saved:
            if key not in known:
                raise BadInput(f"forecast: unknown option '{key}'; {nearest(key, known)}")
        try:
            return cls(**saved)
        except BadInput:
            raise
        except (TypeError, ValueError) as error:
            raise BadInput(f"forecast: an option cannot be read ({error})") from None
