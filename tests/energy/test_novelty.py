"""Scores of novelty: one sign, their formulas, networks left as they were, the temperature, tuning with margins."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conca.energy import ClassifierEnergy, energy_margin, margins
from conca.energy.novelty import energy_score, fit_temperature, max_logit_score, max_softmax_score, novelty, score_by
from conca.metrics.novelty import auroc
from conca.types import BadInput

NAMES = ("energy", "max_softmax", "max_logit")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def logits(n=40, classes=5):
    return 3 * torch.randn(n, classes, generator=seeded())


@pytest.mark.parametrize("by", NAMES)
def test_what_a_classifier_is_unsure_of_is_stranger(by):
    sure = logits() + 12 * F.one_hot(torch.arange(40) % 5, 5)
    assert auroc(score_by(by)(sure), score_by(by)(logits())) > 0.9


def test_scores_are_their_formulas():
    x = torch.tensor([[8.0, 2.0, 1.0], [9.0, 3.0, 2.0], [8.0, 7.0, 7.0]])
    for t in (0.5, 1.0, 3.0):
        by_hand = [-t * math.log(sum(math.exp(float(v) / t) for v in row)) for row in x]
        assert energy_score(x, t).numpy() == pytest.approx(by_hand, abs=1e-12)
    assert (-energy_score(x)).numpy() == pytest.approx([8.0034, 9.0034, 8.5514], abs=1e-4)
    assert max_logit_score(x).tolist() == [-8, -9, -8]
    first = math.exp(8) / (math.exp(8) + math.exp(2) + math.exp(1))
    assert float(max_softmax_score(x)[0]) == pytest.approx(-first)


def test_a_shift_of_the_logits_moves_the_energy_and_not_the_softmax():
    x = logits()
    assert torch.allclose(energy_score(x + 2), energy_score(x) - 2)
    assert torch.allclose(max_logit_score(x + 2), max_logit_score(x) - 2)
    assert torch.allclose(max_softmax_score(x + 2), max_softmax_score(x))


def test_the_energy_is_that_of_the_classifier_and_large_logits_stay_finite():
    x = logits()
    assert torch.allclose(energy_score(x, 2.0), ClassifierEnergy(nn.Identity(), (5,), temperature=2.0)(x))
    assert energy_score(torch.tensor([[1e4, 0.0]])).item() == -1e4
    assert torch.allclose(energy_score(x, 1e-3), max_logit_score(x), atol=1e-2)


def test_the_temperature_changes_the_ranking():
    x = torch.tensor([[5.0, 0.0, 0.0], [4.5, 4.4, 4.4]])
    cold, warm = energy_score(x, 0.05), energy_score(x, 1.0)
    assert cold[0] < cold[1] and warm[0] > warm[1]


class Told(nn.Module):
    """Dropout and a norm that learns from what passes: both would be seen if it were asked in train mode."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
        self.body[2].eval()
        self.gradients = None

    def forward(self, x):
        self.gradients = torch.is_grad_enabled()
        return self.body(x)


@pytest.mark.parametrize("by", NAMES)
def test_a_network_is_asked_in_eval_mode_without_gradients_and_left_as_it_was(by):
    torch.manual_seed(0)
    net, x = Told(), torch.randn(11, 3)
    modes = [m.training for m in net.modules()]
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = [novelty(net, x, by, batch_size=size) for size in (1, 4, 256)]
    assert [m.training for m in net.modules()] == modes and net.gradients is False
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters()) and not found[0].requires_grad
    by_hand = score_by(by)(net.eval()(x))
    assert all(torch.allclose(one, by_hand) for one in found)


def test_modes_come_back_where_the_network_fails():
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    with pytest.raises(RuntimeError):
        novelty(net, torch.ones(2, 4))
    assert net.training and net[1].training


def test_the_fitted_temperature_is_where_the_log_loss_is_least_and_undoes_a_scale():
    x = logits(400)
    y = torch.multinomial(torch.softmax(x, 1), 1, generator=seeded(1))[:, 0]
    t = fit_temperature(x, y)
    assert 0.8 < t < 1.25
    assert fit_temperature(7 * x, y) == pytest.approx(7 * t, rel=1e-6)
    assert fit_temperature((x - 3).requires_grad_().float(), y) == pytest.approx(t, rel=1e-4)
    least = F.cross_entropy(x / t, y)
    assert all(F.cross_entropy(x / (t * factor), y) > least for factor in (0.9, 0.99, 1.01, 1.1))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: energy_score(torch.zeros(3)), r"shape \(B, K\), not \(3,\)"),
        (lambda: energy_score(torch.zeros(3, 0)), r"shape \(B, K\)"),
        (lambda: max_logit_score(np.zeros((2, 2))), "not ndarray"),
        (lambda: max_softmax_score(torch.zeros(2, 2, dtype=torch.long)), "floating point"),
        (lambda: energy_score(torch.zeros(2, 2), 0.0), "temperature"),
        (lambda: energy_score(torch.zeros(2, 2), float("nan")), "temperature"),
        (lambda: score_by("enregy"), "energy"),
        (lambda: score_by("max_logit", 2.0), "a temperature belongs to the energy"),
        (lambda: novelty(nn.Identity(), torch.zeros(2, 2), batch_size=0), "batch_size"),
        (lambda: fit_temperature(torch.eye(3), torch.arange(3)), "no temperature is best"),
        (lambda: fit_temperature(torch.eye(3), torch.tensor([0, 1, 3])), "3"),
        (lambda: fit_temperature(torch.eye(3), torch.tensor([0, 1])), "labels"),
    ],
)
def test_bad_input_is_one_line(call, said):
    with pytest.raises(BadInput, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_tuning_with_margins_parts_the_energies_and_keeps_the_answers():
    torch.manual_seed(0)
    centres = torch.tensor([[3.0, 0.0], [-3.0, 0.0]])
    y = torch.arange(128) % 2
    x, out = centres[y] + torch.randn(128, 2) / 2, torch.tensor([0.0, 4.0]) + torch.randn(128, 2)
    fresh = torch.tensor([0.0, 4.0]) + torch.randn(128, 2)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def train(updates, more):
        for _ in range(updates):
            optimizer.zero_grad()
            (F.cross_entropy(net(x), y) + more()).backward()
            optimizer.step()

    train(60, lambda: torch.zeros(()))
    before = auroc(novelty(net, x), novelty(net, fresh))
    low, high = margins(novelty(net, x), novelty(net, out))
    assert low < high
    train(150, lambda: 0.1 * energy_margin(energy_score(net(x)), energy_score(net(out)), low, high))
    assert auroc(novelty(net, x), novelty(net, fresh)) > max(0.98, before)
    assert (net(x).argmax(1) == y).all()
