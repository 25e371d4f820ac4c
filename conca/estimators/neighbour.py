"""The nearest neighbour, the plainest classifier of sequences: the label of the training sequence that lies nearest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conca.data.labelled import Labelled

__all__ = ["affordable", "nearest_neighbour"]

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

MOST = 2e10
"""Multiply-adds that the comparison may take: some seconds."""
STEPS = 2048
"""Steps that sequences of unlike lengths are stretched to, at most."""
BLOCK = 256


def affordable(train: Labelled, test: Labelled) -> bool:
    """Whether sequences are numbers, and few and short enough to be compared each with each."""
    return not train.symbols and len(train) * len(test) * length_of(train) * len(train.channels) <= MOST


def nearest_neighbour(train: Labelled, y: Integers, test: Labelled) -> Integers:
    """The class (m,) of the training sequence that is nearest to each test sequence by Euclidean distance.

    Sequences of unlike lengths are stretched to one, straight lines between their samples; channels are measured in their
    standard deviations over the training sequences; what is missing counts as the mean.
    """
    length = length_of(train)
    known = flat(train, length)
    mean, scale = np.nanmean(known, (0, 1)), np.nanstd(known, (0, 1))
    scale = np.where(scale > 0, scale, 1)

    def shaped(values: Floats) -> Floats:
        found: Floats = np.nan_to_num((values - mean) / scale).reshape(len(values), -1)
        return found

    a, b = shaped(known), shaped(flat(test, length))
    size = (a * a).sum(1)
    near = [np.argmin(size - 2 * (b[i : i + BLOCK] @ a.T), 1) for i in range(0, len(b), BLOCK)]
    answers: Integers = y[np.concatenate(near)]
    return answers


def length_of(data: Labelled) -> int:
    """The one length that sequences are brought to."""
    longest = int(data.lengths.max())
    return longest if int(data.lengths.min()) == longest else min(longest, STEPS)


def flat(data: Labelled, length: int) -> Floats:
    """Sequences (n, length, C)."""
    found = np.empty((len(data), length, len(data.channels)), np.float32)
    for place, (start, own) in enumerate(zip(data.offsets, data.lengths)):
        values = data.values[start : start + own]
        if own == length:
            found[place] = values
        else:
            at = np.linspace(0, own - 1, length)
            for channel in range(values.shape[1]):
                found[place, :, channel] = np.interp(at, np.arange(own), values[:, channel])
    return found
