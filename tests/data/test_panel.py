"""Tables read as series: roles of columns, order, gaps, categories, what is left out."""

import json
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conca.data.panel import Schema, read_panel
from conca.data.times import restore
from conca.types import BadInput


def table_of(n: int = 6, **more) -> pd.DataFrame:
    return pd.DataFrame({"t": pd.date_range("2020-01-01", periods=n, freq="h"), "y": np.arange(n) + 0.5} | more)


def test_every_other_column_is_a_covariate():
    panel = read_panel(
        table_of(a=range(6), b=[True, None, False] * 2, k=[*"xyxyx", None], d=pd.Timestamp("2020-01-01"), e=None),
        target="y",
        time="t",
    )
    assert panel.schema.numeric == ("a", "b")
    assert panel.schema.categorical == ("k",)
    assert panel.schema.levels == (("x", "y"),)
    assert panel.schema.cardinalities == (3,)
    series = panel.series[0]
    np.testing.assert_array_equal(series.numeric[:, 1], [1, np.nan, 0] * 2)
    np.testing.assert_array_equal(series.categorical[:, 0], [1, 2, 1, 2, 1, 0])
    np.testing.assert_array_equal(panel.schema.one_hot(series.categorical)[-2:], [[1, 0], [0, 0]])
    assert [line.split(" is left out")[0] for line in panel.notices] == ["column 'd'", "column 'e'"]
    assert series.key == ()
    assert series.given.all()
    assert len(series) == 6


def test_covariates_are_those_named_in_that_order():
    table = table_of(a=range(6), b=range(6), k=list("xyxyxy"))
    assert read_panel(table, target="y", time="t", covariates=["b"]).schema.numeric == ("b",)
    assert read_panel(table, target="y", time="t", covariates=[]).schema.columns == ("t", "y")
    schema = read_panel(table, target="y", time="t", covariates=["b"], categorical=["a"]).schema
    assert (schema.numeric, schema.categorical, schema.levels) == (("b",), ("a",), (tuple("012345"),))


def test_texts_that_hardly_repeat_are_left_out_unless_named():
    table = table_of(200, note=[f"note {i}" for i in range(200)])
    panel = read_panel(table, target="y", time="t")
    assert panel.schema.categorical == ()
    assert panel.notices == ["column 'note' is left out: it holds 200 different texts in 200 rows"]
    assert read_panel(table, target="y", time="t", covariates=["note"]).schema.cardinalities == (201,)


def test_several_targets():
    table = table_of(z=[None, "1", "2", "3", None, "5"])
    panel = read_panel(table, target=["z", "y"], time="t")
    np.testing.assert_array_equal(panel.series[0].target[:2], [[np.nan, 0.5], [1, 1.5]])


def test_rows_are_sorted_within_each_series_with_one_notice():
    table = table_of(s=list("bababa"), x=range(6))
    shuffled = table.iloc[[5, 3, 0, 1, 4, 2]]
    panel = read_panel(shuffled, target="y", time="t", series="s")
    assert panel.notices == ["rows were sorted by 't' within each series"]
    assert [series.key for series in panel.series] == [("a",), ("b",)]
    np.testing.assert_array_equal(panel.series[0].numeric[:, 0], [1, 3, 5])
    np.testing.assert_array_equal(panel.series[1].target[:, 0], [0.5, 2.5, 4.5])
    assert not read_panel(table.sort_values(["s", "t"]), target="y", time="t", series="s").notices
    assert not read_panel(table, target="y", time="t", series="s").notices, "series may be interleaved"


def test_gaps_become_rows_that_are_missing():
    table = table_of(6, x=range(6), k=list("aabbab")).iloc[[0, 1, 4, 5]]
    panel = read_panel(table, target="y", time="t")
    series = panel.series[0]
    np.testing.assert_array_equal(series.given, [1, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(series.target[:, 0], [0.5, 1.5, np.nan, np.nan, 4.5, 5.5])
    np.testing.assert_array_equal(series.numeric[:, 0], [0, 1, np.nan, np.nan, 4, 5])
    np.testing.assert_array_equal(series.categorical[:, 0], [1, 1, 0, 0, 1, 2])
    np.testing.assert_array_equal(series.times, table_of(6)["t"])
    assert panel.notices == ["2 of 6 rows on the grid of 1 h are not in the table; they count as missing"]


def test_a_gap_is_the_same_as_rows_of_missing_values():
    full = table_of(30, x=np.arange(30.0), k=list("abc") * 10)
    lost = np.random.default_rng(0).random(30) < 0.3
    lost[[0, 1, -1]] = False
    holes = full.copy()
    holes.loc[lost, ["y", "x", "k"]] = None
    one = read_panel(full[~lost], target="y", time="t").series[0]
    other = read_panel(holes, target="y", time="t").series[0]
    for name in ("times", "target", "numeric", "categorical"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.given, ~lost)


def test_without_a_time_column_the_order_of_rows_is_time():
    table = pd.DataFrame({"y": [1.0, 2, 3, 4, 5], "s": [1, 2, 1, 2, 1]})
    panel = read_panel(table, target="y", series="s")
    assert panel.schema.grid.kind == "row"
    assert [s.key for s in panel.series] == [(1,), (2,)]
    np.testing.assert_array_equal(panel.series[0].target[:, 0], [1, 3, 5])
    np.testing.assert_array_equal(panel.series[0].times, [0, 1, 2])
    np.testing.assert_array_equal(panel.series[1].times, [0, 1])


def test_several_series_columns_and_series_of_unequal_beginning():
    table = pd.DataFrame(
        {"a": ["x", "x", "y", "x", "x"], "b": [1, 1, 1, 2, 2], "t": [10, 30, 17, 5, 15], "y": [1.0, 2, 3, 4, 5]}
    )
    panel = read_panel(table, target="y", time="t", series=["a", "b"])
    assert panel.schema.grid.step == 10
    assert [s.key for s in panel.series] == [("x", 1), ("y", 1), ("x", 2)]
    assert [s.times.tolist() for s in panel.series] == [[10, 20, 30], [17], [5, 15]]


def test_names_of_series_stay_what_they_are(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("s,y\n007,1\n007,2\nNA,3\n1.50,4\n")
    assert [s.key for s in read_panel(path, target="y", series="s").series] == [("007",), ("NA",), ("1.50",)]
    frame = pd.DataFrame({"s": pd.Categorical(["b", "a", "b"], categories=["a", "b", "unused"]), "y": [1.0, 2, 3]})
    assert [s.key for s in read_panel(frame, target="y", series="s").series] == [("b",), ("a",)]


def test_series_too_short_or_empty_are_left_out_counted_and_listed():
    table = pd.DataFrame({"s": list("aaabbccc"), "y": [1, 2, 3, 1, 2, None, None, None]})
    panel = read_panel(table, target="y", series="s", minimum=3)
    assert [s.key for s in panel.series] == [("a",)]
    assert panel.left_out == [(("b",), "2 rows, 3 needed"), (("c",), "target missing throughout")]
    assert panel.notices == ["2 of 3 series left out (series b: 2 rows, 3 needed; series c: target missing throughout)"]


def test_the_least_length_counts_rows_of_the_grid():
    table = pd.DataFrame({"t": [0, 1, 9], "y": [1.0, 2, 3]})
    assert len(read_panel(table, target="y", time="t", minimum=10).series[0]) == 10


def test_categories_are_known_by_what_they_say_not_by_their_type():
    fitted = read_panel(pd.DataFrame({"y": [1, 2, 3], "k": [10, 2, 2]}), target="y", categorical=["k"]).schema
    assert fitted.levels == (("10", "2"),)
    for column in (
        [2.0, None, 10.0],
        ["2", None, "10 "],
        pd.array([2, None, 10], dtype="Int64"),
        pd.Categorical([2, None, 10]),
    ):
        panel = read_panel(pd.DataFrame({"y": [1, 2, 3], "k": column}), schema=fitted)
        np.testing.assert_array_equal(panel.series[0].categorical[:, 0], [2, 0, 1])
        assert not panel.notices


def test_unknown_categories_read_as_missing_with_a_notice():
    schema = read_panel(pd.DataFrame({"y": [1, 2], "k": ["a", "b"]}), target="y").schema
    panel = read_panel(pd.DataFrame({"y": [1, 2, 3], "k": ["z", "b", None], "more": 1}), schema=schema)
    np.testing.assert_array_equal(panel.series[0].categorical[:, 0], [0, 2, 0])
    assert panel.notices == ["column 'k': 1 unknown category ('z'), read as missing"]
    assert panel.schema is schema


def test_booleans_as_categories():
    for column in ([True, False, True], [True, None, False], pd.Categorical([True, False, True])):
        schema = read_panel(pd.DataFrame({"y": [1, 2, 3], "k": column}), target="y", categorical=["k"]).schema
        assert schema.levels == (("0", "1"),)


def test_a_schema_survives_json_and_reads_the_same():
    table = table_of(48, s=["a", "b"] * 24, k=list("xyz") * 16, x=range(48))
    table["t"] = table["t"].dt.tz_localize("Europe/Rome")
    panel = read_panel(table, target="y", time="t", series="s", categorical=["k"])
    schema = Schema.from_dict(json.loads(json.dumps(panel.schema.as_dict())))
    assert schema == panel.schema
    again = read_panel(table.sample(frac=1, random_state=0), schema=schema)
    by_key = {series.key: series for series in again.series}
    for series in panel.series:
        for name in ("times", "target", "numeric", "categorical", "given"):
            np.testing.assert_array_equal(getattr(series, name), getattr(by_key[series.key], name))


def test_a_few_new_rows_may_be_apart():
    schema = read_panel(table_of(), target="y", time="t").schema
    panel = read_panel(table_of().iloc[[0, 3, 5]], schema=schema)
    assert len(panel.series[0]) == 6


def test_the_same_table_always_fits_its_own_schema():
    table = table_of(2000)
    kept = np.random.default_rng(1).random(2000) < 0.6
    panel = read_panel(table[kept], target="y", time="t")
    again = read_panel(table[kept], schema=panel.schema)
    np.testing.assert_array_equal(panel.series[0].target, again.series[0].target)


def test_one_row_and_one_column():
    panel = read_panel(pd.DataFrame({"y": [3]}), target="y")
    assert panel.series[0].target.shape == (1, 1)
    assert panel.series[0].numeric.shape == (1, 0)
    assert panel.series[0].categorical.shape == (1, 0)
    assert panel.schema.one_hot(panel.series[0].categorical).shape == (1, 0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_arrive_where_they_belong_whatever_their_order(data):
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    step = data.draw(st.sampled_from([1, 7, 3600]))
    rows = []
    for key, size in enumerate(sizes):
        begin = data.draw(st.integers(-50, 50))
        places = sorted(data.draw(st.sets(st.integers(0, 20), min_size=size, max_size=size)))
        rows += [(f"s{key}", begin + step * place, float(np.random.default_rng(place).normal())) for place in places]
    rows = data.draw(st.permutations(rows))
    table = pd.DataFrame(rows, columns=["s", "t", "y"])
    panel = read_panel(table, target="y", time="t", series="s")
    found = [
        (series.key[0], int(when), float(y))
        for series in panel.series
        for when, y, is_row in zip(series.times, series.target[:, 0], series.given)
        if is_row
    ]
    assert sorted(found) == sorted(rows)
    for series in panel.series:
        assert (np.diff(series.times) > 0).all()
        assert np.isnan(series.target[~series.given]).all()


CELLS = [
    "1",
    "2.5",
    "",
    "NA",
    "a",
    "?",
    "2020-01-01",
    "2020-01-03 00:00",
    "1e999",
    '"x,1"',
    "é",
    "5",
    "True",
    "now",
    "2024-10-27 02:30",
    "2024-03-31 02:30",
    "2024-10-27 02:30+01:00",
    " ",
    "9" * 20,
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(*[st.sampled_from(CELLS)] * 4), max_size=6),
    st.sampled_from(
        [
            {},
            {"time": "t"},
            {"series": "s"},
            {"time": "t", "series": "s"},
            {"categorical": ["k"]},
            {"time": "t", "tz": "Europe/Rome"},
            {"known": ["k", "s"]},
        ]
    ),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2),
)
def test_any_file_is_read_or_refused_in_one_line(tmp_path, rows, roles, damage):
    content = bytearray("\n".join(map(",".join, [("t", "y", "s", "k"), *rows])).encode())
    for place, byte in damage:
        content[place % len(content)] = byte
    path = tmp_path / "t.csv"
    path.write_bytes(bytes(content))
    try:
        panel = read_panel(path, target="y", **roles)
    except BadInput as refused:
        assert len(str(refused).splitlines()) == 1
        return
    again = read_panel(path, schema=panel.schema)
    for one, other in zip(panel.series, again.series, strict=True):
        np.testing.assert_array_equal(one.target, other.target)
        assert not np.isinf(one.target).any()


def test_large_tables_are_read_in_a_few_seconds():
    n, length = 1000, 1000
    table = pd.DataFrame(
        {
            "s": np.repeat(np.arange(n), length),
            "t": np.tile(pd.date_range("2020-01-01", periods=length, freq="h").to_numpy(), n),
            "y": np.arange(n * length, dtype=float),
            "k": np.tile(np.array(["a", "b"], dtype=object), n * length // 2),
        }
    )
    start = time.process_time()
    panel = read_panel(table, target="y", time="t", series="s")
    assert time.process_time() - start < 10
    assert len(panel) == n
    assert panel.series[-1].target[-1, 0] == n * length - 1


def test_times_of_the_forecast_come_back_in_the_users_zone():
    table = table_of()
    table["t"] = table["t"].dt.tz_localize("Europe/Rome")
    panel = read_panel(table, target="y", time="t")
    series, grid = panel.series[0], panel.schema.grid
    assert restore(series.times, grid).tolist() == table["t"].tolist()
    assert restore(grid.future(series.times[-1], 1), grid)[0] == table["t"].iloc[-1] + pd.Timedelta("1h")
    assert replace(grid, zone=None).describe() == "1 h"
    with pytest.raises(AttributeError):
        series.key = ("other",)
