"""What a training on text is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from conca.estimators.options import PRECISIONS, Options

__all__ = ["LIMIT", "TextConfig"]

WHOLE = {
    "d_model": (1, 2**16),
    "length": (1, 2**24),
    "batch_size": (1, 2**20),
    "patience": (1, 10**6),
    "random_state": (0, 2**63 - 1),
}
"""Least and largest values of the options that are whole numbers."""
SHARE, LIMIT = 0.1, 2**20
"""Of the text that is held out, and its bytes at most, where nothing else is asked for."""
PASSES, ENDLESS = 10, 1000
"""Epochs where nothing else is asked for, and where the time decides."""
LEAST_STEPS, STEPS = 25, 500
"""Steps of an epoch, at least and at most."""
RATES = {"new": 3e-3, "going on": 2e-4, "adapter": 1e-3}
"""Highest learning rate of a new network, of one that goes on, and of what is put beside one."""


@dataclass(frozen=True)
class TextConfig(Options):
    """Options of a training on text, kept in its run.

    layers        pattern of the network's stack, such as "mamba2*4 attention(window=64)"; of a network that goes on, its own
    d_model       its width
    dropout       on what a block adds
    length        tokens (bytes, where there is no tokenizer) of a passage
    batch_size    passages of a step of all devices together
    epochs        at most so many; an epoch is the whole text once, or 500 steps if that is less; None: as many as read it 10
                  times, or what fits in `max_minutes`
    max_minutes   of training at most, about; the rate falls so that it ends well then
    lr            highest rate of AdamW; None: 0.003 of a new network, 0.0002 of one that goes on, 0.001 of an adapter
    weight_decay  of AdamW
    patience      epochs without a better validation error before training stops
    test_fraction share of the text, its end, that is held out and judged; None: a tenth, at most a mebibyte
    lora          rank of an adapter that is trained in place of a network that goes on; None: the network is
    random_state  not negative; same seed, same machine, same run
    devices       auto (a GPU if there is one), cpu, cuda, or one of several as cuda:1; more than one: 2, cpu:2, cuda:0,1
    precision     32-true, bf16-mixed, 64-true, and on a GPU 16-mixed
    """

    kind: ClassVar[str] = "text"

    layers: str = "mamba2(d_state=32)*4"
    d_model: int = 256
    dropout: float = 0.0
    length: int = 256
    batch_size: int = 8
    epochs: int | None = None
    max_minutes: float | None = None
    lr: float | None = None
    weight_decay: float = 0.1
    patience: int = 10
    test_fraction: float | None = None
    lora: int | None = None
    random_state: int = 0
    devices: str = "auto"
    precision: str = "32-true"

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", str(self.devices))
        for name, (least, most) in WHOLE.items():
            self.whole(name, least, most)
        if self.epochs is not None:
            self.whole("epochs", 1, 10**6)
        if self.lora is not None:
            self.whole("lora", 1, 2**12)
        if self.lr is not None:
            self.number("lr", "a positive number up to 1000", lambda x: 0 < x <= 1000)
        self.number("weight_decay", "a number from 0 to 1000", lambda x: 0 <= x <= 1000)
        self.number("dropout", "at least 0 and less than 1", lambda x: 0 <= x < 1)
        if self.test_fraction is not None:
            self.number("test_fraction", "at least 0 and less than 1", lambda x: 0 <= x < 1)
        if self.max_minutes is not None:
            self.number("max_minutes", "a positive number up to 1,000,000", lambda x: 0 < x <= 1_000_000)
        self.check("layers", isinstance(self.layers, str), "a pattern such as 'mamba2*4'")
        self.check("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")

    def held_out(self, n_bytes: int) -> float:
        """The share of so many bytes that is held out."""
        return min(SHARE, LIMIT / max(n_bytes, 1)) if self.test_fraction is None else self.test_fraction

    def rate(self, goes_on: bool) -> float:
        """The highest learning rate."""
        kind = "adapter" if self.lora is not None else "going on" if goes_on else "new"
        return RATES[kind] if self.lr is None else self.lr

    def course(self, batches: int) -> tuple[int, int]:
        """Epochs at most, and steps of each, where so many batches are the whole text."""
        steps = min(max(batches, LEAST_STEPS), STEPS)
        passes = max(-(-PASSES * batches // steps), 1)
        return self.epochs or (passes if self.max_minutes is None else ENDLESS), steps
