"""Names of columns that other forecasting libraries agree on, so that their tables are understood unasked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["CONVENTIONS", "Roles", "conventional", "roles_taken"]

Roles = tuple[tuple[str, ...], str | None, tuple[str, ...]]
"""Target, time and series."""

CONVENTIONS = (("y", "ds", "unique_id"), ("target", "timestamp", "item_id"))
"""Target, time and series of neuralforecast and Prophet, and of GluonTS and AutoGluon."""


def conventional(
    columns: Collection[str],
    target: Sequence[str] = (),
    time: str | None = None,
    series: Sequence[str] = (),
    taken: Collection[str] = (),
) -> Roles:
    """Target, time and series of a table with these columns; what is not named is found by convention.

    A convention holds if the table has its columns of time and target; that of series may lack. A role that is named
    stays as it is, and a column that is named for another role, or `taken` by one, is not used. If two conventions
    hold, or none, nothing is added.

    >>> conventional(["unique_id", "ds", "y", "x"])
    (('y',), 'ds', ('unique_id',))
    >>> conventional(["ds", "y", "x"], target=["x"])
    (('x',), 'ds', ())
    """
    held = [names for names in CONVENTIONS if names[0] in columns and names[1] in columns]
    named = tuple(target), time, tuple(series)
    if len(held) != 1:
        return named
    used = {*target, time, *series, *taken}
    target_name, time_name, series_name = (name if name in columns and name not in used else None for name in held[0])
    return (
        named[0] or (() if target_name is None else (target_name,)),
        time_name if time is None else time,
        named[2] or (() if series_name is None else (series_name,)),
    )


def roles_taken(before: Roles, after: Roles) -> str | None:
    """A line for the user that says which columns `conventional` took as what; None if none."""
    parts = [f"'{after[1]}' as time"] if before[1] != after[1] else []
    parts += [f"'{name}' as target" for name in after[0] if not before[0]]
    parts += [f"'{name}' as series" for name in after[2] if not before[2]]
    return f"taken by their names: {', '.join(parts)}" if parts else None
