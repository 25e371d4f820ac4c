"""One picture: a file becomes pixels, grey or colour, or a mask of what is damaged, and nothing that it merely declares is set aside."""

from __future__ import annotations

import stat
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from conca.types import BadInput, nearest, path_of

__all__ = ["COLOURS", "ENDINGS", "Picture", "Pixels", "coloured", "load_image", "load_mask", "read_picture", "resized"]

Pixels = NDArray[np.uint8]

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
COLOURS = ("grey", "rgb")
GREY = ("1", "L", "LA", "I;16", "I;16L", "I;16B", "I;16N")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
MOST_PIXELS = 1 << 26
"""Of one file, as its header declares them: 8192 x 8192. A photograph has fewer."""
MOST_BYTES = 1 << 30
WEIGHTS = (19595, 38470, 7471)
"""Of red, green and blue in grey, in parts of 65536 (ITU-R 601)."""


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels (C, H, W), C of 1 or 3, and whether there was transparency, which black shines through."""

    pixels: Pixels
    transparent: bool


def load_image(
    path: str | PathLike[str], *, shape: tuple[int, int, int] | None = None, colour: str | None = None
) -> Pixels:
    """The picture in a file as pixels (C, H, W), C of 1 (grey) or 3.

    shape   what it must have; a grey picture becomes three equal channels, and three equal channels grey, as nothing is lost
    colour  "grey" or "rgb": converts; None: as the file is, or as `shape` asks for

    What is transparent is laid on black; of an animation this is the first picture; marks of orientation are not obeyed.
    Raises BadInput, naming the file, if it cannot be read, or if the picture is not of this shape.
    """
    check_colour(colour)
    path = path_of(path)
    pixels = read_picture(path).pixels
    if colour is not None:
        pixels = coloured(pixels, colour)
    if shape is None:
        return pixels
    check_size(path, "the picture", pixels.shape[1:], shape[1:])
    if shape[0] == 1 and len(pixels) == 3 and (pixels == pixels[:1]).all():
        return pixels[:1]
    if shape[0] == 3 and len(pixels) == 1:
        return coloured(pixels, "rgb")
    if len(pixels) != shape[0]:
        raise BadInput(f"{path}: the picture has colours where grey is wanted; convert it to grey")
    return pixels


def load_mask(path: str | PathLike[str], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Where a picture of this shape (..., H, W) is damaged, from a picture of its size: True (H, W) where that is not black.

    Transparency is ignored. Raises BadInput if the file cannot be read, is of another size, or is black or not black all over.
    """
    path = path_of(path)
    image = opened(path)
    if image.mode in ("P", "PA", "CMYK", "YCbCr"):
        image = converted(path, image, "RGBA" if image.mode.startswith("P") else "RGB")
    values = np.asarray(image)
    values = values.reshape(*values.shape[:2], -1)
    bands = values[..., : 3 if image.mode.startswith("RGB") else 1]
    mask = np.asarray(bands.any(axis=2))
    check_size(path, "the mask", mask.shape, shape[-2:])
    if not mask.any():
        raise BadInput(
            f"{path}: the mask is black all over, so nothing is damaged; paint white what is to be filled in"
        )
    if mask.all():
        raise BadInput(f"{path}: the mask has no black, so nothing is known; paint black what is to stay as it is")
    return mask


def check_size(path: Path, what: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise BadInput if a picture is not of the size (H, W) that is wanted."""
    if found != wanted:
        told = f"is {sized(found)} pixels where {sized(wanted)} are wanted"
        raise BadInput(f"{path}: {what} {told} (height x width); cut or scale it to that")


def check_colour(colour: str | None) -> None:
    """Raise BadInput if it is no kind of colour."""
    if colour is not None and colour not in COLOURS:
        raise BadInput(f"colour '{colour}' is not known (colour, --colour); {nearest(colour, COLOURS)}")


def read_picture(path: Path) -> Picture:
    """The first picture in a file; the format is that of its content, whatever its name ends in.

    16 bits become 8, two levels black and white, palettes, CMYK and YCbCr three colours. Raises BadInput, naming the file,
    if it is missing, of another kind, broken, or has more than 67 million pixels, which is told from its header.
    """
    image = opened(path)
    if image.mode.startswith("I"):
        deep = np.asarray(image).astype(np.uint32)
        return Picture(((deep * 255 + 32767) // 65535).astype(np.uint8)[None], False)
    grey = image.mode in GREY
    transparent = image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info
    values = np.asarray(converted(path, image, "RGBA" if transparent else "L" if grey else "RGB"))
    if transparent:
        values = (values[..., :3].astype(np.uint16) * values[..., 3:] + 127) // 255
        values = values[..., :1] if grey else values
    planes = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    return Picture(np.array(planes, np.uint8, order="C"), transparent)


def opened(path: Path) -> Image.Image:
    """A file as Pillow decodes it, after its kind, its size and its checksums were looked at. Raises as `read_picture`."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise BadInput(f"{path}: is a directory or a device where a picture is wanted; name a file")
        if not about.st_size:
            raise BadInput(f"{path}: the file is empty; remove it or fetch it again")
        if about.st_size > MOST_BYTES:
            told = f"{about.st_size / 2**30:.1f} GiB"
            raise BadInput(f"{path}: the file has {told}, too much for a picture; scale it down or remove it")
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return decoded(path, file)
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file; check the path") from None
    except PermissionError:
        told = "may not be read (permission denied)"
        raise BadInput(f"{path}: {told}; change its permissions, or leave it out") from None
    except UnidentifiedImageError:
        told = "is no picture in a format that is read (PNG, JPEG, BMP, GIF, WebP, TIFF), or ends too early"
        raise BadInput(f"{path}: the file {told}; mend or remove it") from None
    except Image.DecompressionBombError:
        raise bomb(path, "too many pixels") from None
    except (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError, MemoryError) as error:
        raise broken(path, error) from None


def decoded(path: Path, file: IO[bytes]) -> Image.Image:
    """The first picture of an open file, read to its end."""
    image = Image.open(file, formats=FORMATS)
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise bomb(path, f"{sized((height, width))} pixels")
    if image.mode not in GREY + COLOUR and not (image.mode == "I" and image.format in ("PNG", "PPM")):
        raise BadInput(f"{path}: pixels of the kind {image.mode} are not read; save it with 8 bits a channel")
    if image.format == "PNG":  # Pillow looks at the checksums of pixels only when it is asked to
        image.verify()
        file.seek(0)
        image = Image.open(file, formats=FORMATS)
    image.load()
    return image


def converted(path: Path, image: Image.Image, mode: str) -> Image.Image:
    """A picture with pixels of another kind. Raises BadInput if what it says of its transparency or palette is damaged."""
    try:
        return image.convert(mode)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise broken(path, error) from None


def bomb(path: Path, told: str) -> BadInput:
    """What is said of a file that declares too many pixels."""
    return BadInput(f"{path}: the file declares {told}, where {MOST_PIXELS:,} are the most; scale it down or remove it")


def broken(path: Path, error: Exception) -> BadInput:
    """What is said of a file that cannot be decoded."""
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return BadInput(f"{path}: the picture is broken or cut short ({said}); mend or remove it")


def sized(size: tuple[int, ...]) -> str:
    """Height and width in words: "28 x 28"."""
    return " x ".join(map(str, size))


def coloured(pixels: Pixels, colour: str) -> Pixels:
    """Pixels (..., C, H, W) as "grey" (C = 1) or "rgb" (C = 3)."""
    bands = pixels.shape[-3]
    if colour == "rgb":
        return pixels if bands == 3 else np.repeat(pixels, 3, axis=-3)
    if bands == 1:
        return pixels
    total = np.uint32(1 << 15) + sum(pixels[..., i, :, :].astype(np.uint32) * w for i, w in enumerate(WEIGHTS))
    return np.asarray(total >> 16, np.uint8)[..., None, :, :]


def resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Pixels (C, H, W) at the size (H, W), stretched where the proportions differ; bicubic, smoothed where it shrinks."""
    if pixels.shape[1:] == size:
        return pixels
    planes = [Image.fromarray(plane).resize(size[::-1], Image.Resampling.BICUBIC) for plane in pixels]
    return np.stack([np.asarray(plane, np.uint8) for plane in planes])
