"""Forecasts of encoded series by a fitted network, from chosen rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from conca.data.encoding import Encoded
from conca.models.forecast import ForecastNetwork
from conca.models.threads import few_threads

__all__ = ["forecast", "hidden_rows"]

Floats = NDArray[np.float64]

CHUNK = 1024
"""Rows that are read at once, counted from the beginning of a series."""
ROWS = 64
"""Series that are read side by side."""


def forecast(
    network: ForecastNetwork, series: Sequence[Encoded], cutoffs: Sequence[NDArray[np.int64]], *, context: int
) -> list[Floats]:
    """Quantiles (n, H, K, Q) in the unit of the targets after each cutoff (n,) of each series.

    A cutoff is the last row that is known. A network whose state grows reads at most `context` rows for a forecast, and
    begins anew at whole multiples of half of them; others read the series from its beginning.
    """
    result = []
    for rows, one, chosen in zip(hidden_rows(network, series, cutoffs, context=context), series, cutoffs):
        result.append(read_out(network, rows, one, chosen))
    return result


def read_out(network: ForecastNetwork, rows: Tensor, one: Encoded, cutoffs: NDArray[np.int64]) -> Floats:
    """Hidden rows (members, n, D) of the cutoffs become quantiles (n, H, K, Q) in the unit of the targets."""
    config, parts = network.config, []
    with torch.inference_mode():
        for begin in range(0, len(cutoffs), CHUNK):
            some = cutoffs[begin : begin + CHUNK]
            anchor, known = torch.from_numpy(one.anchor[some]), known_ahead(one, some, config.horizon)
            parts.append(network(rows[:, begin : begin + CHUNK], anchor, known))
    empty = (0, config.horizon, len(config.bends), len(config.levels))
    scaled = torch.cat(parts).double().numpy() if len(cutoffs) else np.empty(empty)
    values: Floats = scaled * one.unit[:, None] + one.origin[:, None]
    return values


def known_ahead(one: Encoded, cutoffs: NDArray[np.int64], horizon: int) -> Tensor | None:
    """What is known in advance of the steps ahead of each cutoff, (n, H, G). Raises ValueError if it is not known so far."""
    if one.known is None:
        return None
    if cutoffs.max(initial=-1) + horizon >= len(one.known):
        raise ValueError("what is known in advance does not reach the end of the forecasts")
    return torch.from_numpy(one.known[cutoffs[:, None] + np.arange(1, horizon + 1)])


def hidden_rows(
    network: ForecastNetwork, series: Sequence[Encoded], cutoffs: Sequence[NDArray[np.int64]], *, context: int
) -> Iterator[Tensor]:
    """Hidden rows (members, n, D) at the cutoffs (n,) of each series."""
    training = network.training
    network.eval()
    try:
        with torch.inference_mode(), few_threads(network):
            for begin in range(0, len(series), ROWS):
                some = slice(begin, begin + ROWS)
                reader = read_whole if network.bounded else read_pieces
                yield from reader(network, series[some], cutoffs[some], context)
    finally:
        network.train(training)


def read_whole(
    network: ForecastNetwork, series: Sequence[Encoded], cutoffs: Sequence[NDArray[np.int64]], context: int
) -> list[Tensor]:
    """Read each series from its beginning to its last cutoff, with a state that goes from chunk to chunk."""
    ends = [int(chosen.max(initial=-1)) + 1 for chosen in cutoffs]
    found: list[list[Tensor]] = [[] for _ in series]
    state = None
    for begin in range(0, max(ends, default=0), CHUNK):
        inputs, codes, elapsed, lengths = side_by_side(series, [(begin, min(begin + CHUNK, end)) for end in ends])
        h, state = network.read(inputs, codes, state, lengths=lengths, elapsed=elapsed)
        for row, chosen in enumerate(cutoffs):
            here = chosen[(begin <= chosen) & (chosen < begin + CHUNK)] - begin
            found[row].append(h[:, row, torch.from_numpy(here)])
    return [torch.cat([nothing(network), *parts], 1) for parts in found]


def read_pieces(
    network: ForecastNetwork, series: Sequence[Encoded], cutoffs: Sequence[NDArray[np.int64]], context: int
) -> list[Tensor]:
    """Read pieces of `context` rows that overlap by half; a cutoff belongs to the piece in whose later half it lies."""
    half = max(context // 2, 1)
    result = []
    for one, chosen in zip(series, cutoffs):
        parts = [nothing(network)]
        for block in np.unique(chosen // half):
            here = chosen[chosen // half == block]
            begin = max(int(block) - 1, 0) * half
            inputs, codes, elapsed, _ = side_by_side([one], [(begin, int(here.max()) + 1)])
            h, _ = network.read(inputs, codes, elapsed=elapsed)
            parts.append(h[:, 0, torch.from_numpy(here - begin)])
        result.append(torch.cat(parts, 1))
    return result


def nothing(network: ForecastNetwork) -> Tensor:
    """Hidden rows (members, 0, D)."""
    return torch.empty(len(network.towers), 0, network.config.d_model, dtype=torch.float32)


def side_by_side(
    series: Sequence[Encoded], spans: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Inputs (B, T, I), codes (B, T, C), elapsed (B, T) and lengths (B,) of a span of rows of each series."""
    sizes = [max(end - begin, 0) for begin, end in spans]
    longest = max(sizes)

    def padded(rows: Sequence[NDArray[Any]]) -> Tensor:
        parts = [torch.from_numpy(part) for part in rows]
        return torch.stack([F.pad(p, [0, 0] * (p.dim() - 1) + [0, longest - len(p)]) for p in parts])

    cuts = [slice(begin, begin + size) for (begin, _), size in zip(spans, sizes)]
    inputs = padded([one.inputs[cut] for one, cut in zip(series, cuts)])
    codes = padded([one.codes[cut] for one, cut in zip(series, cuts)])
    times = [one.elapsed[cut] for one, cut in zip(series, cuts) if one.elapsed is not None]
    elapsed = padded(times) if times else None
    lengths = None if min(sizes) == longest else torch.tensor(sizes)
    return inputs, codes, elapsed, lengths
