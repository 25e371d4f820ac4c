"""Numbers and spans of time as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conca.data.grid import Grid

__all__ = ["aligned", "listing", "number", "percent", "size", "span"]

UNITS = ((365.2425 * 86_400, "years"), (86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def number(value: float, digits: int = 4) -> str:
    """A number with so many digits that count: 46.6, 0.000123, 1,234,567."""
    if not math.isfinite(value):
        return "-"
    if value != 0 and abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def aligned(values: Sequence[float]) -> list[str]:
    """Numbers of one column, all with as many decimals as leave the smallest 3 or 4 digits that count: 67.76, 99.60.

    Those of very different magnitude each have their own.
    """
    sizes = [math.floor(math.log10(abs(v))) for v in values if math.isfinite(v) and v != 0]
    low, high = min(sizes, default=0), max(sizes, default=0)
    if high - low > 3 or low < -5 or high > 11:
        return [number(v) for v in values]
    decimals = max(0, (3 if low == high else 2) - low)
    return [f"{v:,.{decimals}f}" if math.isfinite(v) else "-" for v in values]


def listing(words: Sequence[str]) -> str:
    """One after the other: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


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
