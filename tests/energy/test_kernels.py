"""sgld, hmc, gibbs, tempering and annealing against what is known in closed form; tolerances are five standard errors."""

import itertools
import math
import tracemalloc

import pytest
import torch

from conca.energy import (
    Chains,
    Divergence,
    DoubleWell,
    Energy,
    Gaussian,
    Score,
    anneal,
    descent,
    gibbs,
    hmc,
    mala,
    sample,
    sgld,
    tempering,
    ula,
)
from conca.energy.langevin import WeighedPlace
from conca.energy.tempering import Tempered
from conca.laws.samplers import kernels
from conca.types import BadInput

ONE = Gaussian(torch.zeros(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64))
CHAINS = 20_000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Ising(Energy):
    """E(x) = -sum J_ij x_i x_j - h x on four spins."""

    def __init__(self):
        super().__init__()
        self.register_buffer("pull", torch.randn(4, 4, generator=seeded(5)))

    def forward(self, x):
        return -torch.einsum("bi,ij,bj->b", x, self.pull, x) / 2 - 0.3 * x.sum(1)


def all_spins():
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4)))


@pytest.mark.parametrize(("step", "noise"), [(0.01, 0.05), (0.05, 0.7)])
def test_sgld_walks_at_the_temperature_that_it_reports(step, noise):
    kernel = sgld(step, noise)
    assert kernel.temperature == pytest.approx(noise**2 / (2 * step))
    expected = kernel.temperature / (1 - step / 2)  # the variance of ula on E / T, whose step is step / T
    start = expected**0.5 * torch.randn(CHAINS, 1, generator=seeded(1))
    chain, info = sample(ONE, kernel, start, 50, 50, generator=seeded())
    assert abs(chain[0].var().item() - expected) < 5 * expected * (2 / CHAINS) ** 0.5
    assert torch.equal(info["temperature"], torch.full((1, CHAINS), kernel.temperature))


def test_sgld_at_temperature_one_is_ula():
    x = torch.randn(7, 3, generator=seeded(1))
    well = DoubleWell()
    one, _ = sample(well, sgld(0.02, math.sqrt(0.04)), x, 5, generator=seeded())
    other, _ = sample(well, ula(0.02), x, 5, generator=seeded())
    torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_sgld_clips_each_coordinate_and_stays_within_bounds():
    steep = DoubleWell(1e4)
    x = torch.full((3, 2), 1.5)
    chain, _ = sample(steep, sgld(10.0, 1e-9, clip=0.01), x, 1, generator=seeded())
    torch.testing.assert_close(chain[0], x - 0.1, atol=1e-7, rtol=0)
    chain, _ = sample(steep, sgld(1.0, 5.0, bounds=(0.0, 1.0), clip=0.01), x.clamp(0, 1), 20, generator=seeded())
    assert chain.min() == 0 and chain.max() == 1


def test_noise_that_comes_first_is_followed_by_a_pure_descent():
    x = torch.full((4, 1), 0.5)
    chain, _ = sample(ONE, sgld(1.0, 3.0, noise_first=True), x, 1, generator=seeded())
    torch.testing.assert_close(chain[0], torch.zeros(4, 1), atol=1e-15, rtol=0)  # a step of 1 leads to the bottom


def test_noise_that_comes_first_asks_the_landscape_once_a_step():
    class Counted(DoubleWell):
        asked = 0

        def evaluate(self, x, **conditions):
            Counted.asked += 1
            return super().evaluate(x, **conditions)

    _, info = sample(Counted(1.0), sgld(0.1, 0.1, noise_first=True), torch.zeros(3, 1), 10, generator=seeded())
    assert Counted.asked == 10
    assert info.keys() == {"temperature"}


def test_mala_is_hmc_with_one_leapfrog_step():
    x = torch.randn(50, 3, generator=seeded(1))
    for energy in (DoubleWell(2.0), DoubleWell(2.0).given(torch.ones(3), torch.tensor([True, False, False]))):
        one, info = sample(energy, mala(0.08), x, 20, generator=seeded())
        other, reported = sample(energy, hmc(math.sqrt(0.16), 1), x, 20, generator=seeded())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        assert torch.equal(info["accepted"], reported["accepted"]) and 0.1 < info["accepted"].mean() < 0.99


def test_hmc_is_exact_where_ula_is_not():
    start = torch.randn(CHAINS, 1, generator=seeded(1))
    chain, info = sample(ONE, hmc(1.0, 2), start, 20, 20, generator=seeded())
    assert abs(chain[0].var().item() - 1) < 5 * (2 / CHAINS) ** 0.5
    assert 0.5 < info["accepted"].mean() < 1


def test_energy_errs_by_the_square_of_the_leapfrog_step():
    energy, x = DoubleWell(1.0), 0.3 * torch.randn(200, 2, generator=seeded(1))
    momentum = torch.randn(200, 2, generator=seeded(2))
    errors = []
    for size in (0.04, 0.02):
        kernel = hmc(size, round(0.8 / size))
        end = kernel.roll(energy, (kernel.init(energy, x), momentum))
        change = end.place.energy - energy(x) + (end.momentum.square() - momentum.square()).sum(1) / 2
        errors.append(change.abs().mean().item())
    assert 3.5 < errors[0] / errors[1] < 4.5


def test_gibbs_on_spins_has_the_density_of_enumeration():
    energy, states = Ising(), all_spins()
    expected = torch.softmax(-energy(states), 0)
    start = states[torch.multinomial(expected, CHAINS, replacement=True, generator=seeded(1))]
    chain, _ = sample(energy, gibbs((-1, 1)), start, 3, 3, generator=seeded())
    found = (chain[0][:, None] == states).all(-1).double().mean(0)
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / CHAINS).sqrt()).all()
    far, _ = sample(energy, gibbs((-1, 1)), torch.ones(CHAINS, 4), 60, 60, generator=seeded())
    found = (far[0][:, None] == states).all(-1).double().mean(0)
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / CHAINS).sqrt()).all()


def test_two_points_are_in_detailed_balance_under_gibbs():
    class TwoPoints(Energy):
        def forward(self, x):
            return 1.3 * x[:, 0]

        def score(self, x):
            return torch.full_like(x, -1.3)

    share = 1 / (1 + math.exp(1.3))  # of the point 1
    flows = {}
    for here in (0.0, 1.0):
        chain, _ = sample(TwoPoints(), gibbs((0, 1)), torch.full((CHAINS, 1), here), 1, generator=seeded(int(here)))
        flows[here] = (chain[0] != here).double().mean().item() * (share if here else 1 - share)
    assert abs(flows[0.0] - flows[1.0]) < 5 * (2 * share / CHAINS) ** 0.5


def test_known_spins_stay_under_gibbs():
    energy = Ising().given(torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.tensor([True, True, False, False]))
    chain, _ = sample(energy, gibbs((-1, 1)), torch.ones(500, 4), 5, generator=seeded())
    assert (chain[:, :, 0] == 1).all() and (chain[:, :, 1] == -1).all() and chain[:, :, 2:].std() > 0


def test_gibbs_of_a_gaussian_forgets_its_start():
    mean, covariance = torch.tensor([1.0, -1.0]), torch.tensor([[2.0, 0.8], [0.8, 1.0]])
    chain, _ = sample(Gaussian(mean, covariance), gibbs(), torch.full((CHAINS, 2), 9.0), 60, 60, generator=seeded())
    assert ((chain[0].mean(0) - mean).abs() < 5 * (covariance.diagonal() / CHAINS).sqrt()).all()
    assert (torch.cov(chain[0].T) - covariance).abs().max() < 5 * 2 * (2 / CHAINS) ** 0.5


def test_tempering_leaves_all_temperatures_in_equilibrium():
    temperatures = (1.0, 2.0, 5.0)
    kernel = tempering(mala(0.5), temperatures)
    places = tuple(
        WeighedPlace(x, *ONE.evaluate(x))
        for x in (t**0.5 * torch.randn(CHAINS, 1, generator=seeded(7 + i)) for i, t in enumerate(temperatures))
    )
    state, draw, swaps = Tempered(places[0].x, places, torch.zeros(CHAINS, dtype=torch.bool)), seeded(), 0.0
    with torch.no_grad():
        for _ in range(20):
            state, info = kernel.step(ONE, state, draw)
            swaps += info["swapped"].double().mean().item() / 20
    for temperature, place in zip(temperatures, state.replicas):
        assert abs(place.x.var().item() - temperature) < 5 * temperature * (2 / CHAINS) ** 0.5
        torch.testing.assert_close(place.energy, ONE(place.x))
    assert 0.2 < swaps < 0.5
    assert torch.equal(state.x, state.replicas[0].x)


def test_tempering_crosses_a_barrier_that_stops_one_chain():
    energy, start = DoubleWell(20.0), -torch.ones(300, 1)
    alone, _ = sample(energy, mala(0.004), start, 400, 400, generator=seeded())
    hot, _ = sample(
        energy,
        tempering([mala(0.004 * t) for t in (1, 2, 4, 8, 16)], (1, 2, 4, 8, 16)),
        start,
        400,
        400,
        generator=seeded(),
    )
    assert (alone[0] > 0).double().mean() < 0.01
    assert 0.35 < (hot[0] > 0).double().mean() < 0.65


def test_tempering_keeps_conditions_that_are_bound_to_rows():
    class Shifted(Energy):
        def forward(self, x, c):
            return 0.5 * (x - c).square().sum(1)

    c = torch.linspace(-3, 3, 2000)[:, None]
    chain, _ = sample(
        Shifted().on(c=c), tempering(hmc(0.5, 4), (1.0, 3.0)), torch.zeros(2000, 1), 30, 30, generator=seeded()
    )
    assert abs((chain[0] - c).mean().item()) < 5 / 2000**0.5


def test_annealing_finds_the_deeper_valley_and_tells_each_level():
    class Tilted(Energy):
        def forward(self, x):
            return (10 * (x.square() - 1).square() - 3 * x).sum(1)

    start = -torch.ones(400, 1)
    cold, _ = sample(Tilted(), mala(0.005), start, 400, 400, generator=seeded())
    temperatures = [16.0, 8.0, 4.0, 2.0, 1.0]
    path = [Tilted() / t for t in temperatures]
    ends, info = anneal(path, lambda level: mala(0.005 * temperatures[level]), start, 150, generator=seeded())
    assert ends.shape == (5, 400, 1) and info["accepted"].shape == (5, 400)
    assert (cold[0] > 0).double().mean() < 0.05 and (ends[-1] > 0).double().mean() > 0.6
    again, _ = anneal(path[:1], [mala(0.08)], start, 150, generator=seeded())
    assert torch.equal(again[0], ends[0])


def test_annealing_says_on_which_level_it_left_the_numbers():
    path = [DoubleWell(1.0), DoubleWell(1e6)]
    with pytest.raises(Divergence) as raised:
        anneal(path, ula(0.01), torch.full((2, 1), 1.5), 50, generator=seeded())
    assert raised.value.__notes__ == ["on level 1 of 2"]


@pytest.mark.parametrize("name", kernels())
def test_chains_that_were_kept_on_disk_go_on_with_the_same_bits(name, tmp_path):
    kernel = kernels()[name].samples()[0]
    energy = Gaussian(torch.zeros(2), torch.eye(2))
    chains = Chains(energy, kernel, torch.ones(3, 2), generator=seeded())
    chains.run(4)
    chains.save(tmp_path / "chains.safetensors")
    expected, info = chains.run(4)
    others = Chains(energy, kernel, torch.zeros(3, 2), generator=seeded(5))
    others.load(tmp_path / "chains.safetensors")
    found, reported = others.run(4)
    assert torch.equal(found, expected) and others.steps == 8
    assert all(torch.equal(reported[key], info[key]) for key in info)


def test_chains_refuse_what_others_kept(tmp_path):
    def chains(kernel, size=3, dtype=torch.float64):
        return Chains(DoubleWell(), kernel, torch.ones(size, 2, dtype=dtype), generator=seeded())

    chains(mala(0.1)).save(tmp_path / "kept")
    for other in (chains(tempering(mala(0.1), (1, 2))), chains(mala(0.1), 4), chains(mala(0.1), dtype=torch.float32)):
        before = other.state.x
        with pytest.raises(BadInput, match="other chains"):
            other.load(tmp_path / "kept")
        assert other.state.x is before and other.steps == 0
    (tmp_path / "kept").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="not a readable state"):
        chains(mala(0.1)).load(tmp_path / "kept")


def test_chains_stay_where_the_last_good_step_led():
    chains = Chains(DoubleWell(), ula(0.3), torch.full((2, 1), 1.2), generator=seeded())
    with pytest.raises(Divergence) as raised:
        chains.run(10_000)
    assert chains.steps == raised.value.step - 1 and chains.state.x.isfinite().all()


@pytest.mark.parametrize("kernel", [ula(0.01), mala(0.01), hmc(0.1, 2), sgld(0.01, 0.1), descent(0.01)], ids=repr)
def test_a_thousand_steps_hold_no_more_than_a_hundred(kernel):
    x = torch.ones(50, 2)

    def held(steps):
        sample(DoubleWell(), kernel, x, 10, 10, generator=seeded())
        tracemalloc.start()
        sample(DoubleWell(), kernel, x, steps, steps, generator=seeded())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert held(1000) < held(100) + 8000  # less than a dozen of its places would take


class Slope(Score):
    def score(self, x):
        return -x


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: sgld(0.0, 1.0), "a step must be positive"),
        (lambda: sgld(1.0, -1.0), "the noise of sgld must be positive"),
        (lambda: sgld(1.0, math.inf), "the noise of sgld must be positive"),
        (lambda: sgld(1.0, 1.0, clip=0.0), "the clip of sgld must be positive"),
        (lambda: sgld(1.0, 1.0, bounds=(1.0, 0.0)), "low below high"),
        (lambda: hmc(math.nan), "a step must be positive"),
        (lambda: hmc(0.1, 0), "leapfrog steps of hmc must be a whole number, 1 or more"),
        (lambda: hmc(0.1, 2.5), "leapfrog steps of hmc must be a whole number"),
        (lambda: gibbs(()), "two values or more"),
        (lambda: gibbs((1.0, 1.0)), "two values or more"),
        (lambda: tempering(mala(0.1), ()), "at least one temperature"),
        (lambda: tempering(mala(0.1), (1.0, -2.0)), "a temperature must be positive"),
        (lambda: tempering(mala(0.1), (2.0, 1.0)), "temperatures rise"),
        (lambda: tempering([mala(0.1)], (1.0, 2.0)), "1 kernels and 2 temperatures"),
        (lambda: tempering(ula(0.1), (1.0, 2.0)), "must be exact"),
        (lambda: anneal([], ula(0.1), torch.ones(1, 1), 1, generator=seeded()), "at least one landscape"),
        (lambda: anneal([ONE], [ula(0.1)] * 2, torch.ones(1, 1), 1, generator=seeded()), "2 kernels for 1 levels"),
        (lambda: anneal([ONE], ula(0.1), torch.ones(1, 1), 0, generator=seeded()), "steps on each level"),
        (lambda: sample(Ising(), gibbs((-1, 1)), torch.zeros(2, 4), 1, generator=seeded()), "starts at these values"),
        (lambda: sample(ONE, gibbs(), torch.zeros(2, 1), 1), "generator"),
    ],
)
def test_bad_numbers_get_one_line(make, line):
    with pytest.raises(BadInput, match=line) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_gibbs_says_what_an_energy_lacks():
    with pytest.raises(TypeError, match="DoubleWell cannot draw its coordinates"):
        sample(DoubleWell(), gibbs(), torch.zeros(2, 1), 1, generator=seeded())
    with pytest.raises(TypeError, match="knows only its slope"):
        sample(Slope(), gibbs(), torch.zeros(2, 1), 1, generator=seeded())


def test_gibbs_keeps_conditions_and_known_values_that_are_bound_to_rows():
    class Pulled(Energy):
        def forward(self, x, c):
            return -(c * x).sum(1)

    c = torch.tensor([[2.0, -2.0]]).expand(CHAINS, 2).clone()
    c[CHAINS // 2 :] *= -1
    chain, _ = sample(Pulled().on(c=c), gibbs((-1, 1)), torch.ones(CHAINS, 2), 3, 3, generator=seeded())
    assert abs((chain[0] * c.sign()).mean().item() - math.tanh(2.0)) < 5 / (2 * CHAINS) ** 0.5
    known = torch.full((CHAINS, 4), 0.5)  # no value that the free ones may take
    held = Ising().given(known, torch.tensor([True, False, False, False]))
    chain, _ = sample(held, gibbs((-1, 1)), torch.ones(CHAINS, 4), 2, generator=seeded())
    assert (chain[:, :, 0] == 0.5).all() and set(chain[:, :, 1:].unique().tolist()) == {-1.0, 1.0}


def test_no_spins_are_no_error():
    chain, _ = sample(Ising(), gibbs((-1, 1)), torch.zeros(0, 4), 2, generator=seeded())
    assert chain.shape == (2, 0, 4)


def test_gibbs_is_loud_where_an_energy_is_no_number():
    class Sick(Energy):
        def forward(self, x):
            return torch.where(x[:, 0] > 0, float("nan"), 0.0)

    with pytest.raises(Divergence):
        sample(Sick(), gibbs((-1, 1)), -torch.ones(3, 2), 5, generator=seeded())
    with pytest.raises(BadInput, match="two values or more"):
        gibbs((math.nan, 1.0))
