"""Other processes of this machine that train with this one: how they are started, and what they do."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from conca.train.places import Place, launched

__all__ = ["together"]

CHILD = """
import json, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from conca.train.worker import main
main()
"""
PATIENCE = 2.0
"""Seconds in which a process that has broken a connection is seen to have ended."""
Task = Callable[..., object]


@contextmanager
def together(place: Place, task: Task, *arguments: Any) -> Iterator[None]:
    """In the block this process is the first of as many as the place has; each of the others calls `task(*arguments)`.

    They are fresh interpreters, so that nothing of the user's program runs again, and it needs no guard: neither a script nor
    a notebook notices. Where `torchrun` has started the processes, the others are in this block themselves.

    Raises:
        ChildProcessError: if one of the others ends before its time.
    """
    if dist.is_available() and dist.is_initialized():
        yield
    elif launched():
        dist.init_process_group(place.backend)
        yield
    elif place.processes == 1:
        yield
    else:
        threads = torch.get_num_threads()
        folder = Path(tempfile.mkdtemp(prefix="conca-"))
        others: list[subprocess.Popen[bytes]] = []
        try:
            share = max(1, threads // place.processes)
            for number in range(1, place.processes):
                others.append(started(folder, number))
            said = (str(folder), place.backend, place.processes, share, torch.get_default_dtype())
            for number, process in enumerate(others, 1):
                hand_over(process, (number, *said, task, arguments))
            for process in others:
                if pipe(process.stdout).readline() != b"ready\n":
                    raise RuntimeError
            torch.set_num_threads(share)
            meet(0, *said[:3])
            yield
        except (RuntimeError, BrokenPipeError) as error:
            raise_if_one_ended(others, folder, error)
            raise
        finally:
            torch.set_num_threads(threads)
            part(others)
            shutil.rmtree(folder, ignore_errors=True)


def started(folder: Path, number: int) -> subprocess.Popen[bytes]:
    """A fresh interpreter, deaf to the keyboard."""
    with (folder / f"{number}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def hand_over(process: subprocess.Popen[bytes], said: tuple[Any, ...]) -> None:
    """Where modules are found, and what to do."""
    inlet = pipe(process.stdin)
    inlet.write(json.dumps(sys.path).encode() + b"\n")
    pickle.dump(said, inlet)
    inlet.flush()


def pipe(found: IO[bytes] | None) -> IO[bytes]:
    """A stream of a process, which it has."""
    assert found is not None
    return found


def meet(number: int, folder: str, backend: str, world: int) -> None:
    """Join the others."""
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=number, world_size=world)


def raise_if_one_ended(others: list[subprocess.Popen[bytes]], folder: Path, error: BaseException) -> None:
    """Say which one, and its last words."""
    end = time.monotonic() + PATIENCE
    while all(process.poll() is None for process in others) and time.monotonic() < end:
        time.sleep(0.05)
    for number, process in enumerate(others, 1):
        if process.returncode is not None:
            words = (folder / f"{number}.log").read_text(errors="replace").strip().splitlines()
            last = f" ({words[-1]})" if words else ""
            line = f"process {number} of the training ended with status {process.returncode}{last}"
            raise ChildProcessError(f"{line}; begin again, or go on with resume (--resume)") from error


def part(others: list[subprocess.Popen[bytes]]) -> None:
    """End the others, if they have not ended."""
    if dist.is_initialized():
        dist.destroy_process_group()
    for process in others:
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe(stream).close()
    for process in others:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """What another process does: its task, until it is done or the first process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number, folder, backend, world, threads, dtype, task, arguments = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    threading.Thread(target=end_with_the_first, daemon=True).start()
    print("ready", flush=True)
    meet(number, folder, backend, world)
    task(*arguments)
    dist.destroy_process_group()


def end_with_the_first() -> None:
    """The pipe from the first process closes when it ends, however it ends."""
    sys.stdin.buffer.read()
    os._exit(1)
