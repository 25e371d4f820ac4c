"""Covariates known in advance: named, asked for, read, and refused by name where a row lacks."""

import json
import time

import numpy as np
import pandas as pd
import polars as pl
import pytest

from conca.data.future import empty_future, read_future
from conca.data.panel import Schema, read_panel
from conca.data.times import restore
from conca.types import BadInput

H = 4
KNOWN = ("holiday", "plan", "price")


def table_of(times, names=("a",), **more) -> pd.DataFrame:
    n = len(times)
    parts = [
        pd.DataFrame(
            {
                "s": name,
                "t": times,
                "y": np.arange(n) + 0.5,
                "price": np.arange(n) + 100.0 * place,
                "wind": np.sin(np.arange(n)),
                "plan": ["idle", "busy", "shut"][place]
                if n == 1
                else [["idle", "busy", "shut"][i % 3] for i in range(n)],
                "holiday": np.arange(n) % 2 == 0,
            }
        )
        for place, name in enumerate(names)
    ]
    return pd.concat(parts, ignore_index=True).assign(**more)


def fit(table, rows: int | None = None, **roles):
    """The panel of the first rows of each series, and the ends of its series."""
    head = table if rows is None else table.groupby("s", sort=False).head(rows)
    roles = {"target": "y", "time": "t", "series": "s", "known": KNOWN} | roles
    panel = read_panel(head, **roles)
    return panel, [(one.key, one.times[-1]) for one in panel.series]


def refuse(call, *words: str) -> str:
    with pytest.raises(BadInput) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line, line
    return line


HOURS = pd.date_range("2024-01-05", periods=30, freq="h")


def test_names_of_known_columns_are_kept_in_the_order_of_the_covariates():
    schema = fit(table_of(HOURS), categorical="holiday")[0].schema
    assert (schema.numeric, schema.categorical) == (("price", "wind"), ("plan", "holiday"))
    assert schema.known == ("price", "plan", "holiday")
    assert (schema.known_numeric, schema.known_categorical) == ((0,), (0, 1))
    assert Schema.from_dict(json.loads(json.dumps(schema.as_dict()))) == schema
    chosen = fit(table_of(HOURS), covariates=["wind"], known="holiday")[0].schema
    assert (chosen.numeric, chosen.known, chosen.known_numeric) == (("wind", "holiday"), ("holiday",), (1,))
    assert fit(table_of(HOURS), covariates=[], known=["plan"])[0].schema.columns == ("s", "t", "y", "plan")
    assert fit(table_of(HOURS), known=())[0].schema.known == ()


def test_schemas_written_before_there_were_known_columns():
    saved = fit(table_of(HOURS))[0].schema.as_dict()
    for key in ("known", "format"):
        del saved[key]
    assert Schema.from_dict(saved).known == ()
    for known in (["y"], ["plan", "price"], ["price", "price"], ["pric"]):
        refuse(lambda known=known: Schema.from_dict(saved | {"known": known}), "schema: 'known' must name columns")


@pytest.mark.parametrize("role", ["target", "time", "series"])
def test_what_has_a_role_is_not_a_known_covariate(role):
    column = {"target": "y", "time": "t", "series": "s"}[role]
    refuse(lambda: fit(table_of(HOURS), known=[column]), f"'{column}' is named as {role} and as known in advance")


def test_known_columns_that_cannot_be():
    refuse(lambda: fit(table_of(HOURS), known=["holidy"]), "no column 'holidy'; did you mean 'holiday'?")
    refuse(lambda: fit(table_of(HOURS), known=[3]), "known: 3 is not the name of a column")
    refuse(lambda: fit(table_of(HOURS, e=None), known=["e"]), "column 'e': it has no values")
    table = table_of(HOURS).rename(columns={"t": "ds"})
    assert read_panel(table, known=["holiday"], series="s").schema.target == ("y",)
    refuse(lambda: read_panel(table, known=["y"], series="s"), "no target is named")


def test_missing_values_of_known_columns_are_missing_values():
    table = table_of(HOURS).astype({"holiday": object})
    table.loc[3, list(KNOWN)] = None
    series = fit(table)[0].series[0]
    assert np.isnan(series.numeric[3, [0, 2]]).all()
    assert series.categorical[3, 0] == 0


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize("freq", ["h", "D", "MS", "ME"])
@pytest.mark.parametrize("form", ["whole", "rest", "shuffled", "polars", "csv"])
def test_the_steps_ahead_are_found(tmp_path, zone, freq, form):
    table = table_of(pd.date_range("2024-01-31", periods=30, freq=freq, tz=zone), names=("b", "a"))
    panel, ends = fit(table, 30 - H)
    source = table.drop(columns="y") if form == "whole" else table.groupby("s").tail(H)[["plan", "s", *KNOWN[::2], "t"]]
    source = source.sample(frac=1, random_state=1) if form == "shuffled" else source
    if form == "polars":
        source = pl.from_pandas(source)
    elif form == "csv":
        source.to_csv(tmp_path / "future.csv", index=False)
        source = tmp_path / "future.csv"
    notices: list[str] = []
    found = read_future(source, panel.schema, ends, H, notices)
    whole = read_panel(table, schema=panel.schema)
    for future, series in zip(found, whole.series, strict=True):
        np.testing.assert_array_equal(future.numeric, series.numeric[-H:, panel.schema.known_numeric])
        np.testing.assert_array_equal(future.categorical, series.categorical[-H:, panel.schema.known_categorical])
        assert len(future) == H
    assert notices == (["rows were sorted by 't' within each series"] if form == "shuffled" else [])


@pytest.mark.parametrize("zone", ["Europe/Rome", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("step", ["1h", "30min"])
def test_a_future_in_local_times_through_the_repeated_hour(zone, step):
    changes = {"Europe/Rome": "2024-10-27 01:00", "America/New_York": "2024-11-03 06:00"}
    change = pd.Timestamp(changes.get(zone, "2024-04-06 15:00"), tz="UTC")
    times = pd.date_range(change - 30 * pd.Timedelta(step), periods=60, freq=step).tz_convert(zone)
    table = table_of(times).assign(local=times.tz_localize(None))
    for rows in range(26, 36):
        for horizon in (1, 3):
            panel, ends = fit(table, rows, time="local", tz=zone, covariates=["price"], known=["price"])
            expected = np.arange(rows, rows + horizon)
            for future in (table.iloc[rows : rows + horizon], table.iloc[rows:], table):
                (found,) = read_future(future, panel.schema, ends, horizon)
                np.testing.assert_array_equal(found.numeric[:, 0], expected, err_msg=f"{rows} {horizon} {len(future)}")
            aware = table.assign(local=times).iloc[rows:]
            np.testing.assert_array_equal(read_future(aware, panel.schema, ends, horizon)[0].numeric[:, 0], expected)


@pytest.mark.parametrize(
    "times",
    [
        pd.date_range("2024-10-26", periods=30, freq="h", tz="Europe/Rome"),
        pd.date_range("2024-10-26", periods=30, freq="D", tz="Europe/Rome"),
        pd.date_range("2024-01-31", periods=30, freq="ME"),
        pd.to_datetime("2024-01-01") + pd.to_timedelta(np.cumsum(np.arange(30) % 7 + 1), unit="min"),
        range(0, 300, 10),
        None,
    ],
    ids=["zone", "days", "months", "uneven", "numbers", "rows"],
)
@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_the_empty_table_is_filled_in_and_read(tmp_path, times, form):
    table = table_of(range(30) if times is None else times, names=("007", "b"))
    time = None if times is None else "t"
    table = table.drop(columns="t") if times is None else table
    panel, ends = fit(table, time=time)
    empty = empty_future(panel.schema, ends, H)
    assert list(empty) == ["s", *([] if times is None else ["t"]), *panel.schema.known]
    assert len(empty) == 2 * H
    assert empty[list(panel.schema.known)].isna().all().all()
    if time:
        ahead = [panel.schema.grid.future(last, H) for _, last in ends]
        assert list(empty["t"]) == list(restore(np.concatenate(ahead), panel.schema.grid))
    path = empty if form == "frame" else tmp_path / f"future.{form}"
    if form != "frame":
        getattr(empty, f"to_{form}")(path, index=False)
    notices: list[str] = []
    nothing = read_future(path, panel.schema, ends, H, notices)
    assert all(np.isnan(one.numeric).all() and not one.categorical.any() for one in nothing)
    assert len(notices) == 3
    assert notices[0] == "column 'price': 8 of 8 values known in advance are missing"
    filled = empty.assign(price=np.arange(8.0), plan=["busy", "shut"] * 4, holiday=1)
    if form != "frame":
        getattr(filled, f"to_{form}")(path, index=False)
    one, other = read_future(filled if form == "frame" else path, panel.schema, ends, H)
    np.testing.assert_array_equal(one.numeric, np.stack([np.arange(4.0), np.ones(4)], axis=1))
    np.testing.assert_array_equal(other.numeric[:, 0], np.arange(4.0, 8.0))
    np.testing.assert_array_equal(other.categorical[:, 0], [1, 3, 1, 3])


def test_a_missing_row_is_named(tmp_path):
    table = table_of(HOURS, names=("a", "b"))
    panel, ends = fit(table, 26)
    path = tmp_path / "future.csv"
    table.drop(index=[57, 58]).to_csv(path, index=False)
    line = refuse(lambda: read_future(path, panel.schema, ends, H))
    assert line == (
        f"{path}: the row of series b at 2024-01-06 03:00:00 is missing; "
        "give a row for each step ahead (--make-future writes them, without values)"
    )
    only_one = table[table["s"] == "a"]
    refuse(
        lambda: read_future(only_one, panel.schema, ends, H),
        "future: the row of series b at 2024-01-06 02:00:00 is missing",
    )
    refuse(lambda: read_future(table, panel.schema, ends, H + 1), "series a at 2024-01-06 06:00:00")
    single, end = fit(only_one, 26, series=(), covariates=[])
    refuse(
        lambda: read_future(only_one.head(28), single.schema, end, H),
        "future: the row at 2024-01-06 04:00:00 is missing",
    )


def test_other_faults_of_a_future_table():
    table = table_of(HOURS)
    panel, ends = fit(table, 26)
    schema, rest = panel.schema, table.tail(H)

    def read(source, horizon=H):
        return lambda: read_future(source, schema, ends, horizon)

    refuse(read(rest.drop(columns="plan")), "there is no column 'plan'")
    refuse(read(rest.drop(columns="t")), "there is no column 't'")
    refuse(read(rest.drop(columns="s")), "there is no column 's'")
    refuse(read(pd.concat([rest, rest.tail(1)])), "row 3 and row 4 of series a have the same time 2024-01-06 05:00:00")
    shifted = rest.assign(t=rest["t"] + pd.Timedelta("30min"))
    refuse(
        read(shifted),
        "row 0, column 't'",
        "2024-01-06 02:30:00 of series a",
        "none of the steps of 1 h from 2024-01-06 02:00",
    )
    refuse(read(rest.assign(price="x")), "row 0, column 'price': 'x' is not a number")
    refuse(read(rest.assign(price=np.inf)), "row 0, column 'price': the value is infinite")
    refuse(read(rest.assign(t=None)), "the time is missing")
    refuse(read(rest.assign(t=range(H))), "times are whole numbers, but the model was fitted on dates")
    refuse(read(rest.assign(t=rest["t"].dt.tz_localize("UTC"))), "without a time zone")
    refuse(read(pd.Series([1.0])), "not read as a table")
    plain = fit(table, known=())[0].schema
    for call in (lambda: read_future(rest, plain, ends, H), lambda: empty_future(plain, ends, H)):
        refuse(call, "no column in advance", "--known")


def test_values_that_are_missing_or_unknown_are_told():
    table = table_of(HOURS)
    panel, ends = fit(table, 26)
    rest = table.tail(H).astype({"holiday": object})
    rest.iloc[1, rest.columns.get_loc("holiday")] = None
    rest.iloc[2, rest.columns.get_loc("plan")] = "new"
    notices: list[str] = []
    (found,) = read_future(rest, panel.schema, ends, H, notices)
    assert np.isnan(found.numeric[:, 1]).tolist() == [False, True, False, False]
    assert (found.categorical[:, 0] == 0).tolist() == [False, False, True, False]
    assert sorted(notices) == [
        "column 'holiday': 1 of 4 values known in advance are missing",
        "column 'plan': 1 unknown category ('new'), read as missing",
    ]


def test_without_a_time_column_rows_are_counted():
    table = table_of(HOURS, names=("a", "b")).drop(columns="t")
    panel, ends = fit(table, time=None)
    rest = pd.concat([table[table["s"] == name].head(H + 1) for name in ("b", "a")])
    found = read_future(rest, panel.schema, ends, H)
    np.testing.assert_array_equal(found[0].numeric[:, 0], np.arange(4.0))
    np.testing.assert_array_equal(found[1].numeric[:, 0], np.arange(100.0, 104.0))
    refuse(
        lambda: read_future(rest.iloc[:-2], panel.schema, ends, H),
        "future: there are 3 rows of series a, and 4 steps ahead",
    )
    refuse(lambda: read_future(rest.iloc[:5], panel.schema, ends, H), "there are 0 rows of series a")


def test_ends_may_be_integers_and_keys_of_another_type(tmp_path):
    table = table_of(HOURS).assign(s=7)
    panel, ends = fit(table, 26)
    table.to_csv(tmp_path / "f.csv", index=False)
    whole = [(("7",), int(last.astype(np.int64))) for _, last in ends]
    for given in (ends, whole):
        np.testing.assert_array_equal(
            read_future(tmp_path / "f.csv", panel.schema, given, H)[0].numeric[:, 0], np.arange(26.0, 30)
        )


def test_a_thousand_series_ahead_are_found_in_a_second():
    names = [f"s{i}" for i in range(1000)]
    table = table_of(HOURS, names=names[:3])
    table = pd.concat([table[table["s"] == "s0"].assign(s=name) for name in names], ignore_index=True)
    panel, ends = fit(table, 26)
    start = time.process_time()
    assert len(read_future(table, panel.schema, ends, H)) == 1000
    assert len(empty_future(panel.schema, ends, H)) == 1000 * H
    assert time.process_time() - start < 2
