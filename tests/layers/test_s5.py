"""S5: S4D as its limit, dense matrices, irregular time and other sampling rates, blocks, low rank, memory."""

import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from conca.layers.s4d import S4D
from conca.layers.s5 import S5, Structure, lecun
from conca.models.stack import pattern
from conca.ops.bodies import plain_bodies
from conca.ops.discretise import dense_generalised_bilinear, dense_zero_order_hold
from conca.ops.hippo_forms import diagonal_plus_low_rank, normal

DENSE = {"zoh": dense_zero_order_hold, "bilinear": dense_generalised_bilinear}


def gelu_alone(layer):
    """The same state space with nothing after it but gelu."""
    bare = S5(layer.d_model, d_state=layer.d_state, structure=layer.structure, gate="gelu", transform=layer.transform)
    bare.load_state_dict(layer.state_dict(), strict=False)
    bare.step_rescale = layer.step_rescale
    return bare


@pytest.mark.parametrize("transform", ["zoh", "bilinear"])
def test_one_input_and_one_output_are_s4d(transform):
    s4d = S4D(1, d_state=8, transform=transform, step_rescale=1.5)
    s5 = S5(1, d_state=8, transform=transform, gate="full_glu", step_rescale=1.5)
    mapped = {"log_dt": s4d.log_dt.expand(4), "log_decay": s4d.log_decay[0], "frequency": s4d.frequency[0]}
    mapped |= {"b": s4d.b.transpose(0, 1), "c": s4d.c, "skip": s4d.skip}
    s5.load_state_dict({**mapped, "out.weight": s4d.out.weight, "out.bias": s4d.out.bias})
    x, elapsed = torch.randn(3, 70, 1), torch.rand(3, 70) * 2
    for options in ({}, {"elapsed": elapsed}):
        (y, state), (expected, last) = s5(x, **options), s4d(x, **options)
        assert_close(y, expected)
        assert_close(state.h_BP2, last.h_BDN2[:, 0])
    assert_close(s5.kernel(20), s4d.kernel(20))
    assert_close(s5.poles(), s4d.poles())


@pytest.mark.parametrize("transform", ["zoh", "bilinear"])
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_it_starts_as_real_hippo_n_in_blocks_and_its_kernel_is_c_a_to_the_l_b(blocks, transform):
    N, D, T, dt = 16, 3, 24, 0.07
    structure = {"blocks": blocks}
    layer = S5(D, d_state=N, structure=structure, gate="gelu", transform=transform, dt=(dt, dt), step_rescale=1.5)
    vectors = torch.block_diag(*[diagonal_plus_low_rank("legs", N // blocks).vectors_NN] * blocks)
    A = torch.block_diag(*[normal("legs", N // blocks)] * blocks)
    b, c = (t.detach() for t in layer.maps())
    B, C = 2 * (vectors @ b).real, 2 * (c @ vectors.mH).real  # x = 2 Re(V z): the real coordinates
    assert_close(vectors.mH @ B.to(vectors.dtype), b)
    a, b = DENSE[transform](A, B, torch.tensor(1.5 * dt))
    kernel = torch.stack([C @ torch.linalg.matrix_power(a, k) @ b for k in range(T)])
    x = torch.randn(2, T, D)
    y = torch.stack([torch.einsum("kde,bke->bd", kernel[: t + 1].flip(0), x[:, : t + 1]) for t in range(T)], 1)
    assert_close(layer(x)[0], F.gelu(y + layer.skip * x), atol=1e-10, rtol=1e-8)
    assert_close(layer.kernel(T), kernel.diagonal(dim1=1, dim2=2).T, atol=1e-10, rtol=1e-8)


def test_the_maps_are_real_matrices_in_the_coordinates_of_the_eigenvectors():
    torch.manual_seed(7)
    b, c = (t.detach() for t in S5(3, d_state=8).maps())
    torch.manual_seed(7)
    torch.rand(4)  # the time scales are drawn first
    V, B, C = diagonal_plus_low_rank("legs", 8).vectors_NN, lecun(8, 3), lecun(3, 8)
    assert_close(2 * (V @ b).real, B)
    assert_close(2 * (c @ V.mH).real, C)


def test_irregular_samples_are_a_dense_run_read_at_those_times():
    for options in ({}, {"structure": Structure(blocks=2, rank=2)}):
        layer = S5(3, d_state=8, **options)
        gaps = torch.randint(1, 9, (40,), generator=torch.Generator().manual_seed(4))
        x = torch.randn(1, 40, 3)
        sparse, state = layer(x, elapsed=gaps[None].double())
        dense, last = layer(x.repeat_interleave(gaps, 1))  # the input is held between samples
        assert_close(sparse, dense[:, gaps.cumsum(0) - 1])
        assert_close(state.h_BP2, last.h_BP2)


def test_no_time_leaves_the_state_and_long_time_forgets():
    layer = S5(3, d_state=8)
    _, state = layer(torch.randn(2, 5, 3))
    _, same = layer(torch.randn(2, 1, 3), state, elapsed=torch.zeros(2, 1))
    assert_close(same.h_BP2, state.h_BP2)
    _, gone = layer(torch.zeros(2, 1, 3), state, elapsed=torch.full((2, 1), 1e6))
    assert float(gone.h_BP2.detach().abs().max()) < 1e-12


@pytest.mark.parametrize("transform", ["zoh", "bilinear"])
def test_half_the_sampling_rate_is_the_same_function_of_a_slow_signal(transform):
    fine = S5(3, d_state=8, dt=(1e-2, 5e-2), transform=transform)
    coarse = S5(3, d_state=8, transform=transform, step_rescale=2.0)
    coarse.load_state_dict(fine.state_dict())
    t = torch.arange(400.0)
    x = torch.stack([torch.sin(2 * math.pi * t / p) for p in (80, 125, 200)], -1)[None]
    want = fine(x)[0][:, ::2]
    error = (want - coarse(x[:, ::2])[0]).abs().max() / want.abs().max()
    coarse.step_rescale = 1.0
    wrong = (want - coarse(x[:, ::2])[0]).abs().max() / want.abs().max()
    assert error < 0.03
    assert wrong > 4 * error


def test_time_scales_are_those_of_the_modes():
    layer = S5(3, d_state=400, dt=(1e-2, 1e-1), step_rescale=2.0)
    dt = layer.log_dt.detach().exp()
    assert dt.shape == (200,)
    assert 1e-2 <= float(dt.min()) < 2e-2 < 5e-2 < float(dt.max()) <= 1e-1
    assert_close(layer.poles()[0].exp(), layer.discretised()[0])
    assert float(layer.frequency.detach().min()) > 0


def test_the_maps_start_with_the_variance_of_lecun():
    layer = S5(200, d_state=400, structure={"rank": 50})
    b, c = (t.detach() for t in layer.maps())
    for value in (2 * b.abs().square().sum() / 400, 2 * c.abs().square().sum() / 200):
        assert float(value) == pytest.approx(1, abs=0.1)
    full_b, full_c = (t.detach() for t in S5(200, d_state=400).maps())
    assert float(2 * full_b.abs().square().sum() / 400) == pytest.approx(1, abs=0.05)
    assert float(2 * full_c.abs().square().sum() / 200) == pytest.approx(1, abs=0.05)


def test_low_rank_is_the_full_layer_with_the_product():
    low = S5(5, d_state=8, structure=Structure(rank=2))
    full = S5(5, d_state=8)
    b, c = low.maps()
    full.load_state_dict(low.state_dict() | {"b": torch.view_as_real(b), "c": torch.view_as_real(c)}, strict=False)
    x, starts = torch.randn(2, 30, 5), torch.rand(2, 30) < 0.1
    for options in ({}, {"elapsed": torch.rand(2, 30)}, {"starts": starts, "lengths": torch.tensor([30, 11])}):
        assert_close(low(x, **options)[0], full(x, **options)[0])
    assert_close(low.step(x[:, 0], low.init_state(2))[0], full.step(x[:, 0], full.init_state(2))[0])
    assert torch.linalg.matrix_rank(b.detach()) == 2
    fewer, more = (sum(p.numel() for p in layer.parameters()) for layer in (low, full))
    assert more - fewer == 4 * 4 * 5 - 2 * 2 * (2 * 4 + 5)
    assert low.work().multiply_adds < full.work().multiply_adds


@pytest.mark.parametrize("gate", ["half_glu1", "half_glu2", "full_glu"])
def test_gates(gate):
    layer = S5(3, d_state=4, gate=gate, dropout=0.9).eval()
    x = torch.randn(2, 9, 3)
    y = []
    layer.out.register_forward_pre_hook(lambda _, args: y.append(args[0]))
    out, bare = layer(x)[0], gelu_alone(layer)(x)[0]
    assert_close(y[0], bare)
    inner = layer.out(bare)
    if gate == "full_glu":
        assert_close(out, inner[..., :3] * torch.sigmoid(inner[..., 3:]))
    elif gate == "half_glu1":
        assert_close(out, bare * torch.sigmoid(inner))
    else:
        assert_close(F.gelu(out / torch.sigmoid(inner)), bare)


def test_clip_keeps_modes_from_lasting_for_ever():
    layer, plain = S5(2, d_state=4, structure={"clip": 1e-2}), S5(2, d_state=4)
    for each in (layer, plain):
        with torch.no_grad():
            each.log_decay[0] = -50.0
    assert layer.eigenvalues().real.tolist() == pytest.approx([-1e-2, -0.5])
    assert plain.eigenvalues().real.tolist() == pytest.approx([-math.exp(-50), -0.5])


class Sizes(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = [t.numel() for t in result if isinstance(t, torch.Tensor)] if isinstance(result, tuple) else []
        self.largest = max(self.largest, *made, result.numel() if isinstance(result, torch.Tensor) else 0, 0)
        return result


@pytest.mark.parametrize("transform", ["zoh", "bilinear"])
@pytest.mark.parametrize("context", [nullcontext, plain_bodies])
def test_irregular_time_never_needs_a_matrix_at_every_step(context, transform):
    T, D, P = 60, 16, 12
    layer = S5(D, d_state=2 * P, transform=transform)
    x, elapsed = torch.randn(1, T, D, requires_grad=True), torch.rand(1, T, requires_grad=True)
    with context(), Sizes() as sizes:
        layer(x, elapsed=elapsed)[0].sum().backward()
    assert T * max(P, D) <= sizes.largest <= 2 * T * max(2 * P, D) < T * P * D
    assert elapsed.grad.abs().sum() > 0


def test_a_packed_sequence_does_not_feel_the_nan_of_another():
    layer, x, starts = S5(4, d_state=4), torch.randn(1, 6, 4), torch.zeros(1, 6, dtype=torch.bool)
    x[0, 1, 0], starts[0, 3] = torch.nan, True
    for options in ({}, {"elapsed": torch.ones(1, 6)}):
        for context in (nullcontext, plain_bodies):
            with context():
                y, state = layer(x, starts=starts, **options)
            assert torch.isfinite(y[0, 3:]).all()
            assert torch.isfinite(state.h_BP2).all()
            assert y[0, 1:3].isnan().any()


def test_extreme_time_scales_stay_finite():
    for dt in ((1e-6, 1e-6), (1e3, 1e3)):
        layer = S5(4, d_state=8, dt=dt).float()
        x = torch.randn(1, 500, 4, dtype=torch.float32, requires_grad=True)
        for options in ({}, {"elapsed": torch.rand(1, 500) * 3}):
            y, state = layer(x, **options)
            y.sum().backward()
            assert torch.isfinite(y).all()
            assert torch.isfinite(state.h_BP2).all()
            assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_a_pattern_reaches_every_option():
    stack = pattern("s5(d_state=8, structure={'blocks': 2, 'rank': 1}, gate='gelu', transform='bilinear')", 4)
    inner = stack.parts[0].inner
    assert inner.structure == Structure(blocks=2, rank=1)
    assert inner.out is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": "half_glu"}, "did you mean 'half_glu"),
        ({"transform": "zho"}, "did you mean 'zoh'"),
        ({"d_state": 5}, "even parts"),
        ({"d_state": 12, "structure": {"blocks": 4}}, "4 even parts"),
        ({"structure": {"blocks": 0}}, "blocks must be positive"),
        ({"structure": {"rank": 0}}, "rank must be positive"),
        ({"structure": {"rank": 1.5}}, "rank must be a whole number, got 1.5"),
        ({"structure": 3}, "must be a Structure or a dict, got 3"),
        ({"structure": {"clip": -1.0}}, "clip must be positive"),
        ({"structure": {"block": 2}}, "structure has no 'block'; did you mean 'blocks'"),
        ({"dt": (0.1, 0.01)}, "in order"),
        ({"dt": 0.1}, "two positive bounds"),
        ({"dt": (0.1, math.inf)}, "two positive bounds"),
        ({"step_rescale": "2"}, "step_rescale must be positive"),
        ({"step_rescale": 0.0}, "step_rescale must be positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        S5(4, **options)


def test_the_state_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"state of shape \(batch, 4, 2\)"):
        S5(4, d_state=8).step(torch.zeros(2, 4), S5(4, d_state=4).init_state(2))


def test_an_eigenvalue_that_has_vanished_is_a_plain_sum():
    layer, x, elapsed = S5(3, d_state=6), torch.randn(2, 9, 3), torch.rand(2, 9)
    with torch.no_grad():
        layer.log_decay.fill_(-1e4)
        layer.frequency.zero_()
    (y, state), (expected, same) = layer(x, elapsed=elapsed), layer.recurrent(x, elapsed=elapsed)
    torch.testing.assert_close((y, state.h_BP2), (expected, same.h_BP2))


def test_without_a_gate_it_is_the_state_space_alone():
    layer, x = S5(3, d_state=4, gate="none"), torch.randn(2, 9, 3)
    y, _ = layer(x)
    assert_close(F.gelu(y), gelu_alone(layer)(x)[0])
