"""Options of layers: small groups of them that may be written as a dict, and sizes that fit."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from conca.types import nearest

__all__ = ["fitting", "made"]

O = TypeVar("O")  # noqa: E741


def made(kind: type[O], options: O | Mapping[str, Any], name: str) -> O:
    """Options of a kind, from a dict of them. Raises ValueError for anything else, and for a key that is not known."""
    if isinstance(options, kind):
        return options
    if not isinstance(options, Mapping):
        raise ValueError(f"{name} must be a {kind.__name__} or a dict, got {options!r}")
    known = inspect.signature(kind).parameters
    for key in options:
        if key not in known:
            raise ValueError(f"{name} has no {key!r}; {nearest(key, known)}")
    return kind(**options)


def fitting(size: int, whole: int) -> int:
    """The greatest number up to `size` that divides `whole`.

    >>> fitting(64, 48), fitting(5, 12)
    (48, 4)
    """
    return next(n for n in range(min(size, whole), 0, -1) if whole % n == 0)
