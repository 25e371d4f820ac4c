"""How much what was read helps: bits for each byte of text held out, by how many tokens came before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.estimators.text_positions import BY_POSITION
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, logarithmic, svg_of
from conca.report.page import Chapter, Picture
from conca.report.words import aligned, percent

__all__ = ["chapter"]

Floats = NDArray[np.float64]

TITLE = "How much what was read helps"
READING = (
    "Pieces of the text held out are each read from nothing. What the first tokens cost shows what the model knows of text at all; how "
    "the line falls from there on shows how far back it can use what it has read. Bars are two standard errors over the pieces."
)
FLAT = 0.01
"""A part that costs more than the last by a smaller share than this is as dear."""


def chapter(found: pd.DataFrame, best: tuple[str, float] | None = None) -> Chapter:
    """The line, and what it comes to.

    found  as `conca.estimators.text_positions.by_position` gives it
    best   name and bits for each byte of the best compressor, which begins with nothing too but reads all
    """
    low, high, bits, error = (found[name].to_numpy(np.float64) for name in BY_POSITION)
    middle = np.sqrt(low * high)
    figure, (axes,) = canvas(height=2.4)
    style: dict[str, Any] = {"fmt": "o-", "color": COLOURS[0], "ms": 4, "lw": 1.4, "elinewidth": 1.0, "capsize": 3}
    axes.errorbar(middle, bits, yerr=2 * error, label="model", **style)
    if best is not None:
        axes.axhline(best[1], color=SOFT, lw=1.0, ls="--", label=best[0])
    logarithmic(axes)
    label(axes, "tokens read before", "bits per byte")
    key(axes)
    said = words_of(low, high, bits, error)
    return Chapter(TITLE, (READING, Picture(svg_of(figure, "surprise"), f"Bits by tokens read before. {said}", said)))


def words_of(low: Floats, high: Floats, bits: Floats, error: Floats) -> str:
    """The first and the last part, and from where on no part is surely dearer than the last."""
    said = aligned(bits.tolist())
    line = f"After at most {high[0] - 1:,.0f} tokens a byte costs {said[0]} bits"
    if len(bits) == 1:
        return line + "."
    line += f", after {low[-1]:,.0f} to {high[-1] - 1:,.0f} tokens {said[-1]}"
    line += f" ({percent(1 - bits[-1] / bits[0])} fewer)." if bits[-1] < bits[0] else "."
    near = bits - 2 * error <= (1 + FLAT) * bits[-1]
    where = len(bits) - int(np.logical_and.accumulate(near[::-1]).sum())
    if where == 0:
        return line + " No help of what was read can be told from chance."
    if where == len(bits) - 1:
        return line + " It was still falling at the end of the pieces."
    return line + f" From {low[where]:,.0f} tokens on no help of more than {percent(FLAT)} can be told from chance."
