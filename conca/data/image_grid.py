"""Images side by side in one, and pixels as a PNG file."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from conca.data.image_file import Pixels
from conca.types import BadInput

__all__ = ["grid_of", "png_of"]

GROUND = 128
"""The grey between images, which differs from black and from white."""


def grid_of(pixels: Pixels, columns: int | None = None, *, gap: int = 2, scale: int = 1) -> Pixels:
    """Images (N, C, H, W) row by row in one (C, h, w), on grey.

    columns  how many stand side by side; None: as many as there are rows, or one more
    gap      pixels between images, and around them
    scale    how many pixels wide and high each pixel becomes; those between are not scaled

    Raises BadInput if there are no images, or if these numbers are too small.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or 0 in pixels.shape:
        raise BadInput(
            f"a grid of {pixels.dtype} {pixels.shape}; give at least one image, uint8 (N, C, H, W), C of 1 or 3"
        )
    n, channels, height, width = pixels.shape
    across = columns if columns is not None else math.ceil(math.sqrt(n))
    if across < 1 or gap < 0 or scale < 1:
        raise BadInput(f"a grid of {across} columns, gaps of {gap} and scale {scale}; give 1, 0 and 1 at least")
    across = min(across, n)
    high, wide = height * scale + gap, width * scale + gap
    grid = np.full((channels, -(-n // across) * high + gap, across * wide + gap), GROUND, np.uint8)
    for i, image in enumerate(pixels.repeat(scale, axis=2).repeat(scale, axis=3)):
        top, left = i // across * high + gap, i % across * wide + gap
        grid[:, top : top + high - gap, left : left + wide - gap] = image
    return grid


def png_of(pixels: Pixels) -> bytes:
    """Pixels (C, H, W), C of 1 or 3, as the content of a PNG file; the same pixels are the same bytes.

    Raises BadInput if they are of another shape or type.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise BadInput(f"a picture of {pixels.dtype} {pixels.shape}; give pixels uint8 (C, H, W) with C of 1 or 3")
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(
        file, "PNG"
    )
    return file.getvalue()
