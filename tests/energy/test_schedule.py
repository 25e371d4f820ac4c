"""Schedules of a diffusion: their tables by other routes, one step after another, and what is refused."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from conca.energy import Schedule
from conca.types import BadInput


def betas(schedule):
    return torch.tensor([schedule.step(t, t - 1)[1] for t in range(1, len(schedule) + 1)])


@pytest.mark.parametrize(("levels", "left"), [(1000, 4.0358e-5), (200, 3.0e-5), (100, 2.0e-5)])
def test_a_linear_schedule_leaves_little_of_the_data_however_many_levels(levels, left):
    schedule = Schedule.linear(levels)
    assert float(schedule.signal[-1]) ** 2 == pytest.approx(left, rel=0.05 if levels < 1000 else 1e-4)
    torch.testing.assert_close(
        betas(schedule), torch.linspace(0.1, 20, levels, dtype=torch.float64) / levels, rtol=1e-11, atol=0
    )


def test_rates_that_are_not_rescaled_leave_a_third_of_the_variance():
    assert float(Schedule.linear(100, rescale=False).signal[-1]) ** 2 == pytest.approx(0.364, abs=5e-4)


def test_a_cosine_schedule_is_the_square_of_a_cosine_until_the_last_level():
    schedule = Schedule.cosine(100)
    exact = [
        (math.cos((t / 100 + 0.008) / 1.008 * math.pi / 2) / math.cos(0.008 / 1.008 * math.pi / 2)) for t in range(101)
    ]
    torch.testing.assert_close(schedule.signal[:-1], torch.tensor(exact[1:-1]), rtol=1e-12, atol=0)
    assert float(betas(schedule)[-1]) == pytest.approx(0.999, rel=1e-12)


def test_a_geometric_schedule_keeps_the_data_and_multiplies_the_noise():
    schedule = Schedule.geometric(10, 0.01, 1.0)
    assert bool((schedule.signal == 1).all()) and schedule.ratio is not schedule.noise
    torch.testing.assert_close(schedule.noise, torch.tensor([0.01 * 100 ** (k / 9) for k in range(10)]))
    a, v = schedule.step(10, 3)
    assert (a, v) == pytest.approx((1.0, 1.0 - float(schedule.noise[2]) ** 2))


def test_the_first_levels_lose_no_digit():
    """1 - signal^2 would; so they are compared with fractions."""
    schedule, left = Schedule.linear(1000), Fraction(1)
    for t in range(1, 6):
        beta = Fraction(float(torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)[t - 1]))
        left *= 1 - beta
        assert float(schedule.noise[t - 1]) ** 2 == pytest.approx(float(1 - left), rel=1e-14, abs=0)
    assert schedule.level(0) == (1.0, 0.0)


@pytest.mark.parametrize(
    "schedule", [Schedule.linear(60), Schedule.cosine(60), Schedule.geometric(60)], ids=lambda s: s.name
)
def test_a_long_step_is_two_short_ones(schedule):
    for t, between, before in ((60, 31, 0), (60, 59, 58), (7, 2, 1)):
        (a, v), (b, w) = schedule.step(t, between), schedule.step(between, before)
        assert schedule.step(t, before) == pytest.approx((a * b, v + a**2 * w), rel=1e-9)
        signal, noise = schedule.level(before)
        long, variance = schedule.step(t, before)
        assert schedule.level(t) == pytest.approx((long * signal, math.hypot(long * noise, math.sqrt(variance))))


def test_levels_go_down_each_once():
    schedule = Schedule.cosine(50)
    assert schedule.levels() == list(range(50, 0, -1))
    for count in range(1, 51):
        even, leading = schedule.levels(count), schedule.levels(count, "leading")
        assert len(even) == len(leading) == count and even[0] == 50 and leading[-1] == 1
        assert all(a > b for levels in (even, leading) for a, b in pairwise(levels))
        assert even[-1] == 1 or count == 1
    assert schedule.levels(4, "leading") == [37, 25, 13, 1]


def test_tables_keep_their_precision_and_rows_their_levels():
    schedule, x = Schedule.linear(1000), torch.ones(3, 2, 4, dtype=torch.float32)
    t = torch.tensor([1, 500, 1000])
    signal, noise = schedule.at(t, x)
    assert signal.shape == (3, 1, 1) and signal.dtype == torch.float32 and schedule.signal.dtype == torch.float64
    assert torch.equal(noise.flatten(), schedule.noise[t - 1].float())
    z = torch.randn(3, 2, 4, dtype=torch.float32)
    rows = [schedule.noised(x[k : k + 1], int(level), z[k : k + 1]) for k, level in enumerate(t)]
    assert torch.equal(schedule.noised(x, t, z), torch.cat(rows))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Schedule.linear(20), "20 levels are too few for a linear schedule: beta would reach 1"),
        (lambda: Schedule.linear(0), "the number of levels must be a whole number"),
        (lambda: Schedule.linear(100, -1.0), "low must be positive"),
        (lambda: Schedule.cosine(10, math.nan), "the offset of a cosine schedule is 0 or more"),
        (lambda: Schedule.geometric(10, 5.0, 1.0), "low must be below high"),
        (lambda: Schedule.of_betas([0.1, math.nan]), "betas are a table"),
        (lambda: Schedule.of_betas([0.1, 1.0]), "betas are a table"),
        (lambda: Schedule.of_betas([]), "T at least 1"),
        (lambda: Schedule.of_betas([0.999] * 300), "must be positive"),  # the signal has vanished
        (lambda: Schedule(torch.ones(3), torch.ones(3)), "noise over signal must rise"),
        (lambda: Schedule(torch.ones(3), torch.ones(3).float()), "of float64"),
        (lambda: Schedule.cosine(5).level(6), "a whole number from 0 to 5, not 6"),
        (lambda: Schedule.cosine(5).level(1.5), "a whole number from 0 to 5, not 1.5"),
        (lambda: Schedule.cosine(5).step(2, 2), "from a level to a lower one, not from 2 to 2"),
        (lambda: Schedule.cosine(5).levels(6), "6 steps of a schedule of 5 levels"),
        (lambda: Schedule.cosine(5).levels(2, "odd"), "spacing must be 'even' or 'leading'"),
        (lambda: Schedule.cosine(5).at(0, torch.ones(2)), "a whole number from 1 to 5, not 0"),
        (lambda: Schedule.cosine(5).at(6, torch.ones(2)), "a whole number from 1 to 5, not 6"),
        (lambda: Schedule.cosine(5).at(torch.tensor([1, 2, 3]), torch.ones(2)), "or one per row"),
        (lambda: Schedule.cosine(5).at(0.5, torch.ones(2)), "a level is a whole number from 1 to 5"),
    ],
)
def test_what_is_no_schedule_or_level_is_refused_in_one_line(make, said):
    with pytest.raises(BadInput) as raised:
        make()
    assert said in str(raised.value) and "\n" not in str(raised.value)
