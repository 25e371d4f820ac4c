"""How a kernel is compiled, and where the result is kept.

Numba's disk cache does not notice that a helper in another file changed, and refuses to work where it cannot write. So the
folder is named after a hash of all kernel sources, and is the first of these that can be written: the one in NUMBA_CACHE_DIR,
beside the sources, in the user's cache folder, in the temporary folder. Failing all, kernels are compiled anew in each process.
"""

from __future__ import annotations

import os
import pickletools
import platform
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import IO, Any

import llvmlite
import numba
import numba.core.event

__all__ = ["apart", "compiled", "folder", "inlined", "maker"]

Function = Callable[..., Any]
njit: Any = numba.njit
config: Any = numba.config
event: Any = numba.core.event

FASTMATH = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""Never `nnan` or `ninf`, which would let the compiler drop checks for values that are not finite."""

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # Windows

    def lock(file: IO[bytes]) -> None:
        """Nothing: there is no such lock here."""
else:

    def lock(file: IO[bytes]) -> None:
        """Wait until no other process holds the file; a file system without locks does without."""
        with suppress(OSError):
            flock(file, LOCK_EX)


_decorating = Lock()
_chosen: list[Path | None] = []


def _forget() -> None:
    """In the child of a fork nobody is left to give the lock back."""
    global _decorating
    _decorating = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def compiled(function: Function) -> Any:
    """A kernel: without the interpreter's lock, kept on disk, never parallel by itself."""
    options: dict[str, Any] = {"nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}
    with _decorating:
        if not _chosen:
            _chosen.append(folder())
        if _chosen[0] is None:
            return njit(**options)(function)
        before, config.CACHE_DIR = config.CACHE_DIR, str(_chosen[0])
        try:
            return _kept_in_turn(njit(cache=True, **options)(function), _chosen[0])
        except RuntimeError:  # the folder went away in between
            return njit(**options)(function)
        finally:
            config.CACHE_DIR = before


def _kept_in_turn(kernel: Any, path: Path) -> Any:
    """The kernel, whose files are written by one process at a time.

    Numba numbers them by what it finds, so two processes at once could take one number, and leave the code of one type under
    the name of another.
    """
    save = kernel._cache.save_overload

    def saved(*found: Any) -> None:
        with (path / "lock").open("ab") as file:  # closing it gives the lock back
            lock(file)
            save(*found)

    kernel._cache.save_overload = saved
    return kernel


def inlined(function: Function) -> Any:
    """A helper of kernels, which is merged into them.

    It makes no arrays, and gives none back, so it does not count who holds those it is given: counting costs more than most helpers.
    """
    return njit(nogil=True, fastmath=FASTMATH, error_model="numpy", forceinline=True, _nrt=False)(function)


def maker(function: Function) -> Any:
    """A helper of kernels that makes arrays."""
    return njit(nogil=True, fastmath=FASTMATH, error_model="numpy")(function)


def apart(function: Function) -> Any:
    """A helper that stays a function of its own: in a long kernel the constants of an inner loop would be fetched again at every turn."""
    return njit(nogil=True, fastmath=FASTMATH, error_model="numpy", _nrt=False)(function)


def key(sources: Path = Path(__file__).parent) -> str:
    """What a cached kernel depends on: the sources of this room, versions, and switches of the compiler."""
    digest = sha256()
    for source in sorted(sources.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    switches = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    switches.pop("NUMBA_CACHE_DIR", None)
    facts = numba.__version__, llvmlite.__version__, platform.python_version(), sorted(switches.items())
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:16]


def folder() -> Path | None:
    """The first folder for compiled kernels that can be made, written and trusted; None where there is none."""
    name = f"conca-{key()}"
    for parent in _parents():
        try:
            path = parent / name
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
            if _ours(path):
                _mend(path)
                return path
        except OSError:
            continue
    return None


def _parents() -> Iterator[Path]:
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(os.environ["NUMBA_CACHE_DIR"])
    yield Path(__file__).parent / "__pycache__"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if cache.is_absolute():  # a user without a home has none
        yield cache
    yield Path(tempfile.gettempdir()) / (f"conca-{os.getuid()}" if hasattr(os, "getuid") else "conca")


def _ours(path: Path) -> bool:
    """Whether nobody else can put code there (what Numba keeps is a pickle)."""
    if not hasattr(os, "getuid"):
        return True
    facts = path.stat()
    return facts.st_uid in (0, os.getuid()) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _mend(path: Path) -> None:
    """Take away what a full disk or a power cut left half written: Numba would stumble over it in every later run."""
    for found in path.rglob("*.nb[ci]"):
        try:
            with found.open("rb") as file:
                if not file.peek(1):
                    raise ValueError("empty")
                while file.peek(1):
                    for _ in pickletools.genops(file):
                        pass
        except (ValueError, OSError):
            found.unlink(missing_ok=True)


class _Notice(event.Listener):
    """Says once, on standard error, that this machine has to wait for the compiler."""

    said = False

    def on_start(self, event: Any) -> None:
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if not _Notice.said and getattr(function, "__module__", "").startswith("conca."):
            _Notice.said = True
            print("conca: compiling kernels for this machine, once (some seconds)", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Notice())
