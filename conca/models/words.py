"""The words of a pattern, such as `"s4d*2 attention(window=64)"` or `"kalman"`, read without what they stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from conca.types import BadInput, nearest

__all__ = ["HARMONICS", "structure_options", "words"]

WORD = re.compile(r"\s*([^\s()*]+)(\((?:[^()]|\([^()]*\))*\))?(?:\*(\d+))?(?=\s|$)")
KALMAN = "kalman"
HARMONICS = 6
"""Waves of the day, or of what is the shortest season, at most, unless a pattern says otherwise; 0: no seasons."""
MOST_HARMONICS = 100


def words(text: str) -> Iterator[tuple[str, dict[str, Any], int]]:
    """The words of a pattern: name, options, how often. Raises BadInput where there is no word."""
    at = 0
    while text[at:].strip():
        word = WORD.match(text, at)
        if word is None:
            raise BadInput(
                f"cannot read the pattern {text!r} at {text[at:].strip()!r}; write 's4d*2 attention(window=64)'"
            )
        name, brackets, times = word.groups()
        yield name, _options(brackets or "()", word[0].strip()), int((times or "1").lstrip("0")[:9] or 0)
        at = word.end()


def structure_options(layers: str) -> dict[str, Any] | None:
    """The options of a pattern that asks for a structural forecaster, None if it asks for layers.

    Raises:
        BadInput: for other words beside it, and for unknown options.

    >>> structure_options("kalman(harmonics=3)"), structure_options("lstm*2")
    ({'harmonics': 3}, None)
    """
    if KALMAN not in layers.lower():
        return None
    found = list(words(layers))
    ours = [name.lower() == KALMAN for name, _, _ in found]
    if not any(ours):
        return None
    if len(found) > 1 or found[0][2] != 1:
        line = f"layers {layers!r}: '{KALMAN}' is a forecaster by itself and no layer"
        raise BadInput(f"{line}; write '{KALMAN}' alone, or a pattern without it")
    options = {"harmonics": HARMONICS} | found[0][1]
    for name in options:
        if name != "harmonics":
            raise BadInput(f"layers {layers!r}: unknown option '{name}'; {nearest(name, ['harmonics'])}")
    count = options["harmonics"]
    if type(count) is not int or not 0 <= count <= MOST_HARMONICS:
        raise BadInput(f"layers {layers!r}: harmonics must be a whole number from 0 to {MOST_HARMONICS}")
    return options


def _options(brackets: str, word: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f{brackets}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"cannot read the options of {word!r}; write them as in attention(window=64)") from error
