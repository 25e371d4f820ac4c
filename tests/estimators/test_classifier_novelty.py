"""How strange sequences are to a fitted classifier."""

import numpy as np
import pytest
import torch

import conca
from conca.data.padded import Shelf
from conca.energy.novelty import score_by
from conca.types import BadInput

NAMES = ("energy", "max_softmax", "max_logit")


@pytest.fixture(autouse=True, scope="module")
def single():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


def waves(speed, n, steps=20, seed=0):
    phase = np.random.default_rng(seed).uniform(0, 6, (n, 1, 1))
    return np.sin(phase + speed * np.arange(steps)[:, None])


X = np.concatenate([waves(0.2, 12), waves(0.9, 12)])
Y = np.repeat(["slow", "fast"], 12)


@pytest.fixture(scope="module")
def fitted(single):
    return conca.Classifier(layers="s4d(d_state=4)", d_model=8, epochs=8, dropout=0.0, lr=2e-2).fit(X, Y)


@pytest.mark.parametrize("by", NAMES)
def test_scores_are_those_of_the_logits_of_its_network(fitted, by):
    found = fitted.novelty(X, by=by)
    assert found.shape == (24,) and found.dtype == np.float64
    logits = {name: fitted.novelty(X, by=name) for name in NAMES}
    # max softmax = exp(max logit - logsumexp): the three are of the same logits
    assert logits["max_softmax"] == pytest.approx(-np.exp(logits["energy"] - logits["max_logit"]), abs=1e-9)
    assert logits["max_softmax"] == pytest.approx(-fitted.predict_proba(X).max(1), abs=1e-6)
    with torch.no_grad():
        by_hand = fitted.network_.eval()(Shelf(fitted.read(X)).padded(np.arange(24))[0]).double()
    assert found == pytest.approx(score_by(by)(by_hand).numpy(), abs=1e-5)


def test_a_temperature_is_that_of_the_energy(fitted):
    cold = fitted.novelty(X, temperature=1e-3)
    assert cold == pytest.approx(fitted.novelty(X, by="max_logit"), abs=1e-2)
    with pytest.raises(BadInput, match="a temperature belongs to the energy"):
        fitted.novelty(X, by="max_logit", temperature=2.0)
    with pytest.raises(BadInput, match="unknown score"):
        fitted.novelty(X, by="enrgy")


def test_the_length_of_other_sequences_does_not_matter(fitted):
    rows = [X[0][:7], X[1], waves(0.2, 1, 60)[0], X[2][:1]]
    together = fitted.novelty(rows)
    assert together == pytest.approx([fitted.novelty([row])[0] for row in rows], abs=1e-4)


def test_a_saved_run_gives_the_same_scores(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    again = conca.load(tmp_path / "run")
    for by in NAMES:
        assert np.array_equal(again.novelty(X, by=by), fitted.novelty(X, by=by))
