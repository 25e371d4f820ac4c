"""Narrow linear maps: what they compute, what they keep through moves and casts, and that nobody who watches a module is passed over."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from conca.laws.agreement import forms_agree
from conca.layers.mixer import Mixer
from conca.layers.quantised import HalfLinear, Int8Linear, linear_row, narrowed
from conca.layers.s4d import S4D
from conca.ops import bodies
from conca.ops.one_row import FEW
from conca.types import BadInput

BOTH = pytest.mark.parametrize("kind", [Int8Linear, HalfLinear])


@BOTH
@pytest.mark.parametrize("shape", [(0,), (1,), (2, 3), (FEW + 1,), (3, 5000)])
def test_it_is_the_map_of_its_rounded_weights(kind, shape, monkeypatch):
    monkeypatch.setattr("conca.layers.narrow.PIECE", 4)
    linear = nn.Linear(10, 11)
    narrow = kind.from_linear(linear)
    rounded = narrow.weight.double() if narrow.scale is None else narrow.weight * narrow.scale[:, None]
    assert_close(rounded, linear.weight.detach(), rtol=0, atol=float(linear.weight.detach().abs().max()) / 250)
    x = torch.randn(*shape, 10)
    assert_close(narrow(x), nn.functional.linear(x, rounded, linear.bias.detach()))
    assert not [*narrow.parameters()]


@BOTH
def test_gradients_reach_the_input(kind):
    narrow = kind.from_linear(nn.Linear(5, 3, bias=False))
    for rows in (1, 20):
        assert torch.autograd.gradcheck(narrow, torch.randn(rows, 5, requires_grad=True))


def test_what_does_not_fit_is_refused():
    narrow = Int8Linear.from_linear(nn.Linear(6, 3))
    for x in (torch.zeros(2, 5), torch.zeros(2, 6, dtype=torch.int64), torch.zeros(())):
        with pytest.raises(ValueError, match=r"Int8Linear: expected numbers \(..., 6\), got"):
            narrow(x)


@BOTH
def test_casts_keep_what_was_rounded(kind):
    narrow = kind.from_linear(nn.Linear(40, 30).float())
    x, before = torch.randn(1, 40).float(), narrow.weight.clone()
    want = narrow(x)
    for cast in (nn.Module.double, nn.Module.bfloat16, nn.Module.half, nn.Module.float):
        cast(narrow)
        assert narrow.weight.dtype == before.dtype
        assert torch.equal(narrow.weight, before)
    assert narrow.scale is None or narrow.scale.dtype == torch.float32
    assert_close(narrow(x), want, rtol=1e-2, atol=1e-2)  # the bias has been through half precision
    for rows in (x, x.repeat(20, 1)):
        half = narrow(rows.bfloat16())
        assert half.dtype == torch.bfloat16
        assert_close(half.float(), want.expand(len(rows), -1), rtol=3e-2, atol=3e-2)
    again = kind.from_linear(nn.Linear(40, 30).float())
    again.load_state_dict(copy.deepcopy(narrow).state_dict())
    assert torch.equal(again(x), narrow(x))
    assert "in_features=40, out_features=30, bias=True" in repr(again)


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_a_mixer_takes_it_in_every_form(kind):
    mixer = narrowed(S4D(6, d_state=4).eval(), kind)
    assert isinstance(mixer, Mixer)
    assert type(mixer.out) in (Int8Linear, HalfLinear)
    forms_agree(mixer)


def test_which_are_swapped():
    tied = nn.Linear(4, 4)
    model = nn.ModuleDict(
        {"a": nn.Linear(4, 4), "b": nn.Sequential(nn.Linear(4, 4), tied), "c": tied, "n": nn.LayerNorm(4)}
    )
    kept = model["a"]
    assert narrowed(model, names=["1", "c"]) is model
    assert model["a"] is kept
    assert type(model["b"][0]) is nn.Linear
    assert type(model["c"]) is Int8Linear
    assert model["b"][1] is model["c"]
    assert type(narrowed(nn.Linear(2, 2), "bfloat16")) is HalfLinear
    assert type(narrowed(model, names="b.0")["b"][0]) is Int8Linear
    with pytest.raises(BadInput, match=r"no nn\.Linear or TiedEmbedding named 'd'"):
        narrowed(model, names=["d"])
    with pytest.raises(BadInput, match="unknown kind 'int9'; did you mean 'int8'"):
        narrowed(model, "int9")
    watched = nn.ModuleDict({"a": nn.Linear(2, 2)})
    watched["a"].register_forward_hook(lambda *a: None)
    with pytest.raises(BadInput, match="a is hooked"):
        narrowed(watched)


def doubled(module, x):
    return 2 * nn.functional.linear(x, module.weight, module.bias)


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hook(linear):
    linear.register_forward_hook(lambda module, x, y: 2 * y)


def early(linear):
    linear.register_forward_pre_hook(lambda module, x: None)
    linear.forward = lambda x: doubled(linear, x)


def whole(linear):
    linear.register_full_backward_hook(lambda module, into, out: None)
    linear.register_forward_hook(lambda module, x, y: 2 * y)


def parametrised(linear):
    class Double(nn.Module):
        def forward(self, w):
            return 2 * w

    nn.utils.parametrize.register_parametrization(linear, "weight", Double())
    nn.utils.parametrize.register_parametrization(linear, "bias", Double())


def instance(linear):
    linear.forward = lambda x: doubled(linear, x)


@pytest.mark.parametrize("change", [hook, early, whole, parametrised, instance])
def test_whoever_watches_or_replaces_a_map_is_heard(change):
    linear, x = nn.Linear(5, 4), torch.randn(1, 5)
    want = 2 * linear(x).detach()
    change(linear)
    with torch.no_grad(), bodies.watched() as seen:
        assert_close(linear_row(linear, x), want)
    assert not seen


def test_subclasses_and_global_hooks_are_heard(monkeypatch):
    linear, x = nn.Linear(5, 4), torch.randn(1, 5)
    with torch.no_grad():
        want = linear(x)
        other = Twice(5, 4)
        other.load_state_dict(linear.state_dict())
        assert_close(linear_row(other, x), 2 * want)
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, y: 3 * y)
        try:
            assert_close(linear_row(linear, x), 3 * want)
        finally:
            handle.remove()
        with bodies.watched() as seen:
            assert_close(linear_row(linear, x), want)
        assert seen == {"one_row"}
        monkeypatch.setattr(nn.Linear, "forward", doubled)
        assert_close(linear_row(linear, x), 2 * want)


def test_the_module_is_called_where_the_kernel_would_not_do():
    linear = nn.Linear(5, 4)
    with bodies.watched() as seen:
        assert linear_row(linear, torch.randn(1, 5)).requires_grad
        with torch.no_grad():
            linear_row(linear, torch.randn(FEW + 1, 5))
            with torch.autocast("cpu", torch.bfloat16):
                assert linear_row(nn.Linear(5, 4).float(), torch.randn(1, 5).float()).dtype == torch.bfloat16
            with pytest.raises(RuntimeError):
                linear_row(linear, torch.randn(1, 5).float())
            with pytest.raises(ValueError, match="one_row"):
                linear_row(linear, torch.randn(1, 6))
    assert not seen
