"""A folder in a cache that is made once, whole or not at all, whoever else makes it at the same time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from conca.types import BadInput

__all__ = ["made_once"]

LEFT = 3600.0
"""Seconds after which what nobody writes to any more was left by one who was killed."""


def made_once(cache: Path, key: str, make: Callable[[Path], None]) -> Path:
    """The folder `key` within `cache`; if there is none, `make` fills one, which gets this name when it is done.

    Of several who make the same at once, each fills a folder of its own, and the first to be done gives it the name. What those who
    were killed have left is removed an hour later. Raises BadInput if nothing can be written there.
    """
    target, partial = cache / key, cache / f"{key}.{uuid4().hex[:8]}.partial"
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        remove_left(cache)
        partial.mkdir()
        make(partial)
        try:
            partial.replace(target)
        except OSError:
            if not target.is_dir():  # else another was faster
                raise
    except OSError as error:
        raise BadInput(f"{cache}: cannot be written ({error.strerror or error}); make room, or name another") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def remove_left(cache: Path) -> None:
    """Remove the folders that others have begun and nobody writes to."""
    for path in cache.glob("*.partial"):
        with suppress(OSError):  # another may have removed it, or be done
            last = max(part.stat().st_mtime for part in (path, *path.iterdir()))
            if time.time() - last > LEFT:
                shutil.rmtree(path, ignore_errors=True)
