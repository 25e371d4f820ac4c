"""The first-order scan: three bodies, derivatives of any order, transforms, and inputs that are awkward."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.ops.bodies import plain_bodies
from conca.ops.scan import _scan, _scan_backward, scan, scan_doubling, scan_recurrence, scan_tree
from conca.types import BadInput

WIDE = (torch.float64, torch.complex128)
SHAPES = [(2, 5, 3), (1, 1, 1), (3, 63, 16), (2, 64, 17), (2, 65, 33), (1, 7, 200), (5, 130, 1)]


@pytest.fixture(params=["kernel", "plain"], autouse=True)
def body(request):
    with plain_bodies() if request.param == "plain" else nullcontext():
        yield request.param


def example(B, T, E, dtype, *, grad=True):
    a, x, h = torch.randn(B, T, E, dtype=dtype) * 0.7, torch.randn(B, T, E, dtype=dtype), torch.randn(B, E, dtype=dtype)
    return [t.requires_grad_(grad) for t in (a, x, h)]


def gradients(function, args, weight):
    states = function(*args)
    loss = (states * weight).real.square().sum() if states.is_complex() else (states * weight).square().sum()
    return states, *torch.autograd.grad(loss, args)


@pytest.mark.parametrize("dtype", [*WIDE, torch.float32, torch.complex64])
@pytest.mark.parametrize("shape", SHAPES)
def test_bodies_agree(shape, dtype):
    args, weight = example(*shape, dtype), torch.randn(shape, dtype=dtype)
    want = gradients(scan_recurrence, args, weight)
    close = {} if dtype in WIDE else {"rtol": 1e-4, "atol": 1e-4}
    for function in (scan, scan_tree, scan_doubling):
        for got, wanted in zip(gradients(function, args, weight), want):
            assert_close(got, wanted, **close)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(
    "shapes", [((2, 5, 3), (2, 5, 3), (2, 3)), ((1, 1, 3), (2, 4, 3), (3,)), ((2, 4, 1), (2, 4, 2), (2, 2))]
)
def test_first_and_second_derivatives(shapes, dtype):
    args = [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]
    assert gradcheck(scan, args)
    assert gradgradcheck(scan, args)


def test_third_derivative():
    a, x, h = example(1, 4, 2, torch.float64)

    def second(a, x, h):
        (first,) = torch.autograd.grad(scan(a, x, h).pow(3).sum(), a, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), (a, x, h), create_graph=True)

    assert gradcheck(second, (a, x, h))


@pytest.mark.parametrize("dtype", WIDE)
def test_transforms(dtype):
    a, x, h = example(2, 5, 3, dtype, grad=False)

    def loss(a, x, h):
        return scan(a, x, h).abs().square().sum()

    def one(a, x, h):
        return loss(a[None], x[None], h[None])

    want = torch.func.grad(loss, (0, 1, 2))(a, x, h)
    assert_close(torch.vmap(torch.func.grad(one, (0, 1, 2)))(a, x, h), want)
    assert_close(torch.func.grad(lambda *t: torch.vmap(one)(*t).sum(), (0, 1, 2))(a, x, h), want)
    over = torch.vmap(scan, in_dims=(None, 0, None))(a, torch.stack([x, 2 * x]), h)
    assert_close(over, torch.stack([scan(a, x, h), scan(a, 2 * x, h)]))
    if not dtype.is_complex:
        jacobian = torch.func.jacrev(scan, (0, 1, 2))(a, x, h)
        assert_close(jacobian, torch.func.jacrev(scan_recurrence, (0, 1, 2))(a, x, h))
        twice = torch.func.grad(lambda x: torch.func.grad(lambda a: loss(a, x, h))(a).square().sum())(x)
        slow = torch.func.grad(
            lambda x: torch.func.grad(lambda a: scan_recurrence(a, x, h).square().sum())(a).square().sum()
        )(x)
        assert_close(twice, slow)


@pytest.mark.parametrize("dtype", WIDE)
def test_the_inner_operations_pass_opcheck(body, dtype):
    if body == "plain":
        return
    a, x, h = example(2, 5, 3, dtype, grad=False)
    opcheck(_scan, (a, x, h))
    opcheck(_scan_backward, (a, h, x, x))
    opcheck(_scan, (a.conj(), x.mT.contiguous().mT, h[:1].expand(2, 3)))


@pytest.mark.parametrize("dtype", WIDE)
def test_compiled(dtype):
    args = example(2, 5, 3, dtype)

    def loss(a, x, h):
        return scan(torch.tanh(a), x * 2, h).abs().square().sum()

    want = torch.autograd.grad(loss(*args), args)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), want)
    torch._dynamo.reset()


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0), (2, 0), (3, 4)])
def test_empty_and_bare_shapes(shape):
    x, h = torch.randn(shape, requires_grad=True), torch.randn(shape[0], *shape[2:])
    states = scan(torch.full(shape, 0.5), x, h)
    assert states.shape == shape
    assert_close(states, scan_recurrence(torch.tensor(0.5), x, h))
    assert torch.autograd.grad(states.sum(), x)[0].shape == shape


def test_any_trailing_shape_and_mixed_types():
    a, x, h = torch.rand(3), torch.randn(2, 9, 4, 3, dtype=torch.complex128), torch.randn(2, 4, 3)
    assert_close(scan(a, x, h), scan_recurrence(a, x, h))
    half = scan(torch.rand(2, 9, 4).bfloat16(), torch.randn(2, 9, 4).bfloat16(), torch.zeros(2, 4).bfloat16())
    assert half.dtype == torch.float32


def test_awkward_memory():
    base = torch.randn(2, 6, 9, 5, dtype=torch.complex128)
    x = base.permute(0, 2, 1, 3)[:, ::2, 1:4, 2:]
    a, h = base[0, 0, :5, :3].conj()[None, :, None], base[1, 3:4, :2, :1].movedim(1, 0)
    want = scan_recurrence(a, x, h)
    assert_close(scan(a, x, h), want)
    assert_close(scan(a, x.imag, h.real), scan_recurrence(a, x.imag, h.real))
    assert_close(scan(torch._neg_view(x.real), x.real, h.real), scan_recurrence(-x.real, x.real, h.real))
    leaf = x.clone().requires_grad_()
    assert_close(scan(a[..., ::2], leaf[..., ::2], h), want[..., ::2])
    with torch.inference_mode():
        assert_close(scan(a.clone(), x.clone(), h.clone()), want)
        inside = torch.ones(1, 2, 3)
    assert_close(scan(inside, inside, inside[:, 0]), torch.tensor([[[2.0] * 3, [3.0] * 3]]))


@pytest.mark.parametrize("width", [1, 16, 21])
def test_what_is_not_finite_flows_on_and_no_further(width):
    a, x, h = example(2, 70, width, torch.float64, grad=False)
    x[0, 3, 0], x[1, 5, width - 1] = torch.nan, torch.inf
    states = scan(a.abs(), x, h)
    assert states[0, 3:, 0].isnan().all()
    assert states[1, 5:, -1].isinf().all()
    states[0, 3:, 0] = states[1, 5:, -1] = 0
    assert states.isfinite().all()


@pytest.mark.parametrize("shapes", [((2, 5, 4), (2, 5, 3), (2, 3)), ((2, 5, 3), (2, 5, 3), (2, 4)), ((2,), (2,), ())])
def test_shapes_that_do_not_fit(shapes):
    with pytest.raises(BadInput, match="scan: "):
        scan(*(torch.zeros(s) for s in shapes))


def test_a_result_never_aliases_an_argument():
    a, x, h = torch.zeros(2, 1, 3), torch.randn(2, 1, 3), torch.zeros(2, 3)
    states = scan(a, x, h)
    states += 1
    assert not torch.equal(states, x)
