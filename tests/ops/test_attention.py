"""Attention: the fused body, the plain one, and second derivatives; queries that may look nowhere."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from conca.ops.attention import attend, attend_plain
from conca.ops.bodies import plain_bodies
from conca.types import BadInput


@pytest.fixture(params=["fused", "plain"], autouse=True)
def body(request):
    with plain_bodies() if request.param == "plain" else nullcontext():
        yield request.param


def example(T=5, S=6, K=4, V=3):
    return [torch.randn(2, 2, n, k, requires_grad=True) for n, k in ((T, K), (S, K), (S, V))]


def blinded(T=5, S=6):
    mask = torch.rand(2, T, S) < 0.5
    mask[0, 2] = mask[1, 0] = False
    return mask


def test_written_out_by_hand():
    q, k, v = example()
    mask = blinded()
    want = torch.zeros(2, 2, 5, 3)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, (2, 2, 5))):
        seen = mask[b, t]
        if seen.any():
            want[b, h, t] = ((k[b, h, seen] @ q[b, h, t]) / 2).softmax(0) @ v[b, h, seen]
    assert_close(attend(q, k, v, mask), want)


@pytest.mark.parametrize("kind", ["none", "BTS", "TS", "B1TS", "BHTS", "B1S", "blind"])
def test_masks_and_derivatives(kind):
    full = blinded()
    mask = {
        "none": None,
        "BTS": full,
        "TS": full[0],
        "B1TS": full[:, None],
        "B1S": full[:, :1],
        "blind": full & False,
    }.get(kind, torch.rand(2, 2, 5, 6) < 0.5)
    args = example()
    assert_close(attend(*args, mask), attend_plain(*args, mask))

    def door(q, k, v):
        return attend(q, k, v, mask)

    assert gradcheck(door, args, fast_mode=True)
    assert gradgradcheck(door, args, fast_mode=True)
    with torch.no_grad():
        assert_close(attend(*args, mask), attend_plain(*args, mask))


def test_causal_is_the_triangle():
    q, k, v = args = example(S=5)

    def door(q, k, v):
        return attend(q, k, v, causal=True)

    assert_close(door(*args), attend_plain(*args, torch.ones(5, 5, dtype=torch.bool).tril()))
    assert gradcheck(door, args, fast_mode=True)
    assert gradgradcheck(door, args, fast_mode=True)
    with pytest.raises(BadInput, match="causal takes no mask"):
        attend(q, k[:, :, :4], v[:, :, :4], causal=True)


def test_a_query_that_looks_nowhere_gives_zero_and_no_gradient():
    args = example()
    y = attend(*args, blinded())
    assert (y[0, :, 2] == 0).all()
    grads = torch.autograd.grad(y[0, :, 2].sum() + y[1, :, 0].sum(), args)
    assert all((g == 0).all() for g in grads)


def test_transforms_and_compilation():
    q, k, v = args = [t.detach() for t in example()]
    mask = blinded()

    def loss(q, k, v):
        return attend(q, k, v, mask).sin().sum()

    def one(q, k, v, mask):
        return attend(q[None], k[None], v[None], mask[None]).sin().sum()

    want = torch.func.grad(loss, (0, 1, 2))(*args)
    assert_close(torch.vmap(torch.func.grad(one, (0, 1, 2)))(q, k, v, mask), want)
    assert_close(torch.func.grad(lambda *t: torch.vmap(one)(*t, mask).sum(), (0, 1, 2))(*args), want)
    slow = torch.func.jacrev(lambda q: attend_plain(q, k, v, mask))(q)
    assert_close(torch.func.jacrev(lambda q: attend(q, k, v, mask))(q), slow)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    leaves = [t.clone().requires_grad_() for t in args]
    assert_close(torch.autograd.grad(fast(*leaves), leaves), want)
    torch._dynamo.reset()


@pytest.mark.parametrize(("T", "S"), [(0, 3), (3, 0), (1, 1)])
def test_empty(T, S):
    q, k, v = example(T, S)
    y = attend(q, k, v, torch.ones(2, T, S, dtype=torch.bool))
    assert y.shape == (2, 2, T, 3)
    assert y.isfinite().all()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision(half):
    args = [t.detach().to(half).requires_grad_() for t in example()]
    y = attend(*args, blinded())
    assert y.dtype == half
    assert all(g.dtype == half for g in torch.autograd.grad(y.float().sum(), args))


def test_shapes_that_do_not_fit():
    q, k, v = example()
    mask = blinded()
    for args in ((q, k[..., 1:], v, None), (q, k, v[:, :, 1:], None), (q[0], k[0], v[0], None), (q, k, v, mask[:, :3])):
        with pytest.raises(BadInput, match="attend: "):
            attend(*args)
    with pytest.raises(BadInput, match="must be bool"):
        attend(q, k, v, mask.double())
