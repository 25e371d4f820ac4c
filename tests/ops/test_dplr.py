"""The state space with feedback: bodies and door agree, on rows that end early and begin anew; derivatives; transforms; Woodbury."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.ops.diagonal import diagonal_ssm
from conca.ops.discretise import dense_generalised_bilinear
from conca.ops.dplr import (
    _operation,
    dplr_generalised_bilinear,
    dplr_ssm,
    dplr_ssm_chunked,
    dplr_ssm_convolution,
    dplr_ssm_recurrence,
)
from conca.types import BadInput

# batch, time, channels, modes, rank
SHAPES = [(2, 5, 3, 2, 1), (1, 1, 1, 1, 1), (1, 63, 17, 1, 2), (2, 64, 16, 3, 1), (3, 65, 33, 2, 3), (2, 130, 5, 4, 2)]
EMPTY = [(2, 0, 3, 2, 1), (0, 4, 3, 2, 1), (2, 3, 0, 2, 2), (2, 3, 4, 0, 1), (2, 3, 4, 2, 0)]
pytestmark = pytest.mark.usefixtures("body")


def example(B, T, D, N, R, dtype=torch.float64, *, grad=True):
    def z(*shape):
        return torch.randn(*shape, dtype=torch.complex128)

    a = torch.polar(0.3 + 0.6 * torch.rand(D, N), torch.randn(D, N))
    args = [torch.randn(B, T, D), a, 0.2 / max(N * R, 1) * z(R, D, N), z(R, D, N), z(D, N), z(D, N), z(B, D, N)]
    narrow = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    args = [t if dtype == torch.float64 else t.to(narrow[t.dtype]) for t in args]
    return [t.requires_grad_(grad) for t in args]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_bodies_agree(shape, ragged, dtype, agree):
    args, options = example(*shape, dtype), ragged(*shape[:2])
    weights = torch.randn_like(args[0]), torch.randn_like(args[6])
    bodies = dplr_ssm_recurrence, dplr_ssm, dplr_ssm_chunked, dplr_ssm_convolution
    agree(bodies[: 3 if options else 4], args, options, weights)


def dense(a, p, q):
    """One step of one channel as a real matrix, read off from what it makes of each unit vector."""
    size = len(a)
    units = torch.eye(2 * size)
    h = torch.complex(units[:, :size], units[:, size:])
    new = a * h - (h @ q.T).real.to(p.dtype) @ p
    return torch.cat([new.real, new.imag], 1).T


def pairs(z):
    return torch.cat([z.real, z.imag], -1)


@pytest.mark.parametrize("rank", [1, 2])
def test_outputs_and_state_are_those_of_dense_powers(rank):
    u, a, p, q, b, c, h = args = example(1, 70, 2, 3, rank, grad=False)
    y, last = dplr_ssm(*args)
    for d in range(2):
        matrix = dense(a[d], p[:, d], q[:, d])
        state, read = pairs(h[0, d]), pairs(c[d].conj())
        impulses = [torch.linalg.matrix_power(matrix, t) @ pairs(b[d]) for t in range(70)]
        kernel = torch.stack([read @ x for x in impulses])
        for t in (0, 1, 63, 64, 69):
            silent = torch.linalg.matrix_power(matrix, t + 1) @ state
            assert_close(y[0, t, d], kernel[: t + 1].flip(0) @ u[0, : t + 1, d] + read @ silent)
        driven = sum(x * u[0, 69 - t, d] for t, x in enumerate(impulses))
        assert_close(pairs(last[0, d]), driven + torch.linalg.matrix_power(matrix, 70) @ state)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_the_transform_is_that_of_the_dense_matrix(alpha, rank):
    _, _, p, q, b, _, _ = example(1, 1, 2, 3, rank, grad=False)
    eigenvalues = torch.complex(-torch.rand(2, 3), 5 * torch.randn(2, 3))
    p, step = 20 * p, torch.tensor([[0.1], [0.7]])
    a, p_bar, q_bar, b_bar = dplr_generalised_bilinear(eigenvalues, p, q, b, step, alpha)
    for d in range(2):
        inputs = pairs(b[d])[:, None]
        want = dense_generalised_bilinear(dense(eigenvalues[d], p[:, d], q[:, d]), inputs, step[d, 0], alpha)
        assert_close(dense(a[d], p_bar[:, d], q_bar[:, d]), want[0])
        assert_close(pairs(b_bar[d]), want[1][:, 0])


def test_gradients_pass_through_the_transform():
    _, a, p, q, b, _, _ = example(1, 1, 2, 2, 2)
    assert gradcheck(dplr_generalised_bilinear, (a, p, q, b, torch.rand(2, 1, requires_grad=True)))


def test_without_feedback_it_is_the_diagonal_state_space():
    u, a, p, q, b, c, h = example(2, 70, 3, 2, 1, grad=False)
    want = diagonal_ssm(u, a, b, c, h)
    assert_close(dplr_ssm(u, a, p[:0], q[:0], b, c, h), want)
    assert_close(dplr_ssm(u, a, 0 * p, q, b, c, h), want)


def test_first_and_second_derivatives(ragged):
    args, options = example(2, 4, 3, 2, 2), ragged(2, 4)

    def door(*args):
        return dplr_ssm(*args, **options)

    assert gradcheck(door, args, fast_mode=True)
    assert gradgradcheck(door, args, fast_mode=True)


@pytest.mark.parametrize("function", [dplr_ssm, dplr_ssm_chunked, dplr_ssm_convolution])
def test_no_array_has_modes_and_time(function):
    args, sizes = example(1, 1024, 2, 16, 1), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        function(*args)
    assert max(sizes) <= 1024 * 16  # of which modes and time would be 2 * 16 * 1024


def test_a_row_that_ends_early_is_a_shorter_row():
    args = example(3, 70, 5, 2, 1, grad=False)
    lengths = torch.tensor([0, 66, 13])
    args[0][torch.arange(70) >= lengths[:, None]] = torch.nan
    args[0].requires_grad_()
    y, last = dplr_ssm(*args, lengths=lengths)
    grads = torch.autograd.grad(y.sum() + last.abs().sum(), args[0])[0]
    for row, n in enumerate(lengths.tolist()):
        u, h = args[0][row : row + 1, :n].detach().requires_grad_(), args[6][row : row + 1]
        alone, state = dplr_ssm(u, *args[1:6], h)
        assert_close(y[row, :n], alone[0])
        assert_close(last[row], state[0])
        assert (y[row, n:] == 0).all()
        slope = torch.autograd.grad(alone.sum() + state.abs().sum() + 0 * u.sum(), u)[0]
        assert_close(grads[row, :n], slope[0])
        assert (grads[row, n:] == 0).all()


def test_a_start_forgets_the_past():
    args = example(1, 70, 5, 2, 2, grad=False)
    starts = torch.zeros(1, 70, dtype=torch.bool)
    starts[0, 29] = starts[0, 64] = True
    y, last = dplr_ssm(*args, starts=starts)
    h, parts = args[6], []
    for begin, end in ((0, 29), (29, 64), (64, 70)):
        part, h = dplr_ssm(args[0][:, begin:end], *args[1:6], h if begin == 0 else torch.zeros_like(h))
        parts.append(part)
    assert_close(y, torch.cat(parts, 1))
    assert_close(last, h)


def test_starts_and_lengths_as_integers():
    args = example(2, 9, 3, 2, 1, grad=False)
    starts, lengths = torch.zeros(2, 9, dtype=torch.int64), torch.tensor([4, 9], dtype=torch.int32)
    starts[:, 3] = 1
    got = dplr_ssm(*args, lengths=lengths, starts=starts)
    assert_close(got, dplr_ssm_recurrence(*args, lengths=lengths, starts=starts.bool()))


def test_a_warm_state_goes_on():
    args = example(2, 100, 4, 3, 1, grad=False)
    y, last = dplr_ssm(*args)
    for cut in (0, 1, 63, 64, 65, 100):
        first, h = dplr_ssm(args[0][:, :cut], *args[1:])
        second, end = dplr_ssm(args[0][:, cut:], *args[1:6], h)
        assert_close(torch.cat([first, second], 1), y)
        assert_close(end, last)


def test_transforms():
    u, *shared, h = args = example(2, 5, 3, 2, 2, grad=False)

    def loss(*args):
        return sum(out.abs().square().sum() for out in dplr_ssm(*args))

    def one(u, h):
        return loss(u[None], *shared, h[None])

    want = torch.func.grad(loss, (0, 6))(*args)
    assert_close(torch.vmap(torch.func.grad(one, (0, 1)))(u, h), want)
    assert_close(torch.func.grad(lambda u, h: torch.vmap(one)(u, h).sum(), (0, 1))(u, h), want)
    reals = [u, *(torch.view_as_real(t) for t in args[1:])]

    def y_of(function):
        return lambda u, *t: function(u, *map(torch.view_as_complex, t))[0]

    every = tuple(range(7))
    slow = torch.func.jacrev(y_of(dplr_ssm_recurrence), every)(*reals)
    assert_close(torch.func.jacrev(y_of(dplr_ssm), every)(*reals), slow)
    torch.func.grad(lambda u: torch.func.grad(loss)(u, *shared, h).square().sum())(u)


def test_vmap_over_parameters_and_lengths():
    u, a, p, *rest = example(2, 5, 3, 2, 1, grad=False)
    many, ends = torch.stack([p, p / 2]), torch.tensor([[1, 2], [3, 5]])
    got = torch.vmap(lambda p: dplr_ssm(u, a, p, *rest))(many)
    assert_close(got, tuple(map(torch.stack, zip(*(dplr_ssm(u, a, p, *rest) for p in many)))))
    got = torch.vmap(lambda p, n: dplr_ssm(u, a, p, *rest, lengths=n))(many, ends)
    want = (dplr_ssm(u, a, p, *rest, lengths=n) for p, n in zip(many, ends))
    assert_close(got, tuple(map(torch.stack, zip(*want))))


@pytest.mark.parametrize("body", ["kernel"], indirect=True)
def test_the_inner_operations_pass_opcheck():
    u, a, *rest, h = example(2, 5, 3, 2, 2, grad=False)
    ends, fresh = torch.tensor([1, 3]), torch.rand(2, 5) < 0.5
    opcheck(_operation.forward, (u, a, *rest, h, None, None, True))
    opcheck(_operation.forward, (u.mT.contiguous().mT, a.conj(), *rest, h, ends, fresh, False))
    saved = _operation.forward(u, a, *rest, h, ends, fresh, True)[2]
    opcheck(_operation.backward, (u, a, *rest, h, ends, fresh, saved, u, h))


def test_compiled():
    args = example(2, 5, 3, 2, 1)
    ends = torch.tensor([3, 5])

    def loss(u, a, *rest):
        return sum(out.abs().square().sum() for out in dplr_ssm(u.sin(), a, *rest, lengths=ends))

    want = torch.autograd.grad(loss(*args), args)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), want)
    torch._dynamo.reset()


def test_awkward_memory():
    u, a, p, q, b, c, h = example(2, 30, 6, 4, 2, grad=False)
    u, a, p, q = u[:, ::2, 1::2], a.conj()[::2], p[:, ::2].conj(), q.flip(0)[:, :3]
    b, c, h = b[:3], c[1:2].expand(3, 4), h[:1, ::2].conj().expand(2, 3, 4)
    want = dplr_ssm_recurrence(u, a, p, q, b, c, h)
    assert_close(dplr_ssm(u, a, p, q, b, c, h), want)
    leaves = [t.detach().clone().requires_grad_() for t in (u, a, p, q, b, c, h)]
    y, last = dplr_ssm(*leaves)
    assert_close((y, last), want)
    torch.autograd.grad((y, last), leaves, (torch.ones(()).expand_as(y), torch._conj(torch.ones_like(last))))
    with torch.inference_mode():
        assert_close(dplr_ssm(*(t.clone() for t in (u, a, p, q, b, c, h))), want)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out_single_inside(half):
    u, *rest = example(2, 9, 3, 2, 1, torch.float32, grad=False)
    y, last = dplr_ssm(u.to(half), *rest)
    want, state = dplr_ssm(u.to(half).float(), *rest)
    assert y.dtype == half
    assert last.dtype == torch.complex64
    assert_close(y, want.to(half))
    assert_close(last, state)


def test_a_feedback_of_double_precision_raises_all():
    u, a, p, q, *rest = example(2, 9, 3, 2, 1, torch.float32, grad=False)
    y, last = dplr_ssm(u, a, p, q.to(torch.complex128), *rest)
    assert y.dtype == torch.float32
    assert last.dtype == torch.complex128


def test_what_is_not_finite_stays_in_its_channel_and_row():
    args = example(2, 70, 19, 2, 1, grad=False)
    args[0][0, 30, 2] = torch.nan
    y, last = dplr_ssm(*args)
    assert y[0, 30:, 2].isnan().all()
    assert last[0, 2].isnan().all()
    y[0, :, 2] = 0
    assert y.isfinite().all()


@pytest.mark.parametrize("wrong", ["u", "a", "p", "q", "b", "c", "h", "lengths", "starts"])
def test_shapes_that_do_not_fit(wrong):
    args = dict(zip("uapqbch", example(2, 5, 3, 4, 1, grad=False)))
    args |= {"lengths": torch.tensor([1, 2]), "starts": torch.zeros(2, 5, dtype=torch.bool)}
    args[wrong] = torch.ones(2, 7, dtype=args[wrong].dtype)
    with pytest.raises(BadInput, match="dplr_ssm: "):
        dplr_ssm(*(args[k] for k in "uapqbch"), lengths=args["lengths"], starts=args["starts"])


def test_the_convolution_refuses_ragged_rows():
    args = example(2, 5, 3, 4, 1, grad=False)
    with pytest.raises(BadInput, match="not a convolution"):
        dplr_ssm_convolution(*args, lengths=torch.tensor([1, 2]))
