"""S4D: initialisation, the convolution it is, irregular time, limits."""

import math

import pytest
import torch
import torch.nn.functional as F

from conca.layers.s4d import S4D
from conca.ops.hippo import legs, legs_normal, transition
from conca.ops.spectra import spectrum

COMPLEX = ("legs", "lin", "inv", "quad", "fourier", "random")


def core(layer, x):
    """y before skip, activation and output map, by another route: dense matrices, C Abar^l Bbar, and a direct sum."""
    rows = []
    for d in range(layer.d_model):
        poles, dt = layer.eigenvalues()[d].to(torch.complex128), layer.log_dt[d].exp() * layer.step_rescale
        one, A = torch.eye(len(poles), dtype=poles.dtype), torch.diag(poles)
        if layer.transform == "zoh":
            a = torch.linalg.matrix_exp(dt * A)
            carry = torch.linalg.solve(A, a - one)
        else:
            below = torch.linalg.inv(one - dt / 2 * A)
            a, carry = below @ (one + dt / 2 * A), dt * below
        if layer.init == "real":
            b, c = layer.b[d].to(poles.dtype), layer.c[d].to(poles.dtype)
        else:
            b, c = torch.view_as_complex(layer.b)[d], 2 * torch.view_as_complex(layer.c)[d]
        rows.append(torch.stack([(c @ torch.linalg.matrix_power(a, k) @ carry @ b).real for k in range(x.shape[1])]))
    kernel = torch.stack(rows)
    return torch.stack([(kernel[:, : t + 1].flip(-1).T * x[:, : t + 1]).sum(1) for t in range(x.shape[1])], 1)


@pytest.mark.parametrize("transform", ["zoh", "bilinear"])
@pytest.mark.parametrize("init", [*COMPLEX, "real"])
def test_it_is_the_convolution_with_c_a_to_the_l_b(init, transform):
    layer = S4D(3, d_state=6, init=init, transform=transform, step_rescale=1.5)
    x = torch.randn(2, 30, 3)
    expected = F.glu(layer.out(F.gelu(core(layer, x) + layer.skip * x)), -1)
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-12, rtol=1e-10)
    impulse = torch.zeros(1, 30, 3)
    impulse[:, 0] = 1
    torch.testing.assert_close(layer.kernel(30), core(layer, impulse)[0].T, atol=1e-12, rtol=1e-10)


def test_eigenvalues_of_each_initialisation():
    found = {name: S4D(2, d_state=8, init=name).eigenvalues()[1].detach() for name in [*COMPLEX, "real"]}
    for name in COMPLEX:
        torch.testing.assert_close(found[name].real, torch.full((4,), -0.5))
        assert float(found[name].imag.min()) >= 0
    pi = math.pi
    expected = {
        "lin": [0, pi, 2 * pi, 3 * pi],
        "inv": [8 / pi * 7, 8 / pi * (8 / 3 - 1), 8 / pi * (8 / 5 - 1), 8 / pi * (8 / 7 - 1)],
        "quad": [1 / pi, 9 / pi, 25 / pi, 49 / pi],
        "fourier": [0, 2 * pi, 4 * pi, 6 * pi],
    }
    for name, imaginary in expected.items():
        torch.testing.assert_close(found[name].imag, torch.tensor(imaginary), atol=1e-9, rtol=1e-12)
    assert found["real"].tolist() == pytest.approx([-1, -2, -3, -4, -5, -6, -7, -8])
    torch.manual_seed(3)
    first = S4D(2, d_state=8, init="random").frequency
    torch.manual_seed(3)
    assert torch.equal(S4D(2, d_state=8, init="random").frequency, first)


def test_the_waves_are_the_eigenvalues_of_their_matrix():
    a, b = transition("foud", 8)
    found = torch.linalg.eigvals(a)
    eigenvalues, inputs = spectrum("fourier", 8)
    torch.testing.assert_close(eigenvalues.imag.repeat_interleave(2), found.imag.abs().sort().values, atol=1e-9, rtol=0)
    torch.testing.assert_close(2 * inputs.square().sum(), b.square().sum())


def test_real_modes_are_as_many_as_the_state_has_numbers_and_stay_real():
    layer = S4D(3, d_state=6, init="real")
    assert layer.frequency is None
    assert layer.b.shape == layer.c.shape == layer.log_decay.shape == (3, 6)
    _, state = layer(torch.randn(2, 5, 3))
    assert state.h_BDN2.shape == S4D(3, d_state=6).init_state(2).h_BDN2.shape
    eigenvalues = layer.poles() / layer.log_dt.exp()[:, None]
    torch.testing.assert_close(eigenvalues.real, -torch.arange(1.0, 7).expand(3, 6))
    assert eigenvalues.imag.abs().max() == 0


def test_poles_say_how_fast_a_mode_fades_and_turns():
    layer = S4D(2, d_state=4, step_rescale=3.0)
    a, _ = layer.discretised()
    torch.testing.assert_close(layer.poles().exp(), a)


@pytest.mark.parametrize("transform", ["zoh", "bilinear"])
def test_half_the_sampling_rate_is_the_same_function_of_a_slow_signal(transform):
    fine = S4D(3, d_state=8, dt=(1e-2, 5e-2), transform=transform)
    coarse = S4D(3, d_state=8, transform=transform, step_rescale=2.0)
    coarse.load_state_dict(fine.state_dict())
    t = torch.arange(400.0)
    x = torch.stack([torch.sin(2 * math.pi * t / p) for p in (80, 125, 200)], -1)[None]
    error = (fine(x)[0][:, ::2] - coarse(x[:, ::2])[0]).abs().max() / fine(x)[0].abs().max()
    coarse.step_rescale = 1.0
    wrong = (fine(x)[0][:, ::2] - coarse(x[:, ::2])[0]).abs().max() / fine(x)[0].abs().max()
    assert error < 0.03
    assert wrong > 4 * error


def test_packed_rows_with_elapsed_are_run_where_they_stand():
    layer = S4D(3, d_state=4)
    x, elapsed, starts = torch.randn(2, 9, 3), torch.rand(2, 9) * 2, torch.rand(2, 9) < 0.4
    lengths = torch.tensor([9, 6])
    calls = []
    layer.out.register_forward_hook(lambda *_: calls.append(1))
    y, state = layer(x, lengths=lengths, starts=starts, elapsed=elapsed)
    assert calls == [1]
    expected, last = layer.recurrent(x, lengths=lengths, starts=starts, elapsed=elapsed)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state.h_BDN2, last.h_BDN2)


def test_initial_time_scales_and_eigenvalues():
    layer = S4D(200, d_state=16, dt=(1e-2, 1e-1))
    dt = layer.log_dt.detach().exp()
    assert float(dt.min()) >= 1e-2
    assert float(dt.max()) <= 1e-1
    assert torch.allclose(layer.log_decay.exp(), torch.tensor(0.5), atol=1e-9)
    lin = S4D(2, d_state=8, init="lin")
    torch.testing.assert_close(lin.frequency[0], math.pi * torch.arange(4.0))
    assert float(S4D(2, d_state=64).frequency.detach().min()) > 0


def test_the_normal_part_of_legs():
    a, b = legs(8)
    p = torch.sqrt(torch.arange(8.0) + 0.5)
    normal = a + torch.outer(p, p)
    torch.testing.assert_close(normal + normal.T, -torch.eye(8))
    eigenvalues, inputs = legs_normal(8)
    found = torch.linalg.eigvals(normal)
    found = found[found.imag > 0]
    torch.testing.assert_close(eigenvalues.imag, found.imag.sort().values)
    # half of the energy of the input is in each conjugate
    torch.testing.assert_close(2 * inputs.square().sum(), b.square().sum())


def test_two_half_steps_under_a_held_input_are_one_step():
    layer = S4D(3, d_state=8)
    x = torch.randn(2, 1, 3)
    twice, state = layer(x.repeat(1, 2, 1), elapsed=torch.full((2, 2), 0.5))
    once, expected = layer(x)
    torch.testing.assert_close(state.h_BDN2, expected.h_BDN2)
    torch.testing.assert_close(twice[:, -1:], once)


def test_a_step_of_no_duration_leaves_the_state():
    layer = S4D(3, d_state=8)
    _, state = layer(torch.randn(2, 5, 3))
    _, same = layer(torch.randn(2, 1, 3), state, elapsed=torch.zeros(2, 1))
    torch.testing.assert_close(same.h_BDN2, state.h_BDN2)


def test_extreme_time_scales_stay_finite():
    for dt in ((1e-6, 1e-6), (1e3, 1e3)):
        layer = S4D(4, d_state=8, dt=dt).float()
        x = torch.randn(1, 500, 4, dtype=torch.float32, requires_grad=True)
        y, state = layer(x)
        y.sum().backward()
        assert torch.isfinite(y).all()
        assert torch.isfinite(state.h_BDN2).all()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "lgs"}, "did you mean 'legs'"),
        ({"transform": "zho"}, "did you mean 'zoh'"),
        ({"step_rescale": 0.0}, "step_rescale must be positive"),
        ({"d_state": 5}, "even"),
        ({"d_state": 0}, "whole number from 1 on, got 0"),
        ({"d_state": 4.0}, "whole number from 1 on, got 4.0"),
        ({"dt": (0.1, 0.01)}, "in order"),
        ({"dt": (0.0, 0.1)}, "positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        S4D(4, **options)
