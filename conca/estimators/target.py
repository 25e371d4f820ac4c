"""The target of a table for which none was named."""

from __future__ import annotations

from collections.abc import Collection

from conca.data.columns import is_numeric
from conca.data.table import Origin, Source, read_table
from conca.types import BadInput

__all__ = ["only_target"]


def only_target(data: Source, taken: Collection[str | None]) -> str:
    """The only column of numbers that is not taken by another role.

    Raises:
        BadInput: if there is none, or more than one; it names them.
    """
    table = read_table(data)
    found = [str(name) for name in table.columns if name not in taken and is_numeric(table[name])]
    if len(found) != 1:
        some = ", ".join(f"'{name}'" for name in found[:5]) + (", ..." if len(found) > 5 else "")
        raise BadInput(
            f"{Origin.of(data).name}: no target is named; name one of the columns of numbers ({some or 'none'})"
        )
    return found[0]
