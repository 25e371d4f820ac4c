"""How good answers are: accuracy, macro F1 and log loss of a model beside the plainest answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.metrics.classification import accuracy, log_loss, macro_f1, said_of

__all__ = ["COLUMNS", "MODEL", "score_labels"]

MODEL, FREQUENT, NEAREST = "model", "most frequent", "1-NN"
COLUMNS = ("accuracy", "macro F1", "log loss")

Integers = NDArray[np.int64]


def score_labels(
    truth: Integers, probability: NDArray[Any], counts: Integers, near: Integers | None = None
) -> pd.DataFrame:
    """One row for the model and for each plain answer; accuracy and macro F1: higher is better, log loss: lower.

    truth        (n,)
    probability  (n, K) what the model says
    counts       (K,) how often each class was learnt from: the most frequent one is a plain answer, their shares its probability
    near         (n,) the answer of the nearest neighbour, if it is known; it has no log loss
    """
    share = np.broadcast_to(np.maximum(counts, 1e-9) / counts.sum(), probability.shape)
    rows = {MODEL: (said_of(probability), probability), FREQUENT: (said_of(share), share)}
    table = {
        name: (accuracy(truth, said), macro_f1(truth, said), log_loss(truth, own)) for name, (said, own) in rows.items()
    }
    if near is not None:
        table[NEAREST] = (accuracy(truth, near), macro_f1(truth, near), np.nan)
    found = pd.DataFrame.from_dict(table, orient="index", columns=list(COLUMNS))
    found.index.name = "answer"
    return found
