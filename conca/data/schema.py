"""What the columns of a table mean to a model: kept in the run, so that new tables are read as the first one was."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.grid import Grid
from conca.types import BadInput, nearest

__all__ = ["Schema"]


MOST_INDICATORS = 64


@dataclass(frozen=True)
class Schema:
    """The columns of a table, by what they are for.

    target       what is forecast, at least one column
    time         the column of times; None: the order of the rows is time
    series       the columns whose values together name a series; empty: the table is one series
    numeric      covariates that are numbers
    categorical  covariates that are categories
    levels       the known categories of each categorical column, sorted; level i has code i + 1, and code 0 means
                 missing or unknown
    known        covariates that are known in advance, in the order of `numeric` and `categorical`
    grid         the spacing of the rows in time
    format       how the times were written: "ISO8601" (also dates of pandas), or a format of `strptime`; tried first on
                 new tables. None: unknown, or the times are no dates
    """

    target: tuple[str, ...]
    time: str | None = None
    series: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()
    grid: Grid = field(default_factory=Grid)
    format: str | None = None
    known: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a table must have to be read under this schema."""
        time = () if self.time is None else (self.time,)
        return (*self.series, *time, *self.target, *self.numeric, *self.categorical)

    @property
    def known_numeric(self) -> tuple[int, ...]:
        """Where in `numeric` the columns known in advance are."""
        return tuple(place for place, name in enumerate(self.numeric) if name in self.known)

    @property
    def known_categorical(self) -> tuple[int, ...]:
        """Where in `categorical` the columns known in advance are."""
        return tuple(place for place, name in enumerate(self.categorical) if name in self.known)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of codes of each categorical column: its levels and the code 0."""
        return tuple(len(levels) + 1 for levels in self.levels)

    def one_hot(self, codes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Codes (T, C) as indicators (T, number of levels); code 0 is all zeros.

        If there are more than `MOST_INDICATORS`, the columns with the most levels are left out, until there are not.
        """
        sizes = [n - 1 for n in self.cardinalities]
        kept = sorted(range(len(sizes)), key=lambda c: (sizes[c], c))
        kept = sorted(c for c, total in zip(kept, np.cumsum([sizes[c] for c in kept])) if total <= MOST_INDICATORS)
        parts = [codes[:, c, None] == np.arange(1, sizes[c] + 1) for c in kept]
        return np.concatenate(parts, axis=1).astype(np.float64) if parts else np.empty((len(codes), 0))

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, strings and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Schema:
        """The inverse of `as_dict`, also after a trip through JSON. Raises BadInput on an unknown or missing key."""
        names = [f.name for f in fields(cls)]
        for key in saved:
            if key not in names:
                raise BadInput(f"schema: unknown key '{key}'; {nearest(key, names)}")
        if not saved.get("target"):
            raise BadInput("schema: the key 'target' is missing or empty; it names the columns to forecast")
        lists = {k: tuple(saved.get(k, ())) for k in ("target", "series", "numeric", "categorical")}
        levels = tuple(tuple(level) for level in saved.get("levels", ()))
        if len(levels) != len(lists["categorical"]):
            raise BadInput("schema: 'levels' must hold one list for each column of 'categorical'")
        known = tuple(saved.get("known", ()))
        if known != tuple(name for name in (*lists["numeric"], *lists["categorical"]) if name in known):
            raise BadInput("schema: 'known' must name columns of 'numeric' and 'categorical', in their order")
        grid, form = Grid.from_dict(saved.get("grid", {})), saved.get("format")
        return cls(time=saved.get("time"), levels=levels, grid=grid, format=form, known=known, **lists)
