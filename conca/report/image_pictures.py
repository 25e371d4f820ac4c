"""Images on a page: grids of pixels as they are, inside the element that a page takes for a drawing."""

from __future__ import annotations

import base64

from conca.data.image_file import Pixels
from conca.data.image_grid import grid_of, png_of
from conca.report.page import Picture

__all__ = ["shown"]


def shown(pixels: Pixels, alt: str, caption: str, columns: int | None = None) -> Picture:
    """Images (N, C, H, W) side by side, `columns` in a row."""
    grid = grid_of(pixels, columns, gap=1)
    _, height, width = grid.shape
    data = base64.b64encode(png_of(grid)).decode()
    place = f'width="{width}" height="{height}" style="image-rendering: pixelated"'
    image = f'<image {place} href="data:image/png;base64,{data}"/>'
    return Picture(
        f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">{image}</svg>', alt, caption
    )
