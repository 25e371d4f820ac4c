"""A plain pool of threads for kernels that have let go of the interpreter's lock.

As many threads as PyTorch uses, the calling one among them; safe to enter from several Python threads at once. A child made by
fork has none of its parent's threads, so it starts a pool of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from threading import Lock

import torch

__all__ = ["spread", "together"]

SMALL = 200_000
"""Multiply-adds (or numbers moved) below which waking a thread costs more than it saves."""

PIECES = 4
"""Pieces per thread: a thread that is held up leaves its share to the others."""

_lock = Lock()
_pool: ThreadPoolExecutor | None = None
_size = 0


def spread(task: Callable[[int, int], object], total: int, work: int) -> None:
    """Run task(first, end) over pieces of range(total); `work` is an estimate of it all. An error of a piece is raised."""
    threads = min(torch.get_num_threads(), total) if work >= SMALL else 1
    if threads <= 1:
        if total > 0:
            task(0, total)
        return
    pieces = min(total, threads * PIECES)
    edges = [total * i // pieces for i in range(pieces + 1)]
    turn = count()

    def pull() -> None:
        while (i := next(turn)) < pieces:
            task(edges[i], edges[i + 1])

    together(lambda _: pull(), threads)


def together(task: Callable[[int], object], threads: int) -> None:
    """Run task(0) here and task(1), ..., task(threads - 1) on other threads, but for those that have not begun when task(0) ends.

    An error of a task is raised.
    """
    waiting: list[Future[object]] = []
    try:
        for i in range(1, threads):
            waiting.append(_workers(threads - 1).submit(task, i))
        task(0)
    finally:
        for future in waiting:
            future.cancel() or future.exception()
    for future in waiting:
        if not future.cancelled():
            future.result()


def _workers(size: int) -> ThreadPoolExecutor:
    global _pool, _size
    with _lock:
        if _pool is None or _size < size:
            _pool, _size = ThreadPoolExecutor(size, thread_name_prefix="conca"), size
        return _pool


def _forget() -> None:
    """In the child of a fork: the threads of the parent are not here, and its lock may be held for ever."""
    global _pool, _size, _lock
    _pool, _size, _lock = None, 0, Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
