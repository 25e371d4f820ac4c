"""What a run is: the verdict on it first, then its columns and layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from conca.data.schema import Schema
from conca.estimators.forecaster import Forecaster
from conca.models.structural import Structural
from conca.report.page import Chapter, Table, short
from conca.report.verdict import opening
from conca.report.words import span

__all__ = ["chapter", "columns", "facts"]

TITLE = "How good it is, and what it is"
MOST = 50
"""Columns of a table that are listed."""
SAID = ("judged: ", "the lowest MAE here is ", "the rows held out hold no ")
"""Beginnings of notices that the opening says in its own words."""


def facts(forecaster: Forecaster) -> list[tuple[str, str]]:
    """What is forecast, from what, and by what, in words."""
    config, schema, fitted = forecaster.config, forecaster.schema_, forecaster.fitted
    grid, network = schema.grid, fitted.network
    count = len(fitted.ends.keys)
    layers = f"{config.layers}, width {config.d_model}, {config.members} member{'s' * (config.members > 1)}"
    if network.config.structure is not None:
        layers = (
            f"{config.layers}: a structural state space, {cast(Structural, network.towers[0]).size} numbers a target"
        )
    return [
        ("forecasts", ", ".join(short(name) for name in schema.target)),
        ("steps ahead", f"{config.horizon}" + (f" ({span(config.horizon, grid)})" if grid.seconds else "")),
        ("rows", f"{grid.describe()} apart" if grid.regular else "irregular in time"),
        ("series", f"{count:,}" + (f", told apart by {', '.join(map(short, schema.series))}" if schema.series else "")),
        ("layers", layers),
        ("parameters", f"{sum(p.numel() for p in network.parameters()):,}"),
        ("quantiles", ", ".join(f"{level:g}" for level in config.quantiles)),
    ]


def columns(schema: Schema) -> Iterator[list[str]]:
    """Each column of the table and its role."""
    roles = [(schema.series, "tells series apart"), ((schema.time,) if schema.time else (), "time")]
    roles += [(schema.target, "target")]
    for names, role in roles:
        yield from ([str(name), role] for name in names)
    covariates = [(name, "numbers") for name in schema.numeric]
    for name, levels in zip(schema.categorical, schema.levels):
        covariates.append((name, f"{len(levels)} categor{'y' if len(levels) == 1 else 'ies'}"))
    for name, kind in covariates:
        yield [str(name), f"covariate, {kind}" + (", known in advance" if name in schema.known else "")]


def chapter(forecaster: Forecaster) -> Chapter:
    """Verdict and scores, facts, columns, and what else was said of the table."""
    parts: list[str | Table] = [*opening(forecaster), Table(["", ""], facts(forecaster), words=2)]
    listed = list(columns(forecaster.schema_))
    parts.append(Table(["column", "role"], listed[:MOST], words=2))
    if len(listed) > MOST:
        parts.append(f"And {len(listed) - MOST:,} columns more.")
    parts += [line for line in map(str, forecaster.notices_) if not line.startswith(SAID)]
    return Chapter(TITLE, parts)
