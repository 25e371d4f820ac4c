"""A folder of pictures, or of folders of classes, becomes images of one size with labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from conca.data.audio_folder import PART_FOLDERS, files_in
from conca.data.found_sets import sound_root
from conca.data.image_file import ENDINGS, Pixels, coloured, read_picture, resized, sized
from conca.data.image_set import Images
from conca.data.labelled import Labels, counted, labels_of_text
from conca.types import BadInput

__all__ = ["LARGEST_SIDE", "Fit", "is_picture", "read_image_folder"]

LARGEST_SIDE = 64
"""Pixels that an image may be wide or high, once it has the size that is asked for."""
STRANGE = re.compile(r"[\ud800-\udfff\x00-\x1f\x7f]")
"""What stands in a name for bytes that are not UTF-8, and what breaks lines."""
WANTED = "it needs pictures (.png, .jpg, .bmp, .gif, .webp, .tif), or one folder of them for each class"


@dataclass(frozen=True)
class Fit:
    """What every image is made to be: a size (H, W), a colour, "grey" or "rgb"; None: it stays as it is."""

    size: tuple[int, int] | None
    colour: str | None

    def of(self, pixels: Pixels, where: str) -> Pixels:
        """Pixels (..., C, H, W) of that kind, (C, H, W) where there is a size.

        Raises BadInput, beginning with `where`, if they are too wide or high.
        """
        if self.colour is not None:
            pixels = coloured(pixels, self.colour)
        if self.size is not None:
            return resized(pixels, self.size)
        if max(pixels.shape[-2:]) > LARGEST_SIDE:
            told = f"the image has {sized(pixels.shape[-2:])} pixels, and at most {LARGEST_SIDE} a side are learned"
            raise BadInput(f"{where}: {told}; scale all to fewer (size, --size)")
        return pixels


def is_picture(path: Path | PurePosixPath) -> bool:
    """Whether the name ends as that of a picture does."""
    return path.suffix.lower() in ENDINGS


def read_image_folder(folder: Path, fit: Fit, *, labelled: bool = False, skip_broken: bool = False) -> Images:
    """The pictures in a folder at any depth, in the order of their paths, with labels and parts as the folders say.

    folder       CLASS/.../FILE, or PART/CLASS/.../FILE with the parts train, validation and test, or either without
                 classes. It may be wrapped in folders that hold nothing else. One picture may stand in its place
    labelled     whether it is bad input that pictures lie in no folder of a class; else there are no labels then
    skip_broken  passes over files that cannot be read, and lists them in `skipped`; else the first is bad input

    Files with other endings and hidden files and folders are passed over, as torchvision's ImageFolder does.
    Raises BadInput, one line that names the file: none are there, a broken one, one of another size or colour than the first.
    """
    root, paths, others = found(folder)
    names, parts = placed(paths)
    if labelled and names is None:
        stray = next((path for path, name in zip(paths, classes_of(paths)) if not name), paths[0])
        raise BadInput(f"{root / stray}: the picture lies in no folder of a class; move it into one (CLASS/FILE.png)")
    kept, pixels, notes, skipped = pictures(root, paths, fit, skip_broken)
    if len(skipped):
        notes.append(f"{counted(len(skipped), 'broken file')} passed over")
    if others:
        notes.append(f"{counted(others, 'other file')} passed over")
    return Images.of(
        pixels,
        None if names is None else names[kept],
        None if parts is None else parts[kept],
        str(folder),
        tuple(notes),
        tuple(skipped),
    )


def found(folder: Path) -> tuple[Path, list[PurePosixPath], int]:
    """The innermost folder that holds them all, the pictures in it, sorted, and how many other files are passed over.

    Raises BadInput if there are no pictures, or if a folder may not be read.
    """
    if folder.is_file():
        return folder.parent, [PurePosixPath(folder.name)], 0
    try:
        root = sound_root(folder)
        every = sorted(files_in(root, onerror=unreadable))
    except PermissionError as error:
        unreadable(error)
    paths = [path for path in every if is_picture(path)]
    if not every:
        raise BadInput(f"{folder}: the folder is empty; {WANTED}")
    if strange := next((path for path in paths if STRANGE.search(str(path))), None):
        raise BadInput(f"{folder}: the name {str(strange)!r} is not one line of text in UTF-8; rename it")
    if not paths:
        raise BadInput(f"{folder}: there are no pictures in it; {WANTED}")
    return root, paths, len(every) - len(paths)


def unreadable(error: OSError) -> NoReturn:
    """Raise BadInput that names a folder which may not be read."""
    raise BadInput(f"{error.filename}: the folder cannot be read ({error.strerror}); change its permissions") from None


def placed(paths: Sequence[PurePosixPath]) -> tuple[Labels | None, NDArray[np.str_] | None]:
    """The class of each picture, if all lie in folders of classes, and its part, if all lie in folders of parts."""
    names = classes_of(paths)
    parts = [PART_FOLDERS[path.parts[0].lower()] for path in paths] if parted(paths) else []
    labels = labels_of_text(names) if all(names) else None
    return labels, np.array(parts, np.str_) if len(set(parts)) > 1 else None


def classes_of(paths: Sequence[PurePosixPath]) -> list[str]:
    """The name of the class of each picture: its first folder, below that of the part; "" where there is none."""
    depth = 1 if parted(paths) else 0
    return [path.parts[depth] if len(path.parts) > depth + 1 else "" for path in paths]


def parted(paths: Sequence[PurePosixPath]) -> bool:
    """Whether the first folders are those of parts, all of them; a class "train" among others is a class."""
    return all(len(path.parts) > 1 and path.parts[0].lower() in PART_FOLDERS for path in paths)


def pictures(
    root: Path, paths: Sequence[PurePosixPath], fit: Fit, skip_broken: bool
) -> tuple[list[int], Pixels, list[str], list[str]]:
    """Which pictures can be read, their pixels (N, C, H, W), what is to be noted of them, and a line for each other one."""
    kept: list[int] = []
    every: list[Pixels] = []
    skipped: list[str] = []
    clear = scaled = 0
    for at, path in enumerate(paths):
        try:
            picture = read_picture(root / path)
        except BadInput as error:
            if not skip_broken:
                raise BadInput(f"{error}, or pass over broken files (skip_broken, --skip-broken)") from None
            skipped.append(str(error).rpartition("; ")[0])
            continue
        pixels = fit.of(picture.pixels, str(root / path))
        if every and pixels.shape != every[0].shape:
            raise differing(root, paths[kept[0]], every[0], path, pixels)
        kept.append(at)
        every.append(pixels)
        clear += picture.transparent
        scaled += picture.pixels.shape[1:] != pixels.shape[1:]
    if not kept:
        told = f"none of {counted(len(paths), 'picture')} can be read, the first: {skipped[0]}"
        raise BadInput(f"{root}: {told}; mend them, or name another folder")
    notes = [f"{counted(scaled, 'image')} scaled"] * (scaled > 0)
    return (
        kept,
        np.stack(every),
        notes + [f"{counted(clear, 'image')} with transparency laid on black"] * (clear > 0),
        skipped,
    )


def differing(root: Path, first: PurePosixPath, one: Pixels, second: PurePosixPath, other: Pixels) -> BadInput:
    """What is said of two pictures that are not of one kind."""
    if one.shape[0] != other.shape[0]:
        kinds = {1: "grey", 3: "in colour"}
        told = (
            f"is {kinds[other.shape[0]]}, '{first}' {kinds[one.shape[0]]}; make all one (colour, --colour grey or rgb)"
        )
    else:
        told = f"has {sized(other.shape[1:])} pixels, '{first}' {sized(one.shape[1:])}; scale all to one size (size, --size)"
    return BadInput(f"{root / second}: the picture {told}")
