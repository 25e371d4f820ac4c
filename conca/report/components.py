"""What a structural forecaster learnt: the noise of its components, and how long what fades is there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from conca.models.structural import Structural
from conca.report.page import Table, short
from conca.report.words import number

__all__ = ["READING", "table"]

READING = (
    "This forecaster is a structural state space: a level, a gradual change that is under way, what is remembered for a while, and "
    "seasons. Each noise is the deviation of what one row adds, where that of all values is 1. A change, and what is remembered, is "
    "down to 37% after its time scale."
)


def table(tower: Structural, targets: Sequence[str], cycles: Sequence[str]) -> Table:
    """Deviations and time scales, one column for each target; `cycles` are the names of the seasons."""
    with torch.no_grad():
        change, memory = (-1 / torch.log(tower.decays()[:, place]) for place in (1, 2))
        logarithms = [tower.error, tower.level, tower.trend, tower.memory, *tower.seasons.T]
        deviations = [(0.5 * one.double()).exp() for one in logarithms]
    names = ["error of a row", "noise of the level", "noise of the change", "size of what is remembered"]
    values = dict(zip([*names, *(f"noise of the {cycle}" for cycle in cycles)], deviations))
    values |= {"rows that the change takes": change, "rows that it is remembered": memory}
    rows = [[name, *(number(value, 3) for value in found.tolist())] for name, found in values.items()]
    return Table(["", *map(short, targets)], rows)
