"""Errors of forecasts against definitions written out, scikit-learn, and missing values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, root_mean_squared_error

from conca.metrics.forecast import by_step, coverage, mae, mase, naive_error, pinball, rmse, scores, width

LEVELS = (0.1, 0.5, 0.9)


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(40, 6, 2))
    y[rng.random(y.shape) < 0.3] = np.nan
    quantiles = np.sort(rng.normal(size=(40, 6, 2, 3)), axis=-1)
    return y, quantiles


def test_the_same_as_the_oracle(case):
    y, quantiles = case
    known = ~np.isnan(y)
    median = quantiles[..., 1]
    assert mae(y, median) == pytest.approx(mean_absolute_error(y[known], median[known]))
    assert rmse(y, median) == pytest.approx(root_mean_squared_error(y[known], median[known]))
    losses = [mean_pinball_loss(y[known], quantiles[known][:, i], alpha=p) for i, p in enumerate(LEVELS)]
    assert pinball(y, quantiles, LEVELS) == pytest.approx(np.mean(losses))
    assert pinball(y, median[..., None], [0.5]) == pytest.approx(mae(y, median) / 2)


def test_by_step_is_the_metric_of_each_step(case):
    y, quantiles = case
    steps = by_step(mae, y, quantiles[..., 1])
    assert steps.shape == (6,)
    assert steps[2] == pytest.approx(np.nanmean(np.abs(y - quantiles[..., 1])[:, 2]))
    assert by_step(pinball, y, quantiles, levels=LEVELS)[5] == pytest.approx(
        pinball(y[:, 5:], quantiles[:, 5:], LEVELS)
    )
    assert by_step(mase, y, quantiles[..., 1], scale=np.array([1.0, 2.0])).shape == (6,)
    assert by_step(width, quantiles[..., 0], quantiles[..., 2]).mean() == pytest.approx(
        width(quantiles[..., 0], quantiles[..., 2])
    )


def test_missing_targets_are_not_counted_and_missing_forecasts_are_not_hidden():
    y = np.array([[[1.0], [np.nan], [3.0]]])
    assert mae(y, np.array([[[2.0], [np.nan], [3.0]]])) == 0.5
    assert mae(y, np.array([[[2.0], [7e9], [3.0]]])) == 0.5
    assert np.isnan(mae(y, np.array([[[2.0], [0.0], [np.nan]]])))
    assert np.isnan(rmse(y, np.full(y.shape, np.nan)))


def test_nothing_to_count_is_nan():
    none = np.full((2, 3, 1), np.nan)
    zero = np.zeros((2, 3, 1))
    empty = np.empty((0, 3, 1))
    for y, f in ((none, zero), (empty, empty)):
        assert np.isnan([mae(y, f), rmse(y, f), mase(y, f, [1.0]), coverage(y, f, f)]).all()
        assert np.isnan(pinball(y, f[..., None], [0.5]))
        assert np.isnan(by_step(mae, y, f)).all()
    assert np.isnan(width(empty, empty))


def test_mase_by_its_definition():
    train = np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0], [np.nan, 5.0], [6.0, 5.0], [7.0, 5.0]])
    np.testing.assert_allclose(naive_error(train, 1), [(2 + 1 + 1) / 3, 0])
    np.testing.assert_allclose(naive_error(train, 2), [(1 + 4) / 2, 0])
    assert np.isnan(naive_error(train, 6)).all()
    assert np.isnan(naive_error(train, 99)).all()
    y = np.array([[[4.0, 5.0]], [[np.nan, 9.0]]])
    forecast = np.zeros((2, 1, 2))
    assert mase(y, forecast, [2.0, 0.0]) == 2.0, "a target that never moves is not counted"
    assert mase(y, forecast, np.array([[[2.0, 1.0]], [[np.nan, 3.0]]])) == pytest.approx((2 + 5 + 3) / 3)
    with pytest.raises(ValueError, match="season"):
        naive_error(train, 0)


def test_the_seasonal_naive_forecast_has_a_mase_of_one_on_its_training_rows():
    train = np.random.default_rng(0).normal(size=(50, 2)).cumsum(0)
    y, forecast = train[None, 7:], train[None, :-7]
    for k in range(2):
        assert mase(y[..., k : k + 1], forecast[..., k : k + 1], naive_error(train, 7)[k : k + 1]) == pytest.approx(1)


def test_coverage_counts_both_ends():
    y = np.array([0.0, 1.0, 2.0, np.nan, 3.0]).reshape(5, 1, 1)
    assert coverage(y, np.full(y.shape, 1.0), np.full(y.shape, 2.0)) == 0.5


@given(st.floats(0.01, 0.99), st.integers(0, 1000))
def test_pinball_is_least_at_the_quantile(p, seed):
    y = np.random.default_rng(seed).normal(size=(101, 1, 1))
    best = np.quantile(y, p, method="inverted_cdf")
    at_best = pinball(y, np.full((101, 1, 1, 1), best), [p])
    for other in (best - 0.3, best + 0.3, 0.0):
        assert at_best <= pinball(y, np.full((101, 1, 1, 1), other), [p]) + 1e-12


def test_shapes_that_do_not_fit(case):
    y, quantiles = case
    with pytest.raises(ValueError, match="do not fit"):
        pinball(y, quantiles, [0.5])
    with pytest.raises(ValueError):
        mae(y, quantiles)


def test_scores_are_the_row_of_a_table(case):
    y, quantiles = case
    order = [2, 0, 1]
    row = scores(y, quantiles[..., order], [LEVELS[i] for i in order], np.array([2.0, 4.0]))
    assert list(row) == ["mae", "rmse", "mase", "pinball", "coverage", "width"]
    assert row["mae"] == mae(y, quantiles[..., 1])
    assert row["coverage"] == coverage(y, quantiles[..., 0], quantiles[..., 2])
    assert row["width"] == width(quantiles[..., 0], quantiles[..., 2])
    assert scores(y, quantiles, LEVELS, 1.0, point=y)["mae"] == 0
    with pytest.raises(ValueError, match="median"):
        scores(y, quantiles[..., :2], (0.1, 0.9), 1.0)
