"""Small pictures of which form and place are known, to try models of images on: shapes/, with a damaged one and its mask.

    python examples/shapes.py
    conca fit shapes/crosses.npz --task energy --max-minutes 5 --out runs/crosses

Crosses at any place, and any form in the upper left quarter: two concepts, each learnt without the other. Both hold for crosses in that
quarter, which `conca sample runs/crosses + runs/quarter` draws.
"""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE, SHAPE = 16, 5
draw = np.random.default_rng(0)


def form(name: str) -> np.ndarray:
    """Pixels of a form, (5, 5)."""
    pixels = np.full((SHAPE, SHAPE), 255, np.uint8)
    if name == "cross":
        pixels[:] = 0
        pixels[2], pixels[:, 2] = 255, 255
    elif name == "ring":
        pixels[1:-1, 1:-1] = 0
    return pixels


def picture(name: str, row: int, column: int) -> np.ndarray:
    """A form on black, (16, 16)."""
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[row : row + SHAPE, column : column + SHAPE] = form(name)
    return pixels


def pictures(count: int, forms: tuple[str, ...], room: int) -> np.ndarray:
    """Forms at random, (count, 16, 16), at places below `room`."""
    return np.stack([picture(draw.choice(forms), *draw.integers(0, room, 2)) for _ in range(count)])


def main() -> None:
    """Write two sets, pictures that are none of them, a damaged one, and where it is damaged."""
    folder = Path("shapes")
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / "crosses.npz", X=pictures(2000, ("cross",), 12))
    np.savez_compressed(folder / "quarter.npz", X=pictures(2000, ("square", "cross", "ring"), 6))
    np.savez_compressed(folder / "others.npz", X=pictures(200, ("square", "ring"), 12))
    whole, mask = picture("cross", 3, 8), np.zeros((SIDE, SIDE), np.uint8)
    mask[5:], whole[5:] = 255, 0
    Image.fromarray(whole).save(folder / "damaged.png")
    Image.fromarray(mask).save(folder / "mask.png")


if __name__ == "__main__":
    main()
