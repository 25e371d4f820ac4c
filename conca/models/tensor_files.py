"""Tensors of a published checkpoint, one by one: safetensors or pickles without code, in one file or in shards.

A tensor of a safetensors file is read into memory of its own, and the file is not mapped, so that a model takes its own size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from conca.types import BadInput, nearest

__all__ = ["TensorFiles", "Tensors", "read_json"]

WHOLE = ("model.safetensors", "consolidated.safetensors", "pytorch_model.bin")
"""Files of weights, the first that is there is read; each may be in shards, which an index names."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class Tensors(Protocol):
    """Tensors by name, read when they are asked for."""

    def names(self) -> list[str]:
        """All names."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of them."""

    def dtype(self, name: str) -> torch.dtype:
        """Its type on disk."""

    def tensor(self, name: str, rows: slice | None = None) -> Tensor:
        """Its numbers, or those of some rows, as stored, in memory of their own."""

    def by_file(self) -> Iterator[tuple[str, list[str]]]:
        """The names in the order in which they are best read: file after file."""


class SafeFile:
    """One safetensors file. Raises BadInput if it is not whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, "pt"):  # it looks whether header and size fit
                pass
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header: dict[str, Any] = json.loads(file.read(size))
        except (OSError, SafetensorError, ValueError) as error:
            raise BadInput(f"{path}: not a whole safetensors file ({line_of(error)}); download it again") from None
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if entry["dtype"] not in DTYPES:
                raise BadInput(f"{path}: the tensor '{name}' is {entry['dtype']}, which is not read")
        self.first, self.entries = 8 + size, header
        self.sizes = {name: (tuple(e["shape"]), DTYPES[e["dtype"]]) for name, e in header.items()}

    def tensor(self, name: str, rows: slice | None = None) -> Tensor:
        """The numbers of a tensor, or of some of its rows."""
        shape, dtype = self.sizes[name]
        start = self.first + self.entries[name]["data_offsets"][0]
        if rows is not None:
            first, end, _ = rows.indices(shape[0])
            start += first * prod(shape[1:]) * dtype.itemsize
            shape = (end - first, *shape[1:])
        flat = torch.empty(prod(shape), dtype=dtype)
        with self.path.open("rb") as file:
            file.seek(start)
            if flat.numel() and file.readinto(flat.view(torch.uint8).numpy().data) != flat.nbytes:
                raise BadInput(f"{self.path}: ends in the middle of '{name}'; download it again")
        return flat.view(shape)


class PickleFile:
    """One file of `torch.save`, mapped; its pickle may hold tensors and nothing else. Raises BadInput."""

    def __init__(self, path: Path) -> None:
        try:
            found = self._read(path)
        except Exception as error:  # a damaged pickle fails wherever it is damaged
            if type(error).__name__ == "UnpicklingError":
                line = "it holds code or objects beside tensors, which is never run"
                raise BadInput(f"{path}: {line}; ask for the checkpoint as safetensors") from None
            raise BadInput(f"{path}: not a whole file of torch.save ({line_of(error)}); download it again") from None
        if not isinstance(found, Mapping) or not all(isinstance(n, str) and plain(t) for n, t in found.items()):
            raise BadInput(
                f"{path}: is no table of tensors by name, dense and with all their numbers; ask for the checkpoint as safetensors"
            )
        self.tensors: dict[str, Tensor] = dict(found)
        self.sizes = {name: (tuple(t.shape), t.dtype) for name, t in self.tensors.items()}

    @staticmethod
    def _read(path: Path) -> object:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            return torch.load(path, map_location="cpu", weights_only=True)  # a file of the old format

    def tensor(self, name: str, rows: slice | None = None) -> Tensor:
        """The numbers of a tensor, or of some of its rows."""
        found = self.tensors[name].detach()
        return (found if rows is None else found[rows]).clone(memory_format=torch.contiguous_format)


def plain(value: object) -> bool:
    """Whether it is a tensor with all its numbers in memory: not sparse, not quantised, not without memory."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


class TensorFiles:
    """The tensors of a folder; one pickle is open at a time.

    Args:
        folder: with model.safetensors, consolidated.safetensors or pytorch_model.bin, or shards and their index.

    Raises:
        BadInput: for a folder without weights, a missing shard (named), a file that is not whole, a pickle with code in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: tuple[str, PickleFile] | None = None
        index, names = self._found()
        self.safe: dict[str, SafeFile] = {}
        self.sizes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self.file_of: dict[str, str] = {}
        for file in names:
            sizes = self._file(file).sizes
            for name in sizes if index is None else [name for name, at in index.items() if at == file]:
                if name not in sizes:
                    raise BadInput(f"{folder / file}: the tensor '{name}', which the index says is there, is missing")
                self.sizes[name], self.file_of[name] = sizes[name], file

    def _found(self) -> tuple[dict[str, str] | None, list[str]]:
        """What the index says, if there is one, and the files of weights."""
        if not self.folder.is_dir():
            raise BadInput(f"{self.folder}: there is no such folder; check the path")
        for name in WHOLE:
            if (path := self.folder / f"{name}.index.json").is_file():
                return self._shards(path)
            if (self.folder / name).is_file():
                return None, [name]
        looked = ", ".join(WHOLE)
        raise BadInput(f"{self.folder}: no weights; looked for {looked}, and for shards with an index of these")

    def _shards(self, path: Path) -> tuple[dict[str, str], list[str]]:
        index = read_json(path).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
            raise BadInput(f"{path}: says in no 'weight_map' where the tensors are; download it again")
        files = list(dict.fromkeys(index.values()))
        for file in files:
            if Path(file).name != file:
                raise BadInput(f"{path}: names '{file}', which is not in the folder")
            if not (self.folder / file).is_file():
                raise BadInput(f"{self.folder}: the shard '{file}' is missing, which {path.name} names; download it")
        return index, files

    def _file(self, file: str) -> SafeFile | PickleFile:
        """A file, opened; of pickles the last one stays open."""
        if not file.endswith(".bin"):
            if file not in self.safe:
                self.safe[file] = SafeFile(self.folder / file)
            return self.safe[file]
        if self.open is None or self.open[0] != file:
            self.open = None  # before the next is read
            self.open = file, PickleFile(self.folder / file)
        return self.open[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open = None

    def names(self) -> list[str]:
        """All names."""
        return list(self.sizes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises BadInput for one that is not there."""
        return self._size(name)[0]

    def dtype(self, name: str) -> torch.dtype:
        """Its type on disk. Raises BadInput for one that is not there."""
        return self._size(name)[1]

    def tensor(self, name: str, rows: slice | None = None) -> Tensor:
        """Its numbers, or those of some rows. Raises BadInput for one that is not there, and where the file ends early."""
        self._size(name)
        return self._file(self.file_of[name]).tensor(name, rows)

    def by_file(self) -> Iterator[tuple[str, list[str]]]:
        """File by file, the tensors in it."""
        for file in dict.fromkeys(self.file_of.values()):
            yield file, [name for name, at in self.file_of.items() if at == file]

    def _size(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        if name not in self.sizes:
            raise BadInput(f"{self.folder}: there is no tensor '{name}'; {nearest(name, self.sizes)}")
        return self.sizes[name]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table. Raises BadInput for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read ({line_of(error)}); download it again") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds no table of names and values; download it again")
    return found


def line_of(error: BaseException) -> str:
    """What an error says, in one line of at most 200 letters."""
    return " ".join(str(error).split())[:200] or type(error).__name__
