"""The spread of quantiles, set on rows that were not learnt from.

Conformalised quantile regression (Romano, Patterson and Candes, 2019), with a factor in place of a summand: a network that has
learnt its training rows too well is too sure of itself, everywhere about alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from conca.models.forecast import ForecastNetwork
from conca.train.pieces import Batch

__all__ = ["calibrate"]

LEAST = 200
"""A factor is an estimate of at least this many values; with fewer it stays 1."""
BOUNDS = (1.0, 2.0)
"""Quantiles are moved outward alone: the season that validates may be a calm one."""


def calibrate(network: ForecastNetwork, validation: Sequence[Batch]) -> None:
    """Set `network.spread` (K, Q) so that on the validation windows each quantile lies above its share of values."""
    network.spread.fill_(1.0)
    ratios = []
    with torch.inference_mode():
        for batch in validation:
            h, _ = network.read(
                batch.inputs, batch.codes, lengths=batch.lengths, elapsed=batch.elapsed, rows=batch.rows
            )
            q = network.normalised(h, batch.anchor, batch.known)
            centre = q[..., network.middle : network.middle + 1]
            ratio = (network.bent(batch.future[..., None]) - centre) / (q - centre)
            ratios.append(ratio[~torch.isnan(batch.future).all(-1)].numpy())
    if not ratios:
        return
    every = np.concatenate(ratios)
    for level, share in enumerate(network.config.levels):
        if level == network.middle:
            continue
        for target in range(every.shape[1]):
            known = every[:, target, level]
            known = known[~np.isnan(known)]
            if known.size >= LEAST:
                factor = np.quantile(known, share if level > network.middle else 1 - share)
                network.spread[target, level] = float(np.clip(factor, *BOUNDS))
