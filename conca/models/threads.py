"""How many threads PyTorch computes with: one, where a recurrence takes steps too small to be shared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import nn

__all__ = ["few_threads"]

SMALL = 256
"""Width of a recurrent layer up to which waking a second thread at every step costs more than it gives."""
LOCK = Lock()
INSIDE: list[int] = []
"""The number of threads before the first of the blocks that are open, and a mark for each of the others."""


@contextmanager
def few_threads(network: nn.Module) -> Iterator[None]:
    """One thread in the block, if the network has a layer of `torch.nn.RNN`, `LSTM` or `GRU` that is not wide.

    Blocks in several threads may overlap: the number that was before them all is set again after the last.
    """
    recurrent = [part for part in network.modules() if isinstance(part, nn.RNNBase)]
    if not recurrent or max(part.hidden_size for part in recurrent) > SMALL:
        yield
        return
    with LOCK:
        INSIDE.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with LOCK:
            before = INSIDE[0]
            INSIDE.pop()
            torch.set_num_threads(before if not INSIDE else 1)
