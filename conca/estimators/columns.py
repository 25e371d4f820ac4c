"""Which columns of the user's table a forecaster uses, and the frames that go back to the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from conca.data.conventions import conventional
from conca.data.panel import Names, Panel, Schema, as_names, read_panel
from conca.data.table import Source, settled
from conca.data.table import columns_of as columns_in
from conca.estimators.target import only_target
from conca.infer.frame import as_given
from conca.types import BadInput, nearest

__all__ = ["Columns", "as_given", "columns_of", "read_columns"]


@dataclass(frozen=True)
class Columns:
    """What the user said of the columns; the fields are those of `Forecaster.fit`."""

    target: Names | None = None
    time: str | None = None
    series: Names = ()
    covariates: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    known: Sequence[str] = ()
    tz: str | None = None

    @classmethod
    def of(cls, said: dict[str, Any]) -> Columns:
        """From keywords. Raises BadInput for an unknown one."""
        names = [field.name for field in fields(cls)]
        for name in said:
            if name not in names:
                raise BadInput(f"unknown option '{name}'; {nearest(name, names)}")
        return cls(**said)


def columns_of(schema: Schema) -> Columns:
    """The columns of a table that was fitted."""
    return Columns(
        schema.target,
        schema.time,
        schema.series,
        (*schema.numeric, *schema.categorical),
        schema.categorical,
        schema.known,
        schema.grid.zone if schema.grid.local else None,
    )


def read_columns(data: Source, columns: Columns | Schema, *, minimum: int = 1, strict: bool = False) -> Panel:
    """The series of a table. Raises BadInput, one line, as `read_panel` does."""
    if isinstance(columns, Schema):
        return read_panel(data, schema=columns)
    data, target = settled(data), columns.target
    if target is None:
        others = [n for names in (columns.covariates, columns.categorical, columns.known) for n in as_names(names)]
        if not conventional(columns_in(data), (), columns.time, as_names(columns.series), others)[0]:
            target = only_target(data, {*others, *as_names(columns.time), *as_names(columns.series)})
    return read_panel(
        data,
        target=target,
        time=columns.time,
        series=columns.series,
        covariates=columns.covariates,
        categorical=columns.categorical,
        known=columns.known,
        tz=columns.tz,
        minimum=minimum,
        strict=strict,
    )
