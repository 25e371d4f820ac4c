"""Images of one size, with labels and an official split where there are any: what energies and diffusions learn from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conca.data.image_file import Pixels, sized
from conca.data.labelled import PARTS, Labels, counted, origin
from conca.types import BadInput

__all__ = ["Images"]


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size.

    pixels   (N, C, H, W) uint8, C of 1 (grey) or 3
    labels   (N,) int64, the places of their names in `classes`; None: some or all are unknown
    classes  the names, numbers in the order of numbers and text in that of letters; empty where there are no labels
    parts    (N,) "train", "validation" or "test"; None: there is no official split
    source   one line that says what was read: files, a colon, sizes
    skipped  a line for each broken file that was passed over

    Raises BadInput if these do not fit together.
    """

    pixels: Pixels
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    parts: NDArray[np.str_] | None = None
    source: str = ""
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise BadInput if the fields do not fit together."""
        where, shape = origin(self.source), self.pixels.shape
        if self.pixels.dtype != np.uint8 or len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape:
            told = f"{self.pixels.dtype} of shape {shape}"
            raise BadInput(f"{where}pixels are {told}; give at least one image, uint8 (N, C, H, W) with C of 1 or 3")
        for name, field in (("labels", self.labels), ("parts", self.parts)):
            if field is not None and field.shape != (len(self),):
                raise BadInput(f"{where}{name} of shape {field.shape} for {counted(len(self), 'image')}; give one each")
        if self.labels is not None and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise BadInput(f"{where}labels name none of the {len(self.classes)} classes; number them from 0")
        if self.parts is not None and (strange := sorted({*self.parts.tolist()} - {*PARTS})):
            raise BadInput(f"{where}a part is named '{strange[0]}'; the parts are {', '.join(PARTS)}")

    @classmethod
    def of(
        cls,
        pixels: Pixels,
        names: Labels | None,
        parts: NDArray[np.str_] | None,
        files: str,
        notes: tuple[str, ...] = (),
        skipped: tuple[str, ...] = (),
    ) -> Images:
        """Images whose labels are given by name, text or integers (N,); a `source` line of files, sizes and notes."""
        classes: tuple[str, ...] = ()
        labels = None
        if names is not None:
            known, places = np.unique(names, return_inverse=True)
            classes, labels = tuple(map(str, known.tolist())), places.astype(np.int64)
        found = cls(pixels, labels, classes, parts, files, skipped)
        return replace(found, source="; ".join((f"{files}: {found.summary}", *notes)))

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    @property
    def summary(self) -> str:
        """How many images, of which size, and how many classes, in a few words."""
        kind = "grey" if self.shape[0] == 1 else "colour"
        words = counted(len(self), f"{kind} image")
        if self.parts is not None:
            counts = {part: int((self.parts == part).sum()) for part in PARTS}
            words += f" ({', '.join(f'{count} {part}' for part, count in counts.items() if count)})"
        words += f" of {sized(self.shape[1:])} pixels"
        return words + (f", {counted(len(self.classes), 'class', 'classes')}" if self.classes else "")

    def take(self, index: ArrayLike) -> Images:
        """The images at `index`, in its order, copied: integers, or a mask of N truth values.

        Raises BadInput if it names none.
        """
        rows: NDArray[Any] = np.asarray(index)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        if not len(rows):
            raise BadInput(f"{origin(self.source)}no images are left; keep at least one")
        labels = None if self.labels is None else self.labels[rows]
        parts = None if self.parts is None else self.parts[rows]
        return replace(self, pixels=self.pixels[rows], labels=labels, parts=parts)

    def part(self, name: str) -> Images:
        """The images of one part, "train", "validation" or "test", copied. Raises BadInput if it has none."""
        mask = np.zeros(len(self), bool) if self.parts is None else self.parts == name
        if not mask.any():
            raise BadInput(f"{origin(self.source)}no images are marked as the part '{name}'; read a split that has it")
        return self.take(mask)

    def without(self, name: str) -> Images:
        """The images of all other parts; all, where there is no such part. Raises BadInput if none are left."""
        return self if self.parts is None or name not in self.parts else self.take(self.parts != name)

    def stamp(self) -> str:
        """The digest of all that a training sees, so that it is taken up again with the same images only."""
        digest = hashlib.blake2b(digest_size=16)
        known = (self.pixels.shape, self.classes, self.parts is not None and self.parts.tolist())
        digest.update(repr(known).encode())
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        digest.update(np.ascontiguousarray(self.pixels).data)
        return digest.hexdigest()
