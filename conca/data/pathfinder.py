"""Pathfinder: do two dots lie on one dashed path? Pictures of 32 to 256 pixels, made as for the Long Range Arena (128: Path-X).

Linsley, Kim, Veerabadran, Windolf and Serre, Learning long-range spatial dependencies with horizontal gated recurrent units, 2018;
Tay et al., Long Range Arena, 2021.

Two snakes of paddles begin near each other, and grow a paddle in turn, each paddle into free ground and rather straight on (the weight is
cos^2 of the turn times `continuity`); when one is stuck, both begin anew. Shorter snakes are laid between them. One dot marks the tail of a
snake, the other the head of the same (label 1) or of the other one (label 0).

At 32 pixels the shorter snakes are brighter than the two, by the contrasts that were published; brightness may serve as a clue there.
Counts are whole numbers, as they were when `/` cut: a length of 14 // 3 = 4 paddles, and 5, 5, 8 and 7 shorter snakes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conca.data.making import array_file, in_order, numbers, shares
from conca.data.pathfinder_drawing import Brush, Bytes, Point, put_circle, stretched
from conca.data.pathfinder_walk import Tables, tables, walk
from conca.types import BadInput

__all__ = [
    "CONTOURS",
    "COUNT",
    "SIZES",
    "Scene",
    "Setting",
    "paint",
    "pathfinder",
    "scene",
    "setting",
    "write_pictures",
]

COUNT, TRAIN, VALIDATION = 200_000, 0.8, 0.1
"""Pictures of the arena, and the shares of its parts."""
CONTOURS = (6, 9, 14)
"""Paddles of the two snakes: easy, intermediate and hard; the arena is the hard one."""
BLOCK = 64
"""Pictures that one call of a process makes."""


@dataclass(frozen=True)
class Setting:
    """What is drawn: lengths in pixels of the picture, snakes in paddles."""

    size: int
    contour: int
    shorter: int
    """Paddles of a shorter snake."""
    distractors: int
    """Shorter snakes, at most."""
    margins: tuple[int, ...]
    """Free ground round a paddle, one of them for each picture."""
    length: int
    thickness: float
    between: int
    """Pixels between the two tails."""
    marker: float
    """Radius of a dot."""
    continuity: float
    contrast: float
    """Of a shorter snake."""
    target: float
    """Of the two snakes."""


SIZES = {
    32: Setting(32, 14, 4, 20, (1,), 2, 0.5, 7, 1.5, 1.0, 2.0, 1.5),
    64: Setting(64, 14, 4, 22, (1,), 5, 1.0, 12, 2.5, 1.8, 0.8, 0.8),
    128: Setting(128, 14, 4, 35, (2, 3), 5, 1.5, 20, 3.0, 1.8, 0.9, 0.9),
    256: Setting(256, 14, 4, 30, (3,), 5, 2.0, 27, 5.0, 1.8, 1.0, 1.0),
}
"""What was published, but for `distractors`: here the paddles of all shorter snakes together, at most."""


def setting(size: int = 32, contour: int = 14) -> Setting:
    """The published setting of this size and length. Raises BadInput for others."""
    for name, value, known in (("size", size, SIZES), ("contour", contour, CONTOURS)):
        if value not in known:
            raise BadInput(f"pathfinder: {name} {value} is not one of {', '.join(map(str, known))}")
    published, shorter = SIZES[size], contour // 3
    return replace(published, contour=contour, shorter=shorter, distractors=published.distractors // shorter)


@dataclass(frozen=True)
class Scene:
    """All that was decided of a picture; a paddle is the row and the column where it begins, and its direction (see `walk`)."""

    label: int
    margin: int
    snakes: NDArray[np.int64]
    """The two that matter (2, n, 3)."""
    shorter: NDArray[np.int64]
    """Those between them (k, m, 3)."""
    origin: int
    """Which of the two has a dot on its tail."""
    goal: int
    """Which of the two has a dot on its head."""
    begins: int
    """How often the two were begun before both were whole."""

    @property
    def dots(self) -> tuple[Point, Point]:
        """Where the dots are: on a tail, where the first paddle begins, and on a head, from where the last one is drawn back."""
        (tail, head) = self.snakes[self.origin, 0, :2].tolist(), self.snakes[self.goal, -1, :2].tolist()
        return (tail[0], tail[1]), (head[0], head[1])


@cache
def brush(given: Setting, margin: int) -> Brush:
    """The paddles of a setting, kept: they are drawn once in a process."""
    return Brush(given.size, given.length, given.thickness, margin)


@cache
def looked_up(given: Setting, margin: int) -> Tables:
    """What the walk looks up, kept like the paddles."""
    return tables(brush(given, margin), given.continuity)


def scene(given: Setting, random: np.random.Generator) -> Scene:
    """Decide all of a picture."""
    label, origin = (int(random.random() * 2) for _ in range(2))
    margin = given.margins[int(random.random() * len(given.margins))]
    snakes = np.empty((2, given.contour, 3), np.int64)
    shorter = np.empty((given.distractors, given.shorter, 3), np.int64)
    found, begins = walk(looked_up(given, margin), snakes, shorter, given.between, random)
    return Scene(label, margin, snakes, shorter[:found], origin, origin if label else 1 - origin, begins)


def paint(decided: Scene, given: Setting) -> Bytes:
    """The picture (size, size) of a scene, from 0 to 255."""
    pen = brush(given, decided.margin)
    angles = pen.drawn
    picture = np.zeros((given.size, given.size))
    for snakes, contrast in ((decided.snakes, given.target), (decided.shorter, given.contrast)):
        for y, x, direction in snakes.reshape(-1, 3).tolist():
            pen.lay(picture, (y, x), angles[direction], contrast)
    for point in decided.dots:
        put_circle(picture, point, given.marker)
    return stretched(picture)


def block(index: int, given: Setting, seed: int, count: int) -> tuple[Bytes, Bytes]:
    """The pictures (n, size, size) of one block, and their labels (n,)."""
    places = range(index * BLOCK, min(count, (index + 1) * BLOCK))
    scenes = [scene(given, numbers("pathfinder", seed, place)) for place in places]
    return np.stack([paint(s, given) for s in scenes]), np.array([s.label for s in scenes], np.uint8)


def pathfinder(
    given: Setting, count: int = COUNT, *, seed: int = 0, processes: int = 1
) -> Iterator[tuple[Bytes, Bytes]]:
    """`count` pictures and labels, in blocks. A picture depends on setting, seed and its place alone."""
    task = partial(block, given=given, seed=seed, count=count)
    with closing(in_order(task, range(math.ceil(count / BLOCK)), processes)) as blocks:
        yield from blocks


def write_pictures(
    path: Path,
    blocks: Iterator[tuple[Bytes, Bytes]],
    given: Setting,
    count: int,
    advance: Callable[[int], object] = lambda made: None,
) -> str:
    """Pictures as an .npz; returns the checksum of its arrays.

    X (count, size * size, 1) uint8, each a sequence of pixels row by row; y (count,) uint8; split (count,) text.
    """
    labels: list[Bytes] = []

    def sequences() -> Iterator[Bytes]:
        for pictures, answers in blocks:
            labels.append(answers)
            yield pictures.reshape(len(pictures), -1, 1)
            advance(len(pictures))

    with array_file(path) as file:
        file.stream("X", (count, given.size**2, 1), np.dtype(np.uint8), sequences())
        file.put("y", np.concatenate(labels))
        file.put("split", shares(count, TRAIN, VALIDATION))
        return file.checksum
