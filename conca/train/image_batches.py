"""Images in batches: which of them a step learns from is a function of the seed and the step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["ImageBatch", "ImageChecks", "ImagePieces"]

Pixels = NDArray[np.uint8]
Integers = NDArray[np.int64]


class ImageBatch(NamedTuple):
    """Images of a step.

    x      (B, C, H, W) bytes
    y      (B,) classes; None: there are none
    whole  images of the step, those of other processes counted
    number of the step, or of the batch that validates
    """

    x: Tensor
    y: Tensor | None
    whole: int
    number: int

    def to(self, device: torch.device) -> ImageBatch:
        """The same on a device."""
        return self._replace(x=self.x.to(device), y=None if self.y is None else self.y.to(device))


class ImagePieces:
    """What each step learns from: every image once in each pass, in an order of that pass."""

    def __init__(self, pixels: Pixels, y: Integers | None, *, batch_size: int, seed: int) -> None:
        self.pixels, self.y, self.seed = pixels, y, seed
        self.batch_size = min(batch_size, len(pixels))
        self.each = max(len(pixels) // self.batch_size, 1)
        self.order: tuple[int, Integers] = (-1, np.zeros(0, np.int64))

    def batch(self, step: int, first: int = 0, stride: int = 1) -> ImageBatch:
        """The images of a step, or every `stride`-th of them."""
        at, place = divmod(step, self.each)
        if self.order[0] != at:
            self.order = at, np.random.default_rng((self.seed, at)).permutation(len(self.pixels))
        chosen = self.order[1][place * self.batch_size : (place + 1) * self.batch_size]
        return taken(self.pixels, self.y, chosen[first::stride], len(chosen), step)


class ImageChecks(Dataset[ImageBatch]):
    """All images in their order, to validate on: the batches first, first + stride, ..."""

    def __init__(self, pixels: Pixels, y: Integers | None, *, batch_size: int, first: int = 0, stride: int = 1) -> None:
        self.pixels, self.y = pixels, y
        self.begins = range(0, len(pixels), batch_size)[first::stride]
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, place: int) -> ImageBatch:
        """One of them."""
        begin = self.begins[place]
        chosen = np.arange(begin, min(begin + self.batch_size, len(self.pixels)))
        return taken(self.pixels, self.y, chosen, len(chosen), begin)


def taken(pixels: Pixels, y: Integers | None, chosen: Integers, whole: int, number: int) -> ImageBatch:
    """Some of the images."""
    classes = None if y is None else torch.from_numpy(y[chosen])
    return ImageBatch(torch.from_numpy(pixels[chosen]), classes, whole, number)
