"""Local times: the hour that autumn repeats, the one that spring skips, in three zones and every order of rows."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conca.data.calendar import calendar
from conca.data.grid import Grid
from conca.data.local import localised, moment_after
from conca.data.panel import Schema, read_panel
from conca.data.times import restore
from conca.types import BadInput

ZONES = ("Europe/Rome", "America/New_York", "Australia/Lord_Howe")
CHANGES = {
    "Europe/Rome": ("2024-03-31 01:00", "2024-10-27 01:00"),
    "America/New_York": ("2024-03-10 07:00", "2024-11-03 06:00"),
    "Australia/Lord_Howe": ("2024-10-05 15:30", "2024-04-06 15:00"),
}
"""Moments in UTC at which the clocks go forward, and back."""
PARTS = ("times", "target", "numeric", "categorical", "given")


def refuse(source, *words: str, **roles) -> str:
    with pytest.raises(BadInput) as caught:
        read_panel(source, **({"target": "y", "time": "t"} | roles))
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line, line
    return line


def shown(times: pd.DatetimeIndex, zone: str) -> pd.DatetimeIndex:
    """What the clocks of a zone show at moments."""
    return times.tz_convert(zone).tz_localize(None)


def around(zone: str, change: int, step: str, rows: int = 60, before: int = 30) -> pd.DatetimeIndex:
    """Moments `step` apart through a change of the clocks."""
    moment = pd.Timestamp(CHANGES[zone][change], tz="UTC")
    return pd.date_range(moment - before * pd.Timedelta(step), periods=rows, freq=step)


def table_of(times, **more) -> pd.DataFrame:
    return pd.DataFrame({"t": times, "y": np.arange(len(times)) + 0.5} | more)


def same(one, other) -> None:
    for a, b in zip(one.series, other.series, strict=True):
        assert a.key == b.key
        for name in PARTS:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("change", [0, 1])
@pytest.mark.parametrize("step", ["1h", "30min", "15min", "2h"])
def test_a_table_in_local_times_is_the_one_in_utc(zone, change, step):
    times = around(zone, change, step)
    local = read_panel(table_of(shown(times, zone)), target="y", time="t", tz=zone)
    utc = read_panel(table_of(times), target="y", time="t")
    same(local, utc)
    grid = local.schema.grid
    assert (grid.zone, grid.local, grid.wall, grid.describe()) == (zone, True, False, utc.schema.grid.describe())
    assert not local.notices
    back = restore(local.series[0].times, grid)
    assert str(back.tz) == zone
    assert (back == times).all()


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("step", ["1h", "30min"])
def test_several_series_whose_rows_are_interleaved(zone, step):
    times = around(zone, 1, step)
    local = table_of(shown(times, zone))
    apart = [local.assign(s=name, y=local["y"] + shift) for name, shift in (("a", 0), ("b", 100), ("c", 1000))]
    mixed = pd.concat(apart, ignore_index=True)
    place = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], 60))
    rows = np.empty(180, dtype=int)
    for one in range(3):
        rows[place == one] = one * 60 + np.arange(60)
    panel = read_panel(mixed.iloc[rows], target="y", time="t", series="s", tz=zone)
    assert not panel.notices
    for series in panel.series:
        np.testing.assert_array_equal(series.times, times.tz_localize(None).to_numpy())
        np.testing.assert_array_equal(np.diff(series.target[:, 0]), 1)


@pytest.mark.parametrize("zone", ZONES)
def test_a_table_with_its_latest_row_first(zone):
    times = around(zone, 1, "30min")
    panel = read_panel(table_of(shown(times, zone)).iloc[::-1], target="y", time="t", tz=zone)
    np.testing.assert_array_equal(panel.series[0].target[:, 0], np.arange(60) + 0.5)
    assert panel.notices == ["rows were sorted by 't'"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("step", ["1h", "30min", "15min"])
def test_a_new_table_may_begin_and_end_within_the_repeated_hour(zone, step):
    times = around(zone, 1, step)
    schema = read_panel(table_of(shown(times, zone)), target="y", time="t", tz=zone).schema
    schema = Schema.from_dict(json.loads(json.dumps(schema.as_dict())))
    change = pd.Timestamp(CHANGES[zone][1], tz="UTC")
    per_hour = pd.Timedelta("1h") // pd.Timedelta(step)
    for begin in range(30 - per_hour, 30 + per_hour + 1):
        part = times[begin:]
        panel = read_panel(table_of(shown(part, zone)), schema=schema)
        np.testing.assert_array_equal(panel.series[0].times, part.tz_localize(None).to_numpy(), err_msg=str(part[0]))
    for end in range(28, 40):
        part = times[:end]
        panel = read_panel(table_of(shown(part, zone)), schema=schema)
        np.testing.assert_array_equal(panel.series[0].times, part.tz_localize(None).to_numpy(), err_msg=str(part[-1]))
    assert change in times


def test_the_later_half_of_the_repeated_hour_with_rows_lost():
    local = ["01:45", "02:00", "02:15", "02:30", "02:45", "02:15", "02:45", "03:00"]  # 02:00 and 02:30 are lost, once
    panel = read_panel(table_of([f"2024-10-27 {time}" for time in local]), target="y", time="t", tz="Europe/Rome")
    found = restore(panel.series[0].times, panel.schema.grid)[panel.series[0].given]
    offsets = [str(time)[-6:] for time in found]
    assert offsets == ["+02:00"] * 5 + ["+01:00"] * 3
    only_late = ["02:30", "02:45", "02:00", "02:30", "02:45", "03:00", "03:15"]
    panel = read_panel(table_of([f"2024-10-27 {time}" for time in only_late]), target="y", time="t", tz="Europe/Rome")
    found = restore(panel.series[0].times, panel.schema.grid)[panel.series[0].given]
    assert [str(time)[-6:] for time in found] == ["+02:00"] * 2 + ["+01:00"] * 5


def test_a_few_rows_within_the_repeated_hour_go_forward():
    times = pd.date_range("2024-10-27 00:30", periods=3, freq="30min", tz="UTC")  # 02:30, 02:00, 02:30
    for rows in (2, 3):
        table = table_of(shown(times[:rows], "Europe/Rome"))
        panel = read_panel(table, target="y", time="t", tz="Europe/Rome")
        np.testing.assert_array_equal(panel.series[0].times, times[:rows].tz_localize(None).to_numpy())


def test_a_repeated_hour_that_stands_there_once_is_the_first():
    times = pd.to_datetime([f"2024-10-27 0{hour}:00" for hour in range(6)])
    panel = read_panel(table_of(times), target="y", time="t", tz="Europe/Rome")
    np.testing.assert_array_equal(panel.series[0].given, [1, 1, 1, 0, 1, 1, 1])
    one = read_panel(table_of(times[2:3]), target="y", time="t", tz="Europe/Rome")
    assert str(restore(one.series[0].times, one.schema.grid)[0]) == "2024-10-27 02:00:00+02:00"


def test_a_time_that_stands_three_times_is_refused():
    times = [f"2024-10-27 0{hour}:00" for hour in (0, 1, 2, 2, 2, 3, 4)]
    refuse(table_of(times), "row 3 and row 4", "2024-10-27 02:00:00+01:00", "remove one", tz="Europe/Rome")
    twice = [f"2024-10-27 0{hour}:00" for hour in (0, 1, 2, 3, 3, 4)]
    line = refuse(table_of(twice), "row 3 and row 4", "03:00:00+01:00", tz="Europe/Rome")
    assert "autumn" not in line


@pytest.mark.parametrize("zone", ZONES)
def test_a_time_that_the_clocks_skip_names_cell_and_zone(tmp_path, zone):
    moment = pd.Timestamp(CHANGES[zone][0], tz="UTC").tz_convert(zone)
    skipped = moment.tz_localize(None) - pd.Timedelta("15min")
    times = [skipped - pd.Timedelta("1h"), skipped, skipped + pd.Timedelta("1h")]
    refuse(
        table_of(times), "row 1, column 't'", f"the clocks of {zone} skip {skipped}", "correct", "zone (tz)", tz=zone
    )
    table_of(times).to_csv(tmp_path / "t.csv", index=False)
    refuse(tmp_path / "t.csv", "t.csv, row 3, column 't'", zone, tz=zone)
    schema = read_panel(table_of(around(zone, 1, "15min").tz_convert(zone)), target="y", time="t", tz=zone).schema
    refuse(table_of(times), "row 1, column 't'", zone, target=None, time=None, schema=schema)


def test_times_with_a_zone_are_converted_and_new_tables_may_be_of_either_kind():
    zone = "America/New_York"
    times = around(zone, 1, "1h")
    panels = [
        read_panel(table_of(form), target="y", time="t", tz=zone) for form in (times, times.tz_convert("Asia/Tokyo"))
    ]
    panels.append(read_panel(table_of(shown(times, zone)), target="y", time="t", tz=zone))
    assert panels[0].schema == panels[1].schema == panels[2].schema
    assert (panels[0].schema.grid.zone, panels[0].schema.grid.local) == (zone, True)
    for panel in panels:
        for form in (
            times,
            times.tz_convert("Asia/Tokyo"),
            shown(times, zone),
            [str(t) for t in times.tz_convert(zone)],
        ):
            same(read_panel(table_of(form), schema=panel.schema), panels[0])
    clock = calendar(panels[0].series[0].times, ("day",), panels[0].schema.grid)
    hours = np.round(np.arctan2(clock[:, 0], clock[:, 1]) / (2 * np.pi) * 24) % 24
    np.testing.assert_array_equal(hours, shown(times, zone).hour)


def test_offsets_of_text_may_differ_only_where_the_zone_is_known(tmp_path):
    times = around("Europe/Rome", 1, "1h").tz_convert("Europe/Rome")
    table_of(times).to_csv(tmp_path / "t.csv", index=False)
    refuse(tmp_path / "t.csv", "time zones are mixed (+02:00 in row 2, +01:00 here)")
    panel = read_panel(tmp_path / "t.csv", target="y", time="t", tz="Europe/Rome")
    assert (restore(panel.series[0].times, panel.schema.grid) == times).all()
    aware = read_panel(table_of(times), target="y", time="t")
    assert not aware.schema.grid.local
    same(read_panel(tmp_path / "t.csv", schema=aware.schema), aware)
    refuse(
        table_of(shown(times, "Europe/Rome")), "in the zone Europe/Rome", target=None, time=None, schema=aware.schema
    )
    some = [str(time) for time in times[:-1]] + ["2024-10-28 23:00"]
    refuse(table_of(some), "no zone here", tz="Europe/Rome")


@pytest.mark.parametrize("freq", ["D", "7D", "MS", "ME", "QS"])
@pytest.mark.parametrize("zone", ["Europe/Rome", "America/Sao_Paulo", "Asia/Beirut"])
def test_days_and_months_are_counted_by_the_clocks(freq, zone):
    times = pd.date_range("2017-03-01", periods=400 if freq == "D" else 40, freq=freq)
    panel = read_panel(table_of(times[:-3]), target="y", time="t", tz=zone)
    plain = read_panel(table_of(times[:-3]), target="y", time="t")
    grid = panel.schema.grid
    assert (grid.wall, grid.local, grid.zone) == (True, True, zone)
    assert (grid.step, grid.months, grid.ends) == tuple(
        getattr(plain.schema.grid, name) for name in ("step", "months", "ends")
    )
    same(panel, plain)
    same(read_panel(table_of(times[:-3]), schema=panel.schema), panel)
    future = restore(grid.future(panel.series[0].times[-1], 3), grid)
    assert [str(time.date()) for time in future] == [str(time.date()) for time in times[-3:]]
    aware = restore(panel.series[0].times, grid)
    same(read_panel(table_of(aware), schema=panel.schema), panel)


def test_zones_that_are_none_and_times_that_have_none():
    hours = pd.date_range("2024-01-01", periods=5, freq="h")
    refuse(table_of(hours), "tz: there is no time zone 'Europe/Rom'; did you mean 'Europe/Rome'?", tz="Europe/Rom")
    refuse(table_of(hours), "there is no time zone 'Rome'; did you mean 'Europe/Rome'?", tz="Rome")
    refuse(table_of(hours), "there is no time zone 'new york'; did you mean 'America/New_York'?", tz="new york")
    for zone in ("../etc/passwd", "", "+25:00", 5, b"UTC"):
        refuse(table_of(hours), "there is no time zone", tz=zone)
    refuse(table_of(range(5)), "table, column 't': whole numbers have no time zone; leave out tz", tz="UTC")
    refuse(table_of(hours), "no column of times is named", time=None, tz="UTC")
    schema = read_panel(table_of(hours), target="y", time="t", tz="UTC").schema
    refuse(table_of(hours), "either the schema or the columns", target=None, time=None, schema=schema, tz="UTC")
    fixed = read_panel(table_of(hours), target="y", time="t", tz="+05:30")
    assert fixed.series[0].times[0] == np.datetime64("2023-12-31T18:30")
    assert str(restore(fixed.series[0].times, fixed.schema.grid)[0]) == "2024-01-01 00:00:00+05:30"


@pytest.mark.parametrize("zone", ["Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Australia/Sydney"])
@pytest.mark.parametrize("step", ["1h", "30min"])
def test_without_a_zone_the_repeated_hour_is_refused_with_advice(zone, step):
    change = {"Australia/Sydney": "2024-04-06 16:00"}.get(zone) or CHANGES[zone][1]
    times = pd.date_range(pd.Timestamp(change, tz="UTC") - pd.Timedelta("30h"), periods=120, freq=step)
    table = table_of(shown(times, zone))
    if table["t"].duplicated().any():
        refuse(table, "have the same time", "local times", "say their zone (tz, --tz)", "remove one of each pair")
    else:
        assert (zone, step) == ("Australia/Lord_Howe", "1h")
    other = table.assign(t=table["t"] + pd.Timedelta("12h"))
    if other["t"].duplicated().any():
        assert "tz" not in refuse(other, "have the same time")
    aware = table.assign(t=table["t"].dt.tz_localize("UTC"))
    if aware["t"].duplicated().any():
        assert "tz" not in refuse(aware, "have the same time")


def test_rows_that_stand_twice_elsewhere_too_are_not_local_times():
    hours = pd.date_range("2024-10-26", periods=72, freq="h")
    for extra, advised in ((["2024-10-27 02:00"], True), (["2024-10-27 02:00", "2024-10-28 12:00"], False)):
        line = refuse(table_of([*hours, *pd.to_datetime(extra)]), "2024-10-27 02:00:00", f"({len(extra)} such pairs)")
        assert ("tz" in line) == advised


def test_days_that_stand_twice_are_not_taken_for_hours():
    sundays = ["2024-10-25", "2024-10-26", "2024-10-27", "2024-10-27", "2024-10-28"]
    assert "tz" not in refuse(table_of(pd.to_datetime(sundays)), "have the same time")


def test_a_row_at_a_time():
    zone, step = "Europe/Rome", 1800 * 10**9
    times = around(zone, 1, "30min")
    local = shown(times, zone).as_unit("ns").asi8.tolist()
    before = None
    for clock, moment in zip(local, times.as_unit("ns").asi8.tolist(), strict=True):
        before = moment_after(clock, zone, before, step)
        assert before == moment
    assert moment_after(pd.Timestamp("2024-03-31 02:30").value, zone) is None


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.sampled_from([5, 15, 30]),
    st.lists(st.integers(-20, 20), min_size=1, max_size=3, unique=True),
    st.integers(0, 2**31),
)
def test_whole_tables_come_back_whatever_the_zone(zone, minutes, begins, seed):
    parts = [around(zone, 1, f"{minutes}min", rows=200, before=100 + begin) for begin in begins]
    codes = np.repeat(np.arange(len(parts)), 200)
    rows = np.argsort(np.random.default_rng(seed).random(len(codes)))
    for one in range(len(parts)):
        rows[codes[rows] == one] = one * 200 + np.arange(200)  # in order within each series
    moments = np.concatenate([part.as_unit("ns").asi8 for part in parts])
    local = np.concatenate([shown(part, zone).as_unit("ns").asi8 for part in parts])
    np.testing.assert_array_equal(localised(local[rows], codes[rows], zone), moments[rows])


def test_runs_written_before_there_were_local_times_are_read():
    grid = Grid.from_dict(
        {"kind": "datetime", "step": 3600, "months": 0, "ends": False, "regular": True, "zone": "UTC", "wall": False}
    )
    assert not grid.local
    schema = Schema.from_dict({"target": ["y"], "time": "t", "grid": {"kind": "datetime"}})
    assert schema.format is None
