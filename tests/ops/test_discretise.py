"""Discretisation: limits, against closed forms and each other, and derivatives at eigenvalue zero."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from conca.ops.discretise import (
    backward_euler,
    bilinear,
    dense_generalised_bilinear,
    dense_zero_order_hold,
    expm1,
    forward_euler,
    generalised_bilinear,
    irregular,
    phi,
    zero_order_hold,
)
from conca.types import BadInput

METHODS = [zero_order_hold, forward_euler, backward_euler, bilinear]
HARD = torch.tensor([0, 1e-12, 1e-6 + 1e-6j, 0.3 + 0.2j, 1.9, 2.1j, -2 - 3j, -30 + 4j], dtype=torch.complex128)


def test_phi_is_exact_at_zero_and_near_it():
    small = torch.logspace(-12, -1, 40)
    series = 1 + small / 2 + small**2 / 6 + small**3 / 24 + small**4 / 120 + small**5 / 720 + small**6 / 5040
    assert_close(phi(small), series, rtol=1e-10, atol=0)
    assert_close(phi(torch.zeros(())), torch.ones(()), rtol=0, atol=0)
    assert_close(phi(torch.tensor(-800.0)), torch.tensor(1 / 800.0))


def test_derivatives_of_phi_at_every_size():
    z = HARD.clone().requires_grad_()
    assert gradcheck(phi, z)
    assert gradgradcheck(phi, z)
    x = torch.tensor([0.0, 1e-8, 1e-3, 1.0, 3.0], requires_grad=True)
    slope = phi(x)
    for order in range(1, 5):  # the n-th derivative at 0 is 1 / (n + 1)
        (slope,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        assert_close(slope[:2].detach(), torch.full((2,), 1 / (order + 1)), rtol=1e-7, atol=0)
    single = torch.tensor([1e-4, 1e-3], dtype=torch.float32, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(single).sum(), single)
    assert_close(slope, 0.5 + single.detach() / 3, rtol=1e-6, atol=0)


def test_phi_under_transforms():
    z = torch.tensor([0.0, 0.5, -3.0])
    slopes = torch.vmap(torch.func.grad(phi))(z)
    assert_close(torch.func.jacrev(phi)(z), torch.diag(slopes))
    fast = torch.compile(lambda z: phi(z).sum(), fullgraph=True, backend="aot_eager")
    leaf = z.requires_grad_()
    assert_close(torch.autograd.grad(fast(leaf), leaf)[0], slopes)
    torch._dynamo.reset()


def test_the_exponential_less_one_is_exact_near_zero_and_elsewhere():
    z = torch.cat([HARD, HARD.conj(), -HARD.abs(), torch.tensor([-0.5 + 1e-9j, -1e-9 + 700j, -900 + 3j])])
    assert_close(expm1(z), torch.expm1(z), rtol=1e-12, atol=0)
    assert_close(
        expm1(z.to(torch.complex64)).to(z.dtype), torch.expm1(z.to(torch.complex64).to(z.dtype)), rtol=1e-6, atol=0
    )
    assert_close(expm1(HARD.real), torch.expm1(HARD.real))
    leaf = z[:-2].clone().requires_grad_()
    assert gradcheck(expm1, leaf)
    assert gradgradcheck(expm1, leaf)
    assert_close(torch.vmap(expm1)(z), expm1(z))


@pytest.mark.parametrize(("transform", "method"), [("zoh", zero_order_hold), ("bilinear", bilinear)])
@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
def test_irregular_steps_are_those_of_the_transform(transform, method, kind):
    poles = torch.tensor([-0.5 + 3j, -2.0, -1e-3 - 40j], dtype=torch.complex128)
    poles = poles if kind.is_complex else poles.real
    dt, elapsed = torch.tensor([0.1, 1e-3, 2.0]), torch.tensor([0.0, 1e-6, 0.3, 1.0, 17.0])[:, None]
    leaves = [t.clone().requires_grad_() for t in (poles, dt, elapsed)]

    def factors(poles, dt, elapsed):
        a, factor, fixed = irregular(transform, poles, dt, elapsed)
        return a, factor * fixed

    assert_close(factors(*leaves), method(poles, dt * elapsed), atol=1e-13, rtol=1e-11)
    assert gradcheck(factors, leaves)


@pytest.mark.parametrize("method", METHODS)
def test_an_eigenvalue_of_zero_integrates(method):
    a, b = method(torch.zeros(3), torch.tensor([0.1, 1.0, 7.0]))
    assert_close(a, torch.ones(3))
    assert_close(b, torch.tensor([0.1, 1.0, 7.0]))


@pytest.mark.parametrize("method", METHODS)
def test_derivatives(method):
    eigenvalues, step = HARD[:5].clone().requires_grad_(), torch.rand(3, 2, 1, requires_grad=True)
    assert gradcheck(method, (eigenvalues, step))
    assert gradgradcheck(method, (eigenvalues, step))


@pytest.mark.parametrize(
    ("method", "order"), [(zero_order_hold, 9), (forward_euler, 1), (backward_euler, 1), (bilinear, 2)]
)
def test_order_of_the_error(method, order):
    rate = torch.tensor(-0.7 + 2.0j)
    exact = torch.exp(rate)
    errors = [float((method(rate, torch.tensor(1 / n))[0] ** n - exact).abs()) for n in (64, 128)]
    if order == 9:
        assert max(errors) < 1e-13
    else:
        assert math.isclose(math.log2(errors[0] / errors[1]), order, abs_tol=0.1)


def test_steps_may_differ_by_row_time_and_channel():
    eigenvalues, elapsed = torch.randn(4, 2, dtype=torch.complex128), torch.rand(3, 5)
    a, b = zero_order_hold(eigenvalues, torch.rand(4, 1) * elapsed[..., None, None])
    assert a.shape == b.shape == (3, 5, 4, 2)


def test_two_holds_in_turn_are_one():
    eigenvalues = torch.randn(5, dtype=torch.complex128)
    (a, b), (a2, b2), (a3, b3) = (zero_order_hold(eigenvalues, torch.tensor(s)) for s in (0.3, 0.5, 0.8))
    assert_close(a * a2, a3)
    assert_close(a2 * b + b2, b3)


@pytest.mark.parametrize("alpha", [None, 0.0, 0.3, 0.5, 1.0])
def test_dense_equals_diagonal(alpha):
    eigenvalues = torch.tensor([0.0, -1.0, -0.3, 2.0])
    basis = torch.linalg.qr(torch.randn(4, 4)).Q
    A, B = basis @ torch.diag(eigenvalues) @ basis.T, torch.randn(4, 2)
    step = torch.tensor([[0.1, 0.7, 1e-5], [0.2, 0.0, 0.4]])
    if alpha is None:
        (a, b), (va, vb) = dense_zero_order_hold(A, B, step), zero_order_hold(eigenvalues, step[..., None])
    else:
        a, b = dense_generalised_bilinear(A, B, step, alpha)
        va, vb = generalised_bilinear(eigenvalues, step[..., None], alpha)
    assert_close(a, basis @ torch.diag_embed(va) @ basis.T)
    assert_close(b, basis @ torch.diag_embed(vb) @ basis.T @ B)


def test_derivatives_of_dense():
    args = [torch.randn(s, requires_grad=True) for s in ((3, 3), (3, 2), (2,))]
    for method in (dense_zero_order_hold, dense_generalised_bilinear):
        assert gradcheck(method, args)
        assert gradgradcheck(method, args, fast_mode=True)


@pytest.mark.parametrize("alpha", [-0.1, 1.5, math.nan])
def test_alpha_outside(alpha):
    with pytest.raises(BadInput, match="alpha"):
        generalised_bilinear(torch.zeros(1), torch.ones(1), alpha)
    with pytest.raises(BadInput, match="alpha"):
        dense_generalised_bilinear(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1), alpha)


def test_phi_of_numbers_that_underflow_is_one():
    z = torch.tensor([1e-39 + 1e-39j, 1e-30j, 0j], dtype=torch.complex64)
    assert torch.equal(phi(z), torch.ones_like(z) + z / 2)
