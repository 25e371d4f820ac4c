"""What a classifier is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from conca.estimators.options import PRECISIONS, Options

__all__ = ["ClassifyConfig"]

WHOLE = {
    "d_model": (1, 2**14),
    "batch_size": (1, 2**14),
    "patience": (1, 10**6),
    "random_state": (0, 2**63 - 1),
}
"""Least and largest values of the options that are whole numbers."""


@dataclass(frozen=True)
class ClassifyConfig(Options):
    """Options of `Classifier`, kept in its run.

    layers        pattern of the network's stack, such as "s4d*4" or "s5*2 attention(window=64)"
    d_model       its width
    bidirectional whether every layer reads backward too; then there is no answer before the end of a sequence
    dropout       on what a block adds
    epochs        at most so many; an epoch is every sequence once, or at least 25 steps; None: 40, or as many as make 1,000
                  steps, if that is more
    max_minutes   of training at most, about
    batch_size    sequences in a step of all devices together
    lr, weight_decay  highest rate and decay of AdamW
    smoothing     share of the truth that is spread over all classes while it learns
    patience      epochs without a better validation error before training stops
    random_state  not negative; same seed, same machine, same run
    devices       auto (a GPU if there is one), cpu, cuda, or one of several as cuda:1; more than one: 2, cpu:2, cuda:0,1
    precision     32-true, bf16-mixed, 64-true, and on a GPU 16-mixed
    """

    kind: ClassVar[str] = "classify"

    layers: str = "s4d(d_state=16)*4"
    d_model: int = 64
    bidirectional: bool = False
    dropout: float = 0.1
    epochs: int | None = None
    max_minutes: float | None = None
    batch_size: int = 32
    lr: float = 4e-3
    weight_decay: float = 0.05
    smoothing: float = 0.1
    patience: int = 10
    random_state: int = 0
    devices: str = "auto"
    precision: str = "32-true"

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", str(self.devices))
        for name, (least, most) in WHOLE.items():
            self.whole(name, least, most)
        if self.epochs is not None:
            self.whole("epochs", 1, 10**6)
        self.number("lr", "a positive number up to 1000", lambda x: 0 < x <= 1000)
        self.number("weight_decay", "a number from 0 to 1000", lambda x: 0 <= x <= 1000)
        for name in ("dropout", "smoothing"):
            self.number(name, "at least 0 and less than 1", lambda x: 0 <= x < 1)
        if self.max_minutes is not None:
            self.number("max_minutes", "a positive number up to 1,000,000", lambda x: 0 < x <= 1_000_000)
        self.check("layers", isinstance(self.layers, str), "a pattern such as 's4d*4'")
        self.check("bidirectional", isinstance(self.bidirectional, bool), "True or False")
        self.check("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")

    def course(self, examples: int) -> tuple[int, int]:
        """Epochs at most, and steps of each, to learn from so many sequences."""
        steps = max(-(-examples // self.batch_size), LEAST_STEPS)
        return self.epochs or max(EPOCHS, -(-STEPS // steps)), steps


EPOCHS, LEAST_STEPS, STEPS = 40, 25, 1000
"""Epochs, steps of an epoch at least, and steps of the whole at least, where nothing else is asked for."""
