"""What a run is: its columns, its layers, and its scores beside the simple forecasts."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from conca.data.schema import Schema
from conca.estimators.forecaster import Forecaster
from conca.report.page import Chapter, Table, short
from conca.report.words import number, span

__all__ = ["chapter", "facts", "score_rows"]

TITLE = "What it is"
MOST = 50
"""Columns of a table that are listed."""
READING = (
    "Scores are measured on the rows that were held out, and nothing was fitted on them. MAE and RMSE are errors of the median in the "
    "unit of the target, MASE is the MAE against that of repeating the last season, pinball is the loss of all quantiles: lower is "
    "better. Coverage is the share of values between the lowest and the highest quantile"
)

REFIT = (
    "After that a new network learned from all rows, for as many steps: it makes the forecasts of this run, and the chapters on what "
    "it remembers are about it. On the rows once held out it scores as below, which says how well it fits, not how well it forecasts:"
)


def facts(forecaster: Forecaster) -> list[tuple[str, str]]:
    """What is forecast, from what, and by what, in words."""
    config, schema, fitted = forecaster.config, forecaster.schema_, forecaster.fitted
    grid, network = schema.grid, fitted.network
    count = len(fitted.ends.keys)
    return [
        ("forecasts", ", ".join(short(name) for name in schema.target)),
        ("steps ahead", f"{config.horizon}" + (f" ({span(config.horizon, grid)})" if grid.seconds else "")),
        ("rows", f"{grid.describe()} apart" if grid.regular else "irregular in time"),
        ("series", f"{count:,}" + (f", told apart by {', '.join(map(short, schema.series))}" if schema.series else "")),
        ("layers", f"{config.layers}, width {config.d_model}, {config.members} member{'s' * (config.members > 1)}"),
        ("parameters", f"{sum(p.numel() for p in network.parameters()):,}"),
        ("quantiles", ", ".join(f"{level:g}" for level in config.quantiles)),
    ]


def columns(schema: Schema) -> Iterator[list[str]]:
    """Each column of the table and its role."""
    roles = [(schema.series, "tells series apart"), ((schema.time,) if schema.time else (), "time")]
    roles += [(schema.target, "target"), (schema.numeric, "covariate, numbers")]
    for names, role in roles:
        yield from ([str(name), role] for name in names)
    for name, levels in zip(schema.categorical, schema.levels):
        yield [str(name), f"covariate, {len(levels)} categor{'y' if len(levels) == 1 else 'ies'}"]


def score_rows(scores: pd.DataFrame) -> Table:
    """A table of scores."""
    names = [str(name) for name in scores.index.names]
    keys = [key if isinstance(key, tuple) else (key,) for key in scores.index]
    rows = [[*map(short, key), *(number(v) for v in row)] for key, row in zip(keys, scores.to_numpy(dtype=float))]
    return Table([*names, *map(str, scores.columns)], rows, words=len(names))


def chapter(forecaster: Forecaster) -> Chapter:
    """Facts, columns and scores."""
    config = forecaster.config
    parts: list[str | Table] = [Table(["", ""], facts(forecaster), words=2)]
    listed = list(columns(forecaster.schema_))
    parts.append(Table(["column", "role"], listed[:MOST], words=2))
    if len(listed) > MOST:
        parts.append(f"And {len(listed) - MOST:,} columns more.")
    if len(forecaster.scores_):
        spread = config.quantiles[-1] - config.quantiles[0]
        parts += [READING + (f"; {spread:.2g} is right." if spread else "."), score_rows(forecaster.scores_)]
        if len(forecaster.target_scores_):
            parts.append(score_rows(forecaster.target_scores_))
    else:
        parts.append("No rows were held out, so there are no scores.")
    again = forecaster.refit_scores_
    if len(again):
        parts += [REFIT, score_rows(again)]
    parts += [str(line) for line in forecaster.notices_]
    return Chapter(TITLE, parts)
