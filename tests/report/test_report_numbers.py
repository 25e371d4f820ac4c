"""The numbers behind the pictures, each reached by another way."""

from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from conca.data.grid import DAY, Grid, ticks
from conca.data.schema import Schema
from conca.estimators.evaluation import Evaluation
from conca.metrics.forecast import by_step, coverage, mae
from conca.report import errors, windows
from conca.report.calibration import calibration, coverage_by_step
from conca.report.dates import forecast_times
from conca.report.errors import advantage, shown_steps
from conca.report.history import curves
from conca.report.residuals import (
    autocorrelation,
    by_cycle,
    chapter,
    cycle_of,
    even_lags,
    over_time,
    residuals,
    row_numbers,
    timeline,
)
from conca.report.windows import choose, relative, window_errors
from conca.report.words import number, percent, size, span

HOUR = DAY // 24
HOURLY = Grid("datetime", HOUR)
LEVELS = (0.1, 0.5, 0.9)


def evaluation(y, quantiles, *, series=None, cutoffs=None, keys=((),)):
    """One by hand: y (n, H, K), quantiles (n, H, K, Q)."""
    n, horizon, targets = y.shape
    errors = by_step(mae, y, quantiles[..., quantiles.shape[-1] // 2])
    return Evaluation(
        keys=keys,
        series=np.zeros(n, np.int64) if series is None else np.asarray(series),
        cutoffs=np.arange(n) * HOUR if cutoffs is None else np.asarray(cutoffs),
        past=np.zeros((n, 3, targets)),
        y=y,
        quantiles=quantiles,
        names=("model",),
        by_step=np.broadcast_to(errors[None, :, None], (1, horizon, targets)),
    )


def around(y, miss):
    """Quantiles whose median misses y by so much, the others one further out."""
    return (y - miss)[..., None] + np.array([-1.0, 0.0, 1.0])


def test_curves_choose_the_lowest_validation_loss():
    history = pd.DataFrame({"epoch": [0, 1, 2], "train/loss": [3.0, 2, 1], "val/loss": [2.0, 1.0, np.nan]})
    found = curves(history)
    assert (found.chosen, found.epochs.tolist()) == (1, [1, 2, 3])
    assert np.isnan(found.mae).all(), "not logged"
    assert curves(history.drop(columns="val/loss")).chosen is None
    assert len(curves(pd.DataFrame()).epochs) == 0


def test_the_error_of_a_window_is_its_mae():
    draw = np.random.default_rng(0)
    y = draw.normal(size=(5, 4, 2))
    y[0, 1, 0] = y[1, :, 1] = np.nan
    q = np.sort(draw.normal(size=(5, 4, 2, 3)), -1)
    found = window_errors(evaluation(y, q), LEVELS)
    for i in range(5):
        for k in range(2):
            one = slice(k, k + 1)
            np.testing.assert_allclose(found[i, k], mae(y[i : i + 1, :, one], q[i : i + 1, :, one, 1]))
    assert np.isnan(found[1, 1])


def test_best_median_and_worst_are_ranked_within_their_series():
    miss = np.array([5.0, 1.0, 3.0, 500.0, 100.0, 301.0, 302.0])
    y = np.zeros((7, 2, 1))
    e = evaluation(y, around(y, miss[:, None, None]), series=[0, 0, 0, 1, 1, 1, 1], keys=(("a",), ("b",)))
    np.testing.assert_allclose(relative(miss, e.series)[:3], miss[:3] / 3)
    chosen = {w.why: w.place for w in choose(e, LEVELS, even=0)}
    assert chosen == {"best": 4, "median": 5, "worst": 0}, "errors of the second series are larger, not worse"


def test_windows_of_which_nothing_is_known_are_never_chosen():
    y = np.full((6, 2, 2), np.nan)
    y[[1, 4], :, 0] = [[0.0, 0.0], [1.0, 1.0]]
    e = evaluation(y, np.zeros((6, 2, 2, 3)))
    found = choose(e, LEVELS)
    assert {w.place for w in found} == {1, 4} and {w.target for w in found} == {0}
    assert not choose(evaluation(np.full((3, 2, 1), np.nan), np.zeros((3, 2, 1, 3))), LEVELS)
    alone = choose(evaluation(np.zeros((1, 2, 1)), np.zeros((1, 2, 1, 3))), LEVELS)
    assert [(w.place, w.why) for w in alone] == [(0, "the only one")]


def test_windows_that_are_mostly_missing_do_not_look_best():
    y = np.zeros((5, 4, 1))
    y[2, 1:] = np.nan
    e = evaluation(y, around(y, np.array([5.0, 1.0, 0.0, 2.0, 3.0])[:, None, None]))
    assert {w.why: w.place for w in choose(e, LEVELS, even=0)} == {"best": 1, "median": 3, "worst": 0}
    y[:, 1:] = np.nan
    assert choose(e, LEVELS, even=0)[0].place == 2, "there is nothing better to show"


def test_evenly_spaced_windows_are_spread_and_new():
    draw = np.random.default_rng(0)
    y = draw.normal(size=(101, 2, 1))
    found = choose(evaluation(y, np.zeros((101, 2, 1, 3))), LEVELS)
    assert [w.place for w in found if w.why == "evenly spaced"] == [25, 50, 75]
    assert len({w.place for w in found}) == len(found) == 6


def test_the_model_leads_where_its_error_is_lowest():
    errors = np.array([[1.0, 2.0, 3.0, np.nan], [1.5, 1.0, 3.0, 1.0], [9.0, 9.0, 9.0, 9.0]])
    assert advantage(errors) == (2, 3)
    assert advantage(errors[:1]) == (3, 3), "alone it is first"
    assert shown_steps(1) == [1] and shown_steps(24) == [1, 9, 16, 24]


def test_residuals_are_what_came_less_the_median():
    y = np.full((4, 3, 1), 7.0)
    y[0, 0] = np.nan
    found = residuals(evaluation(y, around(y, np.full((4, 3, 1), 2.0))), LEVELS)
    assert np.isnan(found[0, 0, 0])
    np.testing.assert_array_equal(found[1:], 2.0)


def ar(phi, rows, seed=0):
    noise, x = np.random.default_rng(seed).normal(size=rows), np.zeros(rows)
    for t in range(1, rows):
        x[t] = phi * x[t - 1] + noise[t]
    return x


def test_autocorrelation_is_that_of_an_autoregression():
    x = ar(0.8, 6000)
    found = autocorrelation(x, np.zeros(6000, np.int64), np.arange(6000))
    np.testing.assert_allclose(found.value[:6], 0.8 ** np.arange(1, 7), atol=0.05)
    centred = x - x.mean()
    np.testing.assert_allclose(found.value[2], (centred[3:] * centred[:-3]).mean() / centred.var(), rtol=1e-9)
    np.testing.assert_allclose(found.bound[2], 1.96 / np.sqrt(5997))


def test_autocorrelation_pairs_rows_of_one_series_at_their_true_distance():
    x = ar(0.8, 6000)
    sparse = np.arange(0, 6000, 2)
    found = autocorrelation(x[sparse], np.zeros(3000, np.int64), sparse)
    assert (found.lags % 2 == 0).all()
    np.testing.assert_allclose(found.value[:2], [0.64, 0.8**4], atol=0.05)
    a, b = np.random.default_rng(1).normal(size=(2, 2000))
    rows = np.tile(np.arange(2000), 2)
    both = autocorrelation(np.concatenate([a, b + 50]), np.repeat([0, 1], 2000), rows)
    assert (np.abs(both.value) > both.bound).mean() < 0.2, "the distance of two series is no correlation"
    assert not len(autocorrelation(np.ones(100), np.zeros(100, np.int64), np.arange(100)).lags), "constant"
    assert not len(autocorrelation(a[:20], np.zeros(20, np.int64), np.arange(20)).lags), "too few pairs"


def test_lags_are_shown_where_they_follow_each_other():
    x = ar(0.8, 3000)
    every, second = np.arange(3000), np.arange(0, 3000, 2)
    found = even_lags(autocorrelation(x, np.zeros(3000, np.int64), every))
    assert found.lags.tolist() == list(range(1, 49))
    found = even_lags(autocorrelation(x[second], np.zeros(1500, np.int64), second))
    assert found.lags.tolist() == list(range(2, 49, 2)) and len(found.value) == len(found.bound) == 24
    odd = np.unique(np.linspace(0, 2999, 690).astype(np.int64))
    lagged = autocorrelation(x[odd], np.zeros(690, np.int64), odd)
    assert lagged.lags[:4].tolist() == [4, 5, 8, 9] and even_lags(lagged) is None, "every fourth or fifth row"
    assert even_lags(autocorrelation(x[:20], np.zeros(20, np.int64), every[:20])) is None


def test_residuals_by_hour_follow_the_clock_of_the_table():
    hours = np.arange(48)
    times = hours * HOUR
    found, mean, size_ = by_cycle(hours % 24 - 12.0, times, HOURLY, "hour")
    assert found.tolist() == list(range(24))
    np.testing.assert_array_equal(mean, np.arange(24) - 12.0)
    np.testing.assert_array_equal(size_, np.abs(np.arange(24) - 12.0))
    _, mean, _ = by_cycle(np.r_[hours % 24 - 12.0], times, Grid("datetime", HOUR, zone="+02:00"), "hour")
    assert mean[2] == -12.0, "00:00 UTC is 02:00 there"
    days = np.arange(14) * DAY  # 1970-01-01 was a Thursday
    places, mean, _ = by_cycle(np.r_[np.ones(7), np.nan, np.ones(6)], days, Grid("datetime", DAY), "weekday")
    assert places.tolist() == list(range(7)) and (mean == 1).all()


@pytest.mark.parametrize(
    ("grid", "cycle"),
    [
        (HOURLY, "hour"),
        (Grid("datetime", DAY), "weekday"),
        (Grid("datetime", 7 * DAY), "month"),
        (Grid("datetime", 30 * DAY, 1), "month"),
        (Grid("datetime", 365 * DAY, 12), None),
        (Grid("integer"), None),
        (Grid(), None),
    ],
)
def test_the_cycle_suits_the_spacing(grid, cycle):
    assert cycle_of(grid) == cycle


def test_times_of_forecasts_are_those_of_the_grid():
    grid = Grid("datetime", 30 * DAY, 1, True)
    ends = ticks(pd.to_datetime(["2024-01-31", "2024-11-30"]).to_numpy())
    found = forecast_times(ends, 3, grid).view("datetime64[ns]").astype("datetime64[D]").astype(str)
    assert found.tolist() == [["2024-02-29", "2024-03-31", "2024-04-30"], ["2024-12-31", "2025-01-31", "2025-02-28"]]
    hourly = forecast_times(np.array([0]), 2, HOURLY)
    assert hourly.tolist() == [[HOUR, 2 * HOUR]]
    y = np.zeros((2, 1, 1))
    assert row_numbers(evaluation(y, np.zeros((2, 1, 1, 3)), cutoffs=ends), grid).tolist() == [0, 10]


def test_residuals_over_time_are_quantiles_of_equal_spans():
    when, errors = np.arange(1000), np.repeat([1.0, 2.0], 500)
    errors[3] = np.nan
    bands, middles = over_time(errors, when, bins=10)
    assert (bands[:5] == 1).all() and (bands[5:] == 2).all()
    assert len(middles) == 10 and (np.diff(middles) > 0).all()
    gap = np.r_[np.arange(10), np.arange(990, 1000)]
    assert np.isnan(over_time(np.ones(20), gap, bins=10)[0][1:-1]).all(), "nothing happened there"


@pytest.mark.parametrize("seconds", [0.01, 50, 3600, 20_000, 86_400, 2.6e6, 9e6, 3.2e7])
def test_times_of_any_span_can_be_drawn(seconds):
    schema = Schema(target=("y",), time="t", grid=Grid("datetime", int(seconds * 1e9)))
    when = np.arange(60) * schema.grid.step
    drawn = timeline(np.random.default_rng(0).normal(size=60), when, schema, "y", "name")
    assert "around 19" in drawn.alt or "around 20" in drawn.alt


def gaussian(n=4000, spread=1.0, together=1, seed=0):
    """Forecasts N(mu, spread) of N(mu, 1), of which neighbours err alike in groups."""
    draw = np.random.default_rng(seed)
    mu = draw.normal(size=(n, 2, 1)) * 10
    y = mu + np.repeat(draw.normal(size=(n // together, 1, 1)), together, 0)
    levels = np.arange(1, 20) / 20
    q = mu[..., None] + spread * np.array([NormalDist().inv_cdf(p) for p in levels])
    return evaluation(y, q), levels


def test_ideal_forecasts_lie_on_the_diagonal():
    e, levels = gaussian()
    found = calibration(e, levels, 0)
    np.testing.assert_allclose(found.observed, levels, atol=0.025)
    assert (np.abs(found.observed - levels) < 3.5 * found.error).all()
    np.testing.assert_allclose(found.error[9], np.sqrt(0.25 / 4000), rtol=0.5)


def test_forecasts_too_sure_of_themselves_do_not():
    e, levels = gaussian(spread=0.5)
    found = calibration(e, levels, 0)
    assert found.observed[0] > 0.15 and found.observed[-1] < 0.85
    assert (np.abs(found.observed - levels) > 3 * found.error).sum() >= 12


def test_what_errs_together_counts_less():
    apart, together = (calibration(gaussian(together=k)[0], gaussian()[1], 0).error[9] for k in (1, 50))
    assert together > 3 * apart


def test_few_or_missing_values_give_no_false_certainty():
    y = np.full((6, 2, 1), np.nan)
    y[:4, 0, 0] = [1.0, -1.0, 1.0, -1.0]
    found = calibration(evaluation(y, around(np.zeros((6, 2, 1)), 0.0)), LEVELS, 0)
    np.testing.assert_array_equal(found.observed, [0.5, 0.5, 1.0], "at a quantile is not above it")
    np.testing.assert_allclose(found.error, np.sqrt(np.array([0.09, 0.25, 0.09]) / 4))


def test_coverage_by_step_is_that_of_the_metric():
    draw = np.random.default_rng(0)
    y = draw.normal(size=(200, 3, 2))
    y[:50, 1] = np.nan
    y[:, 2, 1] = np.nan
    q = np.sort(draw.normal(size=(200, 3, 2, 3)), -1)
    for target in (0, 1):
        own = slice(target, target + 1)
        expected = by_step(coverage, y[..., own], q[..., own, 0], q[..., own, 2])
        np.testing.assert_allclose(coverage_by_step(evaluation(y, q), target), expected)


@pytest.mark.parametrize(
    ("rows", "grid", "words"),
    [
        (1, HOURLY, "1 hour"),
        (24, HOURLY, "1 day"),
        (36, HOURLY, "36 hours"),
        (72, HOURLY, "3 days"),
        (0.5, HOURLY, "30 minutes"),
        (7 * 365, Grid("datetime", DAY), "7 years"),
        (1e9, HOURLY, "114,079 years"),
        (5, Grid("datetime", 30 * DAY, 1), "5 months"),
        (8, Grid("datetime", 91 * DAY, 3), "2 years"),
        (3, Grid(), "3 rows"),
        (1234.5, Grid("integer", 5), "1,234 rows"),
        (1e-9, HOURLY, "3.6e-06 seconds"),
        (float("inf"), HOURLY, "-"),
    ],
)
def test_spans_are_in_the_users_unit(rows, grid, words):
    assert span(rows, grid) == words


def test_numbers_as_people_read_them():
    assert [number(v) for v in (0.0, 46.604, -1234567.8, 1e-5, float("nan"), 1e15)] == [
        "0",
        "46.6",
        "-1,234,568",
        "1e-05",
        "-",
        "1.000e+15",
    ]
    assert (percent(0.8164), percent(0.8164, 1), percent(float("nan"))) == ("82%", "81.6%", "-")
    assert [size(v) for v in (0, 999, 8192, 2.5e6, 3e9)] == ["0 bytes", "999 bytes", "8.19 kB", "2.5 MB", "3 GB"]


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e15, 1e300])
def test_values_of_any_size_can_be_drawn(scale):
    draw = np.random.default_rng(0)
    e = evaluation(draw.normal(size=(3, 2, 1)) * scale, np.sort(draw.normal(size=(3, 2, 1, 3)), -1) * scale)
    schema = Schema(target=("y",), time="t", grid=HOURLY)
    for drawn in (windows.chapter(e, schema, LEVELS), chapter(e, schema, LEVELS), errors.chapter(e, schema)):
        assert len(drawn.parts) > 1
