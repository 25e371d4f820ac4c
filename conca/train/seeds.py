"""Randomness that leaves the user's alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's generators begin at `seed`, and afterwards are as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
