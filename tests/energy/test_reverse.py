"""Diffusion backwards: variances by a closed recursion, steps by the papers' formulas and by diffusers, and what does not move."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from conca.energy import (
    Divergence,
    Energy,
    Gaussian,
    NoiseScore,
    Schedule,
    Score,
    anneal,
    ddim,
    ddpm,
    hmc,
    reverse_diffusion,
    ula,
)
from conca.types import BadInput


def seeded(seed=1):  # 0 is that of every test, and noise must not be the start again
    return torch.Generator().manual_seed(seed)


class Bowl(Energy):
    """Data N(0, spread^2) in a plane, at each level."""

    shape = (2,)

    def __init__(self, schedule, spread=1.0):
        super().__init__()
        self.schedule, self.spread = schedule, spread

    def variance(self, t):
        signal, noise = self.schedule.level(t)
        return (signal * self.spread) ** 2 + noise**2

    def forward(self, x, t):
        return x.square().sum(1) / (2 * self.variance(t))


class Slope(Score):
    """Of a bowl, without the energy."""

    def __init__(self, bowl):
        super().__init__()
        self.bowl = bowl

    def score(self, x, t):
        return -x / self.bowl.variance(t)


def walked(schedule, kernel, square, levels=None, corrections=0):
    """Variance in the end where that of the data is `square`: each move is x <- keep x + data x_0 + spread z, all of it linear."""
    bowl, variance = Bowl(schedule, math.sqrt(square)), 1.0
    for t, before in pairwise([*(levels or schedule.levels()), 0]):
        move = kernel.move(schedule, t, before)
        told = (1 - move.noise**2 / bowl.variance(t)) / move.signal
        variance = (move.keep + move.data * told) ** 2 * variance + move.spread**2
        size = 0.3 * schedule.level(before)[1] ** 2
        for _ in range(corrections if before else 0):
            variance = (1 - size / bowl.variance(before)) ** 2 * variance + 2 * size
    return variance


@pytest.mark.parametrize(
    ("square", "levels", "large", "small"),
    [
        (0.25, 1000, 0.2508, 0.2461),
        (0.25, 100, 0.2578, 0.2192),
        (0.25, 50, 0.2662, 0.1966),
        (1.0, 1000, 0.9999, 0.9911),
        (1.0, 100, 0.9990, 0.9208),
        (1.0, 50, 0.9980, 0.8536),
        (4.0, 1000, 3.9906, 3.9748),
        (4.0, 100, 3.9044, 3.7597),
    ],
)
def test_the_variance_in_the_end_follows_the_recursion(square, levels, large, small):
    schedule = Schedule.linear(levels)
    assert walked(schedule, ddpm("large"), square) == pytest.approx(large, abs=5.1e-5)
    assert walked(schedule, ddpm("small"), square) == pytest.approx(small, abs=5.1e-5)


def test_rates_that_are_not_rescaled_are_a_trap():
    schedule = Schedule.linear(100, rescale=False)
    found = [walked(schedule, ddpm(variance), 4.0) for variance in ("large", "small")]
    assert found == pytest.approx([2.538, 2.502], abs=5e-4)


def test_without_noise_the_variance_of_the_data_comes_back():
    """The flow is exact where steps are many; ancestral steps need as many to come near."""
    assert walked(Schedule.linear(1000), ddim(), 0.25) == pytest.approx(0.25, rel=7e-3)
    few = [walked(s := Schedule.linear(1000), ddim(), 4.0, s.levels(n)) for n in (10, 100, 1000)]
    assert abs(few[0] - 4) > abs(few[1] - 4) > abs(few[2] - 4) and few[2] == pytest.approx(4.0, rel=5e-3)


@pytest.mark.parametrize(
    "schedule", [Schedule.linear(40), Schedule.cosine(40), Schedule.geometric(40)], ids=lambda s: s.name
)
def test_implicit_steps_with_all_noise_are_ancestral_ones_with_the_small_variance(schedule):
    for t, before in ((40, 39), (40, 11), (7, 6), (2, 1), (1, 0), (30, 0)):
        one, other = ddim(1.0).move(schedule, t, before), ddpm("small").move(schedule, t, before)
        for name in ("keep", "data", "spread", "signal", "noise"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-12)
        assert before or one.spread == other.spread == ddpm("large").move(schedule, t, before).spread == 0.0


class Told(nn.Module):
    """Tells some noise."""

    def forward(self, x, level):
        return torch.sin(2 * x) + level[:, None] / 10


def test_a_walk_is_equation_eleven_level_by_level():
    """x <- (x - beta / noise eps) / sqrt(alpha) + sqrt(beta) z, no noise on the last level; one draw a level, from the generator alone."""
    schedule, draw = Schedule.cosine(12), seeded()
    start, x = torch.randn(5, 2), None
    x, seen = start, []
    for t in range(12, 0, -1):
        (signal, noise), before = schedule.level(t), schedule.level(t - 1)[0]
        alpha = (signal / before) ** 2
        told = Told()(x, torch.tensor(noise / signal).log().expand(5))
        x = (x - (1 - alpha) / noise * told) / math.sqrt(alpha)
        x = x + math.sqrt(1 - alpha) * torch.randn(5, 2, generator=draw) if t > 1 else x
        seen.append((t - 1, x))
    watched, before = [], torch.get_rng_state()
    score = NoiseScore(Told(), schedule)
    found = reverse_diffusion(
        score, schedule, ddpm(), start, watch=lambda t, x: watched.append((t, x)), generator=seeded()
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert [t for t, _ in watched] == list(range(11, -1, -1))
    for (_, a), (_, b) in zip(watched, seen):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert torch.equal(found, watched[-1][1])


def test_few_implicit_steps_draw_nothing_and_bounds_hold_what_is_told():
    schedule, x = Schedule.cosine(50), torch.randn(4, 2)
    score = NoiseScore(Told(), schedule)
    found = reverse_diffusion(score, schedule, ddim(), x, steps=5)
    assert torch.equal(found, reverse_diffusion(score, schedule, ddim(), x, steps=5, generator=seeded()))
    assert float(found.abs().max()) > 0.1
    held = reverse_diffusion(score, schedule, ddim(bounds=[-0.1, 0.1]), x, steps=5)
    assert float(held.abs().max()) <= 0.1, "the last x_0 is what comes out"
    assert reverse_diffusion(score, schedule, ddim(), x[:0], steps=5).shape == (0, 2)


class Pair(Energy):
    """Data of variance 1 whose two coordinates agree by 0.9."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def forward(self, x, t):
        agree = 0.9 * self.schedule.level(t)[0] ** 2
        return Gaussian(torch.zeros(2), torch.tensor([[1.0, agree], [agree, 1.0]]))(x)


def test_what_is_known_ends_as_it_is_and_all_else_moves():
    schedule, seen = Schedule.linear(50), {}
    x, known, mask = torch.randn(2000, 2), torch.tensor([1.7, math.nan]), torch.tensor([True, False])
    found = reverse_diffusion(
        Pair(schedule), schedule, ddpm(), x, known=known, mask=mask, watch=seen.__setitem__, generator=seeded(),
        corrector=lambda s: ula(0.3 * s**2), corrections=2,
    )  # fmt: skip
    assert bool((found[:, 0] == 1.7).all()) and bool((found[:, 1] != x[:, 1]).all())
    assert bool((seen[10][:, 1] != seen[9][:, 1]).all())
    signal, noise = schedule.level(25)
    assert float(seen[25][:, 0].mean()) == pytest.approx(1.7 * signal, abs=5 * noise / 2000**0.5)
    assert float(seen[25][:, 0].std()) == pytest.approx(noise, rel=0.1)
    assert float(found[:, 1].mean()) == pytest.approx(0.9 * 1.7, rel=0.2), "what is known pulls"


def test_what_is_known_of_an_image_keeps_its_bits():
    schedule, image = Schedule.cosine(20), torch.rand(3, 1, 2, 2, dtype=torch.float32)
    spot = torch.tensor([[True, False], [False, False]])
    found = reverse_diffusion(
        NoiseScore(Flat(), schedule),
        schedule,
        ddpm(),
        torch.randn_like(image),
        known=image,
        mask=spot,
        generator=seeded(),
    )
    assert found.dtype == torch.float32 and torch.equal(found[..., 0, 0], image[..., 0, 0])
    assert int((found != image).sum()) == 9


class Flat(nn.Module):
    """Tells the noise in data that are one image, of zeros."""

    def forward(self, x, level):
        return x


def test_corrections_are_made_on_each_level_that_is_reached():
    schedule, asked = Schedule.cosine(6), []

    def corrector(noise):
        asked.append(noise)
        return hmc(0.3 * noise, 3)

    score = Bowl(schedule)
    reverse_diffusion(
        score, schedule, ddpm(), torch.randn(3, 2), corrector=corrector, corrections=2, generator=seeded()
    )
    assert asked == [schedule.level(t)[1] for t in (5, 4, 3, 2, 1)]
    asked.clear()
    reverse_diffusion(score, schedule, None, torch.randn(3, 2), corrector=corrector, steps=3, generator=seeded())
    assert asked == [schedule.level(t)[1] for t in schedule.levels(3)]
    with pytest.raises(TypeError, match="hmc accepts by differences of energy"):
        reverse_diffusion(Slope(score), schedule, ddpm(), torch.randn(3, 2), corrector=corrector, generator=seeded())


def test_corrections_bring_back_the_variance_that_few_steps_lose():
    """Langevin on a bowl is linear too: variance <- (1 - size / V)^2 variance + 2 size."""
    schedule, x = Schedule.linear(50), torch.randn(5000, 2)
    alone = walked(schedule, ddpm("small"), 0.25)
    held = walked(schedule, ddpm("small"), 0.25, corrections=3)
    found = reverse_diffusion(
        Bowl(schedule, 0.5), schedule, ddpm("small"), x, corrector=lambda s: ula(0.3 * s**2), corrections=3,
        generator=seeded(),
    )  # fmt: skip
    assert float(found.var()) == pytest.approx(held, rel=5 * (2 / 10_000) ** 0.5)
    assert 0.25 - held < 0.5 * (0.25 - alone)


def test_without_moves_it_is_annealed_langevin_and_the_mean_of_the_data_in_the_end():
    schedule, x = Schedule.geometric(20, 0.1, 5.0), 5 * torch.randn(4000, 2)
    bowl, levels = Bowl(schedule, 0.7), list(range(20, 0, -1))

    def kernel(noise):
        return ula(0.1 * noise**2)

    found = reverse_diffusion(bowl, schedule, None, x, corrector=kernel, corrections=10, generator=seeded())
    ends, _ = anneal(
        [bowl.at(t) for t in levels], [kernel(schedule.level(t)[1]) for t in levels], x, 10, generator=seeded()
    )
    torch.testing.assert_close(found, ends[-1] * 0.49 / bowl.variance(1), rtol=1e-10, atol=0)
    variance = 25.0
    for t in levels:
        size = 0.1 * schedule.level(t)[1] ** 2
        for _ in range(10):
            variance = (1 - size / bowl.variance(t)) ** 2 * variance + 2 * size
    exact = variance * (0.49 / bowl.variance(1)) ** 2
    assert float(found.var()) == pytest.approx(exact, rel=5 * (2 / 8000) ** 0.5)


def test_a_walk_that_leaves_the_finite_numbers_says_where():
    class Lost(nn.Module):
        def forward(self, x, level):
            return torch.where(level[:, None] < 0, math.nan, x)

    schedule = Schedule.cosine(10)
    with pytest.raises(Divergence) as raised:
        reverse_diffusion(NoiseScore(Lost(), schedule), schedule, ddim(), torch.randn(3, 2))
    first = next(t for t in range(10, 0, -1) if schedule.ratio[t - 1] < 1)
    assert raised.value.__notes__ == [f"between levels {first} and {first - 1} of 10"]


SCHEDULE = Schedule.cosine(10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernel": ddpm}, "the kernel is ddpm(), ddim() or None, not ddpm"),
        ({"kernel": ula(0.1)}, "not ULA; other kernels are correctors"),
        ({"kernel": None}, "the corrector does all the work: give one"),
        ({"corrector": ula(0.1)}, "a function of the noise of a level"),
        ({"corrector": lambda s: ula(s), "corrections": 0}, "the number of corrections must be a whole number"),
        ({"score": Gaussian(torch.zeros(2), torch.eye(2))}, "Gaussian has no condition 't'"),
        ({"schedule": 10}, "the schedule is made by Schedule.linear() and its kin"),
        ({"x": torch.zeros(2, 2, dtype=torch.int64)}, "floating-point noise"),
        ({"generator": None}, "pass generator="),
        ({"steps": 11}, "11 steps of a schedule of 10 levels"),
        ({"spacing": "odd"}, "spacing must be"),
        ({"known": torch.zeros(2)}, "comes with a mask"),
        ({"known": torch.zeros(2), "mask": torch.ones(2)}, "must be bool, not torch.float64"),
        ({"known": torch.zeros(2), "mask": torch.ones(3, dtype=torch.bool)}, "do not broadcast to (3, 2)"),
        ({"known": torch.zeros(4, 2), "mask": torch.ones(2, dtype=torch.bool)}, "do not broadcast to (3, 2)"),
        ({"known": torch.full((2,), math.nan), "mask": torch.ones(2, dtype=torch.bool)}, "must be finite"),
        (
            {"known": torch.zeros(2), "mask": torch.tensor([True, False]), "kernel": ddim(), "generator": None},
            "pass generator=",
        ),
    ],
)
def test_a_walk_that_cannot_be_is_refused_in_one_line(change, said):
    usual = {"score": Bowl(SCHEDULE), "schedule": SCHEDULE, "x": torch.randn(3, 2), "kernel": ddpm()}
    with pytest.raises(BadInput) as raised:
        reverse_diffusion(**(usual | {"generator": seeded()} | change))
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ddpm("fixed_large"), "the variance is 'large' (beta) or 'small'"),
        (lambda: ddpm(bounds=(1.0, -1.0)), "bounds are (low, high)"),
        (lambda: ddpm(bounds=1.0), "bounds are (low, high)"),
        (lambda: ddim(1.5), "eta lies between 0"),
        (lambda: ddim(math.nan), "eta lies between 0"),
    ],
)
def test_what_is_no_kernel_is_refused_in_one_line(make, said):
    with pytest.raises(BadInput, match=said.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_a_network_alone_is_no_landscape():
    with pytest.raises(TypeError, match="wrap a network in NoiseScore"):
        reverse_diffusion(nn.Linear(2, 2), SCHEDULE, ddim(), torch.randn(3, 2))


@pytest.fixture(scope="module")
def diffusers():
    return pytest.importorskip("diffusers")


@pytest.mark.parametrize(("ours", "theirs"), [("linear", "linear"), ("cosine", "squaredcos_cap_v2")])
def test_diffusers_has_the_same_tables(diffusers, ours, theirs):
    left = getattr(Schedule, ours)(1000).signal.square()
    table = diffusers.DDPMScheduler(1000, beta_schedule=theirs).alphas_cumprod.double()  # made in float32
    torch.testing.assert_close(left[:-1], table[:-1], rtol=3e-4, atol=0)
    torch.testing.assert_close(left, table, rtol=1e-2, atol=0)


def stepped(schedule, kernel, spacing=20):
    """(t, x, noise told, x one step lower) at levels t, t - spacing, with noise by the seed t."""
    for t in (981, 501, 41, 21, 1):
        x, told = torch.randn(4, 3, generator=seeded(t)), torch.randn(4, 3, generator=seeded(t + 1))
        level = schedule.level(t)

        class Fixed(Score):
            def score(self, x, told=told, noise=level[1]):
                return -told / noise

        move = kernel.move(schedule, t, max(t - spacing, 0))
        state = move.step(Fixed(), move.init(Fixed(), x), seeded(t + 2))[0]
        yield t, x, told, state.x


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.0)])
@pytest.mark.parametrize("variance", ["large", "small"])
def test_diffusers_takes_the_same_ancestral_steps(diffusers, variance, bounds):
    scheduler = diffusers.DDPMScheduler(1000, variance_type=f"fixed_{variance}", clip_sample=bounds is not None)
    scheduler.set_timesteps(50)
    assert [int(t) + 1 for t in scheduler.timesteps] == Schedule.linear().levels(50, "leading")
    for t, x, told, found in stepped(Schedule.linear(), ddpm(variance, bounds=bounds)):
        theirs = scheduler.step(told, t - 1, x, generator=seeded(t + 2)).prev_sample
        torch.testing.assert_close(found, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.0)])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_diffusers_takes_the_same_implicit_steps(diffusers, eta, bounds):
    """Where x_0 is kept within bounds the noise is told anew from it, which theirs does when asked."""
    scheduler = diffusers.DDIMScheduler(1000, clip_sample=bounds is not None)
    scheduler.set_timesteps(50)
    for t, x, told, found in stepped(Schedule.linear(), ddim(eta, bounds=bounds)):
        theirs = scheduler.step(told, t - 1, x, eta, use_clipped_model_output=True, generator=seeded(t + 2)).prev_sample
        torch.testing.assert_close(found, theirs, rtol=2e-4, atol=2e-4)
