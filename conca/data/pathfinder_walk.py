"""How the snakes of Pathfinder grow: the decisions, compiled, on tables of what was drawn once.

A paddle is three numbers: row and column of the pixel where its line begins, and its direction. Directions 0 to 359 are whole degrees
from -180 on, drawn forward from the tail: those of first paddles. The others belong to the pixels of the ring round a pivot, where a
next paddle may end, and are drawn backward from there.

A pair of long snakes fails far more often than not (1500 times for a picture of 64 pixels), which is why this is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from conca.data.pathfinder_drawing import DEGREES, FREE, Brush, Floats, flipped, moved

__all__ = ["Tables", "tables", "walk"]

TRIES, SNAKE_TRIES = 3, 5
"""Of a paddle, and of a shorter snake."""
CROWDED = 0.01
"""Share of free ground below which no shorter snake begins."""
STUCK, CROSSED = 1e-4, 1.8
"""A snake ends where all weights together are less; a paddle is refused where its mask and what is taken add up to more."""
DRAWN = 100
"""Pixels that are tried at random before all are looked at."""
PADDING = 1
"""Pixels at the border that are taken from the start."""

Integers = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])
NJIT: Any = numba.njit  # its types do not know the last two options


def compiled(function: F) -> F:
    """The function as machine code; it is compiled at its first call in a process."""
    return cast(F, NJIT(nogil=True, error_model="numpy")(function))


def inner(function: F) -> F:
    """The same for one that compiled functions alone call, which is compiled sooner."""
    return cast(F, NJIT(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


class Tables(NamedTuple):
    """What the walk looks up, for all directions d: degrees of first paddles, then those of the ring's R pixels."""

    size: int
    masks: Floats
    """(d, S, S) ground that a paddle takes, from 0 to 1, its line beginning in the middle."""
    on: Integers
    """(d, 2) from the pivot of a paddle to that of the next."""
    weights: Floats
    """(d, R) of the next paddle, for straightness."""
    ring: Integers
    """(R, 2) from a pivot to the pixels where a paddle may end."""
    near: Integers
    """(M, 2) from a pixel to those that must be free round it."""
    heads: Integers
    """(360, 2) from the tail of a first paddle to its head."""
    pivots: Integers
    """(360, 2) from the tail of a first paddle to its pivot."""
    footprints: Integers
    """(360, K, 2) from a tail to the pixels that must be free for a first paddle, the last one repeated."""
    rooms: Integers
    """(360, 4) the tails whose footprint is in the picture: top, left, height and width of a rectangle."""


def tables(brush: Brush, continuity: float) -> Tables:
    """The tables of a brush."""
    first = brush.drawn[:DEGREES]
    onward = [*first, *brush.directions.tolist()]
    far = 1 << 10
    middle = np.array([far, far])

    def steps(angles: list[float], distance: float) -> Integers:
        return np.asarray(np.array([moved((far, far), angle, distance) for angle in angles]) - middle)

    length, margin = brush.length, brush.margin
    heads = steps(first, length)
    feet = [brush.footprint(angle) for angle in first]
    longest = max(map(len, feet))
    low, high = (np.array([bound(foot, 0) for foot in feet]) for bound in (np.min, np.max))
    return Tables(
        brush.size,
        np.stack([brush.paddle(angle)[1] for angle in brush.drawn]),
        steps(onward, length + 2 * margin),
        np.stack([brush.turn_weights(angle, continuity) for angle in onward]),
        brush.ring,
        brush.near,
        heads,
        heads + steps([flipped(angle) for angle in first], length + margin),
        np.stack([foot[np.minimum(np.arange(longest), len(foot) - 1)] for foot in feet]),
        np.concatenate([-low, brush.size - high + low], 1),
    )


@inner
def below(number: int, random: np.random.Generator) -> int:
    """A whole number from 0 on, less than `number`."""
    return int(random.random() * number)


@inner
def holds(size: int, y: int, x: int) -> bool:
    """Whether a pixel is in the picture."""
    return 0 <= y < size and 0 <= x < size


@inner
def take(t: Tables, taken: Floats, paddle: Integers) -> None:
    """A paddle takes its ground."""
    mask, reach = t.masks[paddle[2]], t.masks.shape[1] // 2
    for i in range(max(0, reach - paddle[0]), min(2 * reach + 1, t.size + reach - paddle[0])):
        for j in range(max(0, reach - paddle[1]), min(2 * reach + 1, t.size + reach - paddle[1])):
            y, x = paddle[0] + i - reach, paddle[1] + j - reach
            taken[y, x] = max(taken[y, x], mask[i, j])


@inner
def crosses(t: Tables, taken: Floats, y: int, x: int, direction: int) -> bool:
    """Whether a paddle would lie on ground that is taken."""
    mask, reach = t.masks[direction], t.masks.shape[1] // 2
    for i in range(max(0, reach - y), min(2 * reach + 1, t.size + reach - y)):
        for j in range(max(0, reach - x), min(2 * reach + 1, t.size + reach - x)):
            if taken[y + i - reach, x + j - reach] + mask[i, j] >= CROSSED:
                return True
    return False


@inner
def ground(t: Tables, taken: Floats, y: int, x: int) -> float:
    """How much of the ground round a pixel is taken, at the worst place."""
    worst = 0.0
    for k in range(len(t.near)):
        i, j = y + t.near[k, 0], x + t.near[k, 1]
        if holds(t.size, i, j) and taken[i, j] > worst:
            worst = taken[i, j]
            if worst >= 1.0:
                break
    return worst


@inner
def grown(t: Tables, snake: Integers, length: int, pivot: Integers, taken: Floats, random: np.random.Generator) -> bool:
    """One paddle more than `length`; the one before takes its ground, the pivot moves on. False where the snake is stuck."""
    last = snake[length - 1, 2]
    y, x = pivot[0] + t.on[last, 0], pivot[1] + t.on[last, 1]
    sums, total = np.empty(len(t.ring)), 0.0
    for k in range(len(t.ring)):
        i, j = y + t.ring[k, 0], x + t.ring[k, 1]
        weight = t.weights[last, k]
        if weight > 0.0 and holds(t.size, i, j):
            total += weight * (1.0 - ground(t, taken, i, j))
        sums[k] = total
    if total < STUCK:
        return False
    for _ in range(TRIES):
        drawn, k = random.random() * total, 0
        while sums[k] <= drawn:
            k += 1
        i, j = y + t.ring[k, 0], x + t.ring[k, 1]
        if not crosses(t, taken, i, j, DEGREES + k):
            take(t, taken, snake[length - 1])
            snake[length, 0], snake[length, 1], snake[length, 2] = i, j, DEGREES + k
            pivot[0], pivot[1] = y, x
            return True
    return False


@inner
def begun(t: Tables, snake: Integers, pivot: Integers, y: int, x: int, direction: int) -> bool:
    """The first paddle of a snake, with its tail at a pixel. False where that, its head or its pivot is not in the picture."""
    i, j = t.pivots[direction]
    if not (holds(t.size, y, x) and holds(t.size, y + i, x + j)):
        return False
    if not holds(t.size, y + t.heads[direction, 0], x + t.heads[direction, 1]):
        return False
    snake[0, 0], snake[0, 1], snake[0, 2] = y, x, direction
    pivot[0], pivot[1] = y + i, x + j
    return True


@inner
def fits(t: Tables, taken: Floats, y: int, x: int, direction: int) -> bool:
    """Whether the ground of a first paddle is free; beyond the border it is."""
    for k in range(t.footprints.shape[1]):
        i, j = y + t.footprints[direction, k, 0], x + t.footprints[direction, k, 1]
        if holds(t.size, i, j) and taken[i, j] > FREE:
            return False
    return True


@inner
def sown(t: Tables, snake: Integers, pivot: Integers, taken: Floats, random: np.random.Generator) -> bool:
    """The first paddle of a snake, anywhere on free ground. False where there is none."""
    for _ in range(TRIES):
        direction = below(DEGREES, random)
        place = somewhere(t, taken, direction, random)
        if place < 0:
            return False
        if begun(t, snake, pivot, place // t.size, place % t.size, direction):
            return True
    return False


@inner
def somewhere(t: Tables, taken: Floats, direction: int, random: np.random.Generator) -> int:
    """One of the pixels where a first paddle fits, all alike, counted row by row; -1 where there is none.

    Pixels are tried at random, which finds one soon unless there are few; then they are all looked at.
    """
    pixels = t.size * t.size
    for _ in range(DRAWN):
        place = below(pixels, random)
        if fits(t, taken, place // t.size, place % t.size, direction):
            return place
    places, found = np.empty(pixels, np.int64), 0
    for place in range(pixels):
        if fits(t, taken, place // t.size, place % t.size, direction):
            places[found] = place
            found += 1
    return places[below(found, random)] if found else -1


@inner
def amid(t: Tables, snake: Integers, pivot: Integers, border: int, random: np.random.Generator) -> bool:
    """The first paddle of the first snake, all its ground inside a wide border. False where there is no room."""
    for _ in range(TRIES):
        direction = below(DEGREES, random)
        top, left, height, width = t.rooms[direction]
        top, left, height, width = top + border, left + border, height - 2 * border, width - 2 * border
        if height <= 0 or width <= 0:
            return False
        y, x = top + below(height, random), left + below(width, random)
        if begun(t, snake, pivot, y, x, direction):
            return True
    return False


@inner
def beside(
    t: Tables, snake: Integers, pivot: Integers, first: Integers, between: int, random: np.random.Generator
) -> bool:
    """The first paddle of the second snake, its tail at a distance from that of the first. False where that failed."""
    for _ in range(TRIES):
        direction = below(DEGREES, random)
        angle = math.pi / 180 * below(DEGREES, random)
        y = round(first[0] + between * math.sin(angle))
        x = round(first[1] + between * math.cos(angle))
        if begun(t, snake, pivot, y, x, direction):
            return True
    return False


@inner
def border(taken: Floats) -> None:
    """The ground before anything was laid: free, but for the border."""
    size = len(taken)
    for y in range(size):
        for x in range(size):
            taken[y, x] = 1.0 if min(y, x, size - 1 - y, size - 1 - x) < PADDING else 0.0


@inner
def crowded(taken: Floats) -> bool:
    """Whether hardly any ground is free."""
    free = 0
    for y in range(len(taken)):
        for x in range(len(taken)):
            free += taken[y, x] <= FREE
    return free < CROWDED * len(taken) ** 2


@inner
def two(t: Tables, snakes: Integers, taken: Floats, between: int, random: np.random.Generator) -> int:
    """The two long snakes (2, n, 3), begun anew until both are whole, and how often that was.

    They leave the ground of the last paddle of the first one free, as the published pictures do.
    """
    pivots, begins = np.empty((2, 2), np.int64), 0
    while True:
        begins += 1
        border(taken)
        if not amid(t, snakes[0], pivots[0], 2 * between, random):
            continue
        whole = beside(t, snakes[1], pivots[1], snakes[0, 0], between, random)
        for turn in range(2 * (snakes.shape[1] - 1)):
            which = turn % 2
            whole = whole and grown(t, snakes[which], 1 + turn // 2, pivots[which], taken, random)
            if not whole:
                break
        if whole:
            take(t, taken, snakes[1, -1])
            return begins


@inner
def one(t: Tables, snake: Integers, taken: Floats, random: np.random.Generator) -> bool:
    """A shorter snake (n, 3) on free ground, which it takes. False where that failed."""
    pivot = np.empty(2, np.int64)
    if crowded(taken) or not sown(t, snake, pivot, taken, random):
        return False
    for length in range(1, len(snake)):
        if not grown(t, snake, length, pivot, taken, random):
            return False
    take(t, taken, snake[-1])
    return True


@compiled
def walk(t: Tables, snakes: Integers, shorter: Integers, between: int, random: np.random.Generator) -> tuple[int, int]:
    """Fill the long snakes (2, n, 3) and as many of the shorter ones (k, m, 3) as find room.

    Returns how many shorter ones there are, and how often the long ones were begun.
    """
    taken = np.empty((t.size, t.size))
    begins, found = two(t, snakes, taken, between, random), 0
    for _ in range(len(shorter)):
        for _ in range(SNAKE_TRIES):
            tried = taken.copy()
            if one(t, shorter[found], tried, random):
                taken, found = tried, found + 1
                break
    return found, begins
