"""A lock that a process holds on a name in a folder, and that the system takes from it when it dies."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["holder", "locked"]

PATIENCE = 0.2
"""Seconds in which a lock is asked for again: somebody may only be looking whether it is held."""
ELSEWHERE = 1 << 20
"""Windows locks bytes and forbids reading them; this one lies behind the process number."""
HELD = errno.EAGAIN, errno.EACCES, errno.EDEADLK
"""What the system says when another has the lock; everything else means that the file system knows none."""


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock at `path` in the block; False if another process or thread holds it.

    The file is there as long as somebody holds it, and says who. On a file system without locks this is all that is known.

    Raises:
        OSError: if the file cannot be made.
    """
    end, number = time.monotonic() + PATIENCE, _opened(path)
    while number is None and time.monotonic() < end:
        time.sleep(0.01)
        number = _opened(path)
    if number is None:
        yield False
        return
    try:
        os.ftruncate(number, 0)
        os.write(number, str(os.getpid()).encode())
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(number)


def holder(path: Path) -> int | None:
    """The process that holds the lock at `path`, 0 if it does not say; None if nobody does."""
    try:
        number = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _taken(number, shared=True) else _named(number)
    finally:
        os.close(number)


def _opened(path: Path) -> int | None:
    """The file, made if need be, and locked; None if another has the lock."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if _taken(number) and _is_at(number, path):
        return number
    os.close(number)
    return None


def _taken(number: int, shared: bool = False) -> bool:
    """Whether the lock could be had."""
    try:
        if sys.platform == "win32":
            os.lseek(number, ELSEWHERE, os.SEEK_SET)
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
            os.lseek(number, 0, os.SEEK_SET)
        else:
            fcntl.flock(number, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in HELD and not _lives(_named(number))
    return True


def _named(number: int) -> int:
    """The process that a file names, 0 if none."""
    os.lseek(number, 0, os.SEEK_SET)
    text = os.read(number, 20)
    return int(text) if text.isdigit() else 0


def _lives(process: int) -> bool:
    """Whether there is such a process on this machine; where that cannot be asked, there is."""
    if os.name != "posix":
        return True
    try:
        os.kill(process or 2**30, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _is_at(number: int, path: Path) -> bool:
    """Whether the file that is open is still the one of that name: whoever held it before has removed it."""
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except FileNotFoundError:
        return False
