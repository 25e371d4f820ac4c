"""Which column is what: names are checked against the table, and what was not said is found out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from conca.data.columns import is_numeric, levels_of, text_of
from conca.data.schema import Schema
from conca.data.table import Origin
from conca.data.times import is_dates
from conca.types import BadInput, nearest

__all__ = ["assign_roles", "check_columns"]

FEW_LEVELS = 64
"""A text covariate with at most this many different values is taken for categories, however short the table."""
ROWS_PER_LEVEL = 10


def assign_roles(
    table: pd.DataFrame,
    origin: Origin,
    target: tuple[str, ...],
    time: str | None,
    series: tuple[str, ...],
    covariates: Sequence[str] | None,
    categorical: tuple[str, ...],
    notices: list[str],
) -> Schema:
    """The schema of a new table, without its grid. Raises BadInput on names that do not fit."""
    check_roles(table, origin, target, time, series, covariates, categorical)
    taken = {*target, *series, time}
    if covariates is None:
        candidates = [name for name in table.columns if name not in taken]
    else:
        candidates = list(dict.fromkeys([*covariates, *categorical]))
    numeric: list[str] = []
    levels: dict[str, tuple[str, ...]] = {}
    for name in candidates:
        named = name in categorical or (covariates is not None and name in covariates)
        reason = unfit(table[name], named)
        if reason and named:
            raise BadInput(f"{origin.name}, column '{name}': {reason}; leave it out of the covariates")
        if reason:
            notices.append(f"column '{name}' is left out: {reason}")
        elif name not in categorical and is_numeric(table[name]):
            numeric.append(name)
        else:
            levels[name] = levels_of(table[name])
    return Schema(target, time, series, tuple(numeric), tuple(levels), tuple(levels.values()))


def unfit(column: pd.Series[Any], named: bool) -> str | None:
    """Why a column cannot be a covariate, or should not be unless it is named; None if it can."""
    if is_dates(column) or isinstance(column.dtype, pd.PeriodDtype) or pd.api.types.is_timedelta64_dtype(column):
        return "dates are not covariates"
    if not column.notna().any():
        return "it has no values"
    if named or is_numeric(column):
        return None
    different = text_of(column).nunique()
    if different > FEW_LEVELS and different * ROWS_PER_LEVEL > len(column):
        return f"it holds {different:,} different texts in {len(column):,} rows"
    return None


def check_roles(
    table: pd.DataFrame,
    origin: Origin,
    target: tuple[str, ...],
    time: str | None,
    series: tuple[str, ...],
    covariates: Sequence[str] | None,
    categorical: tuple[str, ...],
) -> None:
    """Raise BadInput if a role is empty, a column does not exist, or a column is given two roles."""
    if not target:
        raise BadInput("no target is named; name the column to forecast")
    roles = [("target", target), ("time", () if time is None else (time,)), ("series", series)]
    roles += [("covariates", tuple(covariates or ()))]
    held: dict[str, str] = {}
    for role, names in roles:
        for name in names:
            check_column(table, origin, name)
            if name in held:
                both = f"twice as {role}" if held[name] == role else f"as {held[name]} and as {role}"
                raise BadInput(f"column '{name}' is named {both}; it can be one thing only")
            held[name] = role
    for name in categorical:
        check_column(table, origin, name)
        if held.get(name, "covariates") != "covariates":
            raise BadInput(f"column '{name}' is named as {held[name]} and as categorical; it can be one thing only")


def check_column(table: pd.DataFrame, origin: Origin, name: str) -> None:
    """Raise BadInput if the table has no column of this name."""
    if name not in table.columns:
        raise BadInput(f"{origin.name}: there is no column '{name}'; {nearest(name, [str(c) for c in table.columns])}")


def check_columns(table: pd.DataFrame, origin: Origin, schema: Schema) -> None:
    """Raise BadInput if the table lacks a column of the schema."""
    for name in schema.columns:
        check_column(table, origin, name)
