"""What is extreme is refused in one line, or stays finite; what is no table is refused; the end of time is seen."""

import gzip
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from conca.data.encoding import FARTHEST_TARGET, Encoding
from conca.data.grid import Grid
from conca.data.panel import read_panel
from conca.data.schema import MOST_INDICATORS, Schema
from conca.data.table import read_table
from conca.types import BadInput


def refuse(source, *words: str, **roles) -> None:
    with pytest.raises(BadInput) as caught:
        read_panel(source, **({"target": "y"} | roles))
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line, line


@pytest.mark.parametrize("cell", ["1e39", "-1.1e30", "1e200"])
def test_huge_values(tmp_path, cell):
    path = tmp_path / "t.csv"
    path.write_text(f"y,x\n1,2\n{cell},3\n")
    refuse(path, "row 3, column 'y'", f"{float(cell):g}", "larger than 1e+30")
    path.write_text(f"y,x\n1,2\n3,{cell}\n")
    refuse(path, "row 3, column 'x'", f"{float(cell):g}")


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("tiny", [1.0, 1e-150, 1e-300])
def test_values_that_are_large_but_allowed_stay_finite(skewed, tiny):
    draw = np.random.default_rng(0)
    numbers = (draw.exponential(size=(80, 2)) ** 4 if skewed else draw.normal(size=(80, 2))) * tiny
    numbers[70], numbers[75] = 1e30, 0 if skewed else -1e30
    panel = read_panel(pd.DataFrame(numbers, columns=["y", "x"]), target="y")
    for train in (60, 72, 80):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            encoding = Encoding.fit(panel.schema, panel.series, [train])
            rows = encoding.encode(panel.schema, panel.series[0])
        for part in (rows.inputs, rows.anchor, rows.target):
            assert np.isfinite(part).all()
            assert np.abs(part).max() <= FARTHEST_TARGET


def test_a_few_tiny_values_do_not_bend_a_column_beyond_measure():
    column = np.concatenate([np.full(60, 5e-324), np.arange(20.0) ** 3])
    panel = read_panel(pd.DataFrame({"y": np.arange(80.0), "x": column}), target="y")
    encoding = Encoding.fit(panel.schema, panel.series, [80])
    assert np.isfinite(encoding.covariate_bends).all()
    assert np.isfinite(encoding.encode(panel.schema, panel.series[0]).inputs).all()


@pytest.mark.parametrize(
    ("freq", "last"), [("D", "2261-12-29"), ("MS", "2261-11-01"), ("ME", "2261-11-30"), ("h", None)]
)
def test_times_do_not_wrap_round_at_the_end(freq, last):
    times = pd.date_range(end=last or "2261-12-31 22:00", periods=9, freq=freq)
    panel = read_panel(pd.DataFrame({"t": times, "y": np.arange(9.0)}), target="y", time="t")
    grid, end = panel.schema.grid, panel.series[0].times[-1]
    assert grid.future(end, 1)[0] > end
    with pytest.raises(BadInput, match="beyond the year 2261"):
        grid.future(end, 40)


def test_the_last_month_that_can_be_counted():
    times = pd.date_range(end="2261-12-31", periods=9, freq="ME")
    panel = read_panel(pd.DataFrame({"t": times, "y": np.arange(9.0)}), target="y", time="t")
    np.testing.assert_array_equal(panel.series[0].times, times.to_numpy("datetime64[ns]"))


@pytest.mark.parametrize("day", ["2262-02-01", "1677-12-31"])
def test_dates_outside_whole_years_that_can_be_counted(day):
    days = pd.to_datetime(pd.Series([day, "2020-01-01"])).astype("datetime64[ns]")
    refuse(pd.DataFrame({"t": days, "y": [1, 2]}), "between the years 1678 and 2261", time="t")


def test_whole_numbers_do_not_wrap_round():
    with pytest.raises(BadInput, match="too large"):
        Grid("integer", 2**61).future(np.int64(2**61), 2)


def test_spans_that_cannot_be_counted():
    gap = pd.to_datetime(["1690-01-01", "2250-01-01"])
    steps = pd.date_range("1690-01-01", periods=5, freq="36500D")
    for days, at, year in ((gap, 1, "2250"), (steps, 3, "1989")):
        table = pd.DataFrame({"t": [*days, *days], "k": ["a"] * len(days) + ["b"] * len(days), "y": 1.0})
        words = (f"row {at}, column 't'", "of series a", "from 1690", f"to {year}", "292 years")
        refuse(table, *words, time="t", series="k")


def test_three_hundred_years_in_years_are_read():
    times = pd.date_range("1700-01-01", periods=320, freq="YS")
    panel = read_panel(pd.DataFrame({"t": times, "y": np.arange(320.0)}), target="y", time="t")
    assert panel.schema.grid.months == 12
    assert len(panel.series[0]) == 320
    assert len(Encoding.fit(panel.schema, panel.series, [300]).encode(panel.schema, panel.series[0])) == 320


def test_gaps_of_many_series_add_up_beyond_64_bits():
    days = pd.to_datetime(["1970-01-01", "1970-01-02", "2169-01-01", "2230-01-01"])
    table = pd.DataFrame({"t": list(days) * 60, "k": np.repeat(np.arange(60), 4), "y": 1.0})
    panel = read_panel(table, target="y", time="t", series="k")
    assert not panel.schema.grid.regular


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("kind", [float, object])
def test_a_series_with_an_infinite_name(value, kind):
    keys = pd.Series([1.0, 1.0, value], dtype=kind)
    refuse(pd.DataFrame({"k": keys, "y": [1, 2, 3]}), "row 2, column 'k'", "infinite", series="k")


def test_things_that_are_no_tables():
    foreign = type("DataFrame", (), {"__module__": "modin.pandas.dataframe", "to_pandas": None})()
    for source, words in (
        (pa.chunked_array([[1.0]]), "pyarrow.ChunkedArray"),
        (pl.Series("y", [1.0]), "polars.Series"),
        (pl.LazyFrame({"y": [1.0]}), "polars.LazyFrame"),
        (foreign, "modin.DataFrame"),
        (np.zeros((3, 1)), "numpy.ndarray"),
        (pd.Series([1.0], name="y"), "pandas.Series"),
        ({"y": [1, 2]}, "dict"),
        ([1, 2], "list"),
        (b"t.csv", "bytes"),
        (SimpleNamespace(), "SimpleNamespace"),
        (None, "NoneType"),
    ):
        refuse(source, words, "give a pandas data frame or a path")
    for source, method in (
        (foreign, "to_pandas"),
        (pl.LazyFrame({"y": [1.0]}), "collect"),
        (pl.Series([1.0]), "to_frame"),
    ):
        with pytest.raises(BadInput, match=rf"\(\.{method}\(\) makes one\)"):
            read_table(source)


def test_names_that_are_not_text():
    table = pd.DataFrame({0: [1.0, 2.0], "t": [1, 2], "x": [3, 4]})
    refuse(table, "target: 0 is not the name of a column; write '0'", target=0)
    refuse(table, "target", "write '0'", target=[0])
    refuse(table, "time: ['t'] is not the name of one column; write 't'", target="0", time=["t"])
    refuse(table, "series: 1.5 is not the name of a column", target="0", series=1.5)
    refuse(table, "covariates: 7 is not the name", target="0", covariates=[7])
    refuse(table, "categorical: None is not the name", target="0", categorical=[None])
    assert read_panel(table, target="0", covariates="x").schema.numeric == ("x",)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_nul_bytes(tmp_path, name):
    path = tmp_path / name
    text = "time,y\n2020-01-01,1\n"
    for content in (text.encode("utf-16-le"), text.encode("utf-16-be"), text.encode() + b"2020-01-02,\0\0\n"):
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        refuse(path, name, "NUL bytes", "UTF-8")


def test_categories_that_the_training_does_not_meet():
    table = pd.DataFrame(
        {
            "site": ["a"] * 4 + ["b"] * 4,
            "y": np.arange(8.0),
            "wind": ["N", "W", "E", "X", "S", None, "Z", "N"],
            "rain": ["no"] * 4 + ["yes"] * 4,
        }
    )
    panel = read_panel(table, target="y", series="site")
    known = panel.known([3, 2])
    assert known.schema.levels == (("E", "N", "S", "W"), ("no", "yes"))
    assert [one.categorical[:, 0].tolist() for one in known.series] == [[2, 4, 1, 0], [3, 0, 0, 2]]
    assert [one.categorical[:, 1].tolist() for one in known.series] == [[1] * 4, [2] * 4]
    assert known.notices == ["column 'wind': 2 categories are not met in training; they are read as missing"]
    assert panel.schema.levels[0] == ("E", "N", "S", "W", "X", "Z")
    assert panel.known([0, 0]).schema.cardinalities == (1, 1)
    again = read_panel(table, schema=known.schema)
    for one, other in zip(again.series, known.series):
        np.testing.assert_array_equal(one.categorical, other.categorical)


def test_indicators_are_bounded():
    def indicators(*sizes: int) -> int:
        levels = tuple(tuple(f"{i}" for i in range(size)) for size in sizes)
        schema = Schema(("y",), categorical=tuple("abc"[: len(sizes)]), levels=levels)
        codes = np.stack([np.arange(9) % (size + 1) for size in sizes], axis=1)
        return schema.one_hot(codes).shape[1]

    assert indicators(3, 4) == 7
    assert indicators(3, 100_000, 4) == 7
    assert indicators(MOST_INDICATORS) == MOST_INDICATORS
    assert indicators(MOST_INDICATORS + 1) == 0
    schema = Schema(("y",), categorical=("a", "b"), levels=(("p", "q"), ("r",)))
    assert schema.one_hot(np.array([[1, 0], [2, 1], [0, 1]])).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]
