"""Tables in Arrow's form: frames of polars, tables of pyarrow, and what else hands its columns on so."""

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from conca.data.panel import read_panel
from conca.data.table import read_table, settled
from conca.types import BadInput

N = 6


def frame_of(zone: str | None = "Europe/Rome") -> pl.DataFrame:
    """A column of every type that a table may have."""
    return pl.DataFrame(
        {
            "t": pl.datetime_range(dt.datetime(2024, 10, 27), periods(N), "1h", eager=True, time_zone=zone),
            "y": [1.0, None, float("nan"), 4.0, 5.0, 6.0],
            "i": [1, None, 3, 4, 5, 2**40],
            "u": pl.Series([1, 2, 3, 4, 5, 255], dtype=pl.UInt8),
            "d": [Decimal("1.50"), None, *[Decimal("-2.25")] * 4],
            "b": [True, None, False, True, True, False],
            "s": ["x", None, "y", "", " z ", "x"],
            "c": pl.Series(["a", "b", None, "a", "b", "a"], dtype=pl.Categorical),
            "e": pl.Series(["a", "b", None, "a", "b", "a"], dtype=pl.Enum(["z", "b", "a"])),
            "n": [None] * N,
            "day": [dt.date(2024, 1, 1 + i) for i in range(N)],
        }
    )


def periods(n: int) -> dt.datetime:
    return dt.datetime(2024, 10, 27) + dt.timedelta(hours=n - 2)  # the clocks go back: one hour more


class Stream:
    """Nothing but the interface."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)


FORMS = {
    "polars": lambda frame: frame,
    "pyarrow": lambda frame: frame.to_arrow(),
    "reader": lambda frame: pa.table(frame).to_reader(),
    "stream": Stream,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_type_of_column(form):
    panel = read_panel(FORMS[form](frame_of()), target="y", time="t")
    schema, series = panel.schema, panel.series[0]
    assert (schema.grid.describe(), schema.grid.zone) == ("1 h", "Europe/Rome")
    assert series.times[0] == np.datetime64("2024-10-26T22:00")
    assert schema.numeric == ("i", "u", "d", "b")
    assert dict(zip(schema.categorical, schema.levels)) == {"s": ("x", "y", "z"), "c": ("a", "b"), "e": ("a", "b")}
    np.testing.assert_array_equal(series.target[:, 0], [1, np.nan, np.nan, 4, 5, 6])
    np.testing.assert_array_equal(series.numeric[:, 0], [1, np.nan, 3, 4, 5, 2**40])
    np.testing.assert_array_equal(series.numeric[:, 2], [1.5, np.nan, -2.25, -2.25, -2.25, -2.25])
    np.testing.assert_array_equal(series.numeric[:, 3], [1, np.nan, 0, 1, 1, 0])
    np.testing.assert_array_equal(series.categorical[:, 0], [1, 0, 2, 0, 3, 1])
    np.testing.assert_array_equal(series.categorical[:, 2], [1, 2, 0, 1, 2, 1])
    assert [line.partition(" is left out")[0] for line in panel.notices] == ["column 'n'", "column 'day'"]


def test_a_polars_frame_is_read_as_the_pandas_frame_that_it_makes():
    frame = frame_of().drop("day")
    one, other = read_panel(frame, target="y", time="t"), read_panel(frame.to_pandas(), target="y", time="t")
    assert one.schema == other.schema
    assert one.notices == other.notices
    for name in ("times", "target", "numeric", "categorical", "given"):
        np.testing.assert_array_equal(getattr(one.series[0], name), getattr(other.series[0], name))
    np.testing.assert_array_equal(read_panel(frame, schema=other.schema).series[0].target, other.series[0].target)


@pytest.mark.parametrize("column", [pl.Date, pl.Datetime("ms"), pl.Datetime("ns"), pl.String])
def test_dates_of_every_precision(column):
    days = pl.Series([dt.date(2024, 2, 27 + i) if i < 3 else dt.date(2024, 3, 1) for i in range(4)])
    panel = read_panel(pl.DataFrame({"ds": days.cast(column), "y": [1.0, 2, 3, 4]}))
    assert panel.schema.grid.describe() == "1 d"
    assert panel.series[0].times[-1] == np.datetime64("2024-03-01")


def test_keys_of_series_are_what_they_are():
    frame = pl.DataFrame({"k": ["007", "NA", "007"], "n": [1, 1, 1], "y": [1.0, 2, 3]})
    assert [one.key for one in read_panel(frame, target="y", series=["k", "n"]).series] == [("007", 1), ("NA", 1)]
    enum = frame.with_columns(pl.col("k").cast(pl.Enum(["NA", "007", "unused"])))
    assert [one.key for one in read_panel(enum, target="y", series="k").series] == [("007",), ("NA",)]


def test_a_pyarrow_table_keeps_the_index_that_pandas_saved_with_it():
    table = pa.Table.from_pandas(pd.DataFrame({"y": [1.0, 2]}, index=pd.DatetimeIndex(["2024-01-01", "2024-01-02"])))
    assert list(read_table(table)) == ["time", "y"]


def test_faults_are_told_as_those_of_a_data_frame():
    for source, words in (
        (pl.DataFrame({"y": [1.0], "x": ["?"], "t": [1]}).clear(), "the table has no rows"),
        (pl.DataFrame(), "the table has no rows"),
        (pa.table([[1.0], [2.0]], names=["y", "y"]), "two columns are named 'y'"),
        (pl.DataFrame({"y": [1.0, float("inf")]}), "table, row 1, column 'y': the value is infinite"),
        (pl.DataFrame({"y": ["1", "2", "x"]}), "table, row 2, column 'y': 'x' is not a number"),
        (pl.DataFrame({"x": [1.0]}), "there is no column 'y'"),
        (pl.DataFrame({"y": pl.Series([1], dtype=pl.Int128)}), "polars.DataFrame cannot be read as a table"),
    ):
        with pytest.raises(BadInput, match=r"^[^\n]*$") as refused:
            read_panel(source, target="y")
        assert words in str(refused.value)


def test_a_stream_that_can_be_read_once_is_settled():
    reader = pa.table({"y": [1.0, 2.0]}).to_reader()
    table = settled(reader)
    assert settled(table) is table
    assert settled("t.csv") == "t.csv"
    assert read_table(table)["y"].tolist() == read_table(table)["y"].tolist() == [1.0, 2.0]


def test_reading_does_without_polars():
    code = "import sys; import conca.data.panel; assert 'polars' not in sys.modules"
    assert not subprocess.run([sys.executable, "-c", code], check=False).returncode
