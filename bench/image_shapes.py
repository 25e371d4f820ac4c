"""Shapes on a small canvas, of which form and place are known: crosses anywhere, and any form in one quarter.

An image is one of 3 forms (square, cross, ring, 5 x 5) at one of 12 x 12 places on 16 x 16 pixels. Two sets are learnt apart: crosses at
all places, and all forms at the 6 x 6 places of the upper left quarter. What both hold for are crosses there: 36 images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conca.models.run import write_whole

__all__ = ["FORMS", "read", "written"]

SIDE, ROOM, QUARTER, SHAPE = 16, 12, 6, 5
FORMS = "square", "cross", "ring"
MOST = 4.0
"""Distance, in pixels of full contrast, up to which an image is taken for the nearest of the 432."""


def forms() -> NDArray[np.uint8]:
    """The three, (3, 5, 5)."""
    square = np.full((SHAPE, SHAPE), 255, np.uint8)
    cross, ring = np.zeros_like(square), square.copy()
    cross[2], cross[:, 2], ring[1:-1, 1:-1] = 255, 255, 0
    return np.stack([square, cross, ring])


def templates() -> NDArray[np.uint8]:
    """All images, (3, 12, 12, 16, 16): form, row, column."""
    found = np.zeros((len(FORMS), ROOM, ROOM, SIDE, SIDE), np.uint8)
    for row in range(ROOM):
        for column in range(ROOM):
            found[:, row, column, row : row + SHAPE, column : column + SHAPE] = forms()
    return found


def written(folder: Path) -> tuple[Path, Path]:
    """The two sets as .npz: crosses.npz (20 of each of 144) and quarter.npz (30 of each of 108)."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = templates()
    sets = {
        "crosses": whole[1].reshape(-1, SIDE, SIDE),
        "quarter": whole[:, :QUARTER, :QUARTER].reshape(-1, SIDE, SIDE),
    }
    paths = []
    for (name, images), times in zip(sets.items(), (20, 30)):
        paths.append(folder / f"{name}.npz")
        if not paths[-1].exists():
            X = np.random.default_rng(0).permutation(np.repeat(images, times, axis=0))
            write_whole(paths[-1], lambda file, X=X: np.savez_compressed(file, X=X))
    return paths[0], paths[1]


def read(pixels: NDArray[np.uint8]) -> dict[str, float]:
    """What images (n, 1, 16, 16) are, by the nearest of the 432, which is the best classifier: shares of all.

    clear  near one of them; cross, quarter, both: clear, and the form, the place, both are right; kinds: how many of the 36 were met
    """
    whole = templates().reshape(-1, SIDE * SIDE).astype(np.float64) / 255
    x = pixels.reshape(len(pixels), -1).astype(np.float64) / 255
    apart = (x**2).sum(1)[:, None] - 2 * x @ whole.T + (whole**2).sum(1)
    place = apart.argmin(1)
    form, row, column = np.unravel_index(place, (len(FORMS), ROOM, ROOM))
    clear = apart.min(1) < MOST
    cross, quarter = clear & (form == 1), clear & (row < QUARTER) & (column < QUARTER)
    both = cross & quarter
    shares = {"clear": clear, "cross": cross, "quarter": quarter, "both": both}
    return {name: float(held.mean()) for name, held in shares.items()} | {"kinds": float(len(np.unique(place[both])))}
