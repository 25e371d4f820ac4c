"""Paddles and markers of Pathfinder: short lines in finer pixels, shrunk, each with a mask of the ground that it takes.

Everything is drawn once for each direction and kept. Shrinking is Lanczos of bytes between 0 and 255, as SciPy's old `imresize` did it,
to which the published pictures owe that their lines are bright.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

__all__ = [
    "DEGREES",
    "FINER",
    "FREE",
    "Brush",
    "Bytes",
    "Floats",
    "Point",
    "disc",
    "flipped",
    "moved",
    "put_circle",
    "shrunk",
    "stretched",
]

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Point = tuple[int, int]
"""Row and column."""

DEGREES = 360
"""Directions of first paddles."""
FINER = 2
"""Pixels that a line is drawn in, in one pixel of the picture, along each axis."""
SMOOTH = 4
"""Pixels beyond its edge at which nothing of a disc is left."""
FREE = 0.3
"""Ground that is taken to no more than this share is free."""


def moved(point: Point, angle: float, distance: float) -> Point:
    """The pixel at this distance, rounded up; an angle of 0 goes to the right, one of pi / 2 down."""
    return math.ceil(point[0] + distance * math.sin(angle)), math.ceil(point[1] + distance * math.cos(angle))


def flipped(angle: float) -> float:
    """The opposite direction."""
    return angle + math.pi if angle < 0 else angle - math.pi


def stretched(picture: Floats) -> Bytes:
    """A picture as bytes from 0, its darkest, to 255, its brightest."""
    low, high = picture.min(), picture.max()
    return np.asarray((picture - low) * (255.0 / ((high - low) or 1.0)) + 0.5).astype(np.uint8)


def shrunk(picture: Floats, shape: Point) -> Floats:
    """A picture in fewer pixels, from 0 to 1, whatever its contrast was."""
    small = Image.fromarray(stretched(picture)).resize(shape[::-1], Image.Resampling.LANCZOS)
    return np.asarray(small, np.float64) / 255.0


def disc(radius: int) -> Flags:
    """Which of (2 radius + 1) x (2 radius + 1) pixels are within a radius of the middle one."""
    at = np.arange(-radius, radius + 1)
    return np.asarray(at[:, None] ** 2 + at**2 <= radius**2)


def put_circle(picture: Floats, at: Point, radius: float) -> None:
    """Brighten a picture by a disc: 1 inside, smooth at its edge. It is drawn near its edge alone, which changes nothing."""
    far = math.ceil(radius) + SMOOTH
    lows = [max(0, place - far) for place in at]
    highs = [min(size, place + far + 1) for place, size in zip(at, picture.shape)]
    y, x = (np.arange(low * FINER, high * FINER) - place * FINER for low, high, place in zip(lows, highs, at))
    inside = y[:, None] ** 2 + x**2 <= (radius * FINER) ** 2
    near = picture[lows[0] : highs[0], lows[1] : highs[1]]
    np.maximum(near, shrunk(inside.astype(np.float64), near.shape), out=near)


def spread(picture: Floats, shape: Flags) -> Floats:
    """At each pixel the largest value under the shape when its middle lies there; beyond the edge there is nothing."""
    reach = len(shape) // 2
    height, width = picture.shape
    wide = np.pad(picture, reach)
    result = np.zeros_like(picture)
    for y, x in np.argwhere(shape):
        np.maximum(result, wide[y : y + height, x : x + width], out=result)
    return result


class Brush:
    """Paddles of one length, thickness and margin (the free ground round a paddle), in any direction, on a picture of one size.

    Lines and masks are (2 reach + 1, 2 reach + 1) floats from 0 to 1; a paddle begins in the middle.
    """

    def __init__(self, size: int, length: int, thickness: float, margin: int) -> None:
        self.size, self.length, self.thickness, self.margin = size, length, thickness, margin
        self.reach = length + math.ceil(thickness) + margin
        self.near = np.argwhere(disc(margin)) - margin
        """Steps (m, 2) to the pixels within the margin."""
        radius = length + margin
        angles = np.arange(0.0, 2 * np.pi, 1.0 / radius)
        points = np.floor(radius * np.stack([np.sin(angles), np.cos(angles)], 1)).astype(np.int64)
        self.ring = np.unique(points, axis=0)
        """Steps (n, 2) from a pivot to the pixels where the next paddle may end."""
        self.directions = np.arctan2(self.ring[:, 0], self.ring[:, 1])
        """Those of the pixels of the ring (n,), as angles."""
        backward = [flipped(angle) for angle in self.directions.tolist()]
        self.drawn = [math.radians(degree - DEGREES // 2) for degree in range(DEGREES)] + backward
        """All directions in which a paddle is drawn: whole degrees, forward from a tail; then from a pixel of the ring back."""
        self.paddle = lru_cache(maxsize=None)(self._paddle)

    def _paddle(self, angle: float) -> tuple[Floats, Floats]:
        """Line and mask of a paddle from the middle in this direction."""
        middle, side = self.reach * FINER, 2 * self.reach * FINER + 1
        y, x = moved((middle, middle), angle, self.length * FINER)
        picture = Image.new("F", (side, side))
        ImageDraw.Draw(picture).line([(middle, middle), (x, y)], fill=255, width=round(self.thickness * FINER))
        line, small = np.asarray(picture, np.float64), (2 * self.reach + 1,) * 2
        mask = spread(line, disc(self.margin * FINER))
        return shrunk(line, small), shrunk(mask, small)

    def footprint(self, angle: float) -> NDArray[np.int64]:
        """Steps (k, 2) from its tail to the pixels that must be free where a paddle is to begin: those which its mask covers whole.

        They lie one pixel lower and further right than the paddle will, as in the published pictures.
        """
        steps = np.argwhere(self.paddle(angle)[1] >= 1.0) - self.reach + 1
        return np.asarray(steps[(abs(steps) <= self.length + self.margin).all(1)])

    def turn_weights(self, angle: float, continuity: float) -> Floats:
        """How gladly a snake goes on to each pixel of the ring after a paddle in this direction: cos^2 of the turn, bent."""
        turn = abs(self.directions - angle)
        turn = np.minimum(turn, 2 * np.pi - turn)
        return np.where(turn * continuity < np.pi / 2, np.cos(turn * continuity) ** 2, 0.0)

    def lay(self, picture: Floats, at: Point, angle: float, contrast: float) -> None:
        """Brighten a picture by a paddle that begins at a pixel."""
        begins = [max(self.reach - place, 0) for place in at]
        ends = [min(self.size + self.reach - place, 2 * self.reach + 1) for place in at]
        y, x = (slice(place + b - self.reach, place + e - self.reach) for place, b, e in zip(at, begins, ends))
        line = self.paddle(angle)[0][begins[0] : ends[0], begins[1] : ends[1]]
        np.maximum(picture[y, x], contrast * line, out=picture[y, x])
