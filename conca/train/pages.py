"""Freed memory stays with the process, so that the large tensors of a training step do not fault their pages in at every step."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Their numbers in malloc.h of glibc."""


def keep_memory() -> bool:
    """Ask the C library to keep what is freed instead of giving it back; whether it does (glibc alone is asked).

    Large tensors are otherwise mapped anew at every step, and the system fills their pages with zeros before they are written. The
    peak of the memory stays about the same, but it is kept until the process ends: this is for processes that do nothing but train.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, 2**30)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
