"""The kernel of the Kalman likelihood against the plain loop: values, gradients, gradients of gradients, what it does not serve."""

import pytest
import torch
from torch.testing import assert_close

from conca import plain_bodies
from conca.kernels import pool
from conca.ops import bodies
from conca.ops.kalman import GaussianModel, KalmanState, log_likelihood
from conca.ops.kalman_likelihood import sample_likelihoods
from conca.types import BadInput

MISSING = float("nan")


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(request.param)


def covariance(*size):
    root = torch.randn(*size, size[-1])
    return root @ root.mT + 0.3 * torch.eye(size[-1])


def parts(B, T, N):
    """Everything that may want a gradient: a transition with holes, and roots of covariances."""
    turn = torch.linalg.qr(torch.randn(N, N)).Q * 0.9
    turn[0, -1] = 0.0
    roots = [torch.linalg.cholesky(covariance(*size)) for size in ((N,), (1,), (B, N))]
    return [turn, torch.randn(1, N), *roots, torch.randn(B, N), torch.randn(B, T, N), torch.randn(B, T, 1)]


def series(B, T):
    y = torch.randn(B, T, 1)
    y[torch.rand(B, T, 1) < 0.3] = MISSING
    return y


def likelihoods(y, turn, design, q, h, p, mean, drive, offset, *, lengths=None, time=0):
    model = GaussianModel(turn, design, q @ q.mT, h @ h.mT, drive, offset)
    return sample_likelihoods(y, model, KalmanState(mean, p @ p.mT), lengths, time)


@pytest.mark.parametrize(("B", "T", "N"), [(1, 1, 1), (3, 9, 2), (2, 33, 5), (4, 7, 3)])
def test_it_is_the_loop(B, T, N):
    y, leaves = series(B, T), [part.requires_grad_() for part in parts(B, T, N)]
    for lengths in (None, torch.arange(B) * T // max(B - 1, 1)):
        y.requires_grad_()
        with bodies.watched() as seen:
            got = likelihoods(y, *leaves, lengths=lengths)
            weight = torch.randn_like(got)
            slopes = torch.autograd.grad((got * weight).sum(), [y, *leaves], materialize_grads=True)
        assert seen == {"kalman_likelihood", "kalman_likelihood_backward"}
        with plain_bodies():
            want = likelihoods(y, *leaves, lengths=lengths)
            wanted = torch.autograd.grad((want * weight).sum(), [y, *leaves], materialize_grads=True)
        for one, other in zip((got, *slopes), (want, *wanted)):
            assert_close(one, other, atol=1e-11, rtol=1e-9)
        with torch.no_grad():
            assert torch.equal(likelihoods(y, *leaves, lengths=lengths), got)


def test_gradients_by_finite_differences_twice():
    y, leaves = series(2, 4), [part.requires_grad_() for part in parts(2, 4, 2)]
    assert torch.autograd.gradcheck(lambda *p: likelihoods(y, *p), leaves)
    assert torch.autograd.gradgradcheck(lambda *p: likelihoods(y, *p), leaves, fast_mode=True)


@pytest.mark.parametrize("shape", ["constant", "in time", "by row", "none"])
def test_what_is_added_may_vary(shape):
    *fixed, _, _ = parts(2, 6, 3)
    front = {"constant": (), "in time": (9,), "by row": (2, 9), "none": None}[shape]
    added = (None, None) if front is None else (torch.randn(*front, 3), torch.randn(*front, 1))
    added = [None if part is None else part.requires_grad_() for part in added]
    y, wanted = series(2, 6), [part for part in added if part is not None] or [fixed[0].requires_grad_()]
    got = likelihoods(y, *fixed, *added, time=2)
    slopes = torch.autograd.grad(got.sum(), wanted)
    with plain_bodies():
        want = likelihoods(y, *fixed, *added, time=2)
    assert_close(got, want)
    for one, other in zip(slopes, torch.autograd.grad(want.sum(), wanted)):
        assert_close(one, other)


def test_what_it_does_not_serve_goes_through_the_loop():
    y, leaves = series(2, 5), parts(2, 5, 2)
    whole = likelihoods(y, *leaves)
    with bodies.watched() as seen:
        varying = [leaves[0].expand(5, 2, 2), *leaves[1:]]
        assert_close(likelihoods(y, *varying), whole)
        slope = torch.func.grad(lambda turn: likelihoods(y, turn, *leaves[1:]).sum())(leaves[0])
        assert likelihoods(y[:, :0], *leaves[:-2], None, None).shape == (2, 0)
        single = likelihoods(y.float(), *(part.float() for part in leaves))
        assert single.dtype == torch.float32
        assert_close(single.double(), whole, atol=1e-4, rtol=1e-4)
    assert not seen & {"kalman_likelihood", "kalman_likelihood_backward"}
    leaves[0].requires_grad_()
    assert_close(slope, torch.autograd.grad(likelihoods(y, *leaves).sum(), leaves[0])[0])


def test_a_prediction_without_room_for_error_is_refused_in_the_same_words():
    model = GaussianModel(torch.eye(1), torch.eye(1), torch.zeros(1, 1), torch.zeros(1, 1))
    y, state = torch.ones(2, 4, 1), KalmanState(torch.zeros(2, 1), torch.ones(2, 1, 1))
    y[1, 0] = MISSING
    said = []
    with pytest.raises(BadInput, match="sample 1 is predicted") as error:
        log_likelihood(y, model, state)
    said.append(str(error.value))
    with plain_bodies(), pytest.raises(BadInput) as error:
        log_likelihood(y, model, state)
    assert str(error.value) == said[0]


def test_a_lopsided_first_covariance_counts_as_its_symmetric_part_in_both_bodies():
    y, (turn, design, q, h, _, mean, *_) = series(2, 6), parts(2, 6, 3)
    model = GaussianModel(turn, design, q @ q.mT, h @ h.mT)
    lopsided = (covariance(2, 3) + 0.1 * torch.randn(2, 3, 3)).requires_grad_()
    got = log_likelihood(y, model, KalmanState(mean, lopsided))
    assert_close(got, log_likelihood(y, model, KalmanState(mean, 0.5 * (lopsided + lopsided.mT))))
    with plain_bodies():
        want = log_likelihood(y, model, KalmanState(mean, lopsided))
    assert_close(got, want)
    assert_close(*(torch.autograd.grad(one.sum(), lopsided)[0] for one in (got, want)))


def test_the_arguments_stay_as_they_were():
    y, leaves = series(2, 8), parts(2, 8, 3)
    before = [part.clone() for part in leaves]
    for part in leaves:
        part.requires_grad_()
    likelihoods(y, *leaves).sum().backward()
    for part, kept in zip(leaves, before):
        assert torch.equal(part.detach(), kept)
