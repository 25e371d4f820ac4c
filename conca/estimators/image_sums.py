"""Sums of models of images: concepts learnt apart, sampled together (Du, Li and Mordatch 2020; Du et al. 2023).

A + B        both hold: energies add
A + 0.5*B    a weight
A - 0.5*B    away from B
A or B       either holds: densities add
A:3          the class 3 of a run that was fitted with labels
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from conca.energy.compose import mixture
from conca.energy.energy import Energy, Score
from conca.energy.schedule import Schedule
from conca.estimators.image_diffusion import ImageDiffusion
from conca.estimators.image_energy import ImageEnergy
from conca.types import BadInput

__all__ = ["Part", "composed", "parts_of"]

Model: TypeAlias = ImageEnergy | ImageDiffusion
WEIGHT = re.compile(r"(?P<weight>[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\*(?P<run>.+)")


@dataclass(frozen=True)
class Part:
    """One concept of a sum: a run, a class of it or all, and its weight."""

    run: str
    label: str | None
    weight: float


def parts_of(words: Sequence[str]) -> tuple[list[Part], bool]:
    """The parts that words name, such as ["A", "+", "0.5*B"], and whether they are alternatives ("or").

    Raises BadInput for words that are no sum.
    """
    if len(words) == 1 and not Path(words[0]).exists():
        words = re.split(r"\s+(\+|-|or)\s+", words[0].strip())  # a sum in quotes
    if not words or len(words) % 2 == 0:
        raise BadInput(
            f"cannot read {' '.join(words)!r} as a sum of runs; write RUN1 + RUN2, RUN1 - 0.5*RUN2 or RUN1 or RUN2"
        )
    signs = [word.lower() for word in words[1::2]]
    for sign in signs:
        if sign not in ("+", "-", "or"):
            raise BadInput(f"between two runs stands +, - or 'or', with blanks around it, not {sign!r}")
    if "or" in signs and set(signs) != {"or"}:
        raise BadInput("'or' stands alone: runs are alternatives, or they are added; sample twice for both")
    return [part_of(word, -1.0 if sign == "-" else 1.0) for word, sign in zip(words[::2], ["+", *signs])], "or" in signs


def part_of(word: str, sign: float) -> Part:
    """One part. Raises BadInput for a weight that is none."""
    weight, run = sign, word
    if (match := WEIGHT.fullmatch(word)) and not Path(word).exists():
        weight, run = sign * float(match["weight"]), match["run"]
    label = None
    if ":" in run and not Path(run).exists():
        ends = [place for place, letter in enumerate(run) if letter == ":"]
        end = next((place for place in ends if Path(run[:place]).exists()), ends[-1])
        run, label = run[:end], run[end + 1 :]
    if weight == 0:
        raise BadInput(f"{word}: a weight of 0 leaves nothing of it; leave it out")
    return Part(run, label, weight)


def composed(models: Sequence[Model], parts: Sequence[Part], either: bool, schedule: Schedule | None = None) -> Score:
    """The landscape of a sum, over the images of the first model (and, of diffusions, the levels of a schedule).

    Raises BadInput where models do not go together: another kind, size or range of pixels; for alternatives of slopes alone.
    """
    first = models[0]
    terms: list[Score] = []
    for model, part in zip(models, parts):
        if type(model) is not type(first):
            raise BadInput(
                f"{parts[0].run} and {part.run} are of different kinds, an energy and a diffusion; add runs of one kind"
            )
        if model.shape_ != first.shape_:
            raise BadInput(
                f"{parts[0].run} and {part.run} are of images {first.shape_} and {model.shape_}; fit both with one size"
            )
        if isinstance(model, ImageEnergy) and isinstance(first, ImageEnergy):
            ranges = [(each.recipe_.low, each.recipe_.high) for each in (first, model)]
            if ranges[0] != ranges[1]:
                raise BadInput(
                    f"{parts[0].run} and {part.run} read pixels from {ranges[0]} and {ranges[1]}; fit both by one recipe"
                )
            terms.append(model.landscape(part.label))
        else:
            terms.append(cast(ImageDiffusion, model).landscape(part.label, schedule))
    if either:
        if not all(isinstance(term, Energy) for term in terms):
            raise BadInput(
                "alternatives ('or') are of energies, and these runs know only slopes; fit them with scalar (--scalar)"
            )
        return mixture(*cast(list[Energy], terms), weights=[part.weight for part in parts])
    weighted: list[Any] = [term if part.weight == 1 else term * part.weight for term, part in zip(terms, parts)]
    return cast(Score, sum(weighted[1:], weighted[0]))
