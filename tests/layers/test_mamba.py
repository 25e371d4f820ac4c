"""What is particular to Mamba: published numbers and starts, limits, extremes."""

import math

import pytest
import torch
from torch.testing import assert_close
from transformers import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

from conca.layers.mamba import Mamba, Steps
from conca.layers.s4d import S4D


def pair(d_model=6, **options):
    """A layer of transformers and ours with its weights."""
    config = MambaConfig(hidden_size=d_model, state_size=5, time_step_rank=2, use_bias=True, **options)
    theirs = MambaMixer(config, layer_idx=0).double().eval()
    ours = Mamba(d_model, d_state=5, dt_rank=2, bias=True, d_conv=config.conv_kernel, expand=config.expand)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.3 * torch.randn_like(p))
        weights = dict(theirs.state_dict())
        weights["conv.weight"] = weights.pop("conv1d.weight")[:, 0].flip(1)
        weights["conv.bias"] = weights.pop("conv1d.bias")
        weights["dt_bias"] = weights.pop("dt_proj.bias")
        ours.load_state_dict(weights)
    return theirs, ours


@pytest.mark.parametrize("options", [{}, {"conv_kernel": 3, "expand": 3}])
def test_the_numbers_are_those_of_transformers(options):
    theirs, ours = pair(**options)
    x = torch.randn(2, 11, 6)
    assert_close(ours(x)[0], theirs(x), rtol=1e-4, atol=1e-5)  # theirs has parts in single precision


def test_where_it_starts():
    torch.manual_seed(0)
    layer = Mamba(64)
    assert (layer.d_inner, layer.d_state, layer.dt_rank) == (128, 16, 4)
    assert_close(layer.A_log.exp(), torch.arange(1.0, 17).expand(128, 16))
    assert torch.equal(layer.D, torch.ones(128))
    dt = torch.nn.functional.softplus(layer.dt_bias)
    assert 1e-3 <= dt.min() < 3e-3
    assert 3e-2 < dt.max() <= 1e-1
    weight = layer.dt_proj.weight
    assert 0.45 < weight.abs().max() <= 0.5
    same = Mamba(64, steps={"init": "constant", "scale": 2.0, "dt": (1e-6, 2e-6), "floor": 1e-2})
    assert_close(same.dt_proj.weight, torch.ones(128, 4))
    assert_close(torch.nn.functional.softplus(same.dt_bias), torch.full((128,), 1e-2))


def test_without_a_choice_it_is_a_diagonal_state_space():
    """Constant dt, B and C: what S4D computes, with the real modes and the zero-order hold of both."""
    mamba, s4d = Mamba(3, d_state=4, d_conv=1, expand=1, hold="zoh"), S4D(3, d_state=4, init="real")
    x = torch.randn(2, 20, 3)
    with torch.no_grad():
        mamba.in_proj.weight.copy_(torch.cat([torch.eye(3), torch.zeros(3, 3)]))
        mamba.conv.weight.fill_(1)
        mamba.x_proj.weight.zero_()
        u = torch.nn.functional.silu(x + mamba.conv.bias)
        from conca.ops.selective_scan import selective_scan

        A, h = -mamba.A_log.exp(), mamba.init_state(2).h_BEN
        dt = torch.nn.functional.softplus(mamba.dt_bias).expand_as(u)
        B, C = torch.randn(3, 4), torch.randn(3, 4)
        y, _ = selective_scan(u, dt, A, B, C, h, hold="zoh")
        s4d.log_dt.copy_(dt[0, 0].log())
        s4d.log_decay.copy_(mamba.A_log)
        s4d.b.copy_(B)
        s4d.c.copy_(C)
        kernel = s4d.kernel(20)
    want = torch.stack([sum(kernel[:, k] * u[:, t - k] for k in range(t + 1)) for t in range(20)], 1)
    assert_close(y, want)


def test_both_holds_are_one_where_steps_are_short():
    torch.manual_seed(0)
    euler = Mamba(4, steps=Steps(dt=(1e-6, 1e-5), floor=1e-7, scale=1e-6))
    zoh = Mamba(4, hold="zoh")
    zoh.load_state_dict(euler.state_dict())
    x = torch.randn(1, 30, 4)
    assert_close(euler(x)[0], zoh(x)[0], rtol=1e-3, atol=1e-9)
    assert not torch.equal(euler(x)[0], zoh(x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [-14.0, 1000.0, 6.0])
def test_extremes(dtype, bias):
    """Steps from 1e-6 to 1000; decays that underflow; no value and no gradient is lost."""
    torch.manual_seed(0)
    layer = Mamba(8, dtype=dtype)
    with torch.no_grad():
        layer.dt_bias.fill_(bias)
    x = (10 * torch.randn(2, 200, 8)).to(dtype).requires_grad_()
    y, state = layer(x)
    assert (layer.A_log.dtype, layer.dt_bias.dtype, state.h_BEN.dtype) == (torch.float32,) * 3
    assert y.dtype == dtype
    (y.float().square().mean() + state.h_BEN.square().mean()).backward()
    for t in (y, *state, x.grad, *(p.grad for p in layer.parameters())):
        assert t.isfinite().all()


def test_a_hundred_thousand_steps():
    torch.manual_seed(0)
    layer = Mamba(2, d_state=4, dtype=torch.float32)
    x = torch.randn(1, 100_000, 2, dtype=torch.float32)
    y, state = layer(x)
    y.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    with torch.no_grad():
        half, middle = layer(x[:, :50_001])
        rest, end = layer(x[:, 50_001:], middle)
        before = layer(x[:, :-200])[1]
        wide = type(before)(*(t.double() for t in before))
        tail = layer.double()(x[:, -200:].double(), wide)[0]
    assert_close(torch.cat([half, rest], 1), y.detach(), rtol=1e-4, atol=1e-6)
    assert_close(end.h_BEN, state.h_BEN.detach(), rtol=1e-4, atol=1e-6)
    assert_close(tail, y[:, -200:].detach().double(), rtol=1e-4, atol=1e-6)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="unknown hold 'zho'; did you mean 'zoh'"):
        Mamba(4, hold="zho")
    with pytest.raises(ValueError, match=r"must be a whole number from 1 on, got 1\.3 \* 4"):
        Mamba(4, expand=1.3)
    with pytest.raises(ValueError, match="dt_rank must be a whole number"):
        Mamba(4, dt_rank=0)
    with pytest.raises(ValueError, match="steps: scale must be positive"):
        Mamba(4, steps={"scale": -1})
    with pytest.raises(ValueError, match="steps has no 'flor'"):
        Mamba(4, steps={"flor": 1})
    with pytest.raises(ValueError, match="bounds"):
        Mamba(4, steps={"dt": (1.0, 0.1)})
    with pytest.raises(ValueError, match="expected a state of shapes"):
        Mamba(4)(torch.zeros(1, 2, 4), Mamba(4, d_state=3).init_state(1))
    with pytest.raises(TypeError, match="conca says 'd_state'"):
        Mamba(4, state_size=3)
    assert Mamba(6, expand=1.5).d_inner == 9
    assert math.isfinite(Mamba(4).work().bytes)
