"""Files of text as one run of bytes, read where they lie: nothing is loaded whole, and nothing stays open."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import stat
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from conca.data.made_once import made_once
from conca.types import BadInput, path_of

__all__ = [
    "BROKEN",
    "Found",
    "Joined",
    "Place",
    "Places",
    "TextFile",
    "blocks_of",
    "find_text",
    "is_packed",
    "is_rows",
    "opened",
    "part_of",
    "stamp_of",
    "unpacked_once",
]

Place = str | Path
Bytes = NDArray[np.uint8]

SNIFFED = 1 << 13
CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x08\x1b")
SAMPLES, SAMPLE = 16, 1 << 12
PACKED = (".gz", ".xz")
BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


class EmptyFile(BadInput):
    """A file without a byte in it."""


@dataclass(frozen=True)
class TextFile:
    """A file: where it lies, how it is called in reports (within its folder), its size in bytes and when it was changed."""

    path: Path
    name: str
    n_bytes: int
    changed: int


@dataclass(frozen=True)
class Found:
    """Files in the order in which they are read, and what was passed over in folders, each with the reason."""

    files: tuple[TextFile, ...]
    passed_over: tuple[str, ...] = ()

    def told(self) -> str:
        """One phrase: how many files, what was passed over."""
        files = self.files[0].name if len(self.files) == 1 else f"{len(self.files):,} files"
        if not self.passed_over:
            return files
        more = f" and {len(self.passed_over) - 3:,} more" if len(self.passed_over) > 3 else ""
        return f"{files} (passed over: {', '.join(self.passed_over[:3])}{more})"


Places = Found | Place | Sequence[Place]
"""A file, a folder, several of them, or what `find_text` has found."""


def find_text(places: Places) -> Found:
    """The files that `places` name, in that order; of a folder all files of text within it, by name.

    A file is text, whatever it is called, if its first 8 KiB have no byte 0 and few other control characters. In
    folders, hidden files and folders are passed over in silence; empty files, and those that are no text, are counted.
    A file that is named itself is read whatever it holds. Raises BadInput if one is missing, empty, or cannot be read,
    and if a folder has no text.
    """
    if isinstance(places, Found):
        return places
    files: list[TextFile] = []
    passed: list[str] = []
    for place in [places] if isinstance(places, str | Path) else places:
        path = path_of(place)
        if not path.is_dir():
            files.append(named_file(path))
            continue
        found, over = in_folder(path)
        if not found:
            raise BadInput(f"{path}: the folder holds no file of text; name a file, or another folder")
        files += found
        passed += over
    if not files:
        raise BadInput("no file of text was named; name a file or a folder")
    return Found(tuple(files), tuple(passed))


def named_file(path: Path) -> TextFile:
    """A file that a user has named. Raises BadInput as `find_text` says."""
    try:
        said = path.stat()
        if not stat.S_ISREG(said.st_mode):
            raise BadInput(f"{path}: a pipe or a device; write what it says to a file, which can be read twice")
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if not said.st_size:
        raise EmptyFile(f"{path}: the file is empty; name one with text in it")
    return TextFile(path, path.name, said.st_size, said.st_mtime_ns)


def in_folder(folder: Path) -> tuple[list[TextFile], list[str]]:
    """The files of text in a folder and all folders in it, by name, and what was passed over. Links to folders stay."""
    found, over = [], []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(root, name) for name in sorted(names) if not name.startswith(".")):
            name = path.relative_to(folder).as_posix()
            try:
                file = named_file(path)
                reason = "" if looks_like_text(path) else "not text"
            except EmptyFile:
                reason = "empty"
            except BadInput:
                reason = "cannot be read"
            if reason:
                over.append(f"{name}: {reason}")
            else:
                found.append(TextFile(path, name, file.n_bytes, file.changed))
    return sorted(found, key=lambda file: file.name), over


def looks_like_text(path: Path) -> bool:
    """Whether the first bytes are those of a text; of packed files, of what is in them."""
    try:
        with opened(path) as file:
            head = file.read(SNIFFED)
    except BROKEN as error:
        raise BadInput(f"{path}: cannot be read ({error})") from None
    return 0 not in head and 20 * sum(byte in CONTROLS for byte in head) <= len(head)


def opened(path: Path) -> IO[bytes] | gzip.GzipFile | lzma.LZMAFile:
    """The bytes of a file, or of what is packed in a `.gz` or `.xz`."""
    kind = path.suffix.lower()
    return gzip.open(path) if kind == ".gz" else lzma.open(path) if kind == ".xz" else path.open("rb")


def is_packed(file: TextFile) -> bool:
    """Whether a file is a `.gz` or `.xz`."""
    return file.path.suffix.lower() in PACKED


def is_rows(path: Path) -> bool:
    """Whether a name is that of a file of rows of JSON, packed or not."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz").removesuffix(".xz")).suffix in (".jsonl", ".ndjson")


def unpacked_once(found: Found, cache: Path | None) -> Found:
    """The same files, those in `.gz` and `.xz` unpacked into a folder, unless they lie there from before.

    Raises BadInput if a file is damaged, or holds nothing, or if there is no folder to unpack it to.
    """
    return Found(tuple(unpacked(file, cache) for file in found.files), found.passed_over)


def unpacked(file: TextFile, cache: Path | None) -> TextFile:
    """One file of those of `unpacked_once`."""
    if not is_packed(file):
        return file
    if cache is None:
        raise BadInput(f"{file.path}: a packed file is read from a folder it is unpacked to; name a cache")
    key = hashlib.sha256(repr((file.path.resolve(), file.n_bytes, file.changed)).encode()).hexdigest()[:16]

    def make(folder: Path) -> None:
        with (folder / "text").open("wb") as outside:
            for block in unpacked_blocks(file.path):
                outside.write(block)

    target = made_once(cache, f"unpacked-{key}", make) / "text"
    if not target.stat().st_size:
        raise BadInput(f"{file.path}: there is nothing in it; name one with text in it")
    return TextFile(target, file.name, target.stat().st_size, file.changed)


def unpacked_blocks(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    """What is in a packed file, in blocks. Raises BadInput if it is damaged."""
    try:
        with opened(path) as inside:
            while block := inside.read(size):
                yield block
    except BROKEN as error:
        raise BadInput(f"{path}: cannot be unpacked ({error}); fetch it again, or unpack it yourself") from None


def stamp_of(files: Sequence[TextFile], *, changed: bool = False) -> str:
    """Equal for equal names, sizes and samples of contents of files (all of the small ones); `changed`: and times of change."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(repr((file.name, file.n_bytes, file.changed if changed else 0)).encode())
        last = max(file.n_bytes - SAMPLE, 0)
        whole = file.n_bytes <= SAMPLES * SAMPLE
        for at in [0] if whole else [last * k // (SAMPLES - 1) for k in range(SAMPLES)]:
            digest.update(part_of(file.path, at, file.n_bytes if whole else SAMPLE).tobytes())
    return digest.hexdigest()


def part_of(path: Path, begin: int, count: int, dtype: DTypeLike = np.uint8) -> NDArray[Any]:
    """So many numbers of a file from number `begin` on. Raises BadInput if it has become shorter, or is gone."""
    dtype = np.dtype(dtype)
    try:
        data = np.fromfile(path, dtype, count, offset=begin * dtype.itemsize)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read any more ({error.strerror})") from None
    if len(data) != count:
        raise BadInput(f"{path}: has become shorter while it was read; start again")
    return data


class Joined:
    """Files one behind the other as one run of bytes, one byte between every two of them.

    Each read opens its file and closes it, about 15 microseconds: nothing is kept open or mapped, whatever the number of
    files, and a file cut short underneath is an error line, not the end of the process.
    """

    def __init__(self, files: Sequence[TextFile], separator: int = 10) -> None:
        self.files, self.separator = tuple(files), separator
        sizes = [file.n_bytes + 1 for file in self.files]
        self.begins: list[int] = [0, *np.cumsum(sizes).tolist()]

    def __len__(self) -> int:
        """Bytes, those between files among them."""
        return self.begins[-1] - 1

    def read(self, begin: int, end: int) -> Bytes:
        """The bytes [begin, end), a new array. Raises BadInput if a file has become shorter."""
        first = bisect_right(self.begins, begin) - 1
        parts = []
        while begin < end:
            file, start = self.files[first], self.begins[first]
            until = min(end, start + file.n_bytes)
            if begin < until:
                parts.append(part_of(file.path, begin - start, until - begin))
            if end > start + file.n_bytes:
                parts.append(np.array([self.separator], np.uint8))
            begin = self.begins[first + 1]
            first += 1
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])

    def sizes(self, begin: int, end: int) -> NDArray[np.int64]:
        """Bytes are ids that stand for one byte each."""
        return np.ones(end - begin, np.int64)

    def bytes_before(self, at: int) -> int:
        """As many as there are ids."""
        return at

    def at_byte(self, byte: int) -> int:
        """The id at a byte is that byte."""
        return byte


def blocks_of(file: TextFile, size: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a file in blocks."""
    for at in range(0, file.n_bytes, size):
        yield part_of(file.path, at, min(size, file.n_bytes - at)).tobytes()
