"""Ids in flat files, written once, whole or not at all, with the number of bytes that each id stands for."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conca.data.text_files import part_of
from conca.types import BadInput

__all__ = ["FlatFiles", "TokenFile"]

STRIDE = 1 << 16
"""Ids between two marks of how many bytes lie before."""
LARGEST = np.iinfo(np.uint16).max


class FlatFiles:
    """Flat files of numbers that grow together: `with FlatFiles(folder, ids=dtype, ...) as flat: flat.add(ids=...)`."""

    def __init__(self, folder: Path, **types: np.dtype[Any]) -> None:
        self.types = types
        self.stack = ExitStack()
        self.files = {name: self.stack.enter_context((folder / f"{name}.bin").open("wb")) for name in types}

    def __enter__(self) -> FlatFiles:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files."""
        self.stack.close()

    def add(self, **arrays: ArrayLike) -> None:
        """Append numbers to the files of these names."""
        for name, array in arrays.items():
            self.files[name].write(np.ascontiguousarray(array, self.types[name]).tobytes())

    def add_ids(self, where: str, ids: ArrayLike, sizes: ArrayLike) -> None:
        """Append ids and the bytes that each stands for. Raises BadInput, and says `where`, if one stands for a great many."""
        most = int(np.max(sizes, initial=0))
        if most > LARGEST:
            raise BadInput(f"{where}: {most:,} bytes in a row that the tokenizer does not know; name another")
        self.add(ids=ids, sizes=sizes)


class TokenFile:
    """The ids in a folder that `FlatFiles` has written, (n,); where there are no sizes, each stands for one byte.

    Each read opens its file and closes it, as that of `conca.data.text_files.Joined` does.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self.path, self.dtype = folder / "ids.bin", dtype
        self.n = self.path.stat().st_size // dtype.itemsize
        path = folder / "sizes.bin"
        self.measures = path if path.is_file() else None
        self.marks = np.arange(self.n // STRIDE + 1) * STRIDE if self.measures is None else marks_of(path, self.n)

    def __len__(self) -> int:
        """Ids."""
        return self.n

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """The ids [begin, end), a new array."""
        return part_of(self.path, begin, end - begin, self.dtype)

    def sizes(self, begin: int, end: int) -> NDArray[np.int64]:
        """The bytes that the ids [begin, end) stand for, each."""
        if self.measures is None:
            return np.ones(end - begin, np.int64)
        return part_of(self.measures, begin, end - begin, np.uint16).astype(np.int64)

    def bytes_before(self, at: int) -> int:
        """The bytes that all ids before the one at `at` stand for."""
        mark = at // STRIDE
        return int(self.marks[mark]) + int(self.sizes(mark * STRIDE, at).sum())

    def at_byte(self, byte: int) -> int:
        """The first id before which there are at least so many bytes."""
        mark = max(int(np.searchsorted(self.marks, byte, side="left")) - 1, 0)
        first = mark * STRIDE
        sizes = self.sizes(first, min(first + STRIDE, self.n))
        before = int(self.marks[mark]) + np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        return first + int(np.searchsorted(before, byte, side="left"))


def marks_of(sizes: Path, n: int) -> NDArray[np.int64]:
    """The bytes before every `STRIDE`-th of `n` ids."""
    sums = [int(part_of(sizes, at, STRIDE, np.uint16).sum(dtype=np.int64)) for at in range(0, n - STRIDE + 1, STRIDE)]
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.array(sums, np.int64))))
