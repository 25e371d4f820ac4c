"""The Frechet distance: cases with known answers, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

from conca.metrics.frechet import frechet_distance


def test_of_a_set_and_itself_it_is_zero_and_a_shift_adds_its_square() -> None:
    a = np.random.default_rng(0).normal(size=(50, 4))
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a, a + np.array([3.0, 0, 4.0, 0])) == pytest.approx(25)
    assert frechet_distance(a, 2 * a) == pytest.approx(np.trace(np.cov(a.T)) + (a.mean(0) ** 2).sum())


def test_it_is_what_the_matrix_root_of_scipy_gives() -> None:
    draw = np.random.default_rng(1)
    a, b = draw.normal(size=(40, 3)) @ draw.normal(size=(3, 3)), draw.normal(size=(30, 3))
    one, two = np.cov(a.T), np.cov(b.T)
    want = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(one + two - 2 * sqrtm(one @ two).real)
    assert frechet_distance(a, b) == pytest.approx(want)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a))


def test_fewer_samples_than_features_and_one_feature_are_taken() -> None:
    a = np.random.default_rng(2).normal(size=(5, 20))
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert frechet_distance([[0.0], [2.0]], [[1.0], [3.0]]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("a", "b"),
    [(np.ones(3), np.ones(3)), (np.ones((3, 2)), np.ones((3, 1))), (np.ones((1, 2)), np.ones((3, 2)))],
)
def test_what_is_no_pair_of_sets_is_refused(a: np.ndarray, b: np.ndarray) -> None:
    with pytest.raises(ValueError, match="set"):
        frechet_distance(a, b)
    with pytest.raises(ValueError, match="finite"):
        frechet_distance([[0.0], [np.nan]], [[0.0], [1.0]])
