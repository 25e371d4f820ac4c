"""The diagonal state space: three bodies and the door agree, on rows that end early and begin anew; derivatives; transforms."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.ops.diagonal import (
    _operation,
    diagonal_ssm,
    diagonal_ssm_chunked,
    diagonal_ssm_convolution,
    diagonal_ssm_recurrence,
)
from conca.types import BadInput

SHAPES = [(2, 5, 3, 2), (1, 1, 1, 1), (1, 63, 17, 1), (2, 64, 16, 3), (3, 65, 33, 2), (2, 130, 5, 4), (4, 20, 8, 5)]
EMPTY = [(2, 0, 3, 2), (0, 4, 3, 2), (2, 3, 0, 2), (2, 3, 4, 0)]
pytestmark = pytest.mark.usefixtures("body")


def example(B, T, D, N, dtype=torch.float64, *, grad=True):
    def z(*shape):
        return torch.randn(*shape, dtype=torch.complex128)

    a = torch.polar(0.3 + 0.69 * torch.rand(D, N), torch.randn(D, N))
    args = [torch.randn(B, T, D), a, z(D, N), z(D, N), z(B, D, N)]
    narrow = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    args = [t if dtype == torch.float64 else t.to(narrow[t.dtype]) for t in args]
    return [t.requires_grad_(grad) for t in args]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_bodies_agree(shape, ragged, dtype, agree):
    args, options = example(*shape, dtype), ragged(*shape[:2])
    weights = torch.randn_like(args[0]), torch.randn_like(args[4])
    bodies = diagonal_ssm_recurrence, diagonal_ssm, diagonal_ssm_chunked, diagonal_ssm_convolution
    agree(bodies[: 3 if options else 4], args, options, weights)


def test_first_and_second_derivatives(ragged):
    args, options = example(2, 5, 3, 2), ragged(2, 5)

    def door(*args):
        return diagonal_ssm(*args, **options)

    assert gradcheck(door, args, fast_mode=True)
    assert gradgradcheck(door, args, fast_mode=True)


def test_a_row_that_ends_early_is_a_shorter_row():
    args = example(3, 70, 5, 2, grad=False)
    lengths = torch.tensor([0, 66, 13])
    args[0][torch.arange(70) >= lengths[:, None]] = torch.nan
    args[0].requires_grad_()
    y, last = diagonal_ssm(*args, lengths=lengths)
    grads = torch.autograd.grad(y.sum() + last.abs().sum(), args[0])[0]
    for row, n in enumerate(lengths.tolist()):
        u, h = args[0][row : row + 1, :n].detach().requires_grad_(), args[4][row : row + 1]
        alone, state = diagonal_ssm(u, *args[1:4], h)
        assert_close(y[row, :n], alone[0])
        assert_close(last[row], state[0])
        assert (y[row, n:] == 0).all()
        slope = torch.autograd.grad(alone.sum() + state.abs().sum() + 0 * u.sum(), u)[0]
        assert_close(grads[row, :n], slope[0])
        assert (grads[row, n:] == 0).all()


def test_a_start_forgets_the_past():
    args = example(1, 70, 5, 2, grad=False)
    starts = torch.zeros(1, 70, dtype=torch.bool)
    starts[0, 29] = starts[0, 64] = True
    y, last = diagonal_ssm(*args, starts=starts)
    h, parts = args[4], []
    for begin, end in ((0, 29), (29, 64), (64, 70)):
        part, h = diagonal_ssm(args[0][:, begin:end], *args[1:4], h if begin == 0 else torch.zeros_like(h))
        parts.append(part)
    assert_close(y, torch.cat(parts, 1))
    assert_close(last, h)


def test_starts_and_lengths_as_integers():
    args = example(2, 9, 3, 2, grad=False)
    starts, lengths = torch.zeros(2, 9, dtype=torch.int64), torch.tensor([4, 9], dtype=torch.int32)
    starts[:, 3] = 1
    got = diagonal_ssm(*args, lengths=lengths, starts=starts)
    assert_close(got, diagonal_ssm_recurrence(*args, lengths=lengths, starts=starts.bool()))


def test_a_warm_state_goes_on():
    args = example(2, 100, 4, 3, grad=False)
    y, last = diagonal_ssm(*args)
    for cut in (0, 1, 63, 64, 65, 100):
        first, h = diagonal_ssm(args[0][:, :cut], *args[1:])
        second, end = diagonal_ssm(args[0][:, cut:], *args[1:4], h)
        assert_close(torch.cat([first, second], 1), y)
        assert_close(end, last)


def test_transforms():
    u, a, b, c, h = args = example(2, 5, 3, 2, grad=False)

    def loss(*args):
        return sum(out.abs().square().sum() for out in diagonal_ssm(*args))

    def one(u, h):
        return loss(u[None], a, b, c, h[None])

    want = torch.func.grad(loss, (0, 4))(*args)
    assert_close(torch.vmap(torch.func.grad(one, (0, 1)))(u, h), want)
    assert_close(torch.func.grad(lambda u, h: torch.vmap(one)(u, h).sum(), (0, 1))(u, h), want)
    pairs = [u, *(torch.view_as_real(t) for t in args[1:])]

    def y_of(function):
        return lambda u, *t: function(u, *map(torch.view_as_complex, t))[0]

    every = (0, 1, 2, 3, 4)
    slow = torch.func.jacrev(y_of(diagonal_ssm_recurrence), every)(*pairs)
    assert_close(torch.func.jacrev(y_of(diagonal_ssm), every)(*pairs), slow)
    torch.func.grad(lambda u: torch.func.grad(loss)(u, a, b, c, h).square().sum())(u)


def test_vmap_over_parameters_and_lengths():
    u, a, b, c, h = example(2, 5, 3, 2, grad=False)
    many, ends = torch.stack([a, a / 2]), torch.tensor([[1, 2], [3, 5]])
    got = torch.vmap(lambda a: diagonal_ssm(u, a, b, c, h))(many)
    assert_close(got, tuple(map(torch.stack, zip(*(diagonal_ssm(u, a, b, c, h) for a in many)))))
    got = torch.vmap(lambda a, n: diagonal_ssm(u, a, b, c, h, lengths=n))(many, ends)
    want = (diagonal_ssm(u, a, b, c, h, lengths=n) for a, n in zip(many, ends))
    assert_close(got, tuple(map(torch.stack, zip(*want))))
    got = torch.vmap(lambda n: diagonal_ssm(u, a, b, c, h, lengths=n))(ends)
    assert_close(got, tuple(map(torch.stack, zip(*(diagonal_ssm(u, a, b, c, h, lengths=n) for n in ends)))))


@pytest.mark.parametrize("body", ["kernel"], indirect=True)
def test_the_inner_operations_pass_opcheck():
    u, a, b, c, h = example(2, 5, 3, 2, grad=False)
    ends, fresh = torch.tensor([1, 3]), torch.rand(2, 5) < 0.5
    opcheck(_operation.forward, (u, a, b, c, h, None, None, True))
    opcheck(_operation.forward, (u.mT.contiguous().mT, a.conj(), b, c, h, ends, fresh, False))
    saved = _operation.forward(u, a, b, c, h, ends, fresh, True)[2]
    opcheck(_operation.backward, (u, a, b, c, h, ends, fresh, saved, u, h))


def test_compiled():
    args = example(2, 5, 3, 2)
    ends = torch.tensor([3, 5])

    def loss(u, a, b, c, h):
        return sum(out.abs().square().sum() for out in diagonal_ssm(u.sin(), a, b * 2, c, h, lengths=ends))

    want = torch.autograd.grad(loss(*args), args)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), want)
    torch._dynamo.reset()


def test_awkward_memory():
    u, a, b, c, h = example(2, 30, 6, 4, grad=False)
    u, a = u[:, ::2, 1::2], a.conj()[::2]
    b, c, h = b[:3], c[1:2].expand(3, 4), h[:1, ::2].conj().expand(2, 3, 4)
    want = diagonal_ssm_recurrence(u, a, b, c, h)
    assert_close(diagonal_ssm(u, a, b, c, h), want)
    assert_close(diagonal_ssm(u[:1].expand(2, -1, -1), a, b, c, h)[0][1], diagonal_ssm(u, a, b, c, h)[0][0])
    leaves = [t.detach().clone().requires_grad_() for t in (u, a, b, c, h)]
    y, last = diagonal_ssm(*leaves)
    assert_close((y, last), want)
    torch.autograd.grad((y, last), leaves, (torch.ones(()).expand_as(y), torch._conj(torch.ones_like(last))))
    with torch.inference_mode():
        assert_close(diagonal_ssm(*(t.clone() for t in (u, a, b, c, h))), want)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out_single_inside(half):
    u, a, b, c, h = example(2, 9, 3, 2, torch.float32, grad=False)
    y, last = diagonal_ssm(u.to(half), a, b, c, h)
    want, state = diagonal_ssm(u.to(half).float(), a, b, c, h)
    assert y.dtype == half
    assert last.dtype == torch.complex64
    assert_close(y, want.to(half))
    assert_close(last, state)


def test_real_modes_are_complex_ones_with_no_imaginary_part():
    u = torch.randn(1, 7, 3)
    a, c, h = torch.rand(3, 2, requires_grad=True), torch.randn(3, 2), torch.randn(1, 3, 2)
    y, last = diagonal_ssm(u, a, torch.ones(3, 2), c, h)
    assert last.dtype == torch.complex128
    (grad,) = torch.autograd.grad(y.sum(), a)
    assert grad.dtype == torch.float64
    assert_close(y, diagonal_ssm_recurrence(u, a, torch.ones(3, 2), c, h)[0])


@pytest.mark.parametrize("zero", ["a", "b", "c"])
def test_modes_of_zero(zero, agree):
    args = dict(zip("uabch", example(2, 70, 3, 2)))
    args[zero] = torch.zeros_like(args[zero]).requires_grad_()
    weights = torch.randn_like(args["u"]), torch.randn_like(args["h"])
    agree([diagonal_ssm_recurrence, diagonal_ssm], list(args.values()), {}, weights)


def test_what_is_not_finite_stays_in_its_channel_and_row():
    u, a, b, c, h = example(2, 70, 19, 2, grad=False)
    u[0, 30, 2] = torch.nan
    y, last = diagonal_ssm(u, a, b, c, h)
    assert y[0, 30:, 2].isnan().all()
    assert last[0, 2].isnan().all()
    y[0, :, 2] = 0
    assert y.isfinite().all()


@pytest.mark.parametrize("wrong", ["u", "a", "b", "c", "h", "lengths", "starts"])
def test_shapes_that_do_not_fit(wrong):
    args = dict(zip("uabch", example(2, 5, 3, 4, grad=False)))
    args |= {"lengths": torch.tensor([1, 2]), "starts": torch.zeros(2, 5, dtype=torch.bool)}
    args[wrong] = torch.ones(2, 7, dtype=args[wrong].dtype)
    with pytest.raises(BadInput, match="diagonal_ssm: "):
        diagonal_ssm(*(args[k] for k in "uabch"), lengths=args["lengths"], starts=args["starts"])


def test_the_convolution_refuses_ragged_rows():
    args = example(2, 5, 3, 4, grad=False)
    with pytest.raises(BadInput, match="not a convolution"):
        diagonal_ssm_convolution(*args, lengths=torch.tensor([1, 2]))
