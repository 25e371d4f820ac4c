"""The Gaussian and the double well against values obtained by another route."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from conca.energy import DoubleWell, Gaussian
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
