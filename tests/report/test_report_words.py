"""What the report says in words: verdicts, times, and numbers that line up, easy and hostile."""

import numpy as np
import pandas as pd
import pytest

from conca.data.grid import DAY, Grid, ticks
from conca.data.schema import Schema
from conca.estimators.evaluation import MOST, Evaluation
from conca.report.calibration import Calibration
from conca.report.calibration import verdict as calibrated
from conca.report.dates import along_axis, forecast_times, moment, past_times
from conca.report.history import chapter as training
from conca.report.memory import spread
from conca.report.page import Picture
from conca.report.residuals import when_in_words
from conca.report.response import Response, bumped, farther
from conca.report.verdict import judged, score_rows, verdict
from conca.report.words import aligned, listing

HOUR = DAY // 24
HOURLY, DAILY = Grid("datetime", HOUR), Grid("datetime", DAY)
MONTHLY, MONTH_ENDS = Grid("datetime", 30 * DAY, 1), Grid("datetime", 30 * DAY, 1, True)
NAN = float("nan")


def when(*texts):
    return ticks(pd.to_datetime(list(texts)).to_numpy())


def scores(**errors):
    return pd.DataFrame({"MAE": errors.values()}, index=pd.Index(errors, name="forecast"))


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        (
            {"model": 42.2751, "last value": 49.959, "ridge": 45.939},
            "The model forecasts best: its MAE of 42.28 is 8% below that of the best simple forecast, ridge (45.94).",
        ),
        (
            {"model": 22.7, "last value": 30.0, "ridge": 16.5},
            "A simple forecast is best: ridge, with an MAE of 16.50; the model's is 38% higher (22.70). "
            "Take the simple forecast, or try more epochs (--epochs).",
        ),
        (
            {"model": 10.05, "ridge": 10.0},
            "No better than a simple forecast: the model (MAE 10.05) and ridge (10.00) are about equally good.",
        ),
        (
            {"model": 3.0, "last value": 0.0, "ridge": NAN},
            "A simple forecast is best: last value, with an MAE of 0.000; the model's is 3.000. "
            "Take the simple forecast, or try more epochs (--epochs).",
        ),
        (
            {"model": 0.0, "last value": 0.0},
            "No better than a simple forecast: the model (MAE 0.000) and last value (0.000) are about equally good.",
        ),
        ({"model": 3.0}, ""),
        ({"model": NAN, "ridge": 1.0}, ""),
        ({"model": 1.0, "ridge": NAN}, ""),
    ],
)
def test_the_best_forecast_is_named_and_the_models_difference_in_percent(errors, words):
    assert verdict(scores(**errors)) == words
    assert verdict(scores(**errors), "sold") == (f"sold: {words}" if words else "")


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ([67.761, 99.598, 45.53], ["67.76", "99.60", "45.53"]),
        ([0.971, 0.64, 0.6583], ["0.9710", "0.6400", "0.6583"]),
        ([9.51234, 100.0], ["9.51", "100.00"]),
        ([0.98, 1.02], ["0.980", "1.020"]),
        ([12345.6, 67890.1], ["12,346", "67,890"]),
        ([0.0, 5.0, NAN], ["0.000", "5.000", "-"]),
        ([0.0], ["0.000"]),
        ([], []),
        ([-5.5, 5.25], ["-5.500", "5.250"]),
        ([1e-9, 1e9], ["1e-09", "1,000,000,000"]),
        ([0.012, 250.0], ["0.012", "250"]),
    ],
)
def test_numbers_of_a_column_have_one_number_of_decimals(column, cells):
    assert aligned(column) == cells


def test_a_table_of_scores_lines_up():
    table = score_rows(scores(model=5.1603, ridge=25.7), "sold")
    assert table.rows == [["model", "5.16"], ["ridge", "25.70"]]
    assert (table.headings, table.words) == (["sold", "MAE"], 1)


def held_out(cutoffs, horizon=2, series=None):
    n = len(cutoffs)
    y = np.zeros((n, horizon, 1))
    places = np.zeros(n, np.int64) if series is None else np.asarray(series)
    return Evaluation((("a",), ("b",)), places, np.asarray(cutoffs), y[:, :1], y, y[..., None], ("model",), y.T)


def schema(grid):
    return Schema(target=("y",), time=None if grid.kind == "row" else "t", grid=grid)


def test_it_is_said_which_rows_were_judged():
    days = when("2024-03-30", "2024-03-01", "2024-03-15")
    said = judged(held_out(days, 14, [0, 1, 1]), schema(DAILY))
    assert said == "Judged on rows held out: 3 forecasts of 14 steps, of 2 series, from 2024-03-02 to 2024-04-13."
    said = judged(held_out(days[:1], 1), schema(HOURLY))
    assert said == "Judged on rows held out: 1 forecast of 1 step, from 2024-03-30 01:00 to 2024-03-30 01:00."
    said = judged(held_out(when("2024-01-31", "2024-02-29"), 2), schema(MONTH_ENDS))
    assert said.endswith("from 2024-02-29 to 2024-04-30.")
    said = judged(held_out(days), schema(Grid("datetime", HOUR, regular=False)))
    assert said.endswith("2 steps, made between 2024-03-01 00:00 and 2024-03-30 00:00."), "no times ahead are known"
    assert judged(held_out([4, 5]), schema(Grid())) == "Judged on rows held out: 2 forecasts of 2 steps."
    assert judged(held_out([4, 5]), schema(Grid("integer", 5))).endswith("from row 9 to row 15.")
    most = judged(held_out(np.arange(MOST) * HOUR), schema(HOURLY))
    assert "kept for the pictures are 2,000 forecasts of 2 steps" in most and "(up to 2,000 are kept" in most


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (HOURLY, "2024-05-17 00:00"),
        (DAILY, "2024-05-17"),
        (MONTHLY, "2024-05-17"),
        (Grid("datetime", DAY, regular=False), "2024-05-17"),
        (Grid("datetime", HOUR, zone="+02:00"), "2024-05-17 02:00+02:00"),
        (Grid("datetime", DAY, zone="Europe/Rome", wall=True), "2024-05-17"),
        (Grid("datetime", 1_000_000), "2024-05-17 00:00"),
    ],
)
def test_a_moment_has_no_more_than_its_table(grid, words):
    assert moment(int(when("2024-05-17")[0]), grid) == words


def test_a_moment_keeps_what_counts():
    odd = int(when("2024-05-17 13:45:10")[0])
    assert moment(odd, HOURLY) == "2024-05-17 13:45:10"
    assert moment(odd, Grid("datetime", DAY, regular=False)) == "2024-05-17 13:45:10"
    assert moment(odd, DAILY) == "2024-05-17", "rows are a day apart, whatever the hour"
    assert moment(7, Grid()) == "row 7"


@pytest.mark.parametrize(
    "grid", [HOURLY, DAILY, MONTHLY, MONTH_ENDS, Grid("datetime", 91 * DAY, 3), Grid("integer", 5)]
)
def test_past_and_future_are_one_grid(grid):
    first = when("2023-08-31" if grid.ends else "2023-09-01")[0] if grid.kind == "datetime" else np.int64(35)
    ahead = forecast_times(np.array([first]), 9, grid)[0]
    np.testing.assert_array_equal(past_times(int(ahead[-1]), 10, grid), [first, *ahead])


def test_an_axis_follows_the_clock_of_the_table():
    times = when("2024-06-30 22:00")
    assert str(along_axis(times, Grid("datetime", HOUR, zone="Europe/Rome"))[0]).startswith("2024-07-01T00:00")
    assert str(along_axis(times, HOURLY)[0]).startswith("2024-06-30T22:00")


def test_calibration_has_a_verdict():
    levels = np.array([0.1, 0.5, 0.9])

    def said(observed, error=0.02):
        return calibrated(Calibration(levels, np.array(observed), np.full(3, error)))

    assert said([0.12, 0.47, 0.91]) == "All 3 bars cross the diagonal: no sign of miscalibration."
    assert said([0.1, 0.5, 0.84]) == "Beyond chance, 0.9 is too low.", "too few values lie below it"
    assert said([0.2, 0.5, 0.84]) == "Beyond chance, 0.1 is too high and 0.9 is too low."
    assert said([0.2, 0.4, 0.84]) == "Beyond chance, 0.1 is too high, 0.5 is too low and 0.9 is too low."
    one = Calibration(levels[:1], levels[:1], np.array([0.1]))
    assert calibrated(one) == "The bar crosses the diagonal: no sign of miscalibration."


def test_a_response_is_said_in_the_unit_of_the_target():
    lags, steps = np.array([1, 2, 30]), np.array([1, 12, 24])
    value = np.array([[0.96, 0.0, 0.0], [0.002, 0.0, 0.0], [-0.09, 0.12, 0.001]])
    found = Response(lags, steps, value, 92.0)
    assert bumped(found) == (
        "Had the last value been 92 higher, the forecast would be 88.3 higher 1 step ahead, "
        "about the same 12 steps ahead and 8.28 lower 24 steps ahead."
    )
    assert farther(found, HOURLY) == (
        "Of the rows before it, the one 2 back counts most: as much higher there, and the forecast 24 steps ahead would be "
        "11 higher; beyond 2 rows (2 hours) less than a twentieth of that is left."
    )
    assert farther(Response(lags, steps, value * [1, 0, 0], 92.0), HOURLY) == "Rows before it do nothing."


def test_cells_have_one_unit():
    times = [("layer 1", np.array([1.2, 1.4, 1.7])), ("layer 2", np.array([1.5]))]
    assert spread(times, "time of a cell", HOURLY).caption == (
        "Cells forget within 1.2 to 1.7 rows on their own, half of them in more than 1.45."
    )
    slow = spread([("layer 1", np.array([2.0, 36.0, 400.0]))], "time scale", HOURLY).caption
    assert slow == "Time scale: from 2 to 400 rows, half of them beyond 36 (36 hours)."


def test_one_epoch_is_a_line_and_two_are_a_picture():
    history = pd.DataFrame({"epoch": [0, 1], "train/loss": [3.0, 2.0], "val/loss": [2.0, 1.0], "val/mae": [7.0, 5.0]})
    (line,) = training(history[:1]).parts
    assert line.startswith("1 epoch; training loss ends at 3. Kept: epoch 1, with a validation loss of 2 (MAE 7 in")
    _, drawn = training(history).parts
    assert isinstance(drawn, Picture)
    assert drawn.caption.startswith("2 epochs; training loss ends at 2. Kept: epoch 2, with a validation loss of 1")


def test_cycles_and_lists_in_words():
    assert when_in_words("weekday", 2) == "on Wednesdays"
    assert when_in_words("month", 5) == "in May" and when_in_words("month", 12) == "in December"
    assert when_in_words("hour", 13) == "at 13:00"
    assert [listing(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
