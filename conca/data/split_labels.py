"""Labels in a split: a share of every class held out, and classes as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conca.data.labelled import counted
from conca.types import BadInput

__all__ = ["encode_labels", "stratified"]

NAMED = 5


def stratified(labels: ArrayLike, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the examples that are kept and of those held out, both ascending.

    About `share` of every class is held out, and of all together as near to it as can be. A class always keeps an
    example, so a class with one example is held out nowhere. Where any class has two, one example at least is held
    out, unless `share` is 0. The same seed, the same split.

    Raises BadInput if `share` is not in 0 <= share < 1.
    """
    if not 0 <= share < 1:
        raise BadInput(f"a share of {share} cannot be held out; give 0 or more, and less than 1")
    array = np.asarray(labels)
    _, code, count = np.unique(array, return_inverse=True, return_counts=True)
    held = held_counts(count, share)
    order = np.random.default_rng(seed).permutation(len(array))
    order = order[np.argsort(code[order], kind="stable")]
    begin = np.cumsum(count) - count
    place = np.arange(len(array)) - np.repeat(begin, count)
    out = place < np.repeat(held, count)
    return np.sort(order[~out]).astype(np.int64), np.sort(order[out]).astype(np.int64)


def held_counts(count: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many examples of each class are held out, given how many it has."""
    wanted = count * share
    held: NDArray[np.int64] = np.minimum(np.floor(wanted + 1e-9).astype(np.int64), count - 1)
    total = round(float(wanted.sum()))
    total = max(total, 1) if share > 0 and (count > 1).any() else total
    while held.sum() < total and (held < count - 1).any():
        lack = np.where(held < count - 1, wanted - held, -np.inf)
        held[np.argmax(lack)] += 1
    return held


def encode_labels(labels: ArrayLike, classes: Sequence[object] | NDArray[np.generic]) -> NDArray[np.int64]:
    """The place of every label in `classes`, shape (n,). Labels and classes of different types are compared as text.

    Raises BadInput that names the labels that are no class, with how many sequences have them.
    """
    array, known = np.asarray(labels), np.asarray(classes)
    if (array.dtype.kind in "US") != (known.dtype.kind in "US"):
        array, known = array.astype(np.str_), known.astype(np.str_)
    found, code = np.unique(array, return_inverse=True)
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], found), len(known) - 1)
    strange = known[order][at] != found
    if strange.any():
        counts = np.bincount(code.reshape(-1), minlength=len(found))
        raise BadInput(unseen(found[strange], counts[strange]))
    places: NDArray[np.int64] = order[at][code.reshape(-1)].astype(np.int64)
    return places


def unseen(labels: NDArray[np.generic], counts: NDArray[np.int64]) -> str:
    """The error line about labels that were not learned from."""
    named = [f"'{label}' ({count})" for label, count in zip(labels[:NAMED], counts[:NAMED], strict=True)]
    more = f" and {counted(len(labels) - NAMED, 'other label')}" if len(labels) > NAMED else ""
    total = int(counts.sum())
    have = "has a label that was" if total == 1 else "have labels that were"
    them = "it" if total == 1 else "them"
    what = f"{counted(total, 'sequence')} {have} never seen in training"
    return f"{what}: {', '.join(named)}{more}; leave {them} out, or train on examples of {'it' if len(labels) == 1 else 'them'}"
