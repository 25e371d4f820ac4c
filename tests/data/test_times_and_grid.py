"""Times read from any form, the grid they lie on, and what comes after them."""

import numpy as np
import pandas as pd
import pytest

from conca.data.calendar import calendar, choose_cycles
from conca.data.grid import Grid, find_grid
from conca.data.panel import read_panel
from conca.data.times import restore
from conca.types import BadInput


def grid_of(times, **more) -> tuple[Grid, object]:
    panel = read_panel(pd.DataFrame({"t": times, "y": np.arange(len(times)) + 1.0} | more), target="y", time="t")
    return panel.schema.grid, panel.series[0]


FREQUENCIES = {
    "250ms": "250 ms",
    "1s": "1 s",
    "15min": "15 min",
    "h": "1 h",
    "36h": "36 h",
    "D": "1 d",
    "7D": "7 d",
    "MS": "1 month",
    "ME": "1 month",
    "QS": "3 months",
    "QE-NOV": "3 months",
    "YS": "12 months",
    "YE": "12 months",
}


@pytest.mark.parametrize(("frequency", "words"), FREQUENCIES.items())
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Rome", "America/New_York", "+05:30"])
def test_the_grid_is_found_and_continued(frequency, words, zone):
    times = pd.date_range("2019-11-30 03:30", periods=45, freq=frequency, tz=zone)
    grid, series = grid_of(times[:40])
    assert (grid.describe(), grid.regular, grid.zone) == (words, True, zone)
    assert series.given.all()
    assert restore(series.times, grid).tolist() == list(times[:40])
    assert restore(grid.future(series.times[-1], 5), grid).tolist() == list(times[40:])
    assert len(grid.future(series.times[-1], 0)) == 0


@pytest.mark.parametrize(("frequency", "words"), FREQUENCIES.items())
def test_gaps_on_every_grid(frequency, words):
    times = pd.date_range("2019-11-30", periods=40, freq=frequency)
    kept = np.ones(40, dtype=bool)
    kept[[3, 4, 5, 17, 30]] = False
    grid, series = grid_of(times[kept])
    assert grid.describe() == words
    np.testing.assert_array_equal(series.times, times.to_numpy())
    np.testing.assert_array_equal(series.given, kept)


def test_days_across_the_change_of_the_clocks():
    times = pd.date_range("2020-03-25", periods=10, freq="D", tz="Europe/Rome")
    grid, series = grid_of(times[:8])
    assert (grid.describe(), grid.wall) == ("1 d", True)
    assert restore(series.times, grid).tolist() == list(times[:8])
    assert restore(grid.future(series.times[-1], 2), grid).tolist() == list(times[8:])
    panel = read_panel(pd.DataFrame({"t": times[:8], "y": 1.0}), target="y", time="t")
    autumn = pd.DataFrame({"t": pd.date_range("2020-10-20", periods=10, freq="D", tz="Europe/Rome"), "y": 1.0})
    again = read_panel(autumn.assign(t=autumn["t"].dt.tz_convert("UTC")), schema=panel.schema)
    assert restore(again.series[0].times, panel.schema.grid).tolist() == list(autumn["t"])


def test_midnights_that_the_clocks_skip():
    days = pd.date_range("2017-09-01", periods=60)
    times = days.tz_localize("America/Sao_Paulo", nonexistent="shift_forward")
    assert (times.hour == 1).sum() == 1
    grid, series = grid_of(times)
    assert (grid.describe(), grid.wall, len(series)) == ("1 d", True, 60)
    np.testing.assert_array_equal(series.times, days.to_numpy())
    assert restore(series.times, grid).tolist() == list(times)


def test_hours_across_the_change_of_the_clocks():
    times = pd.date_range("2020-10-24", periods=72, freq="h", tz="Europe/Rome")
    grid, series = grid_of(times)
    assert (grid.describe(), grid.wall, len(series)) == ("1 h", False, 72)


def test_a_clock_time_that_does_not_exist_becomes_the_next():
    grid = Grid("datetime", 86_400 * 10**9, zone="Europe/Rome", wall=True)
    skipped = restore(np.array(["2020-03-29T02:30"], dtype="datetime64[ns]"), grid)
    assert str(skipped[0]) == "2020-03-29 03:00:00+02:00"
    twice = restore(np.array(["2020-10-25T02:30"], dtype="datetime64[ns]"), grid)
    assert str(twice[0]) == "2020-10-25 02:30:00+01:00"


def test_the_30th_of_a_month_stays_in_its_month():
    grid, series = grid_of(pd.to_datetime(["2019-10-30", "2019-11-30", "2019-12-30", "2020-01-30"]))
    assert grid.describe() == "1 month"
    assert grid.future(series.times[-1], 3).astype("datetime64[D]").tolist() == list(
        pd.to_datetime(["2020-02-29", "2020-03-30", "2020-04-30"]).date
    )


def test_days_of_work_leave_rows_for_the_weekend():
    grid, series = grid_of(pd.bdate_range("2020-01-01", periods=20))
    assert grid.describe() == "1 d"
    assert series.given.sum() == 20
    assert len(series) == 28


def test_two_spacings_share_their_divisor():
    grid, _ = grid_of(np.cumsum([0, 4, 4, 4, 6, 6, 4]))
    assert (grid.step, grid.regular) == (4, False), "the divisor would fill more than half"
    grid, _ = grid_of(np.cumsum([0, *[2] * 3, *[3] * 1, *[1] * 20]))
    assert (grid.step, grid.regular) == (1, True)


def test_a_step_may_be_less_common_than_its_double():
    grid, series = grid_of(np.cumsum([0, 2, 2, 2, 1, 1, 4, 1, 2]))
    assert (grid.step, grid.regular, len(series)) == (1, True, 16)
    grid, _ = grid_of(np.cumsum([0, *[2] * 20, 1, *[3] * 20]))
    assert not grid.regular, "one row in forty shows no spacing"


def test_times_that_lie_on_no_grid_stay_rows():
    rng = np.random.default_rng(0)
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.cumsum(rng.integers(50_000, 70_000, 100)), unit="ms")
    table = pd.DataFrame({"t": times, "y": 1.0})
    panel = read_panel(table, target="y", time="t")
    grid, series = panel.schema.grid, panel.series[0]
    assert not grid.regular
    assert len(series) == 100
    elapsed = grid.elapsed(series.times)
    assert elapsed[0] == 1
    np.testing.assert_allclose(
        elapsed[1:] * grid.step, np.diff(times.to_numpy()).astype("timedelta64[ns]").astype(float)
    )
    assert "not evenly spaced" in panel.notices[0]
    assert len(grid.future(series.times[-1], 3)) == 3
    assert len(read_panel(table, schema=panel.schema).series[0]) == 100
    np.testing.assert_array_equal(Grid().elapsed(np.arange(4)), np.ones(4))


def test_events_are_not_laid_on_a_fine_grid():
    rng = np.random.default_rng(0)
    grid, series = grid_of(np.cumsum(rng.geometric(1 / 20, 300)))
    assert not grid.regular
    assert len(series) == 300


FORMS = {
    "2010-01-31 23:00": "2010-01-31 23:00",
    "2010-01-31T23:00:00": "2010-01-31 23:00",
    "2010-01-31T23:00:00.250": "2010-01-31 23:00:00.250",
    "2010-01-31": "2010-01-31",
    "2010/01/31": "2010-01-31",
    "31/01/2010": "2010-01-31",
    "31.01.2010 23:00": "2010-01-31 23:00",
    "01/31/2010 11:00 PM": "2010-01-31 23:00",
    "31 Jan 2010": "2010-01-31",
    "Jan 31, 2010": "2010-01-31",
    " 2010-01-31 ": "2010-01-31",
}


@pytest.mark.parametrize(("form", "meaning"), FORMS.items())
def test_forms_of_dates(form, meaning):
    grid, series = grid_of([form])
    assert grid.kind == "datetime"
    assert grid.zone is None
    assert series.times[0] == np.datetime64(meaning)


@pytest.mark.parametrize(
    ("form", "zone", "utc"),
    [
        ("2010-01-31T23:00:00Z", "UTC", "2010-01-31 23:00"),
        ("2010-01-31 23:00:00+00:00", "+00:00", "2010-01-31 23:00"),
        ("2010-01-31 23:00:00.5+02:00", "+02:00", "2010-01-31 21:00:00.5"),
        ("2010-01-31T23:00-0530", "-05:30", "2010-02-01 04:30"),
    ],
)
def test_forms_of_time_zones(form, zone, utc):
    grid, series = grid_of([form])
    assert grid.zone == zone
    assert series.times[0] == np.datetime64(utc)
    assert restore(series.times, grid)[0] == pd.Timestamp(form)


def test_iso_dates_may_leave_out_midnight():
    grid, series = grid_of(["2010-01-01", "2010-01-01 12:00:00", "2010-01-02", "2010-01-02T12:00"])
    assert grid.describe() == "12 h"
    assert len(series) == 4


@pytest.mark.parametrize("first", [0, 1])
def test_day_or_month_first_is_told_by_the_dates_themselves(first):
    days = pd.date_range("2010-01-01", periods=31)
    _, series = grid_of(days.strftime(["%d/%m/%Y", "%m/%d/%Y"][first]))
    np.testing.assert_array_equal(series.times, days.to_numpy())


WRITTEN = {
    "%d/%m/%Y %H:%M": "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M": "%m/%d/%Y %H:%M",
    "%d.%m.%Y %H:%M:%S": "%d.%m.%Y %H:%M:%S",
    "%m/%d/%Y %I:%M %p": "%m/%d/%Y %I:%M %p",
    "%Y-%m-%d %H:%M": "ISO8601",
    "%Y%m%d": "%Y%m%d",
}


@pytest.mark.parametrize(("written", "kept"), WRITTEN.items())
def test_a_later_table_is_read_in_the_format_of_the_first(written, kept):
    times = pd.date_range("2024-02-20 05:00", periods=60, freq="D" if written == "%Y%m%d" else "12h")
    table = pd.DataFrame({"t": times.strftime(written), "y": 1.0})
    if written == "%Y%m%d":
        table["t"] = table["t"].astype(int)
    schema = read_panel(table, target="y", time="t").schema
    assert schema.format == kept
    schema = type(schema).from_dict(schema.as_dict())
    for day in ("2024-04-03", "2024-12-11", "2024-05-05"):
        moment = pd.Timestamp(day) + pd.Timedelta("5h" if written != "%Y%m%d" else "0h")
        row = pd.DataFrame({"t": [moment.strftime(written)], "y": 1.0})
        assert read_panel(row, schema=schema).series[0].times[0] == moment.to_datetime64()
    iso = pd.DataFrame({"t": ["2024-04-03 05:00", "2024-04-03 17:00"], "y": 1.0})
    if written != "%Y%m%d":
        assert read_panel(iso, schema=schema).series[0].times[0] == np.datetime64("2024-04-03T05:00")


def test_a_format_that_could_be_another_is_not_kept():
    schema = read_panel(pd.DataFrame({"t": ["01/01/2024", "02/02/2024"], "y": 1.0}), target="y", time="t").schema
    assert schema.format is None
    with pytest.raises(BadInput, match="day first or month first"):
        read_panel(pd.DataFrame({"t": ["03/04/2024"], "y": 1.0}), schema=schema)


def test_a_format_of_an_earlier_table_does_not_hide_what_cannot_be_read():
    schema = read_panel(pd.DataFrame({"t": ["13/01/2024", "14/01/2024"], "y": 1.0}), target="y", time="t").schema
    with pytest.raises(BadInput, match=r"row 1, column 't': '01/13/2024' is not a time"):
        read_panel(pd.DataFrame({"t": ["12/01/2024", "01/13/2024", "14/01/2024"], "y": 1.0}), schema=schema)


def test_numbers_that_were_numbers_do_not_become_dates():
    schema = read_panel(pd.DataFrame({"t": [20240131, 20240132], "y": 1.0}), target="y", time="t").schema
    assert read_panel(pd.DataFrame({"t": [20240131], "y": 1.0}), schema=schema).series[0].times.tolist() == [20240131]
    assert schema.format is None


@pytest.mark.parametrize(
    "column",
    [
        pd.date_range("2020-01-01", periods=3).as_unit("s"),
        pd.date_range("2020-01-01", periods=3).date,
        pd.period_range("2020-01-01", periods=3, freq="D"),
        [20200101, 20200102, 20200103],
        ["20200101", "20200102", "20200103"],
        pd.Categorical(["2020-01-01", "2020-01-02", "2020-01-03"]),
        [pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02"), pd.Timestamp("2020-01-03")],
    ],
)
def test_types_that_hold_dates(column):
    grid, series = grid_of(column)
    assert grid.describe() == "1 d"
    np.testing.assert_array_equal(series.times, pd.date_range("2020-01-01", periods=3).to_numpy())


@pytest.mark.parametrize("column", [[3, 5, 7], [3.0, 5.0, 7.0], ["3", "5", "7"], pd.array([3, 5, 7], dtype="Int64")])
def test_whole_numbers(column):
    grid, series = grid_of(column)
    assert (grid.kind, grid.step, grid.seconds, grid.describe()) == ("integer", 2, None, "2 steps")
    assert series.times.tolist() == [3, 5, 7]
    assert grid.future(series.times[-1], 2).tolist() == [9, 11]
    assert restore(series.times, grid).tolist() == [3, 5, 7]


def test_whole_numbers_beyond_float64_stay_exact():
    times = [2**60, 2**60 + 1, 2**60 + 2]
    grid, series = grid_of(times)
    assert grid.step == 1
    assert series.times.tolist() == times


def test_eight_digits_that_are_no_dates_are_numbers():
    grid, _ = grid_of([20200131, 20200132])
    assert (grid.kind, grid.step) == ("integer", 1)


def test_spacing_of_no_rows_and_one():
    assert find_grid(np.array([5]), np.array([True]), "integer") == Grid("integer", 1)
    assert find_grid(np.array([5, 6]), np.array([True, True]), "integer") == Grid("integer", 1)


def test_cycles_follow_spacing_and_length():
    def cycles(frequency, periods):
        grid, series = grid_of(pd.date_range("2020-01-01", periods=periods, freq=frequency))
        return choose_cycles([series.times], grid)

    assert cycles("h", 24 * 400) == ("day", "week", "year")
    assert cycles("h", 24 * 300) == ("day", "week")
    assert cycles("h", 48) == ("day",)
    assert cycles("12h", 2000) == ("week", "year")
    assert cycles("D", 10) == ("week",)
    assert cycles("7D", 104) == ("year",)
    assert cycles("MS", 24) == ("year",)
    assert cycles("YS", 24) == ()
    assert choose_cycles([np.arange(100)], Grid("integer")) == ()
    assert choose_cycles([], Grid("datetime", 3600 * 10**9)) == ()


def test_calendar_repeats_with_its_cycles():
    grid, series = grid_of(pd.date_range("2020-01-06", periods=24 * 21, freq="h"))
    features = calendar(series.times, ("day", "week", "year"), grid)
    assert features.shape == (24 * 21, 6)
    np.testing.assert_allclose(features[0, :4], [0, 1, 0, 1], atol=1e-12)
    np.testing.assert_allclose(features[6, :2], [1, 0], atol=1e-12)
    np.testing.assert_allclose(features[24:, :2], features[:-24, :2], atol=1e-9)
    np.testing.assert_allclose(features[168:, 2:4], features[:-168, 2:4], atol=1e-9)
    np.testing.assert_allclose((features**2).reshape(-1, 3, 2).sum(2), 1)
    assert calendar(series.times, (), grid).shape == (24 * 21, 0)
    start = grid_of(["2021-01-01"])[1]
    np.testing.assert_allclose(calendar(start.times, ("year",), Grid("datetime", 1)), [[0, 1]], atol=1e-12)


def test_calendar_follows_the_clocks_of_the_zone():
    for frequency in ("h", "D"):
        grid, series = grid_of(pd.date_range("2020-03-20", periods=60, freq=frequency, tz="Asia/Tokyo"))
        np.testing.assert_allclose(calendar(series.times, ("day",), grid)[0], [0, 1], atol=1e-12)


def test_an_unknown_cycle():
    with pytest.raises(BadInput, match="did you mean 'week'"):
        calendar(np.array([], dtype="datetime64[ns]"), ("weak",), Grid("datetime"))
