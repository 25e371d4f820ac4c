"""Data that are made: draws by key, work in several processes whose results keep their order, arrays to a file as they come."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArrayFile", "array_file", "draws", "in_order", "numbers", "shares"]

R = TypeVar("R")
LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The date of every member of an archive, so that the same arrays are the same file."""


def draws(*key: str | int) -> random.Random:
    """The random numbers that belong to a key such as ("listops", seed, block), whoever asks, and in whatever order."""
    return random.Random("/".join(map(str, key)))


def numbers(*key: str | int) -> np.random.Generator:
    """As `draws`, for compiled code."""
    words = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(words[:16], "little")))


def shares(count: int, train: float, validation: float) -> NDArray[np.str_]:
    """The parts "train", "validation" and "test" (count,) of what comes in an order that means nothing: the first are for training."""
    at = np.arange(count)
    first, second = round(count * train), round(count * (train + validation))
    return np.where(at < first, "train", np.where(at < second, "validation", "test"))


def in_order(task: Callable[[int], R], blocks: Iterable[int], processes: int = 1) -> Generator[R, None, None]:
    """`task` of each of the blocks, in their order, made in so many processes; in this one if it is one.

    The task is sent to the others, so it must be a function of a module, or a `partial` of one. They end with the iterator,
    as soon as the blocks that they have begun are done, and with this process, however it ends; an interrupt from the
    keyboard reaches this process alone.
    """
    if processes == 1:
        yield from map(task, blocks)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    waiting: deque[Future[R]] = deque()
    try:
        for block in blocks:
            with _keyboard_held():
                waiting.append(pool.submit(task, block))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        with _unbroken():  # who is ended while it writes leaves half a message, and a reader that waits for ever
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _keyboard_held() -> Iterator[None]:
    """An interrupt waits until the end of the block; a process that is started in it never sees one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _unbroken() -> Iterator[None]:
    """Who interrupts again and again does not break off what ends the processes: it takes a moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _end_with_parent() -> None:
    """In a new process: no interrupts, and no life after the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class ArrayFile:
    """An .npz archive that is written array by array, block by block; `array_file` opens one."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.digest = hashlib.sha256()

    def put(self, name: str, array: NDArray[Any]) -> None:
        """An array at once."""
        self.stream(name, array.shape, array.dtype, [array])

    def stream(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], blocks: Iterable[NDArray[Any]]) -> None:
        """An array of this shape from blocks (n, ...) that follow each other on its first axis.

        Raises ValueError where they do not add up to it.
        """
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        entry = zipfile.ZipInfo(name + ".npy", LONG_AGO)
        entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
        self.digest.update(f"{name} {dtype.str} {shape}\n".encode())
        rows = 0
        with self.archive.open(entry, "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            for block in blocks:
                if block.shape[1:] != shape[1:] or block.dtype != dtype:
                    raise ValueError(f"{name}: a block of {block.shape} {block.dtype} in an array of {shape} {dtype}")
                data = np.ascontiguousarray(block).tobytes()
                file.write(data)
                self.digest.update(data)
                rows += len(block)
        if rows != shape[0]:
            raise ValueError(f"{name}: {rows} rows for an array of {shape[0]}")

    @property
    def checksum(self) -> str:
        """The sha256 of all arrays so far: of names, types, shapes and contents, whatever the packing."""
        return self.digest.hexdigest()


@contextmanager
def array_file(path: Path) -> Iterator[ArrayFile]:
    """A new .npz at `path`, there when the block ends, whole, or not at all; what stood there is replaced then."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, allowZip64=True, compresslevel=1) as archive:
            yield ArrayFile(archive)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
