"""Tables of other forecasting libraries are understood unasked."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from conca.data.conventions import conventional
from conca.data.panel import read_panel
from conca.data.table import columns_of, read_table
from conca.types import BadInput

NEURAL = ("unique_id", "ds", "y")
GLUON = ("item_id", "timestamp", "target")


def table_of(names, n: int = 8, **more) -> pd.DataFrame:
    series, time, target = names
    return pd.DataFrame(
        {series: ["007", "a"] * n, time: np.repeat(pd.date_range("2024-01-01", periods=n), 2), target: range(2 * n)}
        | more
    )


@pytest.mark.parametrize("names", [NEURAL, GLUON])
@pytest.mark.parametrize("form", ["frame", "t.csv", "t.csv.gz", "t.parquet", "polars"])
def test_columns_found_unasked_in_every_form_of_a_table(tmp_path, names, form):
    table = table_of(names, x=1.5)
    if form == "frame":
        source = table
    elif form == "polars":
        source = pl.from_pandas(table)
    elif form == "t.parquet":
        source = tmp_path / form
        table.to_parquet(source)
    else:
        source = tmp_path / form
        table.to_csv(source, index=False)
    panel = read_panel(source)
    series, time, target = names
    assert (panel.schema.series, panel.schema.time, panel.schema.target) == ((series,), time, (target,))
    assert panel.schema.numeric == ("x",)
    assert [one.key for one in panel.series] == [("007",), ("a",)], "names of series stay text"
    assert panel.notices == [f"taken by their names: '{time}' as time, '{target}' as target, '{series}' as series"]
    assert not read_panel(source, schema=panel.schema).notices


def test_numbers_that_name_series_stay_text_in_a_file(tmp_path):
    table_of(NEURAL).assign(unique_id=["007", "08"] * 8).to_csv(tmp_path / "t.csv", index=False)
    assert [one.key for one in read_panel(tmp_path / "t.csv").series] == [("007",), ("08",)]


def test_names_are_read_without_the_rows(tmp_path):
    (tmp_path / "t.csv").write_text("ds,y\n1,2,3\n")
    assert columns_of(tmp_path / "t.csv") == ["ds", "y"]
    with pytest.raises(BadInput, match="more fields"):
        read_panel(tmp_path / "t.csv")


def test_without_names_of_series_a_table_is_one_series():
    table = table_of(NEURAL).iloc[::2].drop(columns="unique_id")
    panel = read_panel(table)
    assert panel.schema.series == ()
    assert panel.series[0].key == ()
    assert panel.notices == ["taken by their names: 'ds' as time, 'y' as target"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (((), None, ()), (("y",), "ds", ("unique_id",))),
        ((("x",), None, ()), (("x",), "ds", ("unique_id",))),
        ((("y", "x"), None, ()), (("y", "x"), "ds", ("unique_id",))),
        (((), "when", ()), (("y",), "when", ("unique_id",))),
        (((), None, ("site",)), (("y",), "ds", ("site",))),
        ((("ds",), None, ()), (("ds",), None, ("unique_id",))),
        (((), "y", ()), ((), "y", ("unique_id",))),
        (((), None, ("y",)), ((), "ds", ("y",))),
        ((("unique_id",), None, ()), (("unique_id",), "ds", ())),
        ((("x",), "when", ("site",)), (("x",), "when", ("site",))),
    ],
)
def test_a_role_that_is_named_wins_and_no_column_gets_two(given, found):
    assert conventional(["x", "when", "site", *NEURAL], *given) == found


def test_columns_named_as_covariates_are_not_taken():
    table = table_of(NEURAL, x=1.5, k=list("pq") * 8)
    with pytest.raises(BadInput, match="no target is named"):
        read_panel(table, covariates=["y"])
    schema = read_panel(table, target="x", covariates=["y"], categorical=["unique_id"], series="k").schema
    assert (schema.numeric, schema.categorical, schema.series) == (("y",), ("unique_id",), ("k",))


@pytest.mark.parametrize(
    "columns",
    [(*NEURAL, *GLUON), ("ds", "y", "timestamp", "target"), ("ds", "unique_id"), ("y",), ("DS", "Y"), ("ds", "target")],
)
def test_half_a_convention_and_two_are_not_guessed(columns):
    assert conventional(columns) == ((), None, ())
    with pytest.raises(BadInput, match="no target is named"):
        read_panel(pd.DataFrame({name: [1, 2] for name in columns}))


def test_the_series_of_another_convention_are_not_those_of_this_one():
    assert conventional(["item_id", "ds", "y"]) == (("y",), "ds", ())


def test_an_index_of_dates_goes_before_a_convention():
    table = table_of(NEURAL).iloc[::2].drop(columns="unique_id")
    schema = read_panel(table.set_index("ds")).schema
    assert (schema.time, schema.target) == ("ds", ("y",))
    named = table.set_index(pd.DatetimeIndex(table["ds"] + pd.Timedelta("1h"), name="when"))
    panel = read_panel(named)
    assert panel.schema.time == "when"
    assert panel.series[0].times[0] == np.datetime64("2024-01-01T01")


def test_names_are_those_that_the_table_will_have(tmp_path):
    table = table_of(NEURAL)
    table.set_index("unique_id").to_parquet(tmp_path / "i.parquet")
    table.to_csv(tmp_path / "t.csv", index=False, sep=";")
    sources = [table, table.set_index(["unique_id", "ds"]), table.set_index(pd.RangeIndex(5, 21))]
    for source in (*sources, tmp_path / "i.parquet", tmp_path / "t.csv"):
        assert columns_of(source) == list(read_table(source)), source
