"""The wide state space: its own gradient is that of the composition, of any order, in one piece of memory less."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from conca.ops.wide import _dot, wide_ssm, wide_ssm_plain

CASES = [{}, {"lengths": torch.tensor([5, 0, 3])}, {"starts": torch.rand(3, 5, generator=torch.Generator()) < 0.4}]
CASES.append(CASES[1] | CASES[2])
pytestmark = pytest.mark.usefixtures("body")


def example(T=5, D=3, P=2, outputs=None, dtype=torch.float64):
    u, w, c = torch.randn(3, T, D), torch.randn(2 * P, D), torch.randn(outputs or D, 2 * P)
    a, h = torch.polar(torch.rand(P), torch.randn(P)), torch.randn(3, P, dtype=torch.complex128)
    args = [u, w, a, h, c] + ([] if outputs else [torch.randn(D)])
    return [t.to(dtype.to_complex() if t.is_complex() else dtype).requires_grad_() for t in args]


def gradients(function, args, **options):
    y, last = function(*args, **options)
    loss = (y.sin() * torch.arange(y.shape[1]).to(y)[:, None]).sum() + last.abs().square().sum()
    return y, last, *torch.autograd.grad(loss, args)


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("outputs", [None, 4])
def test_it_is_the_composition(outputs, options):
    args = example(outputs=outputs)
    for got, want in zip(gradients(wide_ssm, args, **options), gradients(wide_ssm_plain, args, **options)):
        assert_close(got, want)
    with torch.no_grad():
        assert_close(wide_ssm(*args, **options), wide_ssm_plain(*args, **options))


@pytest.mark.parametrize("options", CASES)
def test_first_and_second_derivatives(options):
    args = example()
    assert gradcheck(lambda *t: wide_ssm(*t, **options), args)
    assert gradgradcheck(lambda *t: wide_ssm(*t, **options), args, fast_mode=True)


def test_only_what_is_asked_for_is_differentiated_twice():
    args = example()
    leaf = args[0]
    args = [leaf, *(t.detach() for t in args[1:])]
    (first,) = torch.autograd.grad(wide_ssm(*args)[0].pow(3).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), leaf)
    (slow,) = torch.autograd.grad(wide_ssm_plain(*args)[0].pow(3).sum(), leaf, create_graph=True)
    assert_close(second, torch.autograd.grad(slow.square().sum(), leaf)[0])


def test_long_rows_in_single_precision_and_awkward_memory():
    u, *rest = (t.detach() for t in example(T=1500, D=7, P=5, dtype=torch.float32))
    u = u.transpose(0, 1).contiguous().transpose(0, 1)
    args = [t.requires_grad_() for t in (u, *rest)]
    for got, want in zip(gradients(wide_ssm, args), gradients(wide_ssm_plain, args)):
        assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.detach().abs().max()))


def test_transforms_and_compilation():
    args = example()

    def loss(*args):
        y, last = wide_ssm(*args)
        return y.square().sum() + last.abs().sum()

    want = torch.autograd.grad(loss(*args), args)
    assert_close(torch.func.grad(loss, tuple(range(6)))(*args), want)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), want)
    torch._dynamo.reset()


@pytest.mark.parametrize("T", [0, 1])
def test_nothing_and_a_single_step(T):
    args = example(T=T)
    y, last = wide_ssm(*args)
    assert y.shape == (3, T, 3)
    if T == 0:
        assert_close(last, args[3])
    last.abs().sum().backward()
    assert args[3].grad.abs().sum() > 0


def test_a_sum_of_products_over_many_steps():
    x, y = torch.randn(5000, 3), torch.randn(5000, 3)
    assert_close(_dot(x, y), (x * y).sum(0))
