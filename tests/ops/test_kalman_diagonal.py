"""The filter of components that decay on their own: gradients, and how noise gathers."""

import math

import torch
from torch.testing import assert_close

from conca.ops.bodies import plain_bodies
from conca.ops.kalman_diagonal import Belief, DiagonalModel, diagonal_filter, spread_of


def test_gradients_are_those_of_differences():
    y, design = torch.randn(2, 5), torch.randn(2, 5, 3)
    y[0, 2] = math.nan

    def likelihood(decay, root, error, mean):
        model = DiagonalModel(decay, root @ root.mT, error)
        found = diagonal_filter(y, design, model, Belief(mean, torch.eye(3).expand(2, -1, -1)))
        return (found.innovation_BT**2 / found.variance_BT + found.variance_BT.log()).sum() + found.last.mean_BN.sum()

    leaves = torch.rand(2, 3) * 0.3 + 0.6, torch.randn(2, 3, 3), torch.rand(2) + 0.5, torch.randn(2, 3)
    leaves = [t.requires_grad_() for t in leaves]
    assert torch.autograd.gradcheck(likelihood, leaves)
    with plain_bodies():
        assert torch.autograd.gradcheck(likelihood, leaves)
        assert torch.autograd.gradgradcheck(likelihood, leaves)


def test_noise_gathers():
    assert_close(spread_of(torch.tensor([1.0, 0.5]), torch.tensor(3.0)), torch.tensor([3.0, 1.75]))


def test_in_single_precision_the_loop_runs():
    y, design = torch.randn(2, 9), torch.randn(2, 9, 3)
    model = DiagonalModel(torch.full((2, 3), 0.9), torch.eye(3).expand(2, -1, -1), torch.ones(2))
    belief = Belief(torch.zeros(2, 3), torch.eye(3).expand(2, -1, -1))
    wanted = diagonal_filter(y, design, model, belief).last.mean_BN
    half = [type(part)(*(leaf.float() for leaf in part)) for part in (model, belief)]
    found = diagonal_filter(y.float(), design.float(), *half).last.mean_BN
    assert found.dtype == torch.float32
    assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
