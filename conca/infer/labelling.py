"""Logits and probabilities of classes for whole sequences, in batches of like lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from conca.data.labelled import Labelled
from conca.data.padded import Shelf
from conca.models.classify import ClassifyNetwork
from conca.models.threads import few_threads

__all__ = ["logits_of", "probabilities"]

Floats = NDArray[np.float32]

STEPS = 2**16
"""Steps of a batch, padding counted, about."""


def probabilities(network: ClassifyNetwork, data: Labelled, *, shares: int = 1) -> Floats:
    """What a network says of every sequence, (n, shares, K), float32; arguments as in `logits_of`."""
    found: Floats = torch.from_numpy(logits_of(network, data, shares=shares)).softmax(-1).numpy()
    return found


def logits_of(network: ClassifyNetwork, data: Labelled, *, shares: int = 1) -> Floats:
    """Logits of every sequence, (n, shares, K), float32; the network is in `eval()` meanwhile.

    The answer number f, from 0, is the one after the first (f + 1) / `shares` of each sequence, rounded up to whole steps;
    the last is that of the whole.
    """
    shelf = Shelf(data)
    found = np.empty((len(data), shares, network.config.classes), np.float32)
    device = network.head.weight.device
    with torch.inference_mode(), few_threads(network), judging(network):
        for own in shelf.batches(STEPS):
            x, lengths = shelf.padded(own)
            x = x.to(device)
            lengths = None if lengths is None else lengths.to(device)
            if shares == 1:
                logits = network(x, lengths=lengths)[:, None]
            else:
                ends = -(-data.lengths[own][:, None] * np.arange(1, shares + 1) // shares)
                logits = network.at(x, torch.from_numpy(ends).to(device), lengths=lengths)
            found[own] = logits.float().cpu().numpy()
    return found


@contextmanager
def judging(network: nn.Module) -> Iterator[None]:
    """In the block a network is in `eval()`; afterwards as it was."""
    before = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(before)
