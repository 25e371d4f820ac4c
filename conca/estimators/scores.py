"""How good a forecaster is on the rows held out, beside the simplest forecasts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.panel import Schema, Series
from conca.data.split import Split, cutoffs
from conca.metrics.baselines import Baseline, History, LastValue, Ridge, SeasonalNaive, season_of
from conca.metrics.forecast import naive_error, scores

__all__ = ["held_out_cutoffs", "score_table"]

Floats = NDArray[np.float64]
COLUMNS = {"mae": "MAE", "rmse": "RMSE", "mase": "MASE", "pinball": "pinball", "coverage": "coverage"}


def held_out_cutoffs(splits: Sequence[Split], horizon: int) -> list[NDArray[np.int64]]:
    """Every row of each series from which a whole forecast lies in the rows held out; shape (n,)."""
    return [cutoffs(split.validation, split.total, horizon) for split in splits]


def score_table(
    schema: Schema,
    series: Sequence[Series],
    splits: Sequence[Split],
    quantiles: Sequence[Floats],
    horizon: int,
    levels: Sequence[float],
) -> pd.DataFrame:
    """One row for the model and for each simple forecast, over all cutoffs of `held_out_cutoffs`.

    quantiles  the model's, (n, H, K, Q) for each series

    Columns MAE, RMSE, MASE (of the middle quantile; MASE by the error, on the training rows, of repeating the last
    season), pinball, and coverage (share of values between the lowest and the highest quantile). Missing values are not
    counted. No rows if there is nothing to count.
    """
    rows = held_out_cutoffs(splits, horizon)
    season = season_of(schema.grid.seconds)
    y = np.concatenate([s.target[c[:, None] + 1 + np.arange(horizon)] for s, c in zip(series, rows)])
    if not (~np.isnan(y)).any():
        return pd.DataFrame(columns=list(COLUMNS.values()), index=pd.Index([], name="forecast"), dtype=float)
    errors = [naive_error(s.target[: split.validation], season) for s, split in zip(series, splits)]
    unit = np.concatenate([np.broadcast_to(e, (len(c), 1, len(e))) for e, c in zip(errors, rows)])
    middle = min(range(len(levels)), key=lambda i: abs(levels[i] - 0.5))
    own = np.concatenate(list(quantiles))
    table = {"model": scores(y, own, levels, unit, own[..., middle])}
    histories = [
        History(s.target, np.concatenate([s.numeric, schema.one_hot(s.categorical)], axis=1), split.validation)
        for s, split in zip(series, splits)
    ]
    for name, baseline in baselines(horizon, season, schema.grid.seconds, levels).items():
        baseline.fit(histories)
        parts = [baseline.predict(h, c) for h, c in zip(histories, rows) if len(c)]
        point, spread = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        table[name] = scores(y, spread, levels, unit, point)
    frame = pd.DataFrame.from_dict(table, orient="index")[list(COLUMNS)].rename(columns=COLUMNS)
    return frame.rename_axis("forecast")


def baselines(horizon: int, season: int, seconds: float | None, levels: Sequence[float]) -> dict[str, Baseline]:
    """The simple forecasts by name."""
    found: dict[str, Baseline] = {"last value": LastValue(horizon, levels=levels)}
    if season > 1:
        found[season_name(season, seconds or 0.0)] = SeasonalNaive(horizon, season, levels=levels)
    found["ridge"] = Ridge(horizon, levels=levels)
    return found


def season_name(season: int, seconds: float) -> str:
    """The forecast that repeats the last season, in words."""
    days = season * seconds / 86_400
    if 0.9 < days < 1.1:
        return "same hour yesterday" if season == 24 else "same time yesterday"
    return "same day last week" if 6.5 < days < 7.5 else "same time last year"
