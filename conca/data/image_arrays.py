"""Images in arrays, of `.npz` and IDX files, become pixels of one size with labels."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.arrays import load, read_parts, read_y
from conca.data.found_sets import FoundSet
from conca.data.idx_file import read_idx
from conca.data.image_file import Pixels, sized
from conca.data.image_folder import Fit
from conca.data.image_set import Images
from conca.data.labelled import PARTS, Labels
from conca.types import BadInput, nearest

__all__ = ["as_pixels", "read_image_arrays"]

BLOCK = 1 << 22
"""Values that are looked at and converted at a time."""
HARMLESS, RATIO = 1 << 30, 100
"""Bytes that any .npz file may unpack to, and how many times its own size it may beyond that."""


@dataclass(frozen=True, eq=False)
class Piece:
    """The images of one part: pixels (N, C, H, W), labels (N,) by name, files, what is to be noted, parts inside it (N,)."""

    pixels: Pixels
    labels: Labels | None
    files: str
    note: str = ""
    parts: NDArray[np.str_] | None = None


def read_image_arrays(found: FoundSet, fit: Fit, *, labelled: bool = False) -> Images:
    """The images of a set of IDX files, or of an `.npz` file, all parts in one.

    Raises BadInput if they are not of one size and colour, or if labels are missing and `labelled`.
    """
    pieces: dict[str, Piece] = {}
    for part, files in found.files.items():
        pieces |= {part: read_pair(files, fit, labelled)} if found.kind == "idx" else read_npz(files[0], fit, labelled)
    (first, one), *others = pieces.items()
    for name, other in others:
        if other.pixels.shape[1:] != one.pixels.shape[1:]:
            told = f"'{name}' has images of {sized(other.pixels.shape[1:])}, '{first}' of {sized(one.pixels.shape[1:])}"
            raise BadInput(f"{found.folder}: {told} (C x H x W); make all one (size, --size; colour, --colour)")
    every = [piece.labels for piece in pieces.values() if piece.labels is not None]
    return Images.of(
        np.concatenate([piece.pixels for piece in pieces.values()]) if others else one.pixels,
        np.concatenate(every) if len(every) == len(pieces) else None,
        np.repeat(list(pieces), [len(piece.pixels) for piece in pieces.values()]) if others else one.parts,
        ", ".join(dict.fromkeys(piece.files for piece in pieces.values())),
        tuple(dict.fromkeys(piece.note for piece in pieces.values() if piece.note)),
    )


def read_pair(files: tuple[Path, ...], fit: Fit, labelled: bool) -> Piece:
    """Images of an IDX file, with the labels of another. Raises BadInput if there is none and there should be."""
    images = files[0]
    if len(files) == 1 and labelled:
        wanted = images.name.replace("images", "labels").replace("idx3", "idx1")
        raise BadInput(f"{images}: no file of labels stands beside it; put {wanted} there")
    pixels, note = as_pixels(read_idx(images), str(images), fit)
    labels = settled(read_idx(files[1]), len(pixels), files[1]) if len(files) > 1 else None
    return Piece(pixels, labels, ", ".join(file.name for file in files), note)


def read_npz(path: Path, fit: Fit, labelled: bool) -> dict[str, Piece]:
    """The images of an .npz file by part, by "" where X is not split. Raises BadInput if there is no X, or no y that is wanted."""
    check_bomb(path)
    arrays = load(path)
    strange = sorted(key for key in arrays if key.startswith("x_") and key[2:] not in PARTS)
    if strange:
        raise BadInput(
            f"{path}: no part is named '{strange[0][2:]}' ('{strange[0]}'); {nearest(strange[0][2:], PARTS)}"
        )
    pieces = {}
    for part in [part for part in PARTS if f"x_{part}" in arrays] or [""]:
        end = f"_{part}" if part else ""
        if f"x{end}" not in arrays:
            known = ", ".join(f"'{name}'" for name in sorted(arrays)) or "nothing"
            raise BadInput(f"{path}: no array is named 'X' (or 'X_train'); the file has {known}")
        if labelled and f"y{end}" not in arrays:
            raise BadInput(f"{path}: 'X{end}' has no labels 'y{end}'; add them")
        pixels, note = as_pixels(arrays[f"x{end}"], f"{path}, 'X{end}'", fit)
        split = arrays.get("parts", arrays.get("split")) if not end else None
        parts = None if split is None else read_parts(path, split, len(pixels))
        labels = settled(arrays.get(f"y{end}"), len(pixels), path, labelled)
        pieces[part] = Piece(pixels, labels, path.name, note, parts)
    return pieces


def check_bomb(path: Path) -> None:
    """Raise BadInput if an .npz file unpacks to far more than it can hold in good faith."""
    try:
        with zipfile.ZipFile(path) as file:
            total = sum(member.file_size for member in file.infolist())
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError):
        return  # whoever reads it says so
    if total > max(HARMLESS, RATIO * path.stat().st_size):
        told = f"{total / 2**30:.1f} GiB in {path.stat().st_size / 2**20:.1f} MiB"
        raise BadInput(f"{path}: the file holds {told}; save the arrays with numpy.savez, which does not pack them")


def settled(labels: NDArray[Any] | None, n: int, path: Path, labelled: bool = True) -> Labels | None:
    """Labels of n images; None if there are none, or if some are missing and may be. Raises BadInput on others."""
    try:
        return read_y(path, labels, n, labelled)
    except BadInput as error:
        said = str(error).removeprefix(f"{path}: ")
        raise BadInput(f"{path}: {said.replace('sequence', 'image')}") from None


def as_pixels(x: NDArray[Any], where: str, fit: Fit) -> tuple[Pixels, str]:
    """An array of images as pixels (N, C, H, W) that fit, and what is to be noted of them.

    x      (n, H, W), (n, H, W, C) or (n, C, H, W), C of 1 or 3: uint8, truth values, integers from 0 to 255, floats from 0 to 1
    where  begins the error line

    Raises BadInput on another shape or type, and on the first value that is NaN, infinite or out of range.
    """
    x = channels_first(x, where)
    n = len(x)
    rows = max(1, BLOCK // x[0].size)
    blocks = []
    for start in range(0, n, rows):
        block = as_bytes(x[start : start + rows], where, start)
        fitted = [fit.of(image, where) for image in block] if fit.size else fit.of(block, where)
        blocks.append(np.asarray(fitted))
    pixels = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
    notes = [f"scaled from {sized(x.shape[2:])} pixels"] * (x.shape[2:] != pixels.shape[2:])
    if x.dtype.kind in "iu" and x.max() == 1:
        notes.append("no value is above 1 of 255: if 1 is white, save truth values")
    return np.ascontiguousarray(pixels), "; ".join(notes)


def channels_first(x: NDArray[Any], where: str) -> NDArray[Any]:
    """The array with the axes (n, C, H, W). Raises BadInput if its shape is not that of images, or of two kinds of them."""
    if x.dtype.kind not in "biuf":
        raise BadInput(f"{where}: values of type {x.dtype} are not pixels; save uint8, or floats from 0 to 1")
    if x.ndim in (3, 4) and 0 not in x.shape:
        if x.ndim == 3:
            return x[:, None]
        first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
        if first and last:
            raise BadInput(
                f"{where}: in the shape {x.shape} the channels may stand first or last; give images over 3 pixels wide"
            )
        if first or last:
            return x if first else x.transpose(0, 3, 1, 2)
    raise BadInput(
        f"{where}: an array of shape {x.shape} is not of images; give (n, H, W), (n, H, W, C) or (n, C, H, W) with C of 1 or 3"
    )


def as_bytes(x: NDArray[Any], where: str, start: int) -> Pixels:
    """Values as uint8, truth values and floats from 0 to 1 times 255. Raises BadInput on the first value that is none."""
    kind, top = x.dtype.kind, 1 if x.dtype.kind in "bf" else 255
    wrong = ~((x >= 0) & (x <= top)) if kind in "if" or x.dtype.itemsize > 1 else np.zeros(1, bool)
    if wrong.any():
        at = np.argwhere(wrong)[0]
        value, (image, _, row, column) = x[tuple(at)], at
        place = f"{where}: image {start + image}, row {row}, column {column}: the value {value:g}"
        if not np.isfinite(value):
            raise BadInput(f"{place} is not a number of a pixel; mend the image or leave it out")
        raise BadInput(f"{place} is not between 0 and {top}; {advice(x)}")
    if kind == "f":
        return np.rint(x.astype(np.float64) * 255).astype(np.uint8)
    return x.astype(np.uint8) * np.uint8(255) if kind == "b" else x.astype(np.uint8, copy=False)


def advice(x: NDArray[Any]) -> str:
    """What to do about values out of range, by what they look like."""
    low, high = float(np.nanmin(x)), float(np.nanmax(x))
    if x.dtype.kind == "f" and low >= 0 and high <= 255:
        return "divide by 255, or save uint8"
    if x.dtype.kind == "f" and low >= -1 and high <= 1:
        return "save (X + 1) / 2"
    return "scale floats to 0..1, or whole numbers to 0..255"
