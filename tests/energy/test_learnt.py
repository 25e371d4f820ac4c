"""Energies around networks: classifiers, denoisers, and the check that rows do not interact."""

import copy
import itertools

import pytest
import torch
from torch import nn

from conca.energy import (
    ClassifierEnergy,
    DenoiserEnergy,
    DenoiserScore,
    Gaussian,
    NetworkEnergy,
    mala,
    rows_apart,
    sample,
    sgld,
    ula,
)
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig
from conca.types import BadInput


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class LessTheMean(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class MixesOutside(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(3, 1)

    def forward(self, x):
        return self.inside(x) / x.norm()


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "'1', a BatchNorm1d"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), LessTheMean()), nn.Linear(4, 1)),
            "'1.1', a LessTheMean",
        ),
        (nn.Sequential(LessTheMean(), nn.Linear(3, 1)), "'0', a LessTheMean"),
        (nn.Sequential(nn.Linear(3, 3), MixesOutside()), "'1', a MixesOutside"),
        (MixesOutside(), "the network, a MixesOutside, outside of its modules"),
    ],
    ids=str,
)
def test_the_module_in_which_rows_interact_is_named(net, named):
    for make in (lambda: rows_apart(net, (3,)), lambda: NetworkEnergy(net, (3,))):
        with pytest.raises(BadInput, match="rows of a batch interact in") as raised:
            make()
        assert named in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 1)),
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 1)),
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1), nn.Flatten(), nn.Linear(3, 1)),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 5)), nn.Linear(5, 1)),
    ],
    ids=str,
)
def test_networks_whose_rows_do_not_interact_pass_and_keep_all_that_they_had(net):
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    modes = [part.training for part in net.modules()]
    energy = NetworkEnergy(net, (3,))
    assert torch.equal(torch.get_rng_state(), random) and [part.training for part in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(part._forward_hooks for part in net.modules())
    assert energy(torch.randn(5, 3)).shape == (5,)


def test_a_frozen_network_may_have_batch_norms_and_stays_in_eval_mode():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))
    net(torch.randn(50, 3))
    energy = ClassifierEnergy(net, (3,), frozen=True).train()
    assert energy.training and not net.training
    net.train()
    x = torch.randn(6, 3)
    torch.testing.assert_close(energy(x)[:1], energy(x[:1]))
    with pytest.raises(BadInput, match="'0', a LessTheMean"):
        NetworkEnergy(nn.Sequential(LessTheMean(), nn.Linear(3, 1)), (3,), frozen=True)


def test_a_chain_leaves_spectral_norms_as_they_were():
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 8)), nn.SiLU(), nn.Linear(8, 1))
    energy = NetworkEnergy(net, (2,)).train()
    before = copy.deepcopy(energy.state_dict())
    sample(energy, sgld(0.1, 0.1), torch.randn(4, 2), 5, generator=seeded())
    assert all(torch.equal(value, before[name]) for name, value in energy.state_dict().items())
    assert energy.training


def test_an_energy_of_a_wrong_shape_gets_one_line():
    x = torch.randn(4, 3)
    for net, line in (
        (nn.Linear(3, 2), r"one number per sample, shape \(4,\), not shape \(4, 2\)"),
        (nn.Flatten(0, 1), r"one number per sample, shape \(4,\), not shape \(12,\)"),
    ):
        with pytest.raises(BadInput, match=line):
            NetworkEnergy(net, (3,))(x)
    with pytest.raises(BadInput, match=r"reads x of shape \(B, 3\), not \(4, 2\)"):
        NetworkEnergy(nn.Linear(3, 1), (3,))(x[:, :2])
    with pytest.raises(BadInput, match=r"this network is of torch\.float64, x of torch\.float32"):
        NetworkEnergy(nn.Linear(3, 1), (3,))(x.float())

    class OneForAll(nn.Module):
        def forward(self, x):
            return x.sum()

    with pytest.raises(BadInput, match=r"one number per sample, shape \(4,\), not shape \(\)"):
        NetworkEnergy(OneForAll(), (3,))(x)


def test_one_softmax_and_two_energies():
    energy = ClassifierEnergy(nn.Identity(), (3,))
    logits = torch.tensor([[8.0, 2.0, 1.0], [9.0, 3.0, 2.0], [8.0, 7.0, 7.0]])
    torch.testing.assert_close(-energy(logits), torch.tensor([8.003, 9.003, 8.551]), atol=5e-4, rtol=0)
    shares = torch.softmax(logits, 1)
    torch.testing.assert_close(shares[0], shares[1])
    under = torch.stack([energy.on(y=torch.full((3,), k))(logits) for k in range(3)], 1)
    torch.testing.assert_close(torch.softmax(-under, 1), shares)
    torch.testing.assert_close(energy(logits), -torch.logsumexp(-under, 1))


def test_temperature_scales_the_logits_and_their_energy():
    logits = torch.randn(5, 4)
    torch.testing.assert_close(
        ClassifierEnergy(nn.Identity(), (4,), temperature=3.0)(logits), -3 * torch.logsumexp(logits / 3, 1)
    )
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(BadInput, match="temperature of a classifier must be positive"):
            ClassifierEnergy(nn.Identity(), (4,), temperature=temperature)


@pytest.mark.parametrize(
    ("y", "line"),
    [
        (torch.tensor([0, 1]), r"one per row, shape \(3,\)"),
        (torch.tensor([0.0, 1.0, 2.0]), "must be whole numbers"),
        (torch.tensor([0, 1, 4]), "between 0 and 3, not 0 to 4"),
        (torch.tensor([0, -1, 3]), "between 0 and 3, not -1 to 3"),
    ],
)
def test_labels_that_cannot_be(y, line):
    energy = ClassifierEnergy(nn.Identity(), (4,))
    with pytest.raises(BadInput, match=line):
        energy.on(y=y)(torch.randn(3, 4))


def test_chains_under_a_class_go_where_it_is_more_probable():
    net = nn.Linear(2, 3).requires_grad_(False)
    net.weight.copy_(3 * torch.tensor([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]]))
    energy = ClassifierEnergy(net, (2,)) + Gaussian(torch.zeros(2), torch.eye(2))
    start, y = torch.zeros(300, 2), torch.arange(3).repeat(100)
    chain, _ = sample(energy.on(y=y), mala(0.3), start, 30, 30, generator=seeded())
    found = torch.log_softmax(net(chain[0]), 1).gather(1, y[:, None]).mean()
    assert found > torch.log_softmax(net(start), 1).gather(1, y[:, None]).mean() + 0.2


def test_a_network_of_sequences_is_read_as_it_is():
    net = ClassifyNetwork(
        ClassifyNetworkConfig(channels=2, symbols=0, classes=3, layers="s4d(d_state=4)", d_model=8)
    ).double()
    energy, x = ClassifierEnergy(net, (11, 2)), torch.randn(4, 11, 2)
    torch.testing.assert_close(energy(x), -torch.logsumexp(net(x), 1))
    assert energy.score(x).abs().sum() > 0
    assert sample(energy, ula(1e-3), x, 2, generator=seeded())[0].shape == (2, 4, 11, 2)


def best(variance):
    """The best denoiser of data from N(0, variance), noise of standard deviation t added."""
    return lambda x, t: x * (variance / (variance + t.reshape(-1, 1) ** 2))


@pytest.mark.parametrize("t", [0.1, 1.0, 5.0])
def test_the_best_denoiser_has_the_slope_of_the_noised_data(t):
    x = torch.randn(6, 2)
    noised = Gaussian(torch.zeros(2), (2.0 + t**2) * torch.eye(2))
    torch.testing.assert_close(DenoiserScore(best(2.0)).at(t).score(x), noised.score(x))
    levels = torch.linspace(0.1, 3, 6)
    torch.testing.assert_close(DenoiserScore(best(2.0)).at(levels).score(x), -x / (2.0 + levels[:, None] ** 2))


def test_the_product_of_the_noised_is_not_the_noised_product():
    """N(-1, 1) N(1, 1) is N(0, 1/2) up to a factor; noised to abar x + (1 - abar) z its variance is 1 - abar / 2."""
    for abar in (0.9, 0.5, 0.1):
        parts = [
            Gaussian(torch.tensor([abar**0.5 * mean]), torch.eye(1)) for mean in (-1.0, 1.0)
        ]  # abar 1 + 1 - abar = 1
        x = torch.linspace(-8, 8, 4001)[:, None]
        density = torch.softmax(-(parts[0] + parts[1])(x), 0)
        assert float(density @ x[:, 0].square()) == pytest.approx(0.5, abs=1e-6)
        noised = 0.5 * abar + 1 - abar
        assert noised == pytest.approx(1 - abar / 2) and noised > 0.5 + 0.04


def around(landscape, sides=4000):
    """The circulation of the slope around the unit circle."""
    angle = torch.linspace(0, 2 * torch.pi, sides + 1)[:-1]
    place = torch.stack([angle.cos(), angle.sin()], 1)
    along = torch.stack([-angle.sin(), angle.cos()], 1)
    return float((landscape.score(place).detach() * along).sum() * 2 * torch.pi / sides)


def test_a_slope_may_turn_in_circles_and_an_energy_cannot():
    def turns(x, t):
        return x + 0.1 * torch.stack([-x[:, 1], x[:, 0]], 1) * t[:, None] ** 2

    assert around(DenoiserScore(turns, (2,)).at(1.0)) == pytest.approx(0.2 * torch.pi)
    assert around(DenoiserEnergy(turns, (2,)).at(1.0)) == pytest.approx(0.0, abs=1e-9)


def test_what_no_denoiser_is_gets_one_line():
    x = torch.randn(3, 2)
    with pytest.raises(BadInput, match="cannot be called"):
        DenoiserScore(torch.ones(2))
    for t, line in itertools.product((0.0, -1.0, torch.tensor([1.0, 2.0])), ("a noise level is a positive number",)):
        for kind in (DenoiserScore, DenoiserEnergy):
            with pytest.raises(BadInput, match=line):
                kind(best(1.0)).at(t).score(x)
    with pytest.raises(BadInput, match=r"shaped like x, \(3, 2\), not \(3, 1\)"):
        DenoiserScore(lambda x, t: x[:, :1]).at(1.0).score(x)
    with pytest.raises(TypeError, match="knows only its slope"):
        sample(DenoiserScore(best(1.0)).at(1.0), mala(0.1), x, 1, generator=seeded())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: NetworkEnergy("net", (2,)), "a torch.nn.Module, not a str"),
        (lambda: NetworkEnergy(nn.Linear(2, 1), 2), "a tuple of whole numbers"),
        (lambda: NetworkEnergy(nn.Linear(2, 1), (-2,)), "a tuple of whole numbers"),
        (lambda: rows_apart(nn.Linear(2, 3), (3,)), r"cannot read x of shape \(4, 3\)"),
        (lambda: NetworkEnergy(nn.Linear(2, 1), (2,)) / 0, "a temperature must not be 0"),
        (lambda: (NetworkEnergy(nn.Linear(2, 1), (2,)) * torch.ones(2))(torch.zeros(5, 2)), r"one per row, \(5,\)"),
    ],
)
def test_what_no_energy_can_be_made_of_gets_one_line(make, line):
    with pytest.raises(BadInput, match=line) as raised:
        make()
    assert "\n" not in str(raised.value)
