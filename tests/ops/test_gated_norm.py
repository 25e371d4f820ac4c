"""The gated norm: kernel and readable body agree; against a formula per group; derivatives; transforms; the module that calls it."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.layers.norm import GatedNorm
from conca.ops.bodies import plain_bodies
from conca.ops.gated_norm import _operation, gated_rms_norm
from conca.types import BadInput

EPS = 1e-3
SHAPES = [
    ((1, 1, 1), 1),
    ((2, 3, 6), 2),
    ((3, 2, 48), 3),
    ((1, 513, 34), 2),
    ((2, 257, 40), 8),
    ((2, 2, 3, 20), 1),
    ((5, 9), 3),
]


def example(*shape, dtype=torch.float64):
    x, z, weight = (torch.randn(*size, dtype=dtype) for size in (shape, shape, shape[-1:]))
    return [t.requires_grad_() for t in (x, z, weight)]


def by_hand(x, z, weight, eps, *, groups=1, norm_first=False):
    """Group by group."""
    gate, parts = z / (1 + torch.exp(-z)), []
    for part in (x if norm_first else x * gate).chunk(groups, -1):
        parts.append(part / (part.pow(2).sum(-1, keepdim=True) / part.shape[-1] + eps).sqrt())
    y = torch.cat(parts, -1) * weight
    return y * gate if norm_first else y


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_bodies_are_the_formula_of_each_group(shape, groups, norm_first):
    args, options = example(*shape), {"groups": groups, "norm_first": norm_first}
    want = by_hand(*args, EPS, **options)
    g = torch.randn_like(want)
    grads = torch.autograd.grad(want, args, g)
    for plain in (False, True):
        with plain_bodies() if plain else nullcontext():
            got = gated_rms_norm(*args, EPS, **options)
            assert_close(got, want)
            assert_close(torch.autograd.grad(got, args, g), grads)


def test_groups_and_the_place_of_the_gate_matter():
    args = example(2, 4, 12)
    results = [gated_rms_norm(*args, EPS, groups=n, norm_first=first) for n in (1, 2, 12) for first in (False, True)]
    for i, one in enumerate(results):
        assert all((one - other).abs().max() > 1e-2 for other in results[:i])
    x, z, weight = (t.detach() for t in args)
    scaled = torch.cat([x[..., :6], 1000 * x[..., 6:]], -1)
    close = {"rtol": 1e-10, "atol": 1e-10}
    first = gated_rms_norm(x, z, weight, EPS, groups=2)[..., :6]
    assert_close(gated_rms_norm(scaled, z, weight, EPS, groups=2)[..., :6], first, **close)


@pytest.mark.parametrize("norm_first", [False, True])
def test_derivatives_transforms_and_compilation(norm_first):
    args, options = example(2, 3, 6), {"groups": 2, "norm_first": norm_first}
    assert gradcheck(lambda *a: gated_rms_norm(*a, EPS, **options), args, fast_mode=True)
    assert gradgradcheck(lambda *a: gated_rms_norm(*a, EPS, **options), args, fast_mode=True)

    def loss(x, z, weight, function=gated_rms_norm):
        return function(x.sin(), z, weight * 2, EPS, **options).sin().sum()

    want = torch.autograd.grad(loss(*args, by_hand), args)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), want)
    torch._dynamo.reset()
    x, z, weight = args = [t.detach() for t in args]
    assert_close(torch.func.grad(loss, (0, 1, 2))(*args), want)
    rows = torch.vmap(torch.func.grad(lambda x, z: loss(x[None], z[None], weight), (0, 1)))(x, z)
    assert_close(rows, want[:2])
    many = torch.stack([weight, 2 * weight])
    each = torch.stack([gated_rms_norm(x, z, w, EPS, **options) for w in many])
    assert_close(torch.vmap(lambda w: gated_rms_norm(x, z, w, EPS, **options))(many), each)
    awkward = x.mT.contiguous().mT, z, weight, EPS, 2, norm_first
    opcheck(_operation.forward, awkward)
    opcheck(_operation.backward, (*awkward, x.mT.contiguous().mT))


def test_slices_types_and_shapes(monkeypatch):
    wide = torch.randn(2, 30, 64)
    x, z, weight = wide[..., 3:23], wide[..., 40:60], torch.randn(20)
    want = by_hand(x, z, weight, EPS, groups=4)
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda t, **_: t if t.is_contiguous() else 1 / 0)
    assert_close(gated_rms_norm(x, z, weight, EPS, groups=4), want)
    monkeypatch.undo()
    leaves = [t.clone().requires_grad_() for t in (x, z, weight)]
    got = torch.autograd.grad(gated_rms_norm(*leaves, EPS), leaves, torch.ones(()).expand_as(x))
    assert_close(got, torch.autograd.grad(by_hand(*leaves, EPS), leaves, torch.ones_like(x)))
    half = gated_rms_norm(x.bfloat16(), z, weight.bfloat16(), EPS, groups=4)
    assert half.dtype == torch.bfloat16
    assert_close(half, by_hand(x.bfloat16().double(), z, weight.bfloat16().double(), EPS, groups=4).bfloat16())
    assert gated_rms_norm(x[:0], z[:0], weight, EPS).shape == (0, 30, 20)
    for args, groups in (((x, z[:1], weight), 1), ((x, z, weight[:3]), 1), ((x, z, weight), 3), ((x, z, weight), 0)):
        with pytest.raises(BadInput, match="gated_rms_norm: "):
            gated_rms_norm(*args, EPS, groups=groups)


def test_a_step_that_is_not_finite_stays_alone_and_extremes_are_harmless():
    x, z, weight = (t.detach() for t in example(2, 5, 19, dtype=torch.float32))
    x[0, 3, 2], z[1, 1], z[1, 2] = torch.nan, -1e4, 1e4
    leaves = [t.requires_grad_() for t in (x, z, weight)]
    y = gated_rms_norm(*leaves, EPS)
    assert y[0, 3].isnan().all() and y.isnan().sum() == 19
    assert (y[1, 1] == 0).all() and y[1, 2].abs().max() > 0.1
    grads = torch.autograd.grad(y[1].sum(), leaves)
    assert grads[0][1].isfinite().all() and grads[1][1].isfinite().all()


def test_the_module():
    layer = GatedNorm(12, groups=3, eps=1e-3, norm_first=True, dtype=torch.float32)
    assert dict(layer.named_parameters()).keys() == {"weight"} and torch.equal(layer.weight, torch.ones(12).float())
    x, z = torch.randn(2, 4, 12).float(), torch.randn(2, 4, 12).float()
    want = by_hand(x, z, layer.weight, 1e-3, groups=3, norm_first=True)
    assert_close(layer(x, z), want)
    assert_close(layer(x[:, 0], z[:, 0]), want[:, 0])
    assert "groups=3" in repr(layer)
    with pytest.raises(ValueError, match="5 groups do not divide 12 channels"):
        GatedNorm(12, groups=5)
