"""The kernel of the filter of components that decay on their own: the numbers and gradients of the plain loop, on any threads."""

import math

import pytest
import torch
from torch.testing import assert_close

from conca.kernels import pool
from conca.ops.bodies import plain_bodies, watched
from conca.ops.diagonal_bodies import CHUNK
from conca.ops.kalman_diagonal import Belief, DiagonalModel, diagonal_filter


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(request.param)


@pytest.mark.parametrize(("T", "N"), [(1, 1), (CHUNK, 3), (CHUNK + 6, 5), (2 * CHUNK + 1, 2)])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_kernel_and_plain_body_agree_with_their_gradients(T, N, uneven, ragged):
    B = 3
    decay = torch.rand(B, N) * 0.5 + 0.5
    decay[:, :2] = 1
    root, start, error = torch.randn(B, N, N) * 0.3, torch.randn(B, N, N), torch.rand(B) + 0.1
    y, design, mean = torch.randn(B, T), torch.randn(B, T, N), torch.randn(B, N)
    y[torch.rand(B, T) < 0.2] = math.nan
    leaves = [t.requires_grad_() for t in (decay, root, start, error, y, design, mean)]
    options = {
        "elapsed": torch.rand(B, T) * 3 if uneven else None,
        "lengths": torch.tensor([T, 0, T // 2]) if ragged else None,
        "rows": torch.arange(T // 2, T, 3),
    }
    weights = None

    def run():
        nonlocal weights
        model, belief = DiagonalModel(decay, root @ root.mT, error), Belief(mean, start @ start.mT)
        found = diagonal_filter(y, design, model, belief, **options)
        results = found.innovation_BT, found.variance_BT, *found.asked, *found.last
        weights = weights or [torch.randn_like(part) for part in results]
        return results, torch.autograd.grad(sum((w * part).sum() for w, part in zip(weights, results)), leaves)

    with watched() as seen:
        fast, slopes = run()
    assert seen == {"diagonal_filter", "diagonal_filter_backward"}
    with plain_bodies():
        plain, wanted = run()
    for one, other in zip((*fast, *slopes), (*plain, *wanted)):
        assert_close(one, other)


def test_what_is_not_asked_for_is_not_computed_twice():
    y, design = torch.randn(2, 9), torch.randn(2, 9, 3)
    model = DiagonalModel(torch.full((2, 3), 0.9), torch.eye(3).expand(2, -1, -1), torch.ones(2))
    belief = Belief(torch.zeros(2, 3), torch.eye(3).expand(2, -1, -1))
    none = diagonal_filter(y, design, model, belief, rows=torch.arange(0))
    every = diagonal_filter(y, design, model, belief)
    assert none.asked.mean_BN.shape == (2, 0, 3)
    assert torch.equal(none.last.covariance_BNN, every.asked.covariance_BNN[:, -1])
    assert torch.equal(none.innovation_BT, every.innovation_BT)
    assert belief.mean_BN.abs().max() == 0


@pytest.mark.parametrize("gap", [1e-8, 1e-12, 1e-14])
@pytest.mark.parametrize("uneven", [False, True])
def test_components_that_hardly_decay_keep_their_digits(gap, uneven):
    """Against the filter written out, whole steps one by one; noise that hardly fades must not be lost among what it comes to."""
    T, N = 40, 3
    root, design, y = torch.randn(N, N), torch.randn(1, T, N), torch.randn(1, T)
    y[torch.rand(1, T) < 0.3] = math.nan
    decay, noise, mean, spread = torch.full((1, N), 1 - gap), 0.1 * root @ root.mT, torch.randn(N), 2 * torch.eye(N)
    elapsed = torch.randint(0, 4, (1, T)).double() if uneven else None
    model, belief = DiagonalModel(decay, noise[None], torch.full((1,), 0.5)), Belief(mean[None], spread[None])
    found = diagonal_filter(y, design, model, belief, elapsed=elapsed)
    with plain_bodies():
        plain = diagonal_filter(y, design, model, belief, elapsed=elapsed)
    for t in range(T):
        for _ in range(int(elapsed[0, t]) if uneven else 1):
            mean, spread = decay[0] * mean, decay[0, :, None] * spread * decay[0] + noise
        z = design[0, t]
        variance = z @ spread @ z + 0.5
        if not y[0, t].isnan():
            gain, innovation = spread @ z / variance, y[0, t] - z @ mean
            mean, spread = mean + gain * innovation, spread - torch.outer(gain, gain) * variance
        close = {"rtol": 1e-8 if uneven else 1e-11, "atol": 1e-8 if uneven else 1e-11}  # a power of a decay is rounded
        for one in (found, plain):
            assert_close(one.variance_BT[0, t], variance, **close)
            assert_close(one.asked.mean_BN[0, t], mean, **close)
            assert_close(one.asked.covariance_BNN[0, t], spread, **close)
