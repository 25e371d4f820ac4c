"""Rows that are not there and rows of missing values are the same; uneven times; a thousand short series."""

import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conca.data.local import moments
from conca.data.panel import Panel, read_panel
from conca.types import BadInput

N = 70
ROME = "Europe/Rome"
PARTS = ("times", "target", "numeric", "categorical")
CALENDARS = {
    "seconds": pd.date_range("2024-01-01", periods=N, freq="10s"),
    "hours": pd.date_range("2024-01-01", periods=N, freq="h"),
    "days": pd.date_range("2024-01-01", periods=N),
    "months": pd.date_range("2000-01-01", periods=N, freq="MS"),
    "ends of months": pd.date_range("2000-01-31", periods=N, freq="ME"),
    "quarters": pd.date_range("2000-01-01", periods=N, freq="QS"),
    "numbers": pd.Index(range(50, 50 + 7 * N, 7)),
    "hours of a zone": pd.date_range("2024-10-26", periods=N, freq="h", tz=ROME),
    "days of a zone": pd.date_range("2024-02-01", periods=N, tz=ROME),
    "months of a zone": pd.date_range("2019-02-01", periods=N, freq="MS", tz=ROME),
    "local hours of autumn": pd.date_range("2024-10-26", periods=N, freq="h", tz=ROME),
    "local half hours of spring": pd.date_range("2024-03-31", periods=N, freq="30min", tz=ROME),
    "local quarters of an hour": pd.date_range("2024-10-26 20:00", periods=N, freq="15min", tz=ROME),
    "local days": pd.date_range("2024-03-01", periods=N, tz=ROME),
}


def table_of(name: str, names=("b", "a")) -> tuple[pd.DataFrame, dict]:
    """A full table, each series beginning a little later, and how it is read."""
    times = CALENDARS[name]
    local = name.startswith("local")
    if local:
        times = times.tz_localize(None)
    parts = []
    for place, one in enumerate(names):
        at = np.arange(3 * place, N)
        draw = np.random.default_rng(place)
        part = {
            "s": one,
            "t": times[at],
            "y": draw.normal(size=len(at)),
            "x": at,
            "flag": at % 3 == 0,
            "k": draw.choice(list("pqr"), len(at)),
        }
        parts.append(pd.DataFrame(part))
    table = pd.concat(parts, ignore_index=True)
    return table, {"target": "y", "time": "t", "series": "s"} | ({"tz": ROME} if local else {})


def may_be_lost(table: pd.DataFrame, name: str) -> np.ndarray:
    """Not the first and the last row of a series; nor, of local times, the first half of the repeated hour: who finds an
    hour once cannot know which one it was."""
    lose = np.ones(len(table), dtype=bool)
    lose[table.groupby("s").head(1).index] = lose[table.groupby("s").tail(1).index] = False
    if name.startswith("local"):
        local = pd.DatetimeIndex(table["t"]).as_unit("ns").asi8
        first, second = moments(local, ROME)
        lose[(first != second) & ~table.duplicated(["s", "t"]).to_numpy()] = False
    return lose


def with_holes(table: pd.DataFrame, lost: np.ndarray) -> pd.DataFrame:
    holes = table.astype({"flag": object})
    holes.loc[lost, ["y", "x", "flag", "k"]] = None
    return holes


def check_same(one: Panel, other: Panel) -> None:
    assert one.schema == other.schema
    for a, b in zip(one.series, other.series, strict=True):
        assert a.key == b.key
        for part in PARTS:
            np.testing.assert_array_equal(getattr(a, part), getattr(b, part), err_msg=part)


@pytest.mark.parametrize("name", CALENDARS)
@settings(max_examples=12, deadline=None)
@given(share=st.floats(0, 0.5), seed=st.integers(0, 2**31))
def test_rows_that_lack_are_rows_of_missing_values(name, share, seed):
    table, roles = table_of(name)
    lost = may_be_lost(table, name) & (np.random.default_rng(seed).random(len(table)) < share)
    absent, missing = read_panel(table[~lost], **roles), read_panel(with_holes(table, lost), **roles)
    check_same(absent, missing)
    assert all(one.given.all() for one in missing.series)
    assert sum(int((~one.given).sum()) for one in absent.series) == lost.sum()
    whole = read_panel(table, **roles)
    assert absent.schema.grid == whole.schema.grid
    again, holes = (read_panel(form, schema=whole.schema) for form in (table[~lost], with_holes(table, lost)))
    check_same(again, holes)
    assert [one.times.tolist() for one in again.series] == [one.times.tolist() for one in whole.series]


@pytest.mark.parametrize("name", CALENDARS)
def test_long_gaps_too(name):
    table, roles = table_of(name)
    lost = may_be_lost(table, name) & (np.arange(len(table)) % N > 12) & (np.arange(len(table)) % N < 60)
    check_same(read_panel(table[~lost], **roles), read_panel(with_holes(table, lost), **roles))


def test_a_new_table_may_have_gaps_everywhere():
    table, roles = table_of("hours", names=("a",))
    schema = read_panel(table, **roles).schema
    few = np.isin(np.arange(N), [0, 2, 5, 9, 11, 20])
    panel = read_panel(table[few], schema=schema)
    check_same(panel, read_panel(with_holes(table, ~few).iloc[:21], schema=schema))
    with pytest.raises(BadInput, match="rows are 2 h apart, but the model was fitted on 1 h"):
        read_panel(table.iloc[::2], schema=schema)


def test_rows_of_missing_values_at_both_ends_are_kept():
    table, roles = table_of("hours", names=("a",))
    lost = (np.arange(N) < 5) | (np.arange(N) >= N - 4)
    panel = read_panel(with_holes(table, lost), **roles)
    assert len(panel.series[0]) == N
    assert np.isnan(panel.series[0].target[lost]).all()
    assert len(read_panel(table[~lost], **roles).series[0]) == N - 9


def test_texts_are_counted_in_the_rows_that_have_them():
    for rows, kept in ((690, False), (700, True)):
        texts = [f"text {i % 70}" if i < rows else None for i in range(1400)]
        table = pd.DataFrame({"t": range(1400), "y": np.arange(1400.0), "note": texts})
        table.loc[rows : 1400 - 2, "y"] = None
        holes, absent = (
            read_panel(table, target="y", time="t"),
            read_panel(table.drop(index=range(rows, 1399)), target="y", time="t"),
        )
        assert holes.schema == absent.schema
        assert (holes.schema.categorical == ("note",)) == kept
        if not kept:
            assert "it holds 70 different texts in 690 rows" in holes.notices[0]
            assert "it holds 70 different texts in 690 rows" in absent.notices[0]


def test_the_least_length_counts_what_lacks_between():
    table, roles = table_of("days", names=("a",))
    lost = (np.arange(N) > 10) & (np.arange(N) < N - 1)
    for form in (table[~lost], with_holes(table, lost)):
        assert len(read_panel(form, **roles, minimum=N).series[0]) == N
        with pytest.raises(BadInput, match="70 rows, 71 needed"):
            read_panel(form, **roles, minimum=N + 1)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1000, 10**6), min_size=3, max_size=40), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_uneven_times_say_how_much_time_has_passed(gaps, dated, seed):
    parts = [pd.DataFrame({"s": place, "t": np.cumsum(own) + place}) for place, own in enumerate(gaps)]
    table = pd.concat(parts, ignore_index=True)
    when = pd.to_datetime(table["t"] * 1000 + 10**15) if dated else table["t"]
    table = table.assign(t=when, y=np.arange(float(len(table))))
    order = np.random.default_rng(seed).permutation(len(table))
    panel = read_panel(table.iloc[order], target="y", time="t", series="s")
    grid = panel.schema.grid
    assume(not grid.regular)
    unit = 1000 if dated else 1
    every = np.concatenate([own[1:] for own in gaps])
    assert grid.step == max(1, int(np.median(every * unit)))
    for one in panel.series:
        apart = np.asarray(gaps[one.key[0]][1:])
        elapsed = grid.elapsed(one.times)
        assert elapsed[0] == 1
        np.testing.assert_allclose(elapsed[1:] * grid.step, apart * unit, rtol=1e-12)
        np.testing.assert_array_equal(one.target[:, 0], table.loc[table["s"] == one.key[0], "y"])
        assert one.given.all()


def test_a_thousand_short_series_are_read_in_well_under_two_seconds(tmp_path):
    draw = np.random.default_rng(0)
    sizes = draw.integers(30, 121, 1000)
    begins = np.datetime64("2020-01-01") + draw.integers(0, 300, 1000)
    table = pd.DataFrame(
        {
            "unique_id": np.repeat([f"shop {i}" for i in range(1000)], sizes),
            "ds": np.concatenate([begin + np.arange(size) for begin, size in zip(begins, sizes)]),
            "y": draw.normal(size=sizes.sum()),
            "price": draw.normal(size=sizes.sum()),
            "promo": draw.choice(["no", "yes"], sizes.sum()),
        }
    )
    lost = draw.random(len(table)) < 0.2
    table[~lost].to_csv(tmp_path / "t.csv", index=False)
    forms = {"csv": (tmp_path / "t.csv", {}), "frame": (table, {}), "local": (table, {"tz": ROME})}
    for name, (source, roles) in forms.items():
        start = time.process_time()
        panel = read_panel(source, **roles)
        assert time.process_time() - start < 1.5, name
        assert len(panel) == 1000
