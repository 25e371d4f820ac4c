"""Which column is what: names are checked against the table, and what was not said is found out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from conca.data.columns import is_numeric, levels_of, shown, text_of
from conca.data.conventions import conventional, roles_taken
from conca.data.schema import Schema
from conca.data.table import Origin, columns_of
from conca.data.times import is_dates
from conca.types import BadInput, nearest

__all__ = ["Named", "Names", "as_names", "assign_roles", "check_column", "check_columns"]

Names = str | Sequence[str]
DATES = (pd.DatetimeIndex, pd.PeriodIndex)
FEW_LEVELS = 64
"""A text covariate with at most this many different values is taken for categories, however short the table."""
ROWS_PER_LEVEL = 10


@dataclass(frozen=True)
class Named:
    """The columns that a caller names for each role, as `read_panel` takes them; covariates None: all others."""

    target: tuple[str, ...] = ()
    time: str | None = None
    series: tuple[str, ...] = ()
    covariates: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        target: Names | None,
        time: str | None,
        series: Names,
        covariates: Names | None,
        categorical: Names,
        known: Names,
    ) -> Named:
        """What was given, checked to be text. Raises BadInput if it is not."""
        if time is not None and not isinstance(time, str):
            raise BadInput(f"time: {shown(time)} is not the name of one column; {spelt(time)}")
        return cls(
            as_names(target, "target"),
            time,
            as_names(series, "series"),
            None if covariates is None else as_names(covariates, "covariates"),
            as_names(categorical, "categorical"),
            as_names(known, "known"),
        )

    @property
    def chosen(self) -> tuple[str, ...]:
        """The columns that are named as covariates of any kind."""
        return tuple(dict.fromkeys((*(self.covariates or ()), *self.categorical, *self.known)))

    def completed(self, source: Any, notices: list[str]) -> Named:
        """With the time in the index of a data frame, and with what goes by the names that libraries agree on."""
        time = self.time
        if time is None and isinstance(source, pd.DataFrame) and isinstance(source.index, DATES):
            time = "time" if source.index.name is None else str(source.index.name)
        before = self.target, time, self.series
        after = conventional(columns_of(source), *before, taken=self.chosen)
        if line := roles_taken(before, after):
            notices.append(line)
        target, time, series = after
        return replace(self, target=target, time=time, series=series)


def as_names(names: Names | None, role: str = "columns") -> tuple[str, ...]:
    """One name or several as a tuple. Raises BadInput if one of them is not text; `role` says what they are for."""
    if names is None:
        return ()
    parts = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    for part in parts:
        if not isinstance(part, str):
            raise BadInput(f"{role}: {shown(part)} is not the name of a column; {spelt(part)}")
    return parts


def spelt(name: object) -> str:
    """How a name that is not text should be written, for error lines."""
    if isinstance(name, (list, tuple)) and len(name) == 1:
        name = name[0]
    return f"write '{shown(name)}'" if isinstance(name, (int, str)) else "names of columns are text"


def assign_roles(table: pd.DataFrame, origin: Origin, named: Named, notices: list[str]) -> Schema:
    """The schema of a new table, without its grid. Raises BadInput on names that do not fit."""
    check_roles(table, origin, named)
    taken = {*named.target, *named.series, named.time}
    everything = [name for name in table.columns if name not in taken]
    candidates = everything if named.covariates is None else named.chosen
    numeric: list[str] = []
    levels: dict[str, tuple[str, ...]] = {}
    for name in candidates:
        reason = unfit(table[name], name in named.chosen)
        if reason and name in named.chosen:
            raise BadInput(f"{origin.name}, column '{name}': {reason}; leave it out of the covariates")
        if reason:
            notices.append(f"column '{name}' is left out: {reason}")
        elif name not in named.categorical and is_numeric(table[name]):
            numeric.append(name)
        else:
            levels[name] = levels_of(table[name])
    known = tuple(name for name in (*numeric, *levels) if name in named.known)
    columns = named.target, named.time, named.series, tuple(numeric), tuple(levels), tuple(levels.values())
    return Schema(*columns, known=known)


def unfit(column: pd.Series[Any], named: bool) -> str | None:
    """Why a column cannot be a covariate, or should not be unless it is named; None if it can."""
    if is_dates(column) or isinstance(column.dtype, pd.PeriodDtype) or pd.api.types.is_timedelta64_dtype(column):
        return "dates are not covariates"
    if not column.notna().any():
        return "it has no values"
    if named or is_numeric(column):
        return None
    text = text_of(column).dropna()  # a row that is missing says as little as one that is not there
    different = text.nunique()
    if different > FEW_LEVELS and different * ROWS_PER_LEVEL > len(text):
        return f"it holds {different:,} different texts in {len(text):,} rows"
    return None


def check_roles(table: pd.DataFrame, origin: Origin, named: Named) -> None:
    """Raise BadInput if a role is empty, a column does not exist, or a column is given two roles."""
    if not named.target:
        raise BadInput("no target is named; name the column to forecast")
    roles = [("target", named.target), ("time", () if named.time is None else (named.time,)), ("series", named.series)]
    roles += [("covariates", named.covariates or ())]
    held: dict[str, str] = {}
    for role, names in roles:
        for name in names:
            check_column(table, origin, name)
            if name in held:
                both = f"twice as {role}" if held[name] == role else f"as {held[name]} and as {role}"
                raise BadInput(f"column '{name}' is named {both}; it can be one thing only")
            held[name] = role
    for kind, names in (("categorical", named.categorical), ("known in advance", named.known)):
        for name in names:
            check_column(table, origin, name)
            if held.get(name, "covariates") != "covariates":
                raise BadInput(f"column '{name}' is named as {held[name]} and as {kind}; it can be one thing only")


def check_column(table: pd.DataFrame, origin: Origin, name: str) -> None:
    """Raise BadInput if the table has no column of this name."""
    if name not in table.columns:
        raise BadInput(f"{origin.name}: there is no column '{name}'; {nearest(name, [str(c) for c in table.columns])}")


def check_columns(table: pd.DataFrame, origin: Origin, schema: Schema) -> None:
    """Raise BadInput if the table lacks a column of the schema."""
    for name in schema.columns:
        check_column(table, origin, name)
