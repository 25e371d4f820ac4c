"""The Cauchy sum: both bodies and the doors against the definition and a dense resolvent; poles near nodes; derivatives; memory."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from conca.ops import cauchy_bodies
from conca.ops.cauchy import (
    _cauchy,
    _cauchy_backward,
    cauchy,
    cauchy_blocks,
    cauchy_definition,
    low_rank_cauchy,
)
from conca.types import BadInput

# D, V, M, N, J
SHAPES = [(1, 1, 1, 1, 1), (2, 3, 2, 4, 5), (3, 2, 2, 5, 16), (2, 2, 3, 3, 17), (1, 3, 3, 7, 300)]
EMPTY = [(0, 3, 2, 4, 5), (2, 3, 3, 0, 5), (2, 3, 2, 4, 0)]
pytestmark = pytest.mark.usefixtures("body")


def example(D, V, M, N, J, dtype=torch.float64, *, grad=True):
    """Numerators, poles with negative real parts, and nodes all around the imaginary axis, infinity among them."""
    v = torch.randn(D, V, M, N, dtype=torch.complex128)
    w = torch.complex(-torch.rand(D, N) - 0.1, 2 * torch.randn(D, N))
    angle = torch.linspace(-0.5, torch.pi / 2, J)
    y, x = angle.sin(), angle.cos()
    x[-1:] = 0
    v, w = (t.to(torch.promote_types(dtype, torch.complex64)).requires_grad_(grad) for t in (v, w))
    return v, w, y.to(dtype), x.to(dtype)


def gradients(function, v, w, y, x, rank, weight):
    sums = function(v, w, y, x, rank=rank)
    return sums, *torch.autograd.grad(sums, (v, w), weight, materialize_grads=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_bodies_agree(shape, rank, dtype):
    D, V, M, _, J = shape
    if rank > min(V, M):
        rank = 1  # all of a single sum is taken in: nothing is left
    args = example(*shape, dtype)
    weight = torch.randn(D, V - rank, M - rank, J, dtype=args[0].dtype)
    want = gradients(cauchy_definition, *args, rank, weight)
    for function in (low_rank_cauchy, cauchy_blocks):
        for got, wanted in zip(gradients(function, *args, rank, weight), want):
            scale = max(float(wanted.detach().abs().max()), 1.0) if wanted.numel() else 1.0
            close = (
                {"rtol": 1e-9, "atol": 1e-10 * scale}
                if dtype == torch.float64
                else {"rtol": 1e-4, "atol": 1e-5 * scale}
            )
            assert_close(got, wanted, **close)


def test_the_sum_by_hand():
    v, w = torch.tensor([[[1 + 2j, 3j]]]), torch.tensor([[-1 + 1j, -0.5 + 0j]])
    y = torch.tensor([0.5, 2.0])
    for got, z in zip(cauchy(v, w, y)[0, 0], (0.5j, 2j)):
        want = (1 + 2j) / (z + 1 - 1j) + (1 - 2j) / (z + 1 + 1j) + 3j / (z + 0.5) - 3j / (z + 0.5)
        assert_close(complex(got), want)


def test_any_scale_of_a_node_and_the_point_at_infinity():
    v, w, y, x = example(2, 3, 1, 4, 9, grad=False)
    v, y, x = v[:, :, 0], y[:-1], x[:-1]
    assert_close(cauchy(v, w, y, x), cauchy(v, w, y / x) / x)
    far = cauchy(v, w, torch.ones(1), torch.zeros(1))
    assert_close(far, -1j * 2 * v.real.sum(-1, keepdim=True).to(v.dtype))
    assert_close(far, cauchy(v, w, torch.ones(1), torch.full((1,), 1e-9)), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_the_low_rank_is_that_of_a_dense_resolvent(rank):
    D, V, M, N, J = 2, 2, 1, 3, 6
    left, right = torch.randn(2, D, V + rank, N, dtype=torch.complex128)
    right = right[:, : M + rank]
    _, w, y, x = example(D, 1, 1, N, J, grad=False)
    right[:, M:] = left[:, V:].conj()  # takes energy out, so that every part is stable
    got = low_rank_cauchy(left[:, :, None] * right[:, None], w, y, x, rank=rank)
    whole = [torch.cat([t, t.conj()], -1) for t in (left, right, w)]
    A = torch.diag_embed(whole[2]) - whole[1][:, M:].mT @ whole[0][:, V:]
    for j in range(J):
        resolvent = torch.linalg.inv(1j * y[j] * torch.eye(2 * N) - x[j] * A)
        assert_close(got[..., j], whole[0][:, :V] @ resolvent @ whole[1][:, :M].mT)


def test_single_precision_next_to_a_pole():
    """The real part of the denominator cancels there: without its factors the error is 1e-4."""
    w = torch.complex(torch.full((1, 1), -1e-4), torch.full((1, 1), 0.7)).to(torch.complex64)
    y = (0.7 + torch.linspace(-3e-4, 3e-4, 97)).float()
    v = torch.ones(1, 1, 1, dtype=torch.complex64)
    want = cauchy_definition(v[:, :, None].to(torch.complex128), w.to(torch.complex128), y.double())[:, :, 0]
    error = (cauchy(v, w, y) - want).abs() / want.abs()
    assert error.max() < 2e-6


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_first_and_second_derivatives(rank):
    args = [*example(2, 3, 3, 2, 4)]
    args[2:] = [t.clone().requires_grad_() for t in args[2:]]

    def door(*args):
        return low_rank_cauchy(*args, rank=rank)

    assert gradcheck(door, args, fast_mode=True)
    assert gradgradcheck(door, args, fast_mode=True)


def test_transforms():
    v, w, y, x = example(2, 2, 2, 3, 4, grad=False)

    def loss(v, w, y, x):
        return low_rank_cauchy(v, w, y, x, rank=1).abs().square().sum()

    def slow(v, w, y, x):
        return cauchy_definition(v, w, y, x, rank=1).abs().square().sum()

    every = (0, 1, 2, 3)
    want = torch.func.grad(slow, every)(v, w, y, x)
    assert_close(torch.func.grad(loss, every)(v, w, y, x), want)

    def one(v, w):
        return loss(v[None], w[None], y, x)

    assert_close(torch.vmap(torch.func.grad(one, (0, 1)))(v, w), want[:2])
    assert_close(torch.func.grad(lambda v, w: torch.vmap(one)(v, w).sum(), (0, 1))(v, w), want[:2])
    curved = torch.func.grad(lambda w: torch.func.grad(loss, 1)(v, w, y, x).abs().sum())(w)
    assert_close(curved, torch.func.grad(lambda w: torch.func.grad(slow, 1)(v, w, y, x).abs().sum())(w))


def test_vmap_over_poles_and_nodes():
    v, w, y, x = example(2, 2, 2, 3, 4, grad=False)
    many, nodes = torch.stack([w, w / 2]), torch.stack([y, y + 1])
    door = low_rank_cauchy
    assert_close(
        torch.vmap(lambda w: door(v, w, y, x, rank=1))(many), torch.stack([door(v, w, y, x, rank=1) for w in many])
    )
    got = torch.vmap(lambda w, y: door(v, w, y, x))(many, nodes)
    assert_close(got, torch.stack([door(v, w, y, x) for w, y in zip(many, nodes)]))


@pytest.mark.parametrize("body", ["kernel"], indirect=True)
def test_the_inner_operations_pass_opcheck():
    v, w, y, x = example(2, 3, 2, 3, 4, grad=False)
    opcheck(_cauchy, (v, w, y, x, 0))
    opcheck(_cauchy, (v.conj(), w.mT.contiguous().mT, y, x, 1))
    opcheck(_cauchy_backward, (v, w, y, x, v[:, :2, :1, :1].expand(2, 2, 1, 4), 1))


def test_compiled():
    v, w, y, x = example(2, 2, 2, 3, 4)

    def loss(v, w):
        return low_rank_cauchy(v * 2, w, y, x, rank=1).abs().square().sum()

    want = torch.autograd.grad(loss(v, w), (v, w))
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(v, w), (v, w)), want)
    torch._dynamo.reset()


def test_awkward_memory():
    v, w, y, x = example(4, 3, 4, 6, 30, grad=False)
    v, w, y, x = v[::2, :, ::2].conj(), w[1:2].expand(2, 6), y[::2], x[::2]
    want = cauchy_definition(v, w, y, x, rank=1)
    assert_close(low_rank_cauchy(v, w, y, x, rank=1), want)
    leaves = [t.detach().clone().requires_grad_() for t in (v, w)]
    sums = low_rank_cauchy(*leaves, y, x, rank=1)
    slow = cauchy_definition(*leaves, y, x, rank=1)
    weight = torch._conj(torch.full((), 1 + 2j)).expand_as(sums)
    assert_close(torch.autograd.grad(sums, leaves, weight), torch.autograd.grad(slow, leaves, weight))
    with torch.inference_mode():
        assert_close(low_rank_cauchy(*(t.clone() for t in (v, w, y, x)), rank=1), want)


def test_real_and_half_numbers():
    v, w, y = torch.randn(2, 3, 4, requires_grad=True), -torch.rand(2, 4) - 0.1, torch.randn(5)
    sums = cauchy(v, w, y)
    assert sums.dtype == torch.complex128
    assert_close(sums, (2 * v[..., None] / (1j * y - w[:, None, :, None])).sum(-2))
    (slope,) = torch.autograd.grad(sums.real.sum(), v)
    assert slope.dtype == torch.float64
    assert cauchy(v.bfloat16(), w.half(), y.bfloat16()).dtype == torch.complex64


def test_what_is_not_finite_stays_in_its_channel():
    v, w, y, x = example(3, 2, 2, 4, 20, grad=False)
    v[1, 0, 0, 2] = torch.nan
    sums = low_rank_cauchy(v, w, y, x, rank=1)
    assert sums[1].isnan().all()
    assert sums[[0, 2]].isfinite().all()


class Largest(TorchDispatchMode):
    """The most numbers in any tensor that is made."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                self.numbers = max(self.numbers, t.numel())
        return out


@pytest.mark.parametrize("rank", [0, 1])
def test_no_tensor_holds_all_modes_at_all_nodes(rank, body, monkeypatch):
    monkeypatch.setattr(cauchy_bodies, "BLOCK", 1024)
    D, N, J = 3, 32, 1000
    v, w, y, x = example(D, 2, 2, N, J)
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t),
        Largest() as seen,
    ):
        sums = low_rank_cauchy(v, w, y, x, rank=rank)
        torch.autograd.grad(sums.abs().sum(), (v, w))
    assert seen.numbers < D * N * J / 4
    assert max(saved) <= sums.numel()


@pytest.mark.parametrize("wrong", ["v", "w", "y", "x"])
def test_shapes_that_do_not_fit(wrong):
    args = dict(zip("vwyx", example(2, 3, 2, 4, 5, grad=False)))
    args[wrong] = torch.ones(2, 7, dtype=args[wrong].dtype)
    with pytest.raises(BadInput, match="cauchy: "):
        low_rank_cauchy(*args.values())


def test_ranks_and_numerators_that_do_not_fit():
    v, w, y, x = example(2, 3, 2, 4, 5, grad=False)
    for rank in (-1, 3):
        with pytest.raises(BadInput, match="rank"):
            low_rank_cauchy(v, w, y, x, rank=rank)
    with pytest.raises(BadInput, match=r"\(D, V, N\)"):
        cauchy(v, w, y)
    with pytest.raises(BadInput, match="real"):
        cauchy(v[:, :, 0], w, y.to(torch.complex128))
