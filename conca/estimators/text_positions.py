"""How surprise falls with what was read: bits for each byte of text held out, by how many tokens of it came before."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from conca.data.corpus import Corpus
from conca.data.jsonl import Rows
from conca.infer.reading import quiet
from conca.models.language import LanguageNetwork

__all__ = ["BY_POSITION", "by_position"]

BY_POSITION = "from", "to", "bits per byte", "error"
"""Tokens read before, from and up to; bits for each byte of the tokens there, and their standard error over the pieces."""
FIRST, LONGEST, PIECES, FEWEST = 16, 1024, 32, 4
"""Tokens of the first part and of a piece, and pieces, at most and at least."""
WORK, BATCH = 3 * 10**10, 2**13
"""Multiply-adds of all pieces, and tokens that are read at once."""


def by_position(network: LanguageNetwork, text: Corpus | Rows, test: range) -> pd.DataFrame:
    """Pieces of running text, evenly spaced, are each read from nothing; empty where there is too little, or too much to do.

    The first part is of the tokens that have 1 to 16 before them, and each of the others is as long as all before it.
    """
    tokens = min(len(test), WORK // max(sum(p.numel() for p in network.parameters()), 1))
    length = min(LONGEST, 2 ** int(math.log2(max(tokens // FEWEST, 1))))
    if isinstance(text, Rows) or length < 2 * FIRST:
        return pd.DataFrame()
    count = min(PIECES, tokens // length)
    begins = np.linspace(test.start, test.stop - length, count).astype(np.int64)
    ids = np.stack([text.read(int(at), int(at) + length) for at in begins]).astype(np.int64)
    sizes = np.stack([text.sizes(int(at), int(at) + length) for at in begins])[:, 1:]
    bits = costs_of(network, ids) / math.log(2)
    edges = [1, *(FIRST * 2**k for k in range(int(math.log2(length // FIRST)) + 1))]
    rows = []
    for low, high in pairwise(edges):
        part, stand = (each[:, low - 1 : high - 1].sum(1) for each in (bits, sizes))
        mean = float(part.sum() / max(stand.sum(), 1))
        error = float(np.std(part - mean * stand, ddof=1) * math.sqrt(count) / max(stand.sum(), 1))
        rows.append((low, high, mean, error))
    return pd.DataFrame(rows, columns=list(BY_POSITION))


def costs_of(network: LanguageNetwork, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Nats (N, T - 1) of the tokens (N, T) of each piece but the first."""
    found, each = [], max(BATCH // ids.shape[1], 1)
    device = network.norm.weight.device
    with quiet(network):
        for at in range(0, len(ids), each):
            rows = torch.from_numpy(ids[at : at + each]).to(device)
            h, _ = network.read(rows[:, :-1])
            found.append(network.loss(h, rows[:, 1:], reduction="none").double().cpu())
    return np.asarray(torch.cat(found).numpy())
