"""How good answers of a classifier are: shares right, F1, log loss, confusion, calibration. Arrays in, numbers out.

Shapes: truth (n,) classes as whole numbers from 0 to K - 1; probability (n, K) of each class; said (n,) the class answered. With
nothing to count a result is NaN. Where a function takes `answer`, it is either of the last two: the class with the highest
probability (the first of several) is what was answered.

Raises ValueError, all of them, for shapes that do not fit, classes that there are not, and probabilities that are not numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Binned",
    "Calibration",
    "ClassScores",
    "accuracy",
    "accuracy_by",
    "by_class",
    "calibration",
    "confusion",
    "expected_calibration_error",
    "log_loss",
    "macro_f1",
    "said_of",
    "wilson",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Calibration:
    """Answers by their probability, in B bins of one width from 0 to 1; NaN in a bin without any.

    confidence  (B,) mean probability of what was answered
    right       (B,) share of these answers that are right
    count       (B,) how many answers
    """

    confidence: Floats
    right: Floats
    count: Integers


@dataclass(frozen=True)
class ClassScores:
    """Each class by itself, (K,).

    precision  share right of the times it was answered, NaN if it never was
    recall     share found of those that are of this class, NaN if there are none
    f1         harmonic mean of the two, 0 if none is right, NaN if it neither occurs nor was answered
    support    how many are of this class
    said       how often it was answered
    """

    precision: Floats
    recall: Floats
    f1: Floats
    support: Integers
    said: Integers


@dataclass(frozen=True)
class Binned:
    """Accuracy in each of B bins of some value, with a 95% interval (Wilson).

    first, last  (B,) the smallest and the largest value in it
    count        (B,) answers
    right        (B,) share that is right
    low, high    (B,) the interval
    """

    first: Floats
    last: Floats
    count: Integers
    right: Floats
    low: Floats
    high: Floats


def said_of(answer: Array) -> Integers:
    """The class answered, (n,), of probabilities (n, K) or of answers as they are."""
    answer = np.asarray(answer)
    if answer.ndim == 1:
        return np.asarray(answer, dtype=np.int64)
    if answer.ndim != 2 or not answer.shape[1]:
        raise ValueError(f"answers must be classes (n,) or probabilities (n, K), not of shape {answer.shape}")
    if np.isnan(answer).any():
        raise ValueError("a probability is not a number")
    return np.asarray(answer.argmax(1), dtype=np.int64)


def fitting(truth: Array, answer: Array, classes: int | None = None) -> tuple[Integers, Integers, int]:
    """Truth, what was answered, and how many classes there are."""
    answer = np.asarray(answer)
    said, true = said_of(answer), np.asarray(truth)
    if true.shape != said.shape:
        raise ValueError(f"truth of shape {true.shape} does not fit {len(said)} answers")
    if true.size and true.dtype.kind not in "iu":
        raise ValueError(f"truth must be whole numbers, not {true.dtype}")
    true = true.astype(np.int64)
    known = answer.shape[1] if answer.ndim == 2 else 1 + max(true.max(initial=-1), said.max(initial=-1))
    count = int(known if classes is None else classes)
    for what, values in (("truth", true), ("answers", said)):
        if values.size and not (values.min() >= 0 and values.max() < count):
            raise ValueError(f"{what} must lie between 0 and {count - 1}, not {values.min()} to {values.max()}")
    return true, said, count


def accuracy(truth: Array, answer: Array) -> float:
    """Share of right answers."""
    true, said, _ = fitting(truth, answer)
    return float((true == said).mean()) if true.size else float("nan")


def confusion(truth: Array, answer: Array, classes: int | None = None) -> Integers:
    """How often what was taken for what, (K, K): row the truth, column the answer.

    classes  K, where answers are not probabilities; else one more than the largest that occurs
    """
    true, said, count = fitting(truth, answer, classes)
    return np.asarray(np.bincount(true * count + said, minlength=count * count).reshape(count, count), dtype=np.int64)


def by_class(counts: Integers) -> ClassScores:
    """Precision, recall and F1 of each class, from a confusion matrix (K, K)."""
    right, support, said = np.diag(counts), counts.sum(1), counts.sum(0)
    return ClassScores(
        precision=share(right, said),
        recall=share(right, support),
        f1=share(2 * right, support + said),
        support=support,
        said=said,
    )


def share(part: Array, whole: Array) -> Floats:
    """One divided by the other, NaN where the other is 0."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0), dtype=np.float64)


def macro_f1(truth: Array, answer: Array) -> float:
    """Mean F1 of the classes that occur or were answered; each counts the same, however rare."""
    found = by_class(confusion(truth, answer)).f1
    known = found[~np.isnan(found)]
    return float(known.mean()) if known.size else float("nan")


def log_loss(truth: Array, probability: Array) -> float:
    """Mean of -log of the probability of the true class.

    A probability is taken for no less than the precision of its kind of number (1.2e-7 in float32), and for no more than 1 less
    that, as scikit-learn does.
    """
    probability = np.asarray(probability)
    if probability.ndim != 2:
        raise ValueError(f"log loss needs probabilities (n, K), not shape {probability.shape}")
    true, _, _ = fitting(truth, probability)
    if not true.size:
        return float("nan")
    real = probability if probability.dtype.kind == "f" else probability.astype(np.float64)
    least = np.finfo(real.dtype).eps
    chosen = np.clip(real, least, 1 - least)[np.arange(len(true)), true]
    return float(-np.log(chosen.astype(np.float64)).mean())


def calibration(truth: Array, probability: Array, bins: int = 10) -> Calibration:
    """How often answers of a given probability are right; in a well calibrated classifier, just as often.

    A bin holds the answers whose probability is above its lower end and up to its upper end.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    probability = np.asarray(probability)
    if probability.ndim != 2:
        raise ValueError(f"calibration needs probabilities (n, K), not shape {probability.shape}")
    true, said, _ = fitting(truth, probability)
    top = probability.max(1).astype(np.float64) if true.size else np.empty(0)
    place = np.clip(np.ceil(top * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    confidence, right = (share(np.bincount(place, w, bins), count) for w in (top, (true == said).astype(np.float64)))
    return Calibration(confidence, right, np.asarray(count, dtype=np.int64))


def expected_calibration_error(truth: Array, probability: Array, bins: int = 10) -> float:
    """Mean distance between probability and share right over the bins of `calibration`, by how many are in each (Naeini 2015)."""
    found = calibration(truth, probability, bins)
    filled = found.count > 0
    if not filled.any():
        return float("nan")
    apart = np.abs(found.confidence - found.right)[filled]
    return float(np.average(apart, weights=found.count[filled]))


def wilson(right: ArrayLike, n: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Interval for a share of which `right` of `n` were seen (Wilson, 1927): lower and upper end; 0 and 1 where n is 0."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    seen, count = np.asarray(right, dtype=np.float64), np.asarray(n, dtype=np.float64)
    total = np.maximum(count, 1)
    p = seen / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * np.sqrt(p * (1 - p) / total + (z / (2 * total)) ** 2) / (1 + z * z / total)
    low = np.where(count > 0, np.maximum(middle - half, 0.0), 0.0)
    high = np.where(count > 0, np.minimum(middle + half, 1.0), 1.0)
    return np.where(seen == 0, 0.0, low), np.where(seen == count, 1.0, high)


def accuracy_by(values: ArrayLike, truth: Array, answer: Array, bins: int = 8) -> Binned:
    """Accuracy by some value of each answer, such as the length of its sequence.

    values  (n,)
    bins    at most so many, with about as many answers in each; equal values are never parted
    """
    true, said, _ = fitting(truth, answer)
    found = np.asarray(values, dtype=np.float64)
    if found.shape != true.shape or np.isnan(found).any():
        raise ValueError(f"values must be {len(true)} numbers")
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    levels, inverse, times = np.unique(found, return_inverse=True, return_counts=True)
    middle = np.cumsum(times) - times / 2
    _, group = np.unique(np.floor(middle * bins / max(len(found), 1)), return_inverse=True)
    place = group[inverse] if len(found) else np.empty(0, np.int64)
    count = np.bincount(place).astype(np.int64)
    right = np.bincount(place, true == said)
    low, high = wilson(right, count)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    ends = np.append(starts[1:], len(levels))[: len(starts)] - 1
    return Binned(levels[starts], levels[ends], count, share(right, count), low, high)
