"""Randomness that leaves the user's alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

__all__ = ["seeded"]

LOCK = [RLock()]
"""Held while the generators are in use; a forked child begins with a new one, since nobody there would release it."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: LOCK.__setitem__(0, RLock()))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's generators begin at `seed`, and afterwards are as they were.

    They are one for the whole process: a thread that comes here waits until no other is in such a block.
    """
    with LOCK[0], torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
