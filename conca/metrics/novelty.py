"""How well a score tells the strange from the ordinary. The positive class is the strange one; higher scores are stranger.

Arrays of scores (n,) of ordinary and (m,) of strange samples in, numbers out. Ties count half. Raises ValueError, all of them, where
one of both has no score, or a score is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

__all__ = ["auprc", "auroc", "fpr_at"]

Floats = NDArray[np.float64]


def auroc(ordinary: ArrayLike, strange: ArrayLike) -> float:
    """Probability that a strange sample scores higher than an ordinary one: 0.5 by chance, 1 at best."""
    return float(roc_auc_score(*_both(ordinary, strange)))


def auprc(ordinary: ArrayLike, strange: ArrayLike) -> float:
    """Area under precision over recall of the strange ones (average precision): by chance their share of all."""
    return float(average_precision_score(*_both(ordinary, strange)))


def fpr_at(ordinary: ArrayLike, strange: ArrayLike, recall: float = 0.95) -> float:
    """Share of ordinary samples that are called strange where at least `recall` of the strange ones are: 0 at best."""
    if not 0 < recall <= 1:
        raise ValueError(f"recall must lie between 0 and 1, not {recall}")
    false, true, _ = roc_curve(*_both(ordinary, strange), drop_intermediate=False)
    return float(false[np.searchsorted(true, recall - 1e-12)])


def _both(ordinary: ArrayLike, strange: ArrayLike) -> tuple[Floats, Floats]:
    """Truth (1: strange) and scores."""
    parts = [np.asarray(scores, dtype=np.float64).ravel() for scores in (ordinary, strange)]
    for name, scores in zip(("ordinary", "strange"), parts):
        if not scores.size:
            raise ValueError(f"there is no score of a sample that is {name}")
        if np.isnan(scores).any():
            raise ValueError(f"a score of a sample that is {name} is not a number")
    limit = np.finfo(np.float64).max
    return np.repeat([0.0, 1.0], [len(p) for p in parts]), np.clip(np.concatenate(parts), -limit, limit)
