"""Answers on sequences held out beside what is right: kept in the run, so that reports can be drawn without the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.metrics.classification import said_of
from conca.types import BadInput

__all__ = ["Labels"]

Integers = NDArray[np.int64]

MOST = 20_000
"""Sequences that are kept, evenly spaced."""
SHARES = 10
"""A sequence is judged after so many even shares of it."""
OFF = 1e-3
"""Probabilities of one sequence add up to 1, but for so much."""


@dataclass(frozen=True)
class Labels:
    """What was said of up to 20,000 sequences held out, evenly spaced over all of them.

    n sequences, K classes, F = 10 even shares of a sequence.

    classes      (K,) names
    truth        (n,) which of the classes is right
    probability  (n, K) of each class, float32
    lengths      (n,) steps
    early        (F, n) the class answered after reading so many shares; None where the whole sequence must be read first
    energy       (n,) -logsumexp of the logits; None in runs of programs that did not keep it
    """

    classes: tuple[str, ...]
    truth: Integers
    probability: NDArray[np.float32]
    lengths: Integers
    early: Integers | None = None
    energy: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        """How many sequences."""
        return len(self.truth)

    @property
    def said(self) -> Integers:
        """The class answered, (n,)."""
        return said_of(self.probability)

    @classmethod
    def of(
        cls,
        classes: Sequence[object],
        truth: NDArray[Any],
        probability: NDArray[Any],
        lengths: NDArray[Any],
        early: NDArray[Any] | None = None,
        energy: NDArray[Any] | None = None,
    ) -> Self | None:
        """From answers on all sequences, of which so many are kept; None if there are none."""
        total = len(truth)
        if not total:
            return None
        kept = np.unique(np.linspace(0, total - 1, min(total, MOST)).astype(np.int64))
        return cls(
            classes=tuple(map(str, classes)),
            truth=np.asarray(truth, dtype=np.int64)[kept],
            probability=np.asarray(probability, dtype=np.float32)[kept],
            lengths=np.asarray(lengths, dtype=np.int64)[kept],
            early=None if early is None else np.asarray(early, dtype=np.int64)[:, kept],
            energy=None if energy is None else np.asarray(energy, dtype=np.float64)[kept],
        )

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name, for safetensors; `early` and `energy` only where there are."""
        arrays = {name: getattr(self, name) for name in ("truth", "probability", "lengths", "early", "energy")}
        return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items() if a is not None}

    @classmethod
    def from_tensors(cls, found: dict[str, Tensor], classes: Sequence[str]) -> Self:
        """The inverse of `tensors`. Raises BadInput if something lacks or does not fit."""
        kinds = {"truth": torch.int64, "probability": torch.float32, "lengths": torch.int64}
        kinds |= {"early": torch.int64} if "early" in found else {}
        kinds |= {"energy": torch.float64} if "energy" in found else {}
        if any(name not in found or found[name].dtype != kind for name, kind in kinds.items()):
            raise BadInput("the answers kept in the run are not whole; the run is damaged")
        arrays: dict[str, Any] = {name: found[name].numpy() for name in kinds}
        result = cls(classes=tuple(classes), **arrays)
        if not result.fits():
            raise BadInput("the answers kept in the run do not fit it; the run is damaged")
        return result

    def fits(self) -> bool:
        """Whether the arrays fit each other and the classes, and hold what they should."""
        n, k = len(self.truth), len(self.classes)
        if n < 1 or self.truth.shape != (n,) or self.lengths.shape != (n,) or self.probability.shape != (n, k):
            return False
        answers = [self.truth]
        if self.early is not None:
            if self.early.shape != (SHARES, n):
                return False
            answers.append(self.early)
        if self.energy is not None and (self.energy.shape != (n,) or not np.isfinite(self.energy).all()):
            return False
        known = all(a.min() >= 0 and a.max() < k for a in answers)
        shares = bool(np.isfinite(self.probability).all()) and bool((self.probability >= 0).all())
        return known and shares and bool((abs(self.probability.sum(1) - 1) < OFF).all()) and int(self.lengths.min()) > 0
