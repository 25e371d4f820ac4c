"""S4D: initialisation, the convolution it is, irregular time, limits."""

import math

import pytest
import torch
import torch.nn.functional as F

from conca.layers.s4d import S4D
from conca.ops.hippo import legs, legs_normal


def core(layer, x):
    """y before skip, activation and output map, by another route: the kernel written out and a direct sum."""
    eigenvalues = torch.complex(-layer.log_decay.exp(), layer.frequency)
    dt = layer.log_dt.exp()[:, None]
    a, b = torch.exp(eigenvalues * dt), (torch.exp(eigenvalues * dt) - 1) / eigenvalues
    powers = a[..., None] ** torch.arange(x.shape[1])
    kernel = (
        2
        * torch.einsum("dn,dn,dnt->dt", torch.view_as_complex(layer.c) * torch.view_as_complex(layer.b), b, powers).real
    )
    return torch.stack([(kernel[:, : t + 1].flip(-1).T * x[:, : t + 1]).sum(1) for t in range(x.shape[1])], 1)


@pytest.mark.parametrize("init", ["legs", "lin"])
def test_it_is_the_convolution_with_the_zero_order_hold_kernel(init):
    layer = S4D(3, d_state=8, init=init)
    x = torch.randn(2, 50, 3)
    expected = F.glu(layer.out(F.gelu(core(layer, x) + layer.skip * x)), -1)
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-12, rtol=1e-10)


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
        ({"d_state": 5}, "even"),
        ({"d_state": 0}, "even"),
        ({"dt": (0.1, 0.01)}, "in order"),
        ({"dt": (0.0, 0.1)}, "positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        S4D(4, **options)
