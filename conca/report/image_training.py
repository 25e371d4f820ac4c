"""How a model of images was trained: losses, energies of data and of samples, slopes, and chains that begin at noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.estimators.image_config import EnergyConfig
from conca.estimators.image_runs import ImageRun
from conca.report.drawing import COLOURS, canvas, key, label, svg_of, whole_steps
from conca.report.image_pictures import shown
from conca.report.page import Chapter, Picture, Quote, Table

__all__ = ["training", "walks"]

Floats = NDArray[np.float64]
Part = str | Table | Picture | Quote

ENERGIES = (
    "Each point is the last batch of an epoch and where its chains ended. In a healthy training both energies stay near each other and "
    "near 0. Energies of samples that stay far above those of data: chains do not reach where the energy is low. Below: they have found "
    "low places where there are no data."
)
SLOPES = "The norm of the slope, over all pixels, at the same places: what a step of a chain multiplies."
NOISE = (
    "The mean square of the noise that is told amiss, per pixel: 1 is told by who knows nothing. The weights kept are those of the running "
    "average that told best what was set aside."
)
WALK = (
    "Mean energy and slope of chains that begin at noise, step by step, by the weights that were kept. They should fall and then stay "
    "level: where they still fall at the end, longer chains (--steps) draw better images; where they rise, the step is too large."
)


def training(run: ImageRun) -> Chapter:
    """Losses or energies, epoch by epoch."""
    history = run.history
    if not len(history):
        return Chapter("Training", ("This run keeps no record of its training.",))
    if isinstance(run.config, EnergyConfig):
        return Chapter("Training", list(energies(history)))
    lines = [(column(history, name), words) for name, words in (("train/loss", "training"), ("val/loss", "validation"))]
    ends = ", ".join(f"{words} {values[-1]:.4g}" for values, words in lines if len(values))
    return Chapter("Training", (NOISE, curves(history, lines, "square of the error", "noise", f"At the end: {ends}.")))


def energies(history: pd.DataFrame) -> Iterator[Part]:
    """Energies and slopes."""
    for what, reading in (("energy", ENERGIES), ("slope", SLOPES)):
        lines = [(column(history, f"{what}/{name}"), name) for name in ("data", "samples", "validation")]
        lines = [line for line in lines if len(line[0])]
        if lines:
            ends = ", ".join(f"{words} {values[-1]:.4g}" for values, words in lines)
            yield reading
            yield curves(history, lines, what, what, f"At the end: {ends}.")
    if len(accuracy := column(history, "val/accuracy")):
        said = f"At the end {100 * accuracy[-1]:.1f}% of the classes of validation are right."
        yield curves(history, [(accuracy, "accuracy")], "share right in validation", "accuracy", said)


def column(history: pd.DataFrame, name: str) -> Floats:
    """What was logged under a name; nothing where it was not."""
    return history[name].to_numpy(np.float64) if name in history else np.zeros(0)


def curves(history: pd.DataFrame, lines: Sequence[tuple[Floats, str]], up: str, name: str, said: str) -> Picture:
    """Lines over the updates."""
    figure, (axes,) = canvas()
    steps = history["step"].to_numpy(np.float64)
    for colour, (values, words) in zip(COLOURS, lines):
        if len(values):
            axes.plot(steps, values, "o-", ms=2.5, lw=1.3, color=colour, label=words)
    label(axes, "updates", up)
    whole_steps(axes)
    key(axes, 3)
    return Picture(svg_of(figure, name), f"{up} over the updates. {said}", said)


def walks(run: ImageRun) -> Chapter | None:
    """Where chains were during the training (what was drawn), what the buffer holds, and chains from noise; None where nothing was kept."""
    kept, parts = run.kept, list[Part]()
    energy = isinstance(run.config, EnergyConfig)
    levels = 0 if isinstance(run.config, EnergyConfig) else min(20, run.config.levels)
    did = "Where chains ended" if energy else f"What was drawn from one noise by {levels} levels"
    if "moments" in kept and len(kept["moments"]):
        at = ", ".join(f"{int(step):,}" for step in kept["at"])
        rows = kept["moments"].flatten(0, 1).numpy()
        parts += [
            shown(
                rows,
                f"{did} during the training.",
                f"{did}, after {at} updates, row by row.",
                kept["moments"].shape[1],
            )
        ]
    if "buffer" in kept:
        parts += [
            shown(
                kept["buffer"].numpy(),
                "Images of the buffer.",
                "Some of what the buffer held at the end: chains go on from there.",
            )
        ]
    if "walk" in kept and len(kept["walk"]):
        values = kept["walk"].numpy()
        steps = np.arange(1, len(values) + 1) * 5.0
        figure, panels = canvas(2, 2.0, sharex=True)
        for axes, line, words in zip(panels, values.T, ("energy", "slope")):
            axes.plot(steps, line, lw=1.4, color=COLOURS[0])
            label(axes, "step" if axes is panels[-1] else "", words)
        said = f"The mean energy goes from {values[0, 0]:.4g} to {values[-1, 0]:.4g}."
        parts += [WALK, Picture(svg_of(figure, "walk"), f"Energy and slope along chains. {said}", said)]
    return Chapter("Chains" if energy else "Samples along the training", parts) if parts else None
