"""A GGUF file: tensors by their names there, and what is said beside them, through the package `gguf`.

F32, F16 and BF16 are given as they are stored; Q8_0, where 32 numbers in int8 share a scale in float16, is widened to float32 (where a
model is kept in int8 here, each row of it is rounded once more, with one scale).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from conca.types import BadInput, nearest

__all__ = ["GGUFFile"]

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "Q8_0": torch.float32,
}
"""What tensors become; others are not read."""
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a number, by the number of its type; 8 is a string, 9 an array."""
STRING, ARRAY = 8, 9
DEPTH = 8
"""Arrays in arrays, at most."""


def library() -> Any:
    """The package that reads the format, imported when a file is. Raises ModuleNotFoundError, with what installs it."""
    try:
        return import_module("gguf")
    except ModuleNotFoundError as error:
        line = f'.gguf files need {error.name}, which is not installed: pip install "conca[all]"'
        raise ModuleNotFoundError(line, name=error.name) from error


class Header:
    """Walks over what a GGUF file says before its tensors, so that no count in it is believed that the file is too short for.

    Args:
        data: the file.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4
        self.order = "<" if data[4:6] != b"\0\0" else ">"

    def walk(self) -> None:
        """Raise ValueError where it says that there is more than there is."""
        version = self.number("I")
        if version < 2:
            raise ValueError(f"version {version}")
        tensors, fields = self.number("Q"), self.number("Q")
        for _ in range(fields):
            self.skip(self.number("Q"))
            self.value(self.number("I"))
        for _ in range(tensors):
            self.skip(self.number("Q"))
            self.skip(8 * self.number("I") + 12)

    def value(self, kind: int, depth: int = 0) -> None:
        """Pass over a number, a string or an array."""
        if kind in SIZES:
            self.skip(SIZES[kind])
        elif kind == STRING:
            self.skip(self.number("Q"))
        elif kind == ARRAY and depth < DEPTH:
            inner, count = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.skip(count * SIZES[inner])
                return
            for _ in range(count):
                self.value(inner, depth + 1)
        else:
            raise ValueError(f"a value of the type {kind}, at byte {self.at}")

    def number(self, form: str) -> int:
        """The next number: I has 4 bytes, Q 8."""
        begin = self.at
        self.skip(struct.calcsize(form))
        return int(struct.unpack_from(self.order + form, self.data, begin)[0])

    def skip(self, count: int) -> None:
        """Pass over some bytes."""
        if count > len(self.data) - self.at:
            raise ValueError(f"at byte {self.at} it says that {count} more follow; it has {len(self.data)}")
        self.at += count


class GGUFFile:
    """One GGUF file, mapped into memory; a tensor is copied when it is asked for.

    Args:
        path: of the file.

    Raises:
        BadInput: for a file that is missing, not GGUF, cut off, of the other byte order, or one of several parts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
        if magic != b"GGUF":
            raise BadInput(f"{path}: not a GGUF file; it begins with {magic!r}")
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                Header(data).walk()
            reader = library().GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError, OSError, MemoryError) as error:
            line = " ".join(str(error).split())
            raise BadInput(f"{path}: not a whole GGUF file ({line}); download it again") from None
        if reader.byte_order != "I":
            raise BadInput(f"{path}: its numbers have the byte order of another machine, which is not read")
        self._said: dict[str, Any] = dict(reader.fields)
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        parts = self.said("split.count", 1)
        if parts != 1:
            raise BadInput(f"{path}: one of {parts} parts; join them first, with llama-gguf-split --merge")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go; what was copied stays."""
        self._said, self._tensors = {}, {}

    def said(self, key: str, default: Any = None) -> Any:
        """What stands beside the tensors: a number, a string, a flag, or a list of them; `default` where nothing stands.

        Raises BadInput for strings that are not UTF-8.
        """
        field = self._said.get(key)
        if field is None:
            return default
        try:
            value = field.contents()
        except (ValueError, IndexError) as error:
            raise BadInput(f"{self.path}: '{key}' cannot be read ({' '.join(str(error).split())})") from None
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on. Raises BadInput if it is none, or is missing where there is no default."""
        value = self.said(key, default)
        if type(value) is not int or value < 1:
            said = "is missing" if value is None else f"is {value!r}, not a whole number from 1 on"
            raise BadInput(f"{self.path}: '{key}' {said}")
        return value

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, with the axes in PyTorch's order. Raises BadInput for a name that is not there."""
        return tuple(reversed([int(size) for size in self._found(name).shape]))

    def dtype(self, name: str) -> torch.dtype:
        """What `tensor` gives it in. Raises BadInput for a name that is not there, and a type that is not read."""
        kind = self._found(name).tensor_type
        if kind.name not in DTYPES:
            raise BadInput(f"{self.path}: the tensor '{name}' is kept as {kind.name}; {', '.join(DTYPES)} are read")
        return DTYPES[kind.name]

    def tensor(self, name: str, rows: slice | None = None) -> Tensor:
        """The numbers of a tensor, or of some rows, in memory of their own. Raises BadInput as `dtype` does."""
        found, dtype, rest = self._found(name), self.dtype(name), self.shape(name)[1:]
        data = found.data if rows is None else found.data[rows]
        if found.tensor_type.name == "Q8_0":
            return torch.from_numpy(library().quants.dequantize(data, found.tensor_type)).view(len(data), *rest)
        raw = torch.from_numpy(np.array(data, order="C").view(np.uint8).reshape(-1))
        return raw.view(dtype).view(len(data), *rest)

    def by_file(self) -> Iterator[tuple[str, list[str]]]:
        """The name of the file, and those of its tensors in their order there."""
        yield self.path.name, sorted(self._tensors, key=lambda name: int(self._tensors[name].data_offset))

    def _found(self, name: str) -> Any:
        if name not in self._tensors:
            hint = nearest(name, self._tensors) if self._tensors else "it has none"
            raise BadInput(f"{self.path}: the tensor '{name}' is missing; {hint}")
        return self._tensors[name]
