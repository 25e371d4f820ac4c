"""How a training on text went: bits of what was learnt and of what validates, epoch by epoch."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.report.drawing import COLOURS, SOFT, canvas, key, label, svg_of, whole_steps
from conca.report.history import TITLE, curves
from conca.report.page import Chapter, Picture
from conca.report.words import number

__all__ = ["chapter"]

Floats = NDArray[np.float64]

LEARNING = (
    "What was learnt from: bits that each {token} costs in the passages of an epoch, before the step that learns from them, with the "
    "weights as they are then{dropout}."
)
VALIDATED = (
    " What validates: bits for each byte of a piece of text before the end that is held out, from which nothing is learnt. The weights "
    "kept are those with the fewest bits there; where these still fell at the end, a longer training may help."
)
UNVALIDATED = " No text was set aside for validation: the weights kept are those at the end of the training."
NOTHING = "This run keeps no record of its training."


def chapter(history: pd.DataFrame, bytewise: bool, dropout: float = 0.0) -> Chapter:
    """The losses in bits, drawn.

    history   as `TextRun` has it: train/loss in nats for each token, val/loss in bits for each byte
    bytewise  whether a token is a byte, so that both can be compared
    dropout   of the training
    """
    found = curves(history)
    train = found.train / math.log(2)
    if not len(found.epochs) or (np.isnan(train).all() and found.chosen is None):
        return Chapter(TITLE, (NOTHING,))
    token = "byte" if bytewise else "token"
    reading = LEARNING.format(token=token, dropout=" and with dropout" * (dropout > 0))
    reading += UNVALIDATED if found.chosen is None else VALIDATED
    said = words_of(found.epochs, train, found.validation, found.chosen, token)
    if len(found.epochs) == 1:
        return Chapter(TITLE, (said,))
    return Chapter(TITLE, (reading, picture(found.epochs, train, found.validation, found.chosen, bytewise, said)))


def words_of(epochs: NDArray[np.int64], train: Floats, validation: Floats, chosen: int | None, token: str) -> str:
    """How many epochs, the loss at the end, and the epoch that was kept."""
    count, ends = len(epochs), train[~np.isnan(train)]
    said = f"{count} epoch{'s' * (count > 1)}"
    said += f"; what was learnt from ends at {number(ends[-1])} bits for each {token}" if ends.size else ""
    if chosen is None:
        return said + "."
    return f"{said}. Kept: epoch {epochs[chosen]}, with {number(validation[chosen])} bits for each byte in validation."


def picture(
    epochs: NDArray[np.int64], train: Floats, validation: Floats, chosen: int | None, bytewise: bool, said: str
) -> Picture:
    """Bits over the epochs, the one that was kept marked; in two panels where those of tokens and of bytes do not compare."""
    lines = [(train, "learnt from", COLOURS[1]), (validation, "validates", COLOURS[0])]
    lines = [line for line in lines if not np.isnan(line[0]).all()]
    apart = not bytewise and len(lines) == 2
    figure, panels = canvas(2, 2.0, sharex=True) if apart else canvas()
    for place, (values, name, colour) in enumerate(lines):
        axes = panels[place if apart else 0]
        axes.plot(epochs, values, "o-", ms=3, lw=1.4, color=colour, label=name)
        bits = "bits per byte" if bytewise or values is validation else "bits per token"
        label(axes, "epoch" if axes is panels[-1] else "", bits)
    for axes in panels:
        if chosen is not None:
            axes.axvline(float(epochs[chosen]), color=SOFT, lw=1.0, ls="--", label=f"kept: epoch {epochs[chosen]}")
        axes.set_xlim(float(epochs[0]) - 0.5, float(epochs[-1]) + 0.5)
        whole_steps(axes)
        key(axes, 3)
    return Picture(svg_of(figure, "training"), f"Loss by epoch. {said}", said)
