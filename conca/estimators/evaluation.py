"""Forecasts of rows held out beside what came: kept in the run, so that reports can be drawn without the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conca.data.grid import ticks
from conca.data.panel import Key
from conca.estimators.scores import Trial, step_errors
from conca.infer.frame import plain
from conca.types import BadInput

__all__ = ["Evaluation"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST = 2000
"""Forecasts that are kept."""
PAST = 168
"""Rows of the past that are kept with each, at most."""
ARRAYS = ("series", "cutoffs", "past", "y", "quantiles", "by_step")


@dataclass(frozen=True)
class Evaluation:
    """Forecasts from up to 2,000 rows, evenly spaced over all series, and errors by step over all of them.

    n forecasts, P rows of past, H steps, K targets, Q quantiles; everything in the unit of the targets, NaN where missing.

    keys       of the series
    series     (n,) which of the keys
    cutoffs    (n,) times, as integers (`conca.data.grid.ticks`), of the last row known to each forecast
    past       (n, P, K) the rows up to the cutoff, it included; P is at most 3 H and at most 168
    y          (n, H, K) what came
    quantiles  (n, H, K, Q) what was forecast
    names      of the model ("model") and of the simple forecasts
    by_step    (number of names, H, K) mean absolute error at each step
    refitted   (n, K, Q) the first step as the network forecasts it that has learnt from all rows, these too; None without a refit
    """

    keys: tuple[Key, ...]
    series: Integers
    cutoffs: Integers
    past: Floats
    y: Floats
    quantiles: Floats
    names: tuple[str, ...]
    by_step: Floats
    refitted: Floats | None = None

    @classmethod
    def of(cls, trials: Sequence[Trial], refitted: Trial | None = None) -> Self | None:
        """What trials of one model on the same series showed, and that of the refitted one; None if they have no forecast."""
        trials = [trial for trial in trials if sum(map(len, trial.cutoffs))]
        if not trials:
            return None
        names, errors = step_errors(trials)
        series = np.concatenate([np.repeat(np.arange(len(t.series)), [len(c) for c in t.cutoffs]) for t in trials])
        rows = np.concatenate([c for t in trials for c in t.cutoffs])
        y = np.concatenate([t.truth() for t in trials])
        quantiles = np.concatenate([q for t in trials for q in t.quantiles])
        kept = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST)).astype(np.int64))
        all_series = trials[0].series
        past = min(3 * y.shape[1], PAST)
        padded = [np.pad(s.target, ((past, 0), (0, 0)), constant_values=np.nan) for s in all_series]
        return cls(
            keys=tuple(plain(s.key) for s in all_series),
            series=series[kept],
            cutoffs=np.array([ticks(all_series[s].times[r : r + 1])[0] for s, r in zip(series[kept], rows[kept])]),
            past=np.stack([padded[s][r + 1 : r + 1 + past] for s, r in zip(series[kept], rows[kept])]),
            y=y[kept],
            quantiles=quantiles[kept],
            names=names,
            by_step=errors,
            refitted=None if refitted is None else np.concatenate([q[:, 0] for q in refitted.quantiles])[kept],
        )

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name, for safetensors."""
        names = ARRAYS if self.refitted is None else (*ARRAYS, "refitted")
        return {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in names}

    @classmethod
    def from_tensors(cls, found: dict[str, Tensor], keys: tuple[Key, ...], names: Sequence[str]) -> Self:
        """The inverse of `tensors`. Raises BadInput if something lacks or does not fit."""
        arrays = {name: found[name].numpy() for name in ARRAYS if name in found}
        if len(arrays) < len(ARRAYS) or len({len(arrays[n]) for n in ARRAYS[:-1]}) > 1:
            raise BadInput("the evaluation is not whole; the run is damaged")
        if len(arrays["by_step"]) != len(names) or arrays["series"].max(initial=-1) >= len(keys):
            raise BadInput("the evaluation does not fit the run; the run is damaged")
        if "refitted" in found:
            quantiles = arrays["quantiles"]
            arrays["refitted"] = found["refitted"].numpy()
            if arrays["refitted"].shape != (len(quantiles), *quantiles.shape[2:]):
                raise BadInput("the evaluation does not fit the run; the run is damaged")
        return cls(keys=keys, names=tuple(names), **arrays)
