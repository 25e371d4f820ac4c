"""The kernels against what is known of them in closed form or by quadrature; every tolerance is five standard errors."""

import pytest
import torch

from conca.energy import Divergence, DoubleWell, Gaussian, descent, mala, sample, ula
from conca.energy.langevin import WeighedPlace

CHAINS = 50_000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def double_well(height, chains=CHAINS):
    """The energy, its E[x^2] by quadrature, and independent draws, (chains, 1)."""
    grid = torch.linspace(-3, 3, 20_001)[:, None]
    energy = DoubleWell(height)
    probability = torch.softmax(-energy(grid), 0)
    draws = grid[torch.multinomial(probability, chains, replacement=True, generator=seeded(1))]
    return energy, (probability @ grid.square()).item(), draws


@pytest.mark.parametrize("step", [0.1, 0.5, 1.0])
def test_the_variance_of_ula_is_off_by_exactly_its_step(step):
    expected = 1 / (1 - step / 2)
    start = expected**0.5 * torch.randn(CHAINS, 1, generator=seeded(1))
    chain, _ = sample(Gaussian(torch.zeros(1), torch.eye(1)), ula(step), start, 50, 50, generator=seeded())
    assert abs(chain[0].var().item() - expected) < 5 * expected * (2 / CHAINS) ** 0.5
    assert abs(expected - 1) > 5 * expected * (2 / CHAINS) ** 0.5, "so that mala and ula can be told apart"


def test_ula_at_a_step_of_two_diverges():
    start = torch.ones(3, 1)
    with pytest.raises(Divergence):
        sample(Gaussian(torch.zeros(1), torch.eye(1)), ula(2.5), start, 5000, generator=seeded())


@pytest.mark.parametrize("step", [0.1, 1.0, 2.5])
def test_mala_has_variance_one_at_any_step(step):
    start = torch.randn(CHAINS, 1, generator=seeded(1))
    chain, info = sample(Gaussian(torch.zeros(1), torch.eye(1)), mala(step), start, 30, 30, generator=seeded())
    assert abs(chain[0].var().item() - 1) < 5 * (2 / CHAINS) ** 0.5
    assert 0.01 < info["accepted"].mean() < 1


def test_mala_finds_equilibrium_from_afar():
    start = torch.full((CHAINS, 1), 5.0)
    chain, _ = sample(Gaussian(torch.zeros(1), torch.eye(1)), mala(0.5), start, 60, 60, generator=seeded())
    assert abs(chain[0].mean().item()) < 5 / CHAINS**0.5
    assert abs(chain[0].var().item() - 1) < 5 * (2 / CHAINS) ** 0.5


@pytest.mark.parametrize(("step", "acceptance"), [(0.01, 0.98), (0.05, 0.85), (0.1, 0.68), (0.2, 0.46)])
def test_mala_accepts_in_a_double_well_as_often_as_was_measured_elsewhere(step, acceptance):
    energy, square, start = double_well(2.0)
    chain, info = sample(energy, mala(step), start, 10, 10, generator=seeded())
    error = chain[0].square().std().item() / CHAINS**0.5
    assert abs(chain[0].square().mean().item() - square) < 5 * error
    assert abs(info["accepted"].mean().item() - acceptance) < 0.01


def test_ula_in_a_double_well_is_biased_or_loud():
    energy, square, start = double_well(2.0, 20_000)
    chain, _ = sample(energy, ula(0.01), start, 300, 300, generator=seeded())
    assert -0.03 < chain[0].square().mean().item() - square < -0.005
    with pytest.raises(Divergence):
        sample(energy, ula(0.1), start, 300, generator=seeded())


def test_mala_takes_no_notice_of_clamped_coordinates():
    """A coordinate that is known counts in no acceptance, however hard another part of the sum pulls at it."""
    known = torch.tensor([True, True, False, False])
    held = Gaussian(torch.zeros(4), torch.eye(4)).given(torch.full((4,), 3.0), known) + DoubleWell(50.0)
    alone = Gaussian(torch.zeros(2), torch.eye(2)) + DoubleWell(50.0)
    kernel, here, there = mala(0.02), *torch.randn(2, 500, 2, generator=seeded()).unbind()

    def ratio(energy, widen):
        return kernel.log_acceptance(energy, *(WeighedPlace(p, *energy.evaluate(p)) for p in map(widen, (here, there))))

    padded = ratio(held, lambda free: torch.cat([torch.full((500, 2), 3.0), free], 1))
    torch.testing.assert_close(padded, ratio(alone, lambda free: free), atol=1e-6, rtol=1e-9)


def test_mala_holds_what_a_landscape_clamps_without_saying_so_in_its_slope():
    class Held(Gaussian):
        def clamp(self, x):
            return torch.cat([torch.full_like(x[:, :1], 3.0), x[:, 1:]], 1)

    kernel, here, there = mala(0.3), *torch.randn(2, 500, 1, generator=seeded()).unbind()

    def ratio(energy, widen):
        return kernel.log_acceptance(energy, *(WeighedPlace(p, *energy.evaluate(p)) for p in map(widen, (here, there))))

    padded = ratio(Held(torch.zeros(2), torch.eye(2)), lambda free: torch.cat([torch.full((500, 1), 3.0), free], 1))
    torch.testing.assert_close(padded, ratio(Gaussian(torch.zeros(1), torch.eye(1)), lambda free: free))


def test_mala_in_bfloat16_accepts_nothing_out_of_hand():
    class Walled(DoubleWell):
        def forward(self, x):
            return 0.5 * x.square().sum(1) + 1000 * (x.abs() > 1).to(x.dtype).sum(1)

    start = torch.zeros(20_000, 1, dtype=torch.bfloat16)
    chain, info = sample(Walled(), mala(0.5), start, 3, generator=seeded())
    assert chain.abs().max() <= 1
    assert info["accepted"].mean() > 0.5


def test_descent_goes_down_and_rests_in_a_valley():
    start = torch.randn(50, 3, generator=seeded())
    chain, info = sample(DoubleWell(), descent(0.02), start, 500)
    assert (info["energy"].diff(dim=0) <= 1e-15).all()
    torch.testing.assert_close(chain[-1], start.sign())
