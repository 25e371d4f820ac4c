"""The norm: kernel and PyTorch's agree; derivatives; transforms; the module that calls it."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.kernels import norm, pool
from conca.layers.norm import RMSNorm
from conca.ops.norm import _operation, rms_norm, rms_norm_plain
from conca.types import BadInput

EPS = 1e-3


def example(*shape, dtype=torch.float64):
    x, weight = torch.randn(*shape, dtype=dtype), 1 + torch.rand(shape[-1], dtype=dtype)
    return x.requires_grad_(), weight.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 7), (3, 2, 16), (1, 513, 17), (2, 257, 40), (2, 2, 3, 8), (5, 9)])
def test_kernel_and_pytorch_agree(shape, dtype, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    x, weight = args = example(*shape, dtype=dtype)
    g = torch.randn_like(x)
    want = rms_norm_plain(*args, EPS)
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-5}
    grads = torch.autograd.grad(want, args, g)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        got = rms_norm(*args, EPS)
        assert_close(got, want, **close)
        assert_close(rms_norm(x.detach(), weight.detach(), EPS), got.detach(), rtol=0, atol=0)
        assert_close(torch.autograd.grad(got, args, g), grads, **close)


def test_first_and_second_derivatives_and_transforms():
    x, weight = args = example(2, 3, 5)
    assert gradcheck(lambda *a: rms_norm(*a, EPS), args)
    assert gradgradcheck(lambda *a: rms_norm(*a, EPS), args)
    x, weight = x.detach(), weight.detach()

    def loss(x, weight, function=rms_norm):
        return function(x, weight, EPS).sin().sum()

    want = torch.func.grad(loss, (0, 1))(x, weight)
    assert_close(want, torch.func.grad(lambda *a: loss(*a, rms_norm_plain), (0, 1))(x, weight))
    assert_close(torch.vmap(torch.func.grad(loss), (0, None))(x, weight), want[0])
    many = torch.stack([weight, 2 * weight])
    assert_close(torch.vmap(lambda w: rms_norm(x, w, EPS))(many), torch.stack([rms_norm(x, w, EPS) for w in many]))
    slow = torch.func.jacrev(lambda *a: rms_norm_plain(*a, EPS), (0, 1))(x, weight)
    assert_close(torch.func.jacrev(lambda *a: rms_norm(*a, EPS), (0, 1))(x, weight), slow)


def test_opcheck_and_compiled():
    x, weight = (t.detach() for t in example(2, 3, 5))
    opcheck(_operation.forward, (x.mT.contiguous().mT, weight, EPS))
    opcheck(_operation.backward, (x, weight, EPS, x.mT.contiguous().mT))
    args = example(2, 3, 5)

    def loss(x, weight):
        return rms_norm(x.sin(), weight * 2, EPS).square().sum()

    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), torch.autograd.grad(loss(*args), args))
    torch._dynamo.reset()


def test_awkward_memory_and_types():
    x, weight = (t.detach() for t in example(4, 30, 12))
    x, weight = x[::2, ::3, 1::2], weight[::2]
    want = rms_norm_plain(x, weight, EPS)
    assert_close(rms_norm(x, weight, EPS), want)
    assert_close(rms_norm(x[:1].expand(2, -1, -1), weight, EPS)[1], want[0])
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    got = torch.autograd.grad(rms_norm(*leaves, EPS), leaves, torch.ones(()).expand_as(x))
    assert_close(got, torch.autograd.grad(rms_norm_plain(*leaves, EPS), leaves, torch.ones_like(x)))
    half = rms_norm(x.bfloat16(), weight.bfloat16(), EPS)
    assert half.dtype == torch.bfloat16
    assert rms_norm(x[:0], weight, EPS).shape == (0, 10, 6)
    with pytest.raises(BadInput, match="rms_norm: "):
        rms_norm(x, weight[:3], EPS)


def test_a_step_that_is_not_finite_stays_alone():
    x, weight = (t.detach() for t in example(2, 5, 19))
    x[0, 3, 2] = torch.nan
    y = rms_norm(x, weight, EPS)
    assert y[0, 3].isnan().all()
    y[0, 3] = 0
    assert y.isfinite().all()


def test_the_module_is_pytorchs_in_name_and_numbers(monkeypatch):
    ours, theirs = RMSNorm(6, eps=EPS), torch.nn.RMSNorm(6, eps=EPS)
    assert isinstance(ours, torch.nn.RMSNorm)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = torch.randn(2, 5, 6)
    assert_close(ours(x), theirs(x))
    assert_close(ours(x[:, 0]), theirs(x)[:, 0])
    assert_close(RMSNorm(6, elementwise_affine=False)(x), F.rms_norm(x, (6,)))
    assert_close(RMSNorm((5, 6), eps=EPS)(x), F.rms_norm(x, (5, 6), eps=EPS))
    seen = []
    monkeypatch.setattr("conca.layers.norm.rms_norm", lambda *args: seen.append(args))
    ours(x)
    assert len(seen) == 1


def test_warm_leaves_nothing_to_compile():
    norm.warm()
    assert len(norm.forward_tasks.signatures) >= 2
    assert len(norm.backward_tasks.signatures) >= 2


def test_squares_that_overflow():
    x = torch.full((1, 2, 40), 1e25, dtype=torch.float32)
    assert_close(rms_norm(x, x[0, 0] * 0 + 1, EPS), rms_norm_plain(x, x[0, 0] * 0 + 1, EPS))
