"""Bits per byte of the compressors that everybody has, `xz -9` and `zstd -19`: what a model of text is measured against.

A compressor begins with the first byte that it is judged on and learns as it goes; a model has learnt before.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

__all__ = ["LIMIT", "Packed", "compressed"]

LIMIT = 64 << 20
"""Bytes that are judged at most: `xz -9` looks back so far, takes 674 MiB of memory for it, and some 2 MB a second."""


@dataclass(frozen=True)
class Packed:
    """What a compressor, named by its command line, makes of `n_bytes` bytes: so many bytes, with its head and checksum."""

    name: str
    n_bytes: int
    packed: int

    @property
    def bits_per_byte(self) -> float:
        """Bits that a byte takes."""
        return 8 * self.packed / self.n_bytes


class Compressor(Protocol):
    """Takes blocks of bytes and gives packed ones."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def compressed(blocks: Iterable[bytes], size: int, *, limit: int = LIMIT) -> tuple[list[Packed], list[str]]:
    """The compressors on `size` bytes that come in blocks, or on the first `limit` of them, and what a reader must be told.

    Both run at once; memory does not grow with the text. `zstd -19` needs the package zstandard; without it, its row is
    left out, and the second list says so, as it does if only the first bytes were judged. Raises ValueError if there are no
    bytes, or not as many as said.
    """
    if size < 1:
        raise ValueError("there are no bytes to compress")
    judged, told = min(size, limit), []
    compressors: dict[str, Compressor] = {"xz -9": lzma.LZMACompressor(preset=9)}
    try:
        compressors["zstd -19"] = zstd(judged)
    except ModuleNotFoundError:
        told.append('zstd -19 is left out: pip install zstandard, or "conca[all]"')
    if judged < size:
        told.append(f"compressors are judged on the first {judged / 2**20:.0f} MiB of {size / 2**20:.0f} MiB")
    totals, left = dict.fromkeys(compressors, 0), judged
    with ThreadPoolExecutor(len(compressors)) as pool:

        def add(work: Callable[[Compressor], bytes]) -> None:
            for name, packed in zip(compressors, pool.map(work, compressors.values())):
                totals[name] += len(packed)

        for block in blocks:
            part = block[:left]
            add(lambda compressor, part=part: compressor.compress(part))  # type: ignore[misc]
            left -= len(part)
            if not left:
                break
        if left:
            raise ValueError(f"{judged - left} bytes came where {judged} were promised")
        add(lambda compressor: compressor.flush())
    return [Packed(name, judged, totals[name]) for name in compressors], told


def zstd(size: int) -> Compressor:
    """As the command: it knows the size, writes it into the head, and ends with a checksum."""
    module: Any = import_module("zstandard")
    compressor: Compressor = module.ZstdCompressor(level=19, write_checksum=True).compressobj(size=size)
    return compressor
