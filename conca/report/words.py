"""Numbers and spans of time as people read them."""

from __future__ import annotations

import math

from conca.data.grid import Grid

__all__ = ["number", "percent", "size", "span"]

UNITS = ((365.2425 * 86_400, "years"), (86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def number(value: float, digits: int = 4) -> str:
    """A number with so many digits that count: 46.6, 0.000123, 1,234,567."""
    if not math.isfinite(value):
        return "-"
    if value != 0 and abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def percent(share: float, digits: int = 0) -> str:
    """A share in hundredths: 81%."""
    return f"{100 * share:.{digits}f}%" if math.isfinite(share) else "-"


def span(rows: float, grid: Grid) -> str:
    """So many rows in the user's unit of time: "36 hours", "2.5 days"; of a table without dates, "36 rows"."""
    if not math.isfinite(rows):
        return "-"
    if grid.months:
        months = rows * grid.months
        return f"{months / 12:.3g} years" if months >= 24 else f"{months:.3g} months"
    if grid.seconds is None:
        return f"{rows:,.3g} rows" if rows < 1000 else f"{rows:,.0f} rows"
    seconds = rows * grid.seconds
    unit, name = next(((u, n) for u, n in UNITS if seconds >= 2 * u or seconds == u), UNITS[-1])
    value = seconds / unit
    return f"1 {name[:-1]}" if value == 1 else f"{value:.3g} {name}" if value < 1000 else f"{value:,.0f} {name}"


def size(count: float) -> str:
    """Bytes: "512 bytes", "16.5 kB", "2.1 MB"."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"
