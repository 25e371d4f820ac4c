"""The simplest forecasts do what their names say, see nothing after the cutoff, and give honest intervals."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge as Oracle

from conca.metrics.baselines import History, LastValue, Ridge, SeasonalNaive, season_of
from conca.metrics.forecast import coverage


def history_of(target, covariates=None, train=None) -> History:
    target = np.asarray(target, dtype=float).reshape(len(target), -1)
    covariates = np.empty((len(target), 0)) if covariates is None else covariates
    return History(target, covariates, len(target) if train is None else train)


def waves(n=400, seed=0, features=2) -> History:
    rng = np.random.default_rng(seed)
    target = np.sin(np.arange(n) * 2 * np.pi / 12)[:, None] * [1, 5] + rng.normal(size=(n, 2)) * 0.1 + [0, 100]
    return History(target, rng.normal(size=(n, features)), n // 2)


BASELINES = [LastValue(6), SeasonalNaive(6, 12), SeasonalNaive(6, 4), Ridge(6, rows=10)]


@pytest.mark.parametrize(
    ("minutes", "rows"),
    [
        (1, 1440),
        (15, 96),
        (30, 48),
        (60, 24),
        (180, 8),
        (720, 2),
        (1440, 7),
        (7 * 1440, 52),
        (30 * 1440, 12),
        (91 * 1440, 4),
    ],
)
def test_seasons(minutes, rows):
    assert season_of(60.0 * minutes) == rows


def test_no_season():
    assert [season_of(s) for s in (None, 0.0, 365 * 86_400.0, 1e12)] == [1, 1, 1, 1]


def test_the_last_value():
    history = history_of([1, 2, np.nan, np.nan, 5, 6])
    point, quantiles = LastValue(2).fit([history]).predict(history, np.array([1, 3, 4]))
    np.testing.assert_allclose(point[..., 0], [[2, 2], [2, 2], [5, 5]])
    assert quantiles.shape == (3, 2, 1, 3)


def test_before_any_value_the_mean_stands_in():
    history = history_of([np.nan, np.nan, 4, 6])
    point, _ = LastValue(1).fit([history]).predict(history, np.array([0, 2]))
    np.testing.assert_allclose(point[:, 0, 0], [5, 4])


def test_the_same_hour_yesterday():
    history = history_of(np.arange(100.0))
    point, _ = SeasonalNaive(7, 5).fit([history]).predict(history, np.array([50, 2]))
    np.testing.assert_allclose(point[0, :, 0], [46, 47, 48, 49, 50, 46, 47])
    np.testing.assert_allclose(point[1, :, 0], [0, 0, 0, 1, 2, 0, 0])


def test_ridge_equals_its_oracle_with_targets_missing():
    rng = np.random.default_rng(0)
    history = waves(300, features=3)
    history.target[rng.random(history.target.shape) < 0.2] = np.nan
    history.covariates[rng.random(history.covariates.shape) < 0.2] = np.nan
    ours = Ridge(4, rows=5, penalty=0.01).fit([history])
    rows = np.arange(0, history.train - 4)
    x, y = ours.inputs(ours.windows(history), rows), ours.truth(history, rows)
    after = ours.normal(history, np.arange(200, 290))
    for step in range(4):
        for k in range(2):
            known = ~np.isnan(y[:, step, k])
            oracle = Oracle(alpha=0.01 * known.sum()).fit(x[known, 1:], y[known, step, k])
            expected = oracle.predict(ours.inputs(ours.windows(history), np.arange(200, 290))[:, 1:])
            np.testing.assert_allclose(after[:, step, k], expected, atol=1e-6)


def test_ridge_with_all_steps_known_equals_its_oracle():
    history = waves(300)
    ours = Ridge(4, rows=5, penalty=0.01).fit([history])
    rows = np.arange(0, history.train - 4)
    x, y = ours.inputs(ours.windows(history), rows), ours.truth(history, rows)
    oracle = Oracle(alpha=0.01 * len(x)).fit(x[:, 1:], y.reshape(len(y), -1))
    np.testing.assert_allclose(ours.normal(history, rows).reshape(len(y), -1), oracle.predict(x[:, 1:]), atol=1e-6)


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda b: type(b).__name__)
def test_nothing_after_the_cutoff_is_seen(baseline):
    history = waves()
    other = History(history.target.copy(), history.covariates.copy(), history.train)
    other.target[301:], other.covariates[301:] = -1e3, np.nan
    baseline.fit([history])
    for one, two in zip(baseline.predict(history, np.array([250, 300])), baseline.predict(other, np.array([250, 300]))):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda b: type(b).__name__)
def test_nothing_after_the_training_rows_is_learnt(baseline):
    history = waves()
    other = History(history.target.copy(), history.covariates.copy(), history.train)
    other.target[history.train :], other.covariates[history.train :] = 1e3, 1e3
    one = baseline.fit([history]).predict(history, np.array([150]))
    two = baseline.fit([other]).predict(history, np.array([150]))
    for a, b in zip(one, two):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda b: type(b).__name__)
def test_quantiles_hold_and_do_not_cross(baseline):
    history = waves(3000)
    rows = np.arange(history.train, 3000 - 6)
    y = history.target[rows[:, None] + 1 + np.arange(6)]
    _, quantiles = baseline.fit([history]).predict(history, rows)
    assert (np.diff(quantiles, axis=-1) >= 0).all()
    assert coverage(y, quantiles[..., 0], quantiles[..., 2]) == pytest.approx(0.8, abs=0.03)


def test_series_of_different_size_share_one_distribution_of_errors():
    rng = np.random.default_rng(0)
    small = history_of(rng.normal(size=3000) * 0.01 + 3, train=2000)
    large = history_of(rng.normal(size=3000) * 1000 - 7e4, train=2000)
    for baseline in (LastValue(3), Ridge(3, rows=4)):
        baseline.fit([small, large])
        for history in (small, large):
            rows = np.arange(2000, 2990)
            y = history.target[rows[:, None] + 1 + np.arange(3)]
            _, quantiles = baseline.predict(history, rows)
            assert coverage(y, quantiles[..., 0], quantiles[..., 2]) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_series_shorter_than_the_horizon_or_window(baseline, size):
    history = History(np.arange(2.0 * size).reshape(size, 2), np.ones((size, 2)), size)
    point, quantiles = baseline.fit([history]).predict(history, np.array([size - 1]))
    assert np.isfinite(point).all()
    assert np.isfinite(quantiles).all()
    assert baseline.predict(history, np.array([], dtype=int))[1].shape == (0, 6, 2, 3)


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda b: type(b).__name__)
def test_a_target_that_is_constant_or_missing(baseline):
    target = np.stack([np.full(60, 7.0), np.full(60, np.nan)], axis=1)
    history = History(target, np.full((60, 2), np.nan), 50)
    point, quantiles = baseline.fit([history]).predict(history, np.array([55]))
    np.testing.assert_allclose(point[0, :, 0], 7)
    assert np.isfinite(quantiles).all()


def test_long_tables_are_thinned_to_bound_memory(monkeypatch):
    history = waves(4000)
    full = Ridge(3, rows=8).fit([history]).predict(history, np.array([3000]))[0]
    monkeypatch.setattr("conca.metrics.baselines.MOST_NUMBERS", 20_000)
    thin = Ridge(3, rows=8, most=700).fit([history]).predict(history, np.array([3000]))[0]
    np.testing.assert_allclose(thin, full, rtol=0.2)
    assert [len(rows) for rows in Ridge(3, most=700).cutoffs([history])] == [666]


@pytest.mark.parametrize(
    ("targets", "covariates", "sizes"),
    [
        (1, 10, [(48, 1), (48, 10)]),
        (1, 300, [(48, 1), (4, 300)]),
        (2, 5000, [(48, 2), (1, 1404)]),
        (100, 7, [(15, 100), (1, 0)]),
        (2000, 0, [(1, 2000), (1, 0)]),
    ],
)
def test_wide_tables_are_seen_in_part_to_bound_memory(targets, covariates, sizes):
    history = History(np.zeros((60, targets)), np.zeros((60, covariates)), 50)
    model = Ridge(2)
    assert model.sizes(history) == sizes
    assert sum(part.shape[1] for part in model.windows(history)) == sum(rows * columns for rows, columns in sizes)


def test_ridge_with_less_history_of_the_covariates(monkeypatch):
    history = waves(features=3)
    monkeypatch.setattr("conca.metrics.baselines.MOST_INPUTS", 16)
    model = Ridge(4, rows=5).fit([history])
    values = [(part - part[:200].mean(0)) / part[:200].std(0) for part in (history.target, history.covariates)]
    cutoff, beyond = np.array([300]), model.windows(history)
    np.testing.assert_allclose(beyond[0][300], values[0][296:301].ravel())
    np.testing.assert_allclose(beyond[1][300], values[1][299:301].ravel())
    assert np.isfinite(model.predict(history, cutoff)[0]).all()


def test_what_is_refused():
    history = waves()
    with pytest.raises(RuntimeError, match="fit"):
        Ridge(3).predict(history, np.array([5]))
    with pytest.raises(RuntimeError, match="fit"):
        Ridge(3).normal(history, np.array([5]))
    for wrong in (lambda: LastValue(0), lambda: SeasonalNaive(1, 0), lambda: Ridge(1, 0), lambda: Ridge(1, penalty=0)):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(ValueError, match="levels"):
        LastValue(1, levels=(0, 1))
    with pytest.raises(ValueError, match="one length"):
        History(np.zeros((3, 1)), np.zeros((2, 1)), 3)
