"""How the training went: its losses epoch by epoch, and the epoch whose weights were kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.report.drawing import COLOURS, SOFT, canvas, key, label, svg_of, whole_steps
from conca.report.page import Chapter, Picture
from conca.report.words import number, percent

__all__ = ["Curves", "chapter", "curves"]

Floats = NDArray[np.float64]

TITLE = "Training"
READING = (
    "Training loss is measured on the pieces that the model learns from (networks with dropout), and validation loss on rows that it does "
    "not learn from, so the second may well be the lower one. Training should stop near the lowest point of the validation loss; "
    "where that was still falling at the end, more epochs may help."
)


@dataclass(frozen=True)
class Curves:
    """Losses by epoch.

    epochs      (E,) counted from 1
    train       (E,) pinball loss, NaN where it was not logged
    validation  (E,)
    mae         (E,) validation error in the unit of the target
    accuracy    (E,) share of right answers in validation
    chosen      place of the epoch with the lowest validation loss, whose weights are kept; None without validation
    """

    epochs: NDArray[np.int64]
    train: Floats
    validation: Floats
    mae: Floats
    accuracy: Floats
    chosen: int | None


def curves(history: pd.DataFrame) -> Curves:
    """What a history, as `Forecaster.history_` and `Classifier.history_` have it, says about the losses."""

    def column(name: str) -> Floats:
        absent = np.full(len(history), np.nan)
        return history[name].to_numpy(np.float64) if name in history else absent

    epochs = column("epoch")
    counted = np.where(np.isnan(epochs), np.arange(len(history)), epochs).astype(np.int64) + 1
    validation = column("val/loss")
    chosen = None if np.isnan(validation).all() else int(np.nanargmin(validation))
    return Curves(counted, column("train/loss"), validation, column("val/mae"), column("val/accuracy"), chosen)


def chapter(history: pd.DataFrame, loss: str = "pinball loss", reading: str = READING) -> Chapter:
    """The losses, drawn; `loss` is what they are called, and `reading` says how to read them."""
    found = curves(history)
    if not len(found.epochs) or (np.isnan(found.train).all() and found.chosen is None):
        return Chapter(TITLE, ("This run keeps no record of its training.",))
    if len(found.epochs) == 1:
        return Chapter(TITLE, (f"{words_of(found)} More epochs (--epochs) may help.",))
    return Chapter(TITLE, (reading, picture(found, loss)))


def words_of(found: Curves) -> str:
    """How many epochs, the loss at the end, and the epoch that was kept."""
    count = len(found.epochs)
    words = f"{count} epoch{'s' * (count > 1)}; training loss ends at {number(found.train[-1])}."
    if found.chosen is None:
        return words
    mae = found.mae[found.chosen]
    words += (
        f" Kept: epoch {found.epochs[found.chosen]}, with a validation loss of {number(found.validation[found.chosen])}"
    )
    if np.isfinite(accuracy := found.accuracy[found.chosen]):
        return f"{words} ({percent(accuracy, 1)} of its answers right)."
    return words + (f" (MAE {number(mae)} in the unit of the target)." if np.isfinite(mae) else ".")


def picture(found: Curves, loss: str = "pinball loss") -> Picture:
    """Both losses over the epochs, the chosen one marked; below them the accuracy, if it was logged."""
    accuracy = not np.isnan(found.accuracy).all()
    figure, panels = canvas(2, 2.0, sharex=True) if accuracy else canvas()
    axes = panels[0]
    for values, name, colour in ((found.train, "training", COLOURS[1]), (found.validation, "validation", COLOURS[0])):
        if not np.isnan(values).all():
            axes.plot(found.epochs, values, "o-", ms=3, lw=1.4, color=colour, label=name)
    if found.chosen is not None:
        best = found.epochs[found.chosen]
        axes.axvline(float(best), color=SOFT, lw=1.0, ls="--", label=f"kept: epoch {best}")
    label(axes, "" if accuracy else "epoch", loss)
    if accuracy:
        panels[1].plot(found.epochs, found.accuracy, "o-", ms=3, lw=1.4, color=COLOURS[0])
        if found.chosen is not None:
            panels[1].axvline(float(found.epochs[found.chosen]), color=SOFT, lw=1.0, ls="--")
        label(panels[1], "epoch", "share right in validation")
    axes.set_xlim(float(found.epochs[0]) - 0.5, float(found.epochs[-1]) + 0.5)
    whole_steps(axes)
    key(axes, 3)
    words = words_of(found)
    return Picture(svg_of(figure, "training"), f"Loss by epoch. {words}", words)
