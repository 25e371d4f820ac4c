"""The dense state space: three bodies agree, on rows that end early and on shared matrices; derivatives, kernels, memory."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from conca.ops import dense
from conca.ops.dense import dense_kernel, dense_ssm, dense_ssm_chunked, dense_ssm_convolution, dense_ssm_recurrence
from conca.types import BadInput

# rows, steps, channels, matrices, state, outputs
SHAPES = [
    (2, 5, 4, 2, 3, 2), (1, 1, 1, 1, 1, 1), (3, 63, 2, 2, 5, 1), (2, 64, 3, 1, 2, 2),
    (3, 65, 4, 4, 3, 1), (2, 131, 6, 3, 4, 2), (1, 700, 2, 2, 3, 1),
]  # fmt: skip
EMPTY = [(2, 0, 2, 1, 3, 1), (0, 4, 2, 2, 3, 1), (2, 3, 0, 0, 3, 1), (2, 3, 2, 1, 0, 1), (2, 3, 2, 1, 3, 0)]


def example(B, T, D, S, N, M, dtype=torch.float64, *, grad=True):
    """Matrices near a rotation: what is long ago still counts."""
    a = torch.linalg.qr(torch.randn(S, N, N))[0] * torch.linspace(0.9, 0.999, S)[:, None, None]
    args = [torch.randn(B, T, D), a, torch.randn(D, N), torch.randn(D, M, N), torch.randn(B, D, N)]
    return [t.to(dtype).requires_grad_(grad) for t in args]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_bodies_agree(shape, short, dtype, agree):
    args = example(*shape, dtype)
    options = {"lengths": torch.randint(0, shape[1] + 1, shape[:1])} if short else {}
    weights = torch.randn(*shape[:3], shape[5], dtype=dtype), torch.randn_like(args[4])
    bodies = [dense_ssm_recurrence, dense_ssm] + ([] if short else [dense_ssm_convolution])
    agree(bodies, args, options, weights)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@pytest.mark.parametrize("T", [1, 2, 3, 7, 16, 33, 40])
def test_any_size_of_chunk_and_any_number_of_them(T, size):
    args = example(2, T, 2, 1, 3, 1, grad=False)
    for lengths in (None, torch.tensor([T, T // 2])):
        want = dense_ssm_recurrence(*args, lengths=lengths)
        assert_close(dense_ssm_chunked(*args, lengths=lengths, size=size), want)


@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 0])])
@pytest.mark.parametrize("body", [dense_ssm_recurrence, dense_ssm_chunked, dense_ssm_convolution])
def test_first_and_second_derivatives(body, lengths):
    options = {"lengths": lengths} if body is dense_ssm_recurrence else {"lengths": lengths, "size": 2}
    if body is dense_ssm_convolution:
        options = {}
    args = example(2, 5, 2, 1, 2, 2)
    assert gradcheck(lambda *args: body(*args, **options), args, fast_mode=True)
    assert gradgradcheck(lambda *args: body(*args, **options), args, fast_mode=True)


@pytest.mark.parametrize("steps", [1, 2, 9, 70])
def test_the_kernel_is_c_a_b(steps):
    _, a, b, c, _ = example(1, 1, 4, 2, 3, 2, grad=False)
    kernel = dense_kernel(a, b, c, steps)
    assert kernel.shape == (4, 2, steps)
    for d in range(4):
        for t in range(steps):
            assert_close(kernel[d, :, t], c[d] @ torch.linalg.matrix_power(a[d // 2], t) @ b[d])


def test_a_row_that_ends_early_is_a_shorter_row():
    u, *rest, h = example(3, 150, 2, 1, 3, 2, grad=False)
    lengths = torch.tensor([0, 129, 13])
    u = u.masked_fill((torch.arange(150) >= lengths[:, None])[..., None], torch.nan).requires_grad_()
    y, last = dense_ssm(u, *rest, h, lengths=lengths)
    (slope,) = torch.autograd.grad(y.sin().sum() + last.sin().sum(), u)
    for row, n in enumerate(lengths.tolist()):
        own = u[row : row + 1, :n].detach().requires_grad_()
        alone, state = dense_ssm(own, *rest, h[row : row + 1])
        assert_close(y[row, :n], alone[0])
        assert_close(last[row], state[0])
        assert (y[row, n:] == 0).all()
        (wanted,) = torch.autograd.grad(alone.sin().sum() + state.sin().sum() + 0 * own.sum(), own)
        assert_close(slope[row, :n], wanted[0])
        assert (slope[row, n:] == 0).all()


def test_a_warm_state_goes_on():
    args = example(2, 200, 4, 2, 3, 1, grad=False)
    y, last = dense_ssm(*args)
    for cut in (0, 1, 63, 64, 65, 129, 200):
        first, h = dense_ssm(args[0][:, :cut], *args[1:])
        second, end = dense_ssm(args[0][:, cut:], *args[1:4], h)
        assert_close(torch.cat([first, second], 1), y)
        assert_close(end, last)


def test_later_inputs_do_not_move_earlier_outputs_by_a_bit():
    args = example(2, 200, 2, 2, 3, 1, grad=False)
    y = dense_ssm(*args)[0]
    for t in (0, 5, 63, 64, 150):
        u = args[0].clone()
        u[:, t:] += 1
        assert torch.equal(dense_ssm(u, *args[1:])[0][:, :t], y[:, :t])


def test_a_matrix_of_zero_and_one_that_forgets_at_once():
    u, _, b, c, h = example(2, 130, 2, 1, 3, 1, grad=False)
    zero = torch.zeros(1, 3, 3, requires_grad=True)
    y, last = dense_ssm(u, zero, b, c, h)
    assert_close(y[..., 0], torch.einsum("dmn,dn->d", c, b) * u)
    assert_close(last, b * u[:, -1, :, None])
    assert torch.isfinite(torch.autograd.grad(y.sum() + last.sum(), zero)[0]).all()
    shift = torch.diag(torch.ones(2), -1)[None]
    assert_close(dense_ssm(u, shift, b, c, h), dense_ssm_recurrence(u, shift, b, c, h))


def test_awkward_memory_and_types():
    u, a, b, c, h = example(2, 128, 4, 2, 3, 2, grad=False)
    wide = u.repeat(1, 1, 2).mT.contiguous().mT[..., :4]
    assert_close(dense_ssm(wide, a.mT.contiguous().mT, b, c, h), dense_ssm_recurrence(u, a, b, c, h))
    assert_close(dense_ssm_convolution(wide, a, b, c, h), dense_ssm_recurrence(u, a, b, c, h))
    once = u[:1, :, :1].expand(2, 128, 4)
    assert_close(dense_ssm(once, a, b, c, h), dense_ssm_recurrence(once, a, b, c, h))
    narrow = [t.float() for t in (a, b, c, h)]
    y, last = dense_ssm(u.bfloat16(), *narrow)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    assert_close(y, dense_ssm(u.bfloat16().float(), *narrow)[0].bfloat16())
    whole = dense_ssm(torch.ones(2, 3, 4, dtype=torch.int64), *narrow)[0]
    assert_close(whole, dense_ssm(torch.ones(2, 3, 4, dtype=torch.float32), *narrow)[0])


def test_transforms():
    u, *rest, h = example(2, 9, 2, 1, 3, 1, grad=False)

    def one(u, h):
        return sum(out.square().sum() for out in dense_ssm_chunked(u[None], *rest, h[None], size=4))

    slopes = torch.vmap(torch.func.grad(one, (0, 1)))(u, h)
    for row in range(2):
        assert_close([s[row] for s in slopes], list(torch.func.grad(one, (0, 1))(u[row], h[row])))
    many = torch.stack([rest[0], rest[0] / 2])
    got = torch.vmap(lambda a: dense_ssm(u, a, *rest[1:], h))(many)
    assert_close(got, tuple(map(torch.stack, zip(*(dense_ssm(u, a, *rest[1:], h) for a in many)))))


def test_no_tensor_of_states_over_time_is_made():
    """(D, N, T) is 16 * 64 * 20,000 numbers; no tensor of forward and backward has a third of them."""
    seen = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            flat = out if isinstance(out, (tuple, list)) else [out]
            seen.extend(t.numel() for t in flat if isinstance(t, torch.Tensor))
            return out

    args = example(1, 20_000, 16, 16, 64, 1, torch.float32)
    with Watched():
        y, last = dense_ssm(*args)
        (y.sum() + last.sum()).backward()
        with torch.no_grad():
            dense_ssm_convolution(*args)
    assert max(seen) < 16 * 64 * 20_000 / 3


@pytest.mark.parametrize("wrong", ["u", "a", "b", "c", "h", "lengths", "complex", "shared"])
def test_what_does_not_fit_is_refused(wrong):
    args = dict(zip("uabch", example(2, 5, 4, 2, 3, 1, grad=False)))
    lengths = torch.tensor([1]) if wrong == "lengths" else None
    if wrong == "complex":
        args["a"] = args["a"] + 0j
    elif wrong == "shared":
        args["a"] = torch.ones(3, 3, 3)
    elif wrong in args:
        args[wrong] = torch.ones(7, 7, 7)
    with pytest.raises(BadInput, match="dense_ssm: "):
        dense_ssm(*args.values(), lengths=lengths)


def test_the_convolution_refuses_lengths():
    with pytest.raises(BadInput, match="use dense_ssm"):
        dense_ssm_convolution(*example(2, 5, 4, 2, 3, 1, grad=False), lengths=torch.tensor([1, 2]))


def test_few_chunks_and_many_take_both_roads(monkeypatch):
    args = example(1, 300, 2, 2, 3, 1, grad=False)
    want = dense_ssm_recurrence(*args)
    for few in (0, 1, 1000):
        monkeypatch.setattr(dense, "FEW", few)
        assert_close(dense_ssm(*args), want)
