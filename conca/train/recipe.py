"""How a forecaster is trained."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How to train.

    lr, weight_decay   highest rate and decay of AdamW
    epochs, steps      at most so many epochs of so many steps
    patience           stop after so many epochs without a better one
    max_minutes        stop after so many minutes
    seed               of dropout (and of batches and first weights)
    devices            auto, cpu, cuda, cuda:1
    precision          as Lightning spells it
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
