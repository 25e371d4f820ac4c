"""Landscapes of known density against values obtained by another route."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from conca.energy import DoubleWell, Gaussian, GaussianMixture, Rings, mixture
from conca.types import BadInput


def test_a_gaussian_is_its_own_negative_log_density():
    mean, covariance = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([[2.0, 0.8, 0.3], [0.8, 1.0, 0.2], [0.3, 0.2, 0.5]])
    x = torch.randn(6, 3)
    torch.testing.assert_close(Gaussian(mean, covariance)(x), -MultivariateNormal(mean, covariance).log_prob(x))


def test_a_gaussian_over_images_is_one_over_their_pixels():
    factor = torch.randn(4, 4)
    covariance = factor @ factor.mT + torch.eye(4)
    x = torch.randn(6, 1, 2, 2)
    flat = Gaussian(torch.zeros(4), covariance)(x.flatten(1))
    torch.testing.assert_close(Gaussian(torch.zeros(1, 2, 2), covariance)(x), flat)


def test_the_mean_trains_where_it_is_a_parameter():
    trained, fixed = Gaussian(nn.Parameter(torch.zeros(2)), torch.eye(2)), Gaussian(torch.zeros(2), torch.eye(2))
    assert [name for name, _ in trained.named_parameters()] == ["mean"]
    assert not list(fixed.parameters())


@pytest.mark.parametrize(
    ("covariance", "says"),
    [
        (torch.eye(3), r"is \(2, 2\), not \(3, 3\)"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.full((2, 2), float("nan")), "positive definite"),
    ],
)
def test_a_covariance_must_be_one(covariance, says):
    with pytest.raises(BadInput, match=says):
        Gaussian(torch.zeros(2), covariance)


def test_a_gaussian_is_of_one_dtype():
    for mean, covariance in ((torch.zeros(2).int(), torch.eye(2)), (torch.zeros(2), torch.eye(2).float())):
        with pytest.raises(BadInput, match="must be floating point and of one dtype"):
            Gaussian(mean, covariance)
    for dtype in (torch.float32, torch.int64):
        with pytest.raises(BadInput, match=f"this Gaussian is of torch.float64, x of {dtype}: use x.to"):
            Gaussian(torch.zeros(2), torch.eye(2))(torch.zeros(3, 2, dtype=dtype))


@pytest.mark.parametrize(
    ("height", "log_z", "square"), [(1, 0.67993, 0.83275), (2, 0.34424, 0.85214), (4, -0.05357, 0.91767)]
)
def test_a_double_well_has_the_moments_that_it_states(height, log_z, square):
    x = torch.linspace(-4, 4, 40_001)[:, None]
    density = torch.exp(-DoubleWell(height)(x)) * (8 / 40_000)
    assert abs(math.log(density.sum().item()) - log_z) < 5e-6
    assert abs((density @ x.square()).item() / density.sum().item() - square) < 5e-6


def test_a_double_well_has_its_barrier_and_valleys_in_every_coordinate():
    well = DoubleWell(3.0)
    assert well(torch.tensor([[0.0, 0.0], [1.0, -1.0], [0.0, 1.0]])).tolist() == [6.0, 0.0, 3.0]
    for height in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="positive"):
            DoubleWell(height)


@pytest.mark.parametrize(
    "energy",
    [
        Rings((1.0, 2.0), 0.15),
        GaussianMixture.eight(),
        GaussianMixture(torch.tensor([[0.5, 0.0], [-1.0, 1.0]]), torch.tensor([0.3, 0.6]), torch.tensor([3.0, 1.0])),
    ],
    ids=["rings", "eight", "two"],
)
def test_normalised_landscapes_and_their_draws(energy):
    side = torch.linspace(-4, 4, 801)
    grid = torch.cartesian_prod(side, side)
    density = (-energy(grid)).exp()
    assert float(density.sum() * 0.01**2) == pytest.approx(1.0, abs=1e-6)
    draws = energy.draw(20_000, torch.Generator().manual_seed(0))
    for moment in (lambda x: x[:, 0], lambda x: x[:, 1].square(), lambda x: x.square().sum(1), lambda x: energy(x)):
        expected, seen = float((moment(grid) * density).sum() * 0.01**2), moment(draws)
        assert abs(seen.mean().item() - expected) < 5 * seen.std().item() / len(draws) ** 0.5


def test_a_mixture_of_round_bowls_is_that_of_gaussians():
    means, scales = torch.tensor([[0.0, 1.0], [2.0, -1.0]]), torch.tensor([0.5, 1.5])
    parts = [Gaussian(mean, scale**2 * torch.eye(2)) for mean, scale in zip(means, scales)]
    x = torch.randn(50, 2)
    made, other = GaussianMixture(means, scales, torch.tensor([1.0, 3.0])), mixture(*parts, weights=[0.25, 0.75])
    torch.testing.assert_close(made(x), other(x))
    torch.testing.assert_close(made.score(x), other.score(x))


def test_the_centre_of_rings_is_flat_and_no_nan():
    x = torch.zeros(2, 2, requires_grad=True)
    energy = Rings((1.0,), 0.3)
    assert torch.equal(energy.score(x), torch.zeros(2, 2)) and energy(x).isfinite().all()
    assert torch.autograd.grad(energy.score(x).sum(), x)[0].isfinite().all()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Rings(()), "one positive radius or more"),
        (lambda: Rings((1.0, -1.0)), "positive radius"),
        (lambda: Rings((1.0,), 0.0), "positive width"),
        (lambda: GaussianMixture(torch.zeros(0, 2)), "means are floating point"),
        (lambda: GaussianMixture(torch.zeros(3, 2), 0.0), "a scale of each of the 3 parts"),
        (lambda: GaussianMixture(torch.zeros(3, 2), 1.0, torch.tensor([1.0, 2.0])), "a weight of each of the 3 parts"),
    ],
)
def test_landscapes_that_cannot_be(make, line):
    with pytest.raises(BadInput, match=line):
        make()
