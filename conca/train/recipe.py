"""How a network is trained."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How to train.

    lr, weight_decay   highest rate and decay of AdamW
    epochs, steps      at most so many epochs of so many steps
    patience           stop after so many epochs without a better one
    max_minutes        stop after so many minutes, those before an interruption counted
    seed               of dropout (and of batches and first weights)
    devices            auto, cpu, cuda, cuda:1; more than one as 2, cpu:2, cuda:0,1
    precision          as Lightning spells it
    truncate           rows after which gradients are cut, the state going on; None: never
    stop               end after exactly so many steps of the schedule; None: at its end
    average            whether what comes out is the running average of the weights, which takes their memory once more
    decay              of that average, once it has seen many steps
    """

    lr: float
    weight_decay: float
    epochs: int
    steps: int
    patience: int
    max_minutes: float | None
    seed: int
    devices: str
    precision: str
    truncate: int | None = None
    stop: int | None = None
    average: bool = True
    decay: float = 0.99

    @property
    def last(self) -> int:
        """The number of steps after which the training has ended in any case."""
        whole = self.epochs * self.steps
        return whole if self.stop is None else min(whole, self.stop)
