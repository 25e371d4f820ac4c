"""Mamba-2: the published layer by another route, limits, initialisation, norms of groups, extremes."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from conca.layers.mamba2 import Decay, Gate, Mamba2
from conca.layers.norm import GatedNorm
from conca.ops.duality import duality_quadratic


def built(d_model=6, **options):
    """A small layer whose parameters are all far from where they start."""
    layer = Mamba2(d_model, **{"d_state": 4, "d_head": 3} | options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_layer_of_transformers_with_the_same_weights(bias):
    layer = built(8, d_head=4, bias=bias)
    config = Mamba2Config(
        num_heads=4, head_dim=4, hidden_size=8, state_size=4, expand=2, n_groups=1, chunk_size=16, use_bias=bias,
        num_hidden_layers=1, vocab_size=5,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, layer_idx=0).double().eval()
    weights = dict(layer.state_dict())
    # the first column weighs the present here, the last one there
    weights["conv1d.weight"], weights["conv1d.bias"] = (
        weights.pop("conv.weight").flip(1)[:, None],
        weights.pop("conv.bias"),
    )
    theirs.load_state_dict(weights)
    x = torch.randn(2, 70, 8)
    want = theirs(x)
    torch.testing.assert_close(layer(x)[0], want[0] if isinstance(want, tuple) else want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_groups": 2, "gate": {"norm_first": True}},
        {"gate": Gate(norm=False), "decay": {"limit": (0.3, 0.9)}, "d_conv": 2},
        {"n_groups": 4, "d_state": 5, "bias": True},
    ],
)
def test_it_is_attention_under_a_mask(options):
    m, x = built(**options), torch.randn(1, 20, 6)
    E, N, G, H, P = m.d_inner, m.d_state, m.n_groups, m.n_heads, m.d_head
    z, inner, dt = torch.split(m.in_proj(x)[0], [E, E + 2 * G * N, H], -1)
    padded = F.pad(inner, (0, 0, m.conv.d_conv - 1, 0))
    taps = [padded[m.conv.d_conv - 1 - k :][:20] * m.conv.weight[:, k] for k in range(m.conv.d_conv)]
    xs, B, C = torch.split(F.silu(sum(taps) + m.conv.bias), [E, G * N, G * N], -1)
    dt = torch.log1p((dt + m.dt_bias).exp()).clamp(*m.decay.limit)
    y = torch.zeros(20, E)
    for h in range(H):
        g = h * G // H
        mask = torch.zeros(20, 20)
        for t in range(20):
            for s in range(t + 1):
                mask[t, s] = (-m.A_log[h].exp() * dt[s + 1 : t + 1, h].sum()).exp()
        own = slice(h * P, h * P + P)
        scores = mask * (C[:, g * N : g * N + N] @ B[:, g * N : g * N + N].T)
        y[:, own] = scores @ (dt[:, h, None] * xs[:, own]) + m.D[h] * xs[:, own]
    gate = F.silu(z)
    if m.norm is None:
        y = y * gate
    else:
        v = (y if m.gate.norm_first else y * gate).view(20, G, -1)
        v = (v / (v.square().mean(-1, keepdim=True) + m.gate.eps).sqrt()).view(20, E) * m.norm.weight
        y = v * gate if m.gate.norm_first else v
    torch.testing.assert_close(m(x)[0][0], m.out_proj(y), rtol=1e-9, atol=1e-9)


def test_the_chunk_changes_nothing_but_rounding(monkeypatch):
    layer, x = built(), torch.randn(2, 90, 6)
    y, state = layer(x)
    again, last = layer.chunked(x, size=17)
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(last, state)
    monkeypatch.setattr("conca.layers.mamba2.duality", duality_quadratic)
    torch.testing.assert_close(layer(x)[0], y)


def test_the_norm_of_a_group_sees_that_group_alone():
    layer = built(n_groups=2, gate={"eps": 1e-3})
    assert isinstance(layer.norm, GatedNorm)
    y, z = torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    louder = torch.cat([y[..., :6], 9 * y[..., 6:]], -1)
    torch.testing.assert_close(layer.norm(y, z)[..., :6], layer.norm(louder, z)[..., :6])
    assert (layer.norm(y, z)[..., 6:] - layer.norm(louder, z)[..., 6:]).abs().max() > 1e-3


def test_initial_decays_and_time_scales():
    torch.manual_seed(1)
    layer = Mamba2(512, d_head=1)
    A, dt = layer.A_log.detach().exp(), F.softplus(layer.dt_bias.detach())
    assert 1 <= float(A.min()) < 1.1
    assert 15.9 < float(A.max()) <= 16
    assert abs(float(A.mean()) - 8.5) < 0.5
    assert 1e-3 * (1 - 1e-9) <= float(dt.min()) < 1.1e-3
    assert 0.09 < float(dt.max()) <= 0.1 * (1 + 1e-9)
    assert abs(float(dt.log().mean()) - math.log(1e-2)) < 0.2
    assert (layer.D == 1).all()
    floor = Mamba2(8, decay=Decay(dt=(1e-6, 1e-5), dt_floor=1e-4))
    torch.testing.assert_close(F.softplus(floor.dt_bias.detach()), torch.full((1,), 1e-4))


def test_sizes_of_the_published_model():
    layer = Mamba2(768, device="meta")
    assert (layer.n_heads, layer.d_head, layer.d_inner) == (24, 64, 1536)
    assert layer.in_proj.weight.shape == (3352, 768)
    assert layer.conv.weight.shape == (1792, 4)
    state = layer.init_state(2)
    assert state.tail_BWC.shape == (2, 3, 1792)
    assert state.S_BHNP.shape == (2, 24, 128, 64)


def test_any_width_has_heads():
    assert Mamba2(7).d_head == 14
    assert Mamba2(67).d_head == 2
    assert Mamba2(48).d_head == 48


@pytest.mark.parametrize("size", [1e-6, 1e3])
def test_extreme_time_scales_stay_finite(size):
    layer = Mamba2(6, d_state=4, d_head=3, decay={"dt": (size, size), "dt_floor": 1e-7, "a": (16.0, 16.0)}).float()
    x = torch.randn(2, 300, 6, dtype=torch.float32, requires_grad=True)
    y, state = layer(x)
    y.square().sum().backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(state.S_BHNP).all()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("dt", [1e-3, 1e3])
def test_no_nan_in_bfloat16(dt):
    layer = Mamba2(6, d_state=4, d_head=3, decay={"dt": (dt, dt)}).bfloat16()
    x = torch.randn(2, 130, 6, dtype=torch.bfloat16, requires_grad=True)
    y, state = layer(x)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert state.S_BHNP.dtype == layer.A_log.dtype == torch.float64
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_a_hundred_thousand_tokens_in_single_precision():
    layer = Mamba2(2, d_state=2, d_head=2).float()
    x = torch.randn(1, 100_000, 2, dtype=torch.float32)
    with torch.no_grad():
        y, state = layer(x)
        want, last = layer.double()(x.double())
    torch.testing.assert_close(y.double(), want, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(state.S_BHNP.double(), last.S_BHNP, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_head": 5}, "d_head 5 does not divide expand \\* d_model = 12; 4 does"),
        ({"d_head": 3, "n_groups": 3}, "n_groups 3 does not divide the 4 heads; 2 does"),
        ({"expand": 1.5}, "whole number"),
        ({"decay": {"dt": (0.1, 0.01)}}, "in order"),
        ({"decay": {"a": (2.0, 1.0)}}, "decay: a must be two bounds in order"),
        ({"decay": {"limit": (-1.0, 1.0)}}, "decay: limit must be two bounds"),
        ({"decay": {"limit": (-0.5, -0.2)}}, "decay: limit must be two bounds in order, not below 0"),
        ({"decay": {"a": (1.0, float("inf"))}}, "high must be positive, got inf"),
        ({"decay": {"dt_floor": 0.0}}, "dt_floor must be positive"),
        ({"decay": {"limit": ("0", None)}}, "decay: limit must be two bounds"),
        ({"decay": {"dt_floor": "1"}}, "dt_floor must be positive, got '1'"),
        ({"gate": {"eps": -1.0}}, "gate: eps must be positive, got -1.0"),
        ({"decay": {"limits": (0.0, 1.0)}}, "decay has no 'limits'; did you mean 'limit'"),
        ({"gate": True}, "gate must be a Gate or a dict"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Mamba2(6, **options)


def test_a_state_of_another_size_is_refused():
    layer = built()
    state = layer.init_state(1)
    with pytest.raises(ValueError, match="expected S of shape"):
        layer(torch.randn(1, 3, 6), state._replace(S_BHNP=state.S_BHNP[:, :, :2]))
