"""Scores of answers against scikit-learn, definitions written out, and answers that are no answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support
from sklearn.metrics import log_loss as sklearn_log_loss

from conca.metrics.classification import (
    accuracy,
    accuracy_by,
    by_class,
    calibration,
    confusion,
    expected_calibration_error,
    log_loss,
    macro_f1,
    said_of,
    wilson,
)

K = 7


@pytest.fixture(scope="module")
def case():
    """Seven classes, one of which never occurs and one is never answered."""
    draw = np.random.default_rng(0)
    truth = draw.choice([0, 1, 2, 3, 5, 6], size=300)
    logits = draw.normal(size=(300, K)) + 2 * np.eye(K)[truth]
    logits[:, 6] = -20
    probability = np.exp(logits)
    return truth, probability / probability.sum(1, keepdims=True)


def test_the_same_as_scikit_learn(case):
    truth, probability = case
    said = probability.argmax(1)
    assert 4 in said and 6 not in said and 4 not in truth and 6 in truth
    assert accuracy(truth, probability) == accuracy_score(truth, said)
    assert macro_f1(truth, probability) == pytest.approx(f1_score(truth, said, average="macro"), rel=1e-12)
    np.testing.assert_array_equal(confusion(truth, probability), confusion_matrix(truth, said, labels=range(K)))
    for kind in (np.float64, np.float32):
        oracle = sklearn_log_loss(truth, probability.astype(kind), labels=range(K))
        assert log_loss(truth, probability.astype(kind)) == pytest.approx(oracle, rel=1e-6)
    found = by_class(confusion(truth, probability))
    oracle = precision_recall_fscore_support(truth, said, labels=range(K), zero_division=np.nan)
    for own, other in zip((found.precision, found.recall, found.f1, found.support), oracle):
        np.testing.assert_allclose(own, other, rtol=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_macro_f1_is_that_of_scikit_learn_whatever_occurs(pairs):
    truth, said = np.array(pairs).T
    assert macro_f1(truth, said) == pytest.approx(f1_score(truth, said, average="macro", zero_division=0), rel=1e-12)
    assert macro_f1(truth, np.eye(9)[said]) == macro_f1(truth, said), "a class that never occurs does not count"
    assert confusion(truth, said, 5).sum() == len(pairs)


def test_a_class_that_neither_occurs_nor_is_answered_is_not_a_number():
    found = by_class(confusion(np.array([0, 1]), np.array([0, 0]), 3))
    assert found.precision.tolist()[0] == 0.5 and np.isnan(found.precision[1:]).all()
    assert found.recall.tolist()[:2] == [1.0, 0.0] and np.isnan(found.recall[2])
    assert found.f1.tolist()[:2] == [pytest.approx(2 / 3), 0.0] and np.isnan(found.f1[2])
    assert (found.support.tolist(), found.said.tolist()) == ([1, 1, 0], [2, 0, 0])


def test_a_probability_of_zero_costs_a_finite_loss():
    truth, sure = np.array([0, 1]), np.array([[0.0, 1.0], [0.0, 1.0]])
    assert log_loss(truth, sure) == pytest.approx(-np.log(np.finfo(float).eps) / 2, rel=1e-9)
    assert log_loss(truth, sure.astype(np.float32)) == pytest.approx(-np.log(np.finfo(np.float32).eps) / 2, rel=1e-6)
    assert log_loss(truth, sure.astype(int)) == log_loss(truth, sure)
    assert log_loss(truth[1:], sure[1:]) == pytest.approx(np.finfo(float).eps, rel=1e-9), "nothing is quite certain"


def test_calibration_is_counted_by_hand():
    top = np.array([0.55, 0.6, 0.65, 0.95, 1.0, 0.5])
    probability = np.stack([top, 1 - top], 1)
    found = calibration(np.array([0, 1, 0, 0, 0, 1]), probability, 10)
    assert found.count.tolist() == [0, 0, 0, 0, 1, 2, 1, 0, 0, 2], "0.5 and 0.6 belong to the bins that they end"
    np.testing.assert_allclose(found.confidence[[4, 5, 6, 9]], [0.5, 0.575, 0.65, 0.975])
    np.testing.assert_allclose(found.right[[4, 5, 6, 9]], [0.0, 0.5, 1.0, 1.0])
    assert np.isnan(found.confidence[0]) and np.isnan(found.right[7])
    error = (0.5 + 2 * 0.075 + 0.35 + 2 * 0.025) / 6
    assert expected_calibration_error(np.array([0, 1, 0, 0, 0, 1]), probability) == pytest.approx(error)
    assert calibration(np.array([0]), np.ones((1, 1)), 1).count.tolist() == [1]


def test_the_calibration_error_of_a_calibrated_classifier_goes_to_zero():
    draw = np.random.default_rng(0)
    p = draw.uniform(0, 1, 40_000)
    truth = (draw.uniform(size=p.size) < p).astype(int)
    probability = np.stack([1 - p, p], 1)
    assert expected_calibration_error(truth, probability) < 0.01
    overconfident = np.stack([1 - np.round(p), np.round(p)], 1)
    assert expected_calibration_error(truth, overconfident) == pytest.approx(0.25, abs=0.02)


def test_wilson_intervals_are_those_of_the_literature():
    low, high = wilson([0, 3, 10, 81], [10, 10, 10, 263])
    np.testing.assert_allclose(low[1:], [0.10779, 0.72247, 0.25529], atol=2e-5)
    np.testing.assert_allclose(high[:2], [0.27753, 0.60322], atol=2e-5)
    assert low[0] == 0.0 and high[2] == 1.0 and high[3] == pytest.approx(0.36621, abs=2e-5)
    assert tuple(map(float, wilson(0, 0))) == (0.0, 1.0)


def test_accuracy_by_length_parts_no_equal_lengths():
    lengths = np.array([5] * 60 + [7] * 10 + list(range(10, 40)))
    said = np.zeros(100, int)
    said[:30] = 1
    found = accuracy_by(lengths, np.zeros(100, int), said, bins=4)
    assert found.first.tolist()[0] == found.last.tolist()[0] == 5 and found.count[0] == 60
    assert found.right[0] == 0.5 and (found.right[1:] == 1).all()
    assert found.count.sum() == 100 and (found.first[1:] > found.last[:-1]).all() and len(found.count) <= 4
    for first, last, count in zip(found.first, found.last, found.count):
        assert count == ((first <= lengths) & (lengths <= last)).sum()
    np.testing.assert_allclose((found.low, found.high), wilson(found.right * found.count, found.count))
    alone = accuracy_by(np.full(3, 9), np.zeros(3, int), np.zeros(3, int))
    assert (alone.first.tolist(), alone.last.tolist(), alone.count.tolist()) == ([9], [9], [3])
    even = accuracy_by(np.arange(800), np.zeros(800, int), np.zeros(800, int), bins=8)
    assert even.count.tolist() == [100] * 8 and even.last.tolist() == list(range(99, 800, 100))


def test_nothing_to_count_is_nan():
    none, empty = np.empty(0, int), np.empty((0, 3))
    for metric in (accuracy, macro_f1, log_loss, expected_calibration_error):
        assert np.isnan(metric(none, empty))
    assert confusion(none, empty).shape == (3, 3) and calibration(none, empty).count.sum() == 0
    assert len(accuracy_by(none, none, none).count) == 0


@pytest.mark.parametrize("metric", [accuracy, macro_f1, log_loss, confusion, expected_calibration_error])
def test_what_does_not_fit_is_refused(metric):
    good = np.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="not a number"):
        metric(np.array([0, 1]), np.array([[0.5, np.nan], [0.5, 0.5]]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        metric(np.array([0, 2]), good)
    with pytest.raises(ValueError, match="between 0 and 1"):
        metric(np.array([0, -1]), good)
    with pytest.raises(ValueError, match="does not fit 2 answers"):
        metric(np.array([0, 1, 1]), good)
    with pytest.raises(ValueError, match="whole numbers"):
        metric(np.array([0.0, 0.5]), good)


def test_what_cannot_be_an_answer_is_refused():
    one = np.array([0])
    with pytest.raises(ValueError, match="shape"):
        said_of(np.zeros((1, 1, 1)))
    with pytest.raises(ValueError, match="probabilities"):
        log_loss(one, one)
    with pytest.raises(ValueError, match="probabilities"):
        calibration(one, one)
    with pytest.raises(ValueError, match="bins"):
        calibration(one, np.ones((1, 1)), 0)
    with pytest.raises(ValueError, match="numbers"):
        accuracy_by(np.array([np.nan]), one, one)
    with pytest.raises(ValueError, match="bins"):
        accuracy_by(one, one, one, 0)
