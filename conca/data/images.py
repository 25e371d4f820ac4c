"""Images from whatever stands at a path: IDX files, arrays, pictures in folders, archives of these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from conca.data.archive import ENDINGS as ARCHIVES
from conca.data.archive import unpacked
from conca.data.found_sets import FoundSet, set_of, sets_of_images, single, visible_files
from conca.data.idx_file import idx_name, is_idx
from conca.data.image_arrays import read_image_arrays
from conca.data.image_file import check_colour, load_image, load_mask
from conca.data.image_folder import LARGEST_SIDE, Fit, is_picture, read_image_folder
from conca.data.image_set import Images
from conca.types import BadInput, path_of

__all__ = ["Images", "load_image", "load_images", "load_mask"]


@dataclass(frozen=True)
class Reading:
    """How what is found is to be read; see `load_images`."""

    fit: Fit
    labelled: bool
    skip_broken: bool

    def arrays(self, found: FoundSet) -> Images:
        """A set of IDX or .npz files."""
        return read_image_arrays(found, self.fit, labelled=self.labelled)

    def pictures(self, path: Path) -> Images:
        """A folder of pictures, or one picture."""
        return read_image_folder(path, self.fit, labelled=self.labelled, skip_broken=self.skip_broken)


def load_images(
    path: str | PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    colour: str | None = None,
    labelled: bool = False,
    skip_broken: bool = False,
) -> Images:
    """The images at a path, with their labels and official split where there are any, in one order always.

    path         IDX images (`train-images-idx3-ubyte`, `.gz`; the labels and the test part are found beside them); `.npz` with
                 X and y, or X_train, y_train, X_test, y_test, X as (n, H, W), (n, H, W, C) or (n, C, H, W): uint8, truth values,
                 integers from 0 to 255 or floats from 0 to 1; a folder of one of these; a folder of pictures, or of folders of
                 them by class, or by part and class; an archive of these; one picture
    size         the height and width that all are scaled to (bicubic, smoothed where they shrink), or one number for both
    colour       "grey" or "rgb": what all are converted to; None: all are what the kinds of their pixels say, whatever the pixels are;
                 palettes and WebP are colours
    labelled     whether missing labels are bad input
    skip_broken  passes over pictures that cannot be read; they are listed in `skipped`

    Raises BadInput, one line: what, where, what to do. Images of several sizes need `size`, also those over 64 pixels a side;
    grey ones among coloured ones need `colour`.
    """
    check_colour(colour)
    return read_path(path_of(path), Reading(Fit(size_of(size), colour), labelled, skip_broken))


def size_of(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Height and width. Raises BadInput if they are not whole numbers between 1 and 64."""
    if size is None:
        return None
    pair = tuple(size) if isinstance(size, tuple | list) else (size, size)
    whole = all(isinstance(side, int | np.integer) and not isinstance(side, bool) for side in pair)
    if not whole or len(pair) != 2 or not all(1 <= side <= LARGEST_SIDE for side in pair):
        raise BadInput(f"size {size}: give height and width from 1 to {LARGEST_SIDE} pixels, or one number for both")
    return int(pair[0]), int(pair[1])


def read_path(path: Path, how: Reading) -> Images:
    """What stands at `path`, by its kind."""
    try:
        if not path.exists():
            raise BadInput(f"{path}: there is no such file or folder; check the path")
        if path.is_dir():
            return read_dir(path, how)
    except PermissionError as error:
        raise BadInput(
            f"{error.filename or path}: may not be read (permission denied); change its permissions"
        ) from None
    if not path.is_file():
        raise BadInput(f"{path}: is neither a file nor a folder; name one")
    name = path.name.lower()
    if name.endswith(ARCHIVES):
        with unpacked(path) as folder:
            data = read_dir(folder, how)
            files = data.source.replace(f"{folder}/", "").replace(str(folder), path.name)
            skipped = tuple(line.replace(str(folder), str(path)) for line in data.skipped)
            return replace(data, source=files, skipped=skipped)
    if is_picture(path):
        return how.pictures(path)
    if is_idx(path):
        if (known := idx_name(path)) and known.what == "labels":
            raise BadInput(f"{path}: holds the labels; name the file of the images, and these are found beside it")
        return how.arrays(set_of(path) or single(path, "idx"))
    if name.endswith(".npz"):
        return how.arrays(single(path, ".npz"))
    raise BadInput(
        f"{path}: this kind of file is not read as images; name IDX, .npz, a picture, a folder, or an archive"
    )


def read_dir(folder: Path, how: Reading) -> Images:
    """The one set of images in a folder. Raises BadInput if there are several, or none."""
    visible = list(visible_files(folder))
    arrays = [*sets_of_images(visible), *(single(path, ".npz") for path in visible if path.suffix.lower() == ".npz")]
    loose = next((path for path in visible if is_picture(path)), None)
    if len(arrays) > 1 or (arrays and loose):
        names = [str((each.folder / each.name).relative_to(folder)) for each in arrays]
        names += [str(loose.relative_to(folder))] if loose else []
        raise BadInput(f"{folder}: there are several sets in it: {', '.join(names[:6])}; name one of them")
    if arrays:
        return how.arrays(arrays[0])
    return how.pictures(folder)
