"""The first-order scan: three bodies, derivatives of any order, transforms, and inputs that are awkward."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.ops.scan import _scan, _scan_backward, scan, scan_doubling, scan_recurrence, scan_tree
from conca.types import BadInput

WIDE = (torch.float64, torch.complex128)
SHAPES = [(2, 5, 3), (1, 1, 1), (3, 63, 16), (2, 64, 17), (2, 65, 33), (1, 7, 200), (5, 130, 1)]
pytestmark = pytest.mark.usefixtures("body")


def example(B, T, E, dtype, *, grad=True):
    a, x, h = torch.randn(B, T, E, dtype=dtype) * 0.7, torch.randn(B, T, E, dtype=dtype), torch.randn(B, E, dtype=dtype)
    return [t.requires_grad_(grad) for t in (a, x, h)]


def gradients(function, args, weight, **options):
    states = function(*args, **options)
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


def options(B, T, which):
    """Lengths 0, whole and between; starts at the first step, the last, two in a row, none in a row."""
    found = {}
    if "lengths" in which:
        found["lengths"] = torch.tensor([(T + 1) // 2, 0, T])[torch.arange(B) % 3]
    if "starts" in which:
        found["starts"] = torch.rand(B, T) < 0.2
        found["starts"][0, 0] = found["starts"][0, T // 2 : T // 2 + 2] = found["starts"][:, -1] = True
        found["starts"][1:2] = False
    return found


RAGGED = ["lengths", "starts", "lengths and starts"]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("which", ["", *RAGGED])
def test_ragged_packed_and_constant(which, constant, dtype):
    for B, T, E in ((1, 1, 1), (3, 63, 16), (4, 131, 19), (2, 7, 200)):
        a, x, h = example(B, T, E, dtype)
        a = (a[0, 0] if constant else a).detach().requires_grad_()
        extra, weight = options(B, T, which), torch.randn(B, T, E, dtype=dtype)
        want = gradients(scan_recurrence, (a, x, h), weight, **extra)
        for function in (scan, scan_tree, scan_doubling):
            found = gradients(function, (a, x, h), weight, **extra)
            for got, wanted in zip(found, want):
                assert_close(got, wanted)


def test_the_recurrence_itself_with_lengths_and_starts():
    x, h = torch.tensor([[1.0, 2, 3, 4, 5], [1.0, 2, 3, 4, 5]])[..., None], torch.tensor([[8.0], [8.0]])
    starts = torch.tensor([[False, False, True, False, False], [True, False, False, False, False]])
    states = scan(torch.tensor([0.5]), x, h, lengths=torch.tensor([4, 2]), starts=starts)[..., 0]
    assert states.tolist() == [[5.0, 4.5, 3.0, 5.5, 5.5], [1.0, 2.5, 2.5, 2.5, 2.5]]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("which", ["", *RAGGED])
@pytest.mark.parametrize("shape", [(3,), (2, 1, 3), (2, 5, 3)])
def test_derivatives_when_ragged_packed_or_constant(shape, which, dtype):
    args = [torch.randn(s, dtype=dtype, requires_grad=True) for s in (shape, (2, 5, 3), (2, 3))]
    extra = options(2, 5, which)
    assert gradcheck(lambda *t: scan(*t, **extra), args)
    assert gradgradcheck(lambda *t: scan(*t, **extra), args)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("width", [1, 16, 21])
def test_nan_stays_in_its_padding_and_in_its_sequence(width, constant):
    a, clean, h = (t.detach() for t in example(3, 70, width, torch.complex128))
    a, h = (a[0, 0] if constant else a).requires_grad_(), h.requires_grad_()
    lengths, starts = torch.tensor([40, 70, 0]), torch.zeros(3, 70, dtype=torch.bool)
    starts[1, 30] = True

    def run(x, *wanted):
        x = x.clone().requires_grad_()
        states = scan(a, x, h, lengths=lengths, starts=starts)
        return states, *torch.autograd.grad(states[1, 30:].abs().sum() + states[::2].abs().sum(), (x, *wanted))

    padded = clean.clone()
    padded[0, 40:] = padded[2] = torch.nan
    for got, want in zip(run(padded, h, a), run(clean, h, a)):
        assert_close(got, want)
    padded[1, 20, 0] = torch.nan
    found, want = run(padded, h), run(clean, h)
    assert found[0][1, 20:30, 0].isnan().all()
    found[0][1, 20:30, 0] = want[0][1, 20:30, 0]
    for got, wanted in zip(found, want):
        assert_close(got, wanted)


def test_a_start_drops_a_state_that_is_not_finite():
    a, x = torch.rand(2, requires_grad=True), torch.ones(1, 3, 2)
    h = torch.tensor([[torch.nan, torch.inf]], requires_grad=True)
    states = scan(a, x, h, starts=torch.tensor([[True, False, False]]))
    assert_close(states[0, 0], torch.ones(2))
    da, dh = torch.autograd.grad(states.sum(), (a, h))
    assert_close(da, 2 + 2 * a)
    assert dh.tolist() == [[0, 0]]


@pytest.mark.parametrize("body", ["kernel"], indirect=True)
def test_the_gradient_to_a_constant_needs_no_room_for_time():
    large = set()

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple) else (result,):
                if isinstance(t, torch.Tensor) and t.untyped_storage().nbytes() >= x.nbytes:
                    large.add(t.data_ptr())
            return result

    a, x = torch.rand(3, requires_grad=True), torch.randn(2, 500, 3)
    with Record():
        states = scan(a, x, torch.zeros(2, 3))
        states.sum().backward()
    assert a.grad.shape == (3,)
    assert len(large - {x.data_ptr(), states.data_ptr()}) == 1  # the gradient to x


@pytest.mark.parametrize("constant", [False, True])
def test_transforms_when_ragged_and_constant(constant):
    a, x, h = (t.detach() for t in example(3, 6, 2, torch.float64))
    extra = options(3, 6, "lengths and starts")

    def loss(a, x, h, lengths, starts):
        return scan(a, x, h, lengths=lengths, starts=starts).square().sum()

    def one(a, x, h, lengths, starts):
        return loss(a if constant else a[None], x[None], h[None], lengths[None], starts[None])

    if constant:
        a = a[0, 0]
    rows = (a.expand(3, 2) if constant else a), x, h, extra["lengths"], extra["starts"]
    found = torch.vmap(torch.func.grad(one, (0, 1, 2)))(*rows)
    want = torch.func.grad(loss, (0, 1, 2))(a, *rows[1:])
    assert_close(found[0].sum(0) if constant else found[0], want[0])
    assert_close(found[1:], want[1:])
    shared = torch.vmap(one, in_dims=(None if constant else 0, 0, 0, 0, 0))(a, *rows[1:])
    assert_close(shared.sum(), loss(a, *rows[1:]))


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
@pytest.mark.parametrize("body", ["kernel"], indirect=True)
def test_the_inner_operations_pass_opcheck(dtype):
    a, x, h = example(2, 5, 3, dtype, grad=False)
    ragged = torch.tensor([3, 5]), torch.rand(2, 5) < 0.5
    for extra in ((None, None), ragged):
        opcheck(_scan, (a, x, h, *extra))
        opcheck(_scan, (a[:, 0], x, h, *extra))
        opcheck(_scan_backward, (a, h, x, x, *extra))
        opcheck(_scan_backward, (a[:, 0], h, x, x, *extra))
        opcheck(_scan, (a.conj(), x.mT.contiguous().mT, h[:1].expand(2, 3), *extra))


@pytest.mark.parametrize("dtype", WIDE)
def test_compiled(dtype):
    args = example(2, 5, 3, dtype)

    def loss(a, x, h):
        return scan(torch.tanh(a), x * 2, h).abs().square().sum()

    extra = options(2, 5, "lengths and starts")

    def constant(a, x, h):
        return scan(torch.tanh(a[0, 0]), x * 2, h, **extra).abs().square().sum()

    for function in (loss, constant):
        want = torch.autograd.grad(function(*args), args)
        fast = torch.compile(function, fullgraph=True, backend="aot_eager")
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


@pytest.mark.parametrize("extra", [{"lengths": torch.ones(3)}, {"starts": torch.ones(2, 4, dtype=torch.bool)}])
def test_lengths_and_starts_that_do_not_fit(extra):
    with pytest.raises(BadInput, match=f"scan: {next(iter(extra))} has shape"):
        scan(torch.ones(3), torch.zeros(2, 5, 3), torch.zeros(2, 3), **extra)


def test_a_result_never_aliases_an_argument():
    a, x, h = torch.zeros(2, 1, 3), torch.randn(2, 1, 3), torch.zeros(2, 3)
    states = scan(a, x, h)
    states += 1
    assert not torch.equal(states, x)
