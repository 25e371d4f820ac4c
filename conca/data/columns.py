"""One column of a table becomes numbers, or codes of categories, or an error that names the cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.table import Origin
from conca.types import BadInput

__all__ = ["codes_in", "is_numeric", "levels_of", "numbers_in", "shown", "text_of", "unknown_levels"]

LARGEST = 1e30
"""Numbers beyond this size are refused: squared and summed they would leave the range of single precision."""
NUMERIC_SHARE = 0.5
"""A column with at least this share of numbers among its cells that are not missing is a column of numbers."""


def is_numeric(column: pd.Series[Any]) -> bool:
    """Whether a column holds numbers, by the rule of `read_panel`: its type, else at least half of its cells.

    A column without any value counts as numbers.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return False
    if pd.api.types.is_numeric_dtype(column):
        return True
    text = text_of(column).dropna()
    if not len(text):
        return True
    return bool(pd.to_numeric(text, errors="coerce").notna().mean() >= NUMERIC_SHARE)


def numbers_in(column: pd.Series[Any], origin: Origin, advice: str = "") -> NDArray[np.float64]:
    """The column as numbers, NaN where missing, shape (N,).

    Raises BadInput at text (`advice` is added to what to do), at infinite values and at those beyond `LARGEST`.
    """
    name = str(column.name)
    if pd.api.types.is_complex_dtype(column):
        raise BadInput(f"{origin.name}, column '{name}': complex numbers are not read; give real and imaginary columns")
    if pd.api.types.is_numeric_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        text = text_of(column)
        values = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        broken = np.isnan(values) & text.notna().to_numpy()
        if broken.any():
            at = int(broken.argmax())
            raise BadInput(
                f"{origin.cell(at, name)}: '{shown(text.iloc[at])}' is not a number; "
                f"write a number, or leave the cell empty if the value is missing{advice}"
            )
    infinite = np.isinf(values)
    if infinite.any():
        at = int(infinite.argmax())
        raise BadInput(f"{origin.cell(at, name)}: the value is infinite; correct it")
    large = np.abs(values) > LARGEST
    if large.any():
        at = int(large.argmax())
        raise BadInput(
            f"{origin.cell(at, name)}: the value {values[at]:g} is larger than {LARGEST:g}; "
            "correct it, or leave the cell empty if it is missing"
        )
    return values


def text_of(column: pd.Series[Any]) -> pd.Series[str]:
    """The column as text, missing where missing or blank; whole numbers and booleans as "1", not "1.0" or "True"."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        names = text_of(pd.Series(column.cat.categories))
        return pd.Series(names.array.take(column.cat.codes.to_numpy(), allow_fill=True), name=column.name)
    if pd.api.types.is_bool_dtype(column):
        column = column.astype("Int64")
    elif pd.api.types.is_float_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if (np.isnan(values) | (values == np.rint(values))).all() and np.nanmax(np.abs(values), initial=0) < 2.0**53:
            column = pd.Series(values, name=column.name).astype("Int64")
    elif column.dtype == object:
        column = pd.Series([whole(cell) for cell in column], dtype=object, name=column.name)
    text = column.astype(object).where(column.notna(), None).map(str, na_action="ignore").astype("string").str.strip()
    return text.mask(text == "")


def whole(cell: Any) -> Any:
    """A boolean or a float without a fraction as an integer, any other cell as it is."""
    if isinstance(cell, (bool, np.bool_)) or (isinstance(cell, float) and cell.is_integer()):
        return int(cell)
    return cell


def levels_of(column: pd.Series[Any]) -> tuple[str, ...]:
    """The categories in a column, sorted as text."""
    return tuple(sorted(str(level) for level in text_of(column).dropna().unique()))


def codes_in(column: pd.Series[Any], levels: tuple[str, ...]) -> tuple[NDArray[np.int64], list[str]]:
    """Codes (N,) of a categorical column, and the levels in it that are unknown: level i is i + 1, all else is 0."""
    text = text_of(column)
    codes = pd.Index(levels, dtype=object).get_indexer(pd.Index(text.astype(object))) + 1
    unknown = sorted({str(level) for level in text[(codes == 0) & text.notna()].unique()})
    return np.asarray(codes, dtype=np.int64), unknown


def unknown_levels(name: str, unknown: list[str]) -> str:
    """A line for the user about categories that a schema does not know."""
    some = ", ".join(f"'{shown(level)}'" for level in unknown[:3]) + (", ..." if len(unknown) > 3 else "")
    return f"column '{name}': {len(unknown)} unknown {'category' if len(unknown) == 1 else 'categories'} ({some}), read as missing"


def shown(cell: Any, limit: int = 40) -> str:
    """A cell for an error line, cut if long."""
    text = " ".join(str(cell).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
