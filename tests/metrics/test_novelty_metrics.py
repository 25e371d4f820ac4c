"""Telling the strange from the ordinary: by hand, scikit-learn's figures, ties, the class that is positive."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from conca.metrics.novelty import auprc, auroc, fpr_at

METRICS = (auroc, auprc, fpr_at)


def scores(decimals):
    draw = np.random.default_rng(0)
    return draw.normal(size=60).round(decimals), (draw.normal(size=25) + 1).round(decimals)


def test_the_strange_are_positive_and_higher_is_stranger():
    assert [metric([0, 1, 2], [3, 4]) for metric in METRICS] == [1, 1, 0]
    assert auroc([3, 4], [0, 1]) == 0 and fpr_at([3, 4], [0, 1]) == 1
    rare, often = ([0.0] * 9, [0.0]), ([0.0], [0.0] * 9)
    assert auprc(*rare) == pytest.approx(0.1) and auprc(*often) == pytest.approx(0.9)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_figures_are_those_of_scikit_learn_and_of_the_definitions(decimals):
    ordinary, strange = scores(decimals)
    truth, both = np.r_[np.zeros(60), np.ones(25)], np.r_[ordinary, strange]
    assert auroc(ordinary, strange) == roc_auc_score(truth, both)
    assert auprc(ordinary, strange) == average_precision_score(truth, both)
    pairs = strange[:, None] - ordinary
    assert auroc(ordinary, strange) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)
    false, true, _ = roc_curve(truth, both, drop_intermediate=False)
    for recall in (0.04, 0.5, 0.95, 1.0):
        assert fpr_at(ordinary, strange, recall) == false[true >= recall - 1e-12].min()
        height = np.sort(strange)[::-1][int(np.ceil(recall * 25 - 1e-9)) - 1]
        assert fpr_at(ordinary, strange, recall) == pytest.approx((ordinary >= height).mean())


def test_ties_count_half_and_none_is_told_from_another():
    assert auroc([1, 1], [1, 1, 1]) == 0.5 and fpr_at([1, 1], [1, 1, 1]) == 1


def test_infinite_scores_are_ranked():
    assert auroc([0, -np.inf], [np.inf, 1]) == 1


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("ordinary", "strange", "said"),
    [
        ([], [1.0], "no score of a sample that is ordinary"),
        ([1.0], [], "no score of a sample that is strange"),
        ([1.0, np.nan], [1.0], "ordinary is not a number"),
        ([1.0], [np.nan], "strange is not a number"),
    ],
)
def test_bad_input_is_one_line(metric, ordinary, strange, said):
    with pytest.raises(ValueError, match=said) as raised:
        metric(ordinary, strange)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("recall", [0.0, 1.1, float("nan")])
def test_a_recall_is_a_share(recall):
    with pytest.raises(ValueError, match="recall"):
        fpr_at([1.0], [2.0], recall)
