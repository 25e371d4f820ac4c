"""Options of layers: small groups of them that may be written as a dict, sizes that fit, and heads."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, TypeVar

from conca.types import nearest

__all__ = ["fitting", "heads", "made", "ordered", "positive", "whole"]

HEAD = 64
"""Width of a head where nothing is said, if it divides the inner width."""

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


def whole(value: object) -> bool:
    """Whether it is a whole number from 1 on (NumPy's are; True is none)."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) > 0


def positive(options: str, **values: object) -> None:
    """Raises ValueError for a value of some options that is no positive, finite number."""
    for name, value in values.items():
        if not (isinstance(value, float | int) and 0 < value < math.inf):
            raise ValueError(f"{options}: {name} must be positive, got {value!r}")


def ordered(options: str, **pairs: object) -> None:
    """Raises ValueError for a value of some options that is not two numbers in order, not below 0."""
    for name, pair in pairs.items():
        two = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(p, float | int) for p in pair)
        if not (two and 0 <= pair[0] <= pair[1]):  # type: ignore[index]
            raise ValueError(f"{options}: {name} must be two bounds in order, not below 0, got {pair!r}")


def heads(layer: str, d_model: int, expand: int, d_head: int | None, n_groups: int) -> tuple[int, int]:
    """Width and number of the heads on an inner width of expand * d_model; a width of None is 64, or the widest below it that fits.

    Raises ValueError for an `expand` that is no whole number, heads that do not divide the inner width, and groups that do not divide
    the heads.
    """
    if not whole(expand):
        raise ValueError(f"{layer}: expand must be a whole number from 1 on, got {expand!r}")
    inner = expand * d_model
    width = d_head or fitting(HEAD, inner)
    if inner % width:
        raise ValueError(
            f"{layer}: d_head {width} does not divide expand * d_model = {inner}; {fitting(width, inner)} does"
        )
    number = inner // width
    if number % n_groups:
        raise ValueError(
            f"{layer}: n_groups {n_groups} does not divide the {number} heads; {fitting(n_groups, number)} does"
        )
    return width, number
