"""What a forecaster is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from conca.estimators.options import PRECISIONS, Options
from conca.models.words import structure_options
from conca.types import BadInput

__all__ = ["ForecastConfig"]

WHOLE = {
    "horizon": (1, 2**16),
    "d_model": (1, 2**14),
    "members": (1, 100),
    "epochs": (1, 10**6),
    "batch_size": (1, 2**14),
    "patience": (1, 10**6),
    "length": (2, 2**20),
    "seed": (0, 2**63 - 1),
}
"""Least and largest values of the options that are whole numbers."""


@dataclass(frozen=True)
class ForecastConfig(Options):
    """Options of `Forecaster`, kept in its run.

    horizon       steps ahead
    layers        pattern of the network's stack, such as "lstm*2" or "s4d*2 attention(window=64)"; or "kalman", a structural
                  forecaster in its place: of what follows, d_model and dropout are not used, and members are 1
    d_model       its width
    quantiles     increasing, between 0 and 1; the one nearest to 0.5 is the forecast that errors are measured of
    members       networks that are trained side by side and averaged
    dropout       on what a block adds
    epochs        at most so many; an epoch reads each row about four times, or sixteen where its seasons explain most
    max_minutes   of training at most, about
    batch_size    pieces of series in a step of all devices together, for each member
    length        rows of a piece
    truncate      rows that gradients go back through, the state is carried on; None: the whole piece
    lr, weight_decay  highest rate and decay of AdamW
    patience      epochs without a better validation error before training stops
    seed          not negative; same seed, same machine, same run
    devices       auto (a GPU if there is one), cpu, cuda, or one of several as cuda:1; more than one: 2, cpu:2, cuda:0,1
    precision     32-true, bf16-mixed, 64-true, and on a GPU 16-mixed
    """

    kind: ClassVar[str] = "forecast"

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
    truncate: int | None = None
    lr: float = 3e-3
    weight_decay: float = 0.05
    patience: int = 4
    seed: int = 0
    devices: str = "auto"
    precision: str = "32-true"

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "quantiles", tuple(map(float, self.quantiles)))
        except (TypeError, ValueError):
            self.check("quantiles", False, "increasing numbers between 0 and 1, such as (0.1, 0.5, 0.9)")
        object.__setattr__(self, "devices", str(self.devices))
        for name, (least, most) in WHOLE.items():
            self.whole(name, least, most)
        self.number("lr", "a positive number up to 1000", lambda x: 0 < x <= 1000)
        self.number("weight_decay", "a number from 0 to 1000", lambda x: 0 <= x <= 1000)
        self.number("dropout", "at least 0 and less than 1", lambda x: 0 <= x < 1)
        if self.truncate is not None:
            self.whole("truncate", *WHOLE["length"])
        if self.max_minutes is not None:
            self.number("max_minutes", "a positive number up to 1,000,000", lambda x: 0 < x <= 1_000_000)
        self.check("layers", isinstance(self.layers, str), "a pattern such as 'lstm*2'")
        if structure_options(self.layers) is not None:
            object.__setattr__(self, "members", 1)  # several would be the same one: it begins from no random weights
        self.check("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        q = self.quantiles
        fine = bool(q) and all(0 < level < 1 for level in q) and all(a < b for a, b in pairwise(q))
        self.check("quantiles", fine, "increasing numbers between 0 and 1")
        for name, other in pairwise(self.columns):
            if name == other:
                raise BadInput(f"quantiles: two of them are the column '{name}'; give levels that lie further apart")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a forecast that hold the quantiles, such as q0.1."""
        return tuple(f"q{level:g}" for level in self.quantiles)
