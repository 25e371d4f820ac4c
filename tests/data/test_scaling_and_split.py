"""Normalisation and splitting by time."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conca.data.scaling import Scaler
from conca.data.split import Split, cutoffs, split_by_time
from conca.types import BadInput


def test_scaler_matches_its_oracle():
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 3)) * [1, 1e-6, 1e9] + [5, 1e-3, -1e10]
    values[rng.random(values.shape) < 0.2] = np.nan
    ours = Scaler.fit([values[:100], values[100:101], values[101:]])
    oracle = StandardScaler().fit(values)
    np.testing.assert_allclose(ours.mean, oracle.mean_, rtol=1e-10)
    np.testing.assert_allclose(ours.scale, oracle.scale_, rtol=1e-7)
    np.testing.assert_allclose(ours.transform(values), oracle.transform(values), atol=1e-6)
    np.testing.assert_allclose(ours.inverse(ours.transform(values)), values, rtol=1e-9)


def test_columns_that_are_constant_empty_or_extreme():
    values = np.array(
        [[7.0, np.nan, 0.1, 1e300, 1e-300], [7.0, np.nan, 0.1, -1e300, 3e-300], [7.0, np.nan, 0.1, np.nan, np.nan]]
    )
    scaler = Scaler.fit([values])
    np.testing.assert_allclose(scaler.mean, [7, 0, 0.1, 0, 2e-300])
    np.testing.assert_allclose(scaler.scale, [1, 1, 1, 1e300, 1e-300])
    np.testing.assert_array_equal(scaler.transform(values)[:, 0], 0)
    assert np.isfinite(scaler.transform(values[:2, [0, 0, 2, 3, 4]])).all()


def test_a_constant_with_rounding_errors_is_constant():
    values = np.full((1000, 1), 0.1 + 0.2)
    values[::2] = 0.3
    assert Scaler.fit([values]).scale == (1.0,)


def test_nothing_to_fit():
    assert Scaler.fit([], columns=2) == Scaler((0.0, 0.0), (1.0, 1.0))
    assert Scaler.fit([np.empty((0, 2))]) == Scaler((0.0, 0.0), (1.0, 1.0))
    assert Scaler.fit([np.empty((5, 0))]).transform(np.empty((5, 0))).shape == (5, 0)
    with pytest.raises(ValueError, match="infinite"):
        Scaler.fit([np.array([[np.inf]])])


def test_the_test_part_has_no_say():
    values = np.random.default_rng(0).normal(size=(100, 2))
    other = values.copy()
    other[80:] = 1e6
    assert Scaler.fit([values[:80]]) == Scaler.fit([other[:80]])


def test_one_scaler_for_each_series_with_a_fallback():
    long, short = np.arange(20.0)[:, None], np.array([[5.0], [np.nan]])
    whole = Scaler.fit([long, short])
    one, other = Scaler.each([long, short], whole)
    assert one == Scaler.fit([long])
    assert other == whole


def test_a_scaler_survives_json():
    scaler = Scaler.fit([np.random.default_rng(0).normal(size=(9, 3))])
    assert Scaler.from_dict(json.loads(json.dumps(scaler.as_dict()))) == scaler


@pytest.mark.parametrize(
    "saved",
    [{}, {"mean": [0.0]}, {"mean": [0.0], "scale": []}, {"mean": [0.0], "scale": [0.0]}, {"mean": ["x"], "scale": [1.0]},
     {"mean": [float("nan")], "scale": [1.0]}, {"mean": 3, "scale": 4}],
)  # fmt: skip
def test_a_saved_scaler_that_is_damaged(saved):
    with pytest.raises(BadInput, match="scaler"):
        Scaler.from_dict(saved)


def test_split_of_known_sizes():
    assert split_by_time(43_824) == Split(31_554, 35_060, 43_824)
    assert split_by_time(35) == Split(26, 28, 35)
    assert split_by_time(10, held_out=0, validation=0) == Split(10, 10, 10)
    assert split_by_time(0) == Split(0, 0, 0)
    assert split_by_time(1) == Split(1, 1, 1)


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, float("nan")])
def test_shares_that_are_none(share):
    with pytest.raises(ValueError, match="held_out"):
        split_by_time(10, held_out=share)
    with pytest.raises(ValueError, match="validation"):
        split_by_time(10, validation=share)


@given(st.integers(0, 10**6), st.floats(0, 0.99), st.floats(0, 0.99))
def test_parts_are_in_order_and_cover_all(total, held_out, validation):
    split = split_by_time(total, held_out=held_out, validation=validation)
    assert 0 <= split.train <= split.validation <= split.total == total
    assert abs((total - split.validation) - held_out * total) <= 1
    assert split.train > 0 or not total


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 30), st.integers(1, 5))
def test_cutoffs_are_all_whose_forecast_lies_in_the_range(begin, length, horizon, stride):
    end = begin + length
    found = cutoffs(begin, end, horizon, stride).tolist()
    allowed = [c for c in range(end) if c + 1 >= begin and c + horizon < end]
    assert found == allowed[::stride]
