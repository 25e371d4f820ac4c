"""Networks that tell noise: their slopes and heights where the truth is known, their levels, their loss, and what is refused."""

import math

import pytest
import torch
from torch import nn

from conca.energy import Divergence, NoiseEnergy, NoiseScore, Schedule, noise_loss
from conca.types import BadInput

SCHEDULES = [Schedule.linear(50), Schedule.cosine(50), Schedule.geometric(50)]


def seeded(seed=1):  # 0 is that of every test, and noise must not be the data again
    return torch.Generator().manual_seed(seed)


class Exact(nn.Module):
    """Tells the noise in data N(0, spread^2): noise x_t / variance of x_t; it sees x_t over sqrt(signal^2 + noise^2)."""

    def __init__(self, spread):
        super().__init__()
        self.spread = spread

    def forward(self, x, level):
        ratio = level.exp().reshape(-1, *[1] * (x.dim() - 1))
        return x * ratio * (1 + ratio**2).sqrt() / (self.spread**2 + ratio**2)


class Silent(nn.Module):
    def forward(self, x, level):
        return torch.zeros_like(x)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_the_slope_is_that_of_the_noised_data_each_row_at_its_level(schedule):
    x, t = torch.randn(3, 1, 2, 2), torch.tensor([1, 20, 50])
    signal, noise = schedule.signal[t - 1], schedule.noise[t - 1]
    exact = -x / ((0.5 * signal) ** 2 + noise**2).reshape(3, 1, 1, 1)
    score = NoiseScore(Exact(0.5), schedule)
    torch.testing.assert_close(score.at(t).score(x), exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(score.at(20).score(x)[1], exact[1], rtol=1e-12, atol=0)
    assert score.at(t).score(x.float()).dtype == torch.float32 and score.at(3).score(x[:0]).shape == (0, 1, 2, 2)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_a_network_that_says_nothing_leaves_the_energy_of_a_bowl(schedule):
    x, energy = torch.randn(4, 3), NoiseEnergy(Silent(), schedule, spread=0.7)
    for t in (1, 25, 50):
        signal, noise = schedule.level(t)
        variance = (0.7 * signal) ** 2 + noise**2
        torch.testing.assert_close(energy.at(t)(x), x.square().sum(1) / (2 * variance), rtol=1e-12, atol=0)
        torch.testing.assert_close(energy.at(t).score(x), -x / variance, rtol=1e-12, atol=0)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_the_loss_is_what_no_network_can_tell(spread):
    """Of the noise in N(0, s^2) data, (signal s)^2 / (signal^2 s^2 + noise^2) of the variance is left."""
    schedule, x = Schedule.cosine(50), spread * torch.randn(40_000, 2)
    score = NoiseScore(Exact(spread), schedule)
    for t in (5, 25, 45):
        signal, noise = schedule.level(t)
        left = (signal * spread) ** 2 / ((signal * spread) ** 2 + noise**2)
        found = noise_loss(score, schedule, x, t=torch.full((len(x),), t), generator=seeded())
        assert float(found) == pytest.approx(left, rel=0.03)
    each = noise_loss(score, schedule, x, generator=seeded(), reduction="none")
    assert each.shape == (40_000,) and float(each.mean()) == float(noise_loss(score, schedule, x, generator=seeded()))
    untold = noise_loss(NoiseScore(Silent(), schedule), schedule, x, generator=seeded())
    assert float(untold) == pytest.approx(1.0, rel=0.03)


def test_levels_are_drawn_from_all_of_them_alike():
    schedule, seen = Schedule.cosine(5), []

    class Watching(Silent):
        def forward(self, x, level):
            seen.append(level)
            return super().forward(x, level)

    noise_loss(NoiseScore(Watching(), schedule), schedule, torch.randn(5000, 1), generator=seeded())
    counts = torch.isclose(seen[0][:, None], schedule.ratio.log()).sum(0)
    assert int(counts.sum()) == 5000 and float((counts - 1000).abs().max()) < 5 * 28.3


def test_both_learn_by_the_same_loss():
    schedule, x = Schedule.cosine(20), torch.tensor([[1.0], [-1.0]]).repeat(32, 1)

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x, level):
            return self.net(torch.cat([x, level[:, None]], 1))

    for kind in (NoiseScore, NoiseEnergy):
        score, losses = kind(Small(), schedule), []
        for _ in range(80):
            loss = noise_loss(score, schedule, x, t=torch.full((64,), 10), generator=seeded())
            slopes = torch.autograd.grad(loss, list(score.parameters()))
            with torch.no_grad():
                for weight, slope in zip(score.parameters(), slopes):
                    weight -= 0.1 * slope
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.75 * losses[0]


def test_a_class_is_bound_and_handed_on():
    class Moved(nn.Module):
        def forward(self, x, level, y=None):
            return x if y is None else x - y[:, None]

    schedule, x, y = Schedule.cosine(10), torch.zeros(2, 3), torch.tensor([1, 2])
    score = NoiseScore(Moved(), schedule)
    assert bool((score.at(4).score(x) == 0).all())
    torch.testing.assert_close(score.on(y=y).at(4).score(x)[:, 0], y / schedule.level(4)[1])
    assert score.conditions() == {"t", "y"}


class Flattened(nn.Module):
    def forward(self, x, level):
        return x.flatten(1).sum(1)


class Lost(nn.Module):
    def forward(self, x, level):
        return x * math.nan


SCHEDULE = SCHEDULES[1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NoiseScore(lambda x, level: x, SCHEDULE), "a torch.nn.Module, not a function"),
        (lambda: NoiseScore(Silent(), 50), "made by Schedule.linear() and its kin, not a int"),
        (lambda: NoiseEnergy(Silent(), SCHEDULE, spread=0.0), "the spread of the data must be positive"),
        (lambda: NoiseScore(Silent(), SCHEDULE).at(0).score(torch.zeros(2, 2)), "from 1 to 50, not 0"),
        (lambda: NoiseScore(Silent(), SCHEDULE).at(51).score(torch.zeros(2, 2)), "from 1 to 50, not 51"),
        (lambda: NoiseScore(Silent(), SCHEDULE).at(0.5).score(torch.zeros(2, 2)), "a whole number from 1 to 50"),
        (lambda: NoiseScore(Flattened(), SCHEDULE).at(3).score(torch.zeros(2, 2)), "shaped like x, (2, 2), not (2,)"),
        (lambda: lost(torch.zeros(2, 2, dtype=torch.uint8)), "floating-point data"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, said):
    with pytest.raises(BadInput) as raised:
        make()
    assert said in str(raised.value) and "\n" not in str(raised.value)


def lost(x):
    return noise_loss(NoiseScore(Lost(), SCHEDULE), SCHEDULE, x, generator=seeded())


def test_a_training_that_is_lost_is_loud():
    with pytest.raises(Divergence, match="the training diverged: 2 of 2"):
        lost(torch.zeros(2, 2))
