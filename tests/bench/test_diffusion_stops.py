"""The stops on diffusion: each measures what it says, and a fault in what it measures is seen."""

import math

import pytest
import torch

from conca.bench import circulation, correction, minima, products
from conca.bench.noised import Noised, product
from conca.energy import Energy, GaussianMixture, NoiseScore, Schedule, Score


def broken(stop):
    return [claim.text for claim in stop.claims if not claim.holds]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mixture(seed, scales=(0.5, 0.9)):
    means = torch.randn(len(scales), 2, generator=seeded(seed))
    return GaussianMixture(means, torch.tensor(scales), torch.tensor([0.3, 0.7]))


def test_noise_over_correction_by_products_of_rates():
    beta = torch.linspace(1e-4, 0.02, 1000)
    exact = ((1 - torch.cumprod(1 - beta, 0)) / beta).sqrt()
    torch.testing.assert_close(correction.ratios(Schedule.linear(1000)), exact, rtol=1e-9, atol=0)


def test_a_path_that_counts_from_0_is_seen(monkeypatch):
    ratios = correction.ratios
    monkeypatch.setattr(correction, "ratios", lambda schedule: ratios(schedule).roll(-1))
    assert "noise over correction at level 1 of 1,000" in broken(correction.correction())


def test_a_noised_mixture_is_the_density_of_its_noised_draws():
    schedule, bowls = Schedule.cosine(20), mixture(1)
    path = Noised(bowls, schedule)
    x, t = torch.randn(5, 2, generator=seeded()), 12
    signal, noise = schedule.level(t)
    clean = bowls.draw(200_000, seeded())
    logs = -(x[:, None] - signal * clean).square().sum(2) / (2 * noise**2)
    exact = logs.exp().mean(1) / (2 * math.pi * noise**2)
    torch.testing.assert_close((-path(x, t=t)).exp(), exact, rtol=0.03, atol=0)
    assert torch.equal(path.at(t)(x), path(x, t=t)) and torch.allclose(path.at(0)(x), bowls(x))


def test_a_product_of_mixtures_is_normalised_and_has_the_energy_of_the_sum():
    one, other = mixture(1), mixture(2, (0.4, 1.2))
    x = torch.randn(50, 2, generator=seeded())
    gap = product(one, other)(x) - one(x) - other(x)
    assert float(gap.std()) < 1e-12 and float(gap.mean()) != 0.0


def test_valleys_that_are_not_descended_to_their_ends_are_seen(monkeypatch):
    monkeypatch.setattr(minima, "STEPS", 2)
    assert any(text.startswith("valleys at level 100:") for text in broken(minima.minima()))


class Field(Score):
    def __init__(self, turn):
        super().__init__()
        self.turn = turn

    def score(self, x):
        return self.turn * torch.stack([-x[:, 1], x[:, 0]], 1) - x.pow(3)


def test_circulation_of_a_field_that_turns_and_of_one_that_does_not():
    loop = (0.3, -0.2, 0.7)
    for turn in (0.0, 1.5):
        exact = turn * 2 * math.pi * 0.7**2
        assert circulation.around(Field(turn), loop)[0] == pytest.approx(exact, abs=1e-12)
        assert circulation.curl(Field(turn), loop) == pytest.approx(exact, abs=1e-12)


def test_a_twin_that_is_no_landscape_is_seen_and_nothing_is_left_to_chance(monkeypatch):
    monkeypatch.setattr(circulation, "STEPS", 5)
    before = torch.get_rng_state()
    first, again = (circulation.circulation() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert [c.measured for c in first.claims] == [c.measured for c in again.claims] and first.picture == again.picture
    assert not any("the energy: around" in text for text in broken(first)), "whatever was learnt"
    monkeypatch.setattr(circulation, "NoiseEnergy", NoiseScore)
    assert sum("the energy: around" in text for text in broken(circulation.circulation())) == len(circulation.LOOPS)


def test_a_walk_down_summed_scores_ends_at_a_third():
    ends = [products.walked(Schedule.linear(levels), 0.5) - 1 / 3 for levels in (100, 200, 400)]
    assert ends[0] / ends[1] == pytest.approx(2, rel=0.1) and ends[1] / ends[2] == pytest.approx(2, rel=0.1)
    assert products.walked(Schedule.linear(400), 1.0) == pytest.approx(1.0, abs=1e-3), "a single score is right"


def test_a_distance_tells_samples_apart():
    same = [torch.randn(2000, 1, generator=seeded(k)) for k in (1, 2)]
    assert products.distance(*same) < 5e-3
    sigma = math.sqrt(2)  # of a difference of two draws

    def mean_distance(shift):  # E|N(shift, 2)|
        near = sigma * math.sqrt(2 / math.pi) * math.exp(-(shift**2) / 4) + shift * math.erf(shift / 2)
        return near

    exact = 2 * (mean_distance(1.0) - mean_distance(0.0))
    assert products.distance(same[0], same[1] + 1.0) == pytest.approx(exact, rel=0.1)


def test_without_chains_on_the_levels_the_product_is_missed(monkeypatch):
    monkeypatch.setattr(products, "ROWS", 1000)
    monkeypatch.setattr(products, "CHAINS", dict.fromkeys(products.CHAINS, (None, 1)))
    lost = broken(products.products())
    assert {text.partition(":")[0] for text in lost if "variance, " in text} == {*list(products.CHAINS)[1:]}
    assert sum(text.startswith("two mixtures, with") for text in lost) == 2


def test_a_path_is_an_energy_that_composes():
    schedule = Schedule.cosine(10)
    both = (Noised(mixture(1), schedule) + Noised(mixture(2), schedule)).at(4)
    assert isinstance(both, Energy) and not both.conditions()
