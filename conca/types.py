"""The words everyone uses, and the legend of axis letters.

Tensors in `conca.ops` and `conca.layers` carry their axes as a suffix of their name: `x_BTD` has shape (B, T, D).

B batch, T time, D model width, E inner width, H heads, P head width, N state size, G groups, K key width, V value width,
R rank, W window, M memories or inputs, O outputs of a linear system, C channels of a convolution, S angles (alone; S_BH.. is a state).
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

__all__ = ["BadInput", "S", "State", "nearest", "path_of"]

State: TypeAlias = "Tensor | tuple[State, ...]"
"""All that a mixer remembers: a tree of real tensors, batch on axis 0 (complex numbers as pairs on a last axis)."""

S = TypeVar("S", bound="State")


class BadInput(ValueError):
    """Something a user gave cannot be used; the message is one line: what is wrong, where, and what to do."""


def nearest(word: object, known: Iterable[str]) -> str:
    """What to add to an error about an unknown `word`: the nearest known one, else all of them.

    >>> nearest("s4", ["s4d", "lstm"])
    "did you mean 's4d'?"
    """
    known = sorted(known)
    lower = {name.lower(): name for name in reversed(known)}
    close = get_close_matches(str(word).lower(), lower, n=1, cutoff=0.5)
    return f"did you mean '{lower[close[0]]}'?" if close else "known: " + ", ".join(known)


def path_of(place: str | os.PathLike[str]) -> Path:
    """The path that a user means: `~` at its begin is a home folder, as in a shell."""
    return Path(os.path.expanduser(place))
