"""Error by step: how the error grows with the distance, beside that of the simple forecasts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from conca.data.schema import Schema
from conca.estimators.evaluation import Evaluation
from conca.report.drawing import COLOURS, canvas, key, label, svg_of, whole_steps
from conca.report.page import Chapter, Picture, Table, short
from conca.report.words import aligned, number

__all__ = ["advantage", "chapter", "shown_steps"]

Floats = NDArray[np.float64]

TITLE = "Error by step"
READING = (
    "Mean absolute error at each step ahead, over all forecasts judged, in the unit of the target. The model is worth its training "
    "where its line lies below the others."
)
TARGETS = 4


def shown_steps(horizon: int, most: int = 4) -> list[int]:
    """Steps, counted from 1, that a table shows: the first, the last, and some between."""
    return sorted({round(float(step)) for step in np.linspace(1, horizon, min(horizon, most))})


def advantage(by_step: Floats) -> tuple[int, int]:
    """At how many steps the first of the forecasts (names, H) has the lowest error, and of how many steps errors are known."""
    known = ~np.isnan(by_step).any(0)
    first = by_step[0, known] <= by_step[1:, known].min(0, initial=np.inf)
    return int(first.sum()), int(known.sum())


def chapter(evaluation: Evaluation, schema: Schema) -> Chapter:
    """A picture and a table for each target."""
    parts: list[str | Picture | Table] = [READING]
    for target, name in enumerate(schema.target[:TARGETS]):
        errors = evaluation.by_step[:, :, target]
        if np.isnan(errors).all():
            continue
        parts += [picture(evaluation.names, errors, name, f"step-{target}"), table(evaluation.names, errors)]
    if len(schema.target) > TARGETS:
        parts.append(f"The other {len(schema.target) - TARGETS} targets have no picture here.")
    return Chapter(TITLE, parts)


def picture(names: Sequence[str], errors: Floats, target: str, name: str) -> Picture:
    """Errors (names, H) over the steps."""
    figure, (axes,) = canvas()
    steps = np.arange(1, errors.shape[1] + 1)
    for place, (forecast, line) in enumerate(zip(names, errors)):
        width, mark = (2.0 if place == 0 else 1.2), ("o" if len(steps) == 1 else None)
        axes.plot(steps, line, color=COLOURS[place % len(COLOURS)], lw=width, marker=mark, ms=4, label=forecast)
    axes.set_ylim(bottom=0)
    label(axes, "step ahead", "mean absolute error")
    whole_steps(axes)
    key(axes, 2)
    ahead, known = advantage(errors)
    words = f"{short(target)}: the model's error is {number(errors[0, 0])} at step 1"
    words += f" and {number(errors[0, -1])} at step {len(steps)}" if len(steps) > 1 else ""
    words += f"; it is the lowest at {ahead} of {known} steps." if len(names) > 1 else "."
    return Picture(svg_of(figure, name), f"Error by step. {words}", words)


def table(names: Sequence[str], errors: Floats) -> Table:
    """Errors (names, H) at some steps."""
    steps = shown_steps(errors.shape[1])
    cells = aligned(errors[:, [step - 1 for step in steps]].ravel().tolist())
    rows = [[name, *cells[place * len(steps) :][: len(steps)]] for place, name in enumerate(names)]
    return Table(["forecast", *(f"step {step}" for step in steps)], rows)
