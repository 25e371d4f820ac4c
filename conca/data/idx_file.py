"""IDX files, the form of MNIST and its kin: arrays of numbers behind a header of their sizes, with gzip or without."""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from conca.data.labelled import Labelled, Labels, Numbers, counted, numbered, settle_labels
from conca.types import BadInput

__all__ = ["IdxName", "idx_name", "is_idx", "read_idx", "read_images"]

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
LARGEST = 16 << 30
BLOCK = 1 << 24
NAME = re.compile(
    r"(?P<set>.*?)[-_.]?(?P<part>train|test|t10k)[-_.](?P<what>images|labels)[-_.]idx[0-9][-_.]ubyte(\.gz)?", re.I
)
PARTS = {"train": "train", "test": "test", "t10k": "test"}


@dataclass(frozen=True)
class IdxName:
    """What the name of an IDX file says: the set ("" or "emnist-letters"), the part, images or labels."""

    set: str
    part: str
    what: str


def idx_name(path: Path) -> IdxName | None:
    """What the name says, such as "t10k-images.idx3-ubyte.gz"; None if it is not one of an IDX file."""
    match = NAME.fullmatch(path.name)
    return match and IdxName(match["set"], PARTS[match["part"].lower()], match["what"].lower())


def is_idx(path: Path) -> bool:
    """Whether the name ends as that of an IDX file does."""
    return re.search(r"[-_.]idx[0-9][-_.]ubyte(\.gz)?$|\.idx(\.gz)?$", path.name, re.I) is not None


def read_images(images: Path, labels: Path | None) -> Labelled:
    """Images (n, H, W) as sequences of H * W pixels, row by row; (n, T) as sequences; (n, H, W, C) with C channels.

    Raises BadInput if a file is not what it should be, or if there are not as many labels as images.
    """
    x = read_idx(images)
    if x.ndim < 2 or 0 in x.shape:
        raise BadInput(f"{images}: an array of shape {x.shape} holds no images; name the file of the images")
    n, width = len(x), x.shape[3] if x.ndim == 4 else 1
    values: Numbers = x.reshape(-1, width)
    y: Labels | None = None
    files = images.name
    if labels is not None:
        y = read_idx(labels)
        files += f", {labels.name}"
        if y.shape != (n,):
            raise BadInput(f"{labels}: labels of shape {y.shape} for {counted(n, 'image')}; give one each")
        y = settle_labels(y, n, f"{labels}: ")
    lengths = np.full(n, len(values) // n, np.int64)
    ids = tuple(map(str, range(n)))
    return Labelled(values, lengths, y, None, ids, numbered(width), source=images.name).named(files)


def read_idx(path: Path) -> NDArray[Any]:
    """The array of an IDX file, in its own type. Nothing is set aside for sizes that the file does not have.

    Raises BadInput if the file is missing, empty, damaged, or shorter or longer than its header says.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a directory where a file is wanted; name a file")
    try:
        with path.open("rb") as file:
            packed = path.name.lower().endswith(".gz")
            return read_stream(path, gzip.GzipFile(fileobj=file) if packed else file)
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file; check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be read ({error}); fetch it again") from None


def read_stream(path: Path, stream: IO[bytes] | gzip.GzipFile) -> NDArray[Any]:
    """The array behind the header of an open IDX file."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not 1 <= magic[3] <= 8:
        raise BadInput(f"{path}: not an IDX file, it begins with {magic!r}; fetch it again, or name another")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise BadInput(f"{path}: the file ends inside its header; fetch it again")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    dtype = np.dtype(TYPES[magic[2]])
    size = math.prod(shape) * dtype.itemsize
    told = f"an array of {' x '.join(map(str, shape))}"
    if size > LARGEST:
        raise BadInput(f"{path}: the header says {told}, over 16 GiB; fetch it again")
    body = read_up_to(stream, size + 1)
    if len(body) != size:
        more = "more" if len(body) > size else f"{len(body)}"
        raise BadInput(f"{path}: the header says {told} ({size} bytes), the file has {more}; fetch it again")
    array: NDArray[Any] = np.frombuffer(body, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def read_up_to(stream: IO[bytes] | gzip.GzipFile, size: int) -> bytearray:
    """At most `size` bytes, in blocks, so that memory grows with what is there."""
    body = bytearray()
    while len(body) < size and (block := stream.read(min(BLOCK, size - len(body)))):
        body += block
    return body
