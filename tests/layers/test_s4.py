"""S4: dense powers and the generating function say the same, limits, sampling rates, stability."""

import pytest
import torch
import torch.nn.functional as F

from conca.layers.s4 import S4, S4State
from conca.layers.s4d import S4D
from conca.layers.s5 import S5
from conca.ops.discretise import dense_generalised_bilinear
from conca.ops.dplr_kernel import dense, doubled, dplr_kernel, truncate
from conca.ops.hippo import transition
from conca.ops.hippo_forms import diagonal_plus_low_rank

MEASURES = ["legs", "legt", "lagt", "fourier"]


def example(measure="legs", width=4, size=8, **options):
    """A layer whose parameters training has moved."""
    layer = S4(width, d_state=size, measure=measure, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def matrices(layer):
    """Abar (D, N, N), Bbar (D, N) and C (D, N) as real matrices, by the dense transform."""
    eigenvalues, p, q, dt = layer.system()
    b = torch.view_as_complex(layer.b).repeat(layer.d_model // layer.copies, 1)
    columns = torch.view_as_real(b).flatten(1)[..., None]
    steps = (dense_generalised_bilinear(m, x, s) for m, x, s in zip(dense(eigenvalues, p, q), columns, dt))
    a_bar, b_bar = map(torch.stack, zip(*steps))
    return a_bar, b_bar[..., 0], torch.view_as_real(2 * torch.view_as_complex(layer.c).conj().resolve_conj()).flatten(1)


def finished(layer, y, x):
    return F.glu(layer.out(F.gelu(y + layer.skip * x)), -1)


@pytest.mark.parametrize("length", [1, 2, 7, 64])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_kernel_is_c_a_b(measure, length):
    layer = example(measure, copies=2)
    a, b, c = matrices(layer)
    powers = [torch.linalg.matrix_power(a, t) for t in range(length)]
    expected = torch.stack([torch.einsum("dn,dnk,dk->d", c, power, b) for power in powers], 1)
    torch.testing.assert_close(layer.kernel(length), expected, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("measure", ["legs", "legt"])
def test_step_and_parallel_are_the_dense_recurrence_with_gradients(measure):
    layer = example(measure, copies=2)
    x, start = torch.randn(2, 70, 4), torch.randn(2, 4, 4, 2)
    leaves = [x, start, layer.p, layer.log_decay, layer.frequency, layer.b, layer.c, layer.log_dt]
    for leaf in leaves[:2]:
        leaf.requires_grad_()
    a, b, c = matrices(layer)
    h, outputs = start.flatten(2), []
    for t in range(70):
        h = torch.einsum("dnk,bdk->bdn", a, h) + b * x[:, t, :, None]
        outputs.append((c * h).sum(-1))
    y, h = finished(layer, torch.stack(outputs, 1), x), h.unflatten(-1, (-1, 2))
    weights = torch.randn_like(y), torch.randn_like(h)
    expected = torch.autograd.grad((y * weights[0]).sum() + (h * weights[1]).sum(), leaves)
    for form in (layer, layer.recurrent):
        got, last = form(x, S4State(start))
        torch.testing.assert_close(got, y)
        torch.testing.assert_close(last.h_BDN2, h)
        loss = (got * weights[0]).sum() + (last.h_BDN2 * weights[1]).sum()
        torch.testing.assert_close(torch.autograd.grad(loss, leaves), expected)


def test_it_is_the_convolution_with_its_kernel():
    layer = example("legt", width=3)
    x = torch.randn(2, 50, 3)
    kernel = layer.kernel(50)
    y = torch.stack([(kernel[:, : t + 1].flip(-1).T * x[:, : t + 1]).sum(1) for t in range(50)], 1)
    torch.testing.assert_close(layer(x)[0], finished(layer, y, x), atol=1e-11, rtol=1e-9)


def test_without_feedback_it_is_s4d_with_the_bilinear_transform():
    diagonal, layer = S4D(3, d_state=8, transform="bilinear"), S4(3, d_state=8, copies=3)
    layer.load_state_dict(diagonal.state_dict() | {"p": torch.zeros_like(layer.p)})
    x = torch.randn(2, 70, 3)
    y, state = layer(x)
    expected, other = diagonal(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state.h_BDN2, other.h_BDN2)
    none = S4(3, d_state=8, measure="legsd", copies=3)
    assert none.p.shape == (0, 3, 4, 2)
    none.load_state_dict(diagonal.state_dict() | {"p": none.p})
    torch.testing.assert_close(none(x)[0], expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_at_the_start_the_memory_is_that_of_the_measure(measure):
    layer = S4(1, d_state=8, measure=measure, dt=(0.05, 0.05))
    a, b = transition(measure, 8)
    a = a - torch.eye(8) * (1e-4 if measure != "legs" else 0)  # the floor under the decay
    a_bar, b_bar = dense_generalised_bilinear(a, b[:, None], torch.tensor(0.05))
    x, h = torch.randn(1, 60, 1), torch.zeros(8)
    for u in x.flatten():
        h = a_bar @ h + b_bar[:, 0] * u
    vectors = diagonal_plus_low_rank(measure, 8).vectors_NN
    found = 2 * (vectors @ torch.view_as_complex(layer(x)[1].h_BDN2)[0, 0]).real
    torch.testing.assert_close(found, h, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("measure", ["legs", "legt"])
def test_half_the_sampling_rate_is_the_same_function_of_a_smooth_signal(measure):
    """An input stands for the middle of its step, and an output for its end; the direct path alone looks at one moment."""
    layer = S4(3, d_state=8, measure=measure, dt=(1e-2, 3e-2))
    phases = torch.arange(3)

    def smooth(time):  # no waves shorter than 63 steps, and quiet at the start
        t = time[None, :, None]
        return (1 - torch.exp(-((t / 40) ** 2))) * (torch.sin(t / 16 + phases) + torch.cos(t / 10 + phases))

    with torch.no_grad():
        layer.skip.zero_()
        fine, _ = layer(smooth(torch.arange(400.0) + 0.5))
        coarse, _ = layer.resampled(2.0)(smooth(torch.arange(0.0, 400.0, 2) + 1))
        wrong, _ = layer(smooth(torch.arange(0.0, 400.0, 2) + 1))
    size = float(fine.abs().max())
    assert float((coarse - fine[:, 1::2]).abs().max()) < 0.01 * size
    assert float((wrong - fine[:, 1::2]).abs().max()) > 0.3 * size


def test_resampled_is_a_copy():
    layer = S4(2, d_state=4, step_rescale=0.5)
    other = layer.resampled(4.0)
    assert (layer.step_rescale, other.step_rescale) == (0.5, 2.0)
    torch.testing.assert_close(other.system().dt_D, 4 * layer.system().dt_D)
    assert other.log_dt is not layer.log_dt
    with pytest.raises(ValueError, match="positive"):
        layer.resampled(0.0)


def test_the_length_of_the_kernel_is_doubled():
    layer = example("legt")
    system, c = layer.system(), 2 * torch.view_as_complex(layer.c)[None]
    b = torch.view_as_complex(layer.b).repeat(4, 1)[None]
    short = truncate(system, c, 24)
    long = doubled(system, short, 24)
    torch.testing.assert_close(dplr_kernel(system, b, short, 24, truncated=True)[0, 0], layer.kernel(24))
    torch.testing.assert_close(dplr_kernel(system, b, long, 48, truncated=True)[0, 0], layer.kernel(48))


@pytest.mark.parametrize("noise", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("measure", MEASURES)
def test_no_parameter_makes_a_state_grow(measure, noise):
    layer = S4(2, d_state=8, measure=measure, copies=2, dt=(1e-3, 10.0))
    with torch.no_grad():
        for parameter in (layer.log_decay, layer.frequency, layer.p, layer.log_dt):
            parameter.add_(noise * torch.randn_like(parameter))
    with torch.no_grad():
        a, _, _ = matrices(layer)
    assert float(torch.linalg.eigvals(a).abs().max()) <= 1 + 1e-9
    assert float(torch.linalg.matrix_norm(a, 2).max()) <= 1 + 1e-9
    assert float(layer.poles().real.max()) <= 1e-9


def test_poles_are_those_of_the_whole_matrix():
    layer = S4(3, d_state=6, dt=(0.01, 0.1), step_rescale=2.0)
    expected = -torch.arange(1.0, 7.0) * 2 * layer.log_dt.detach().exp()[:, None]
    found = layer.poles()
    torch.testing.assert_close(found.real.sort(descending=True).values, expected, atol=1e-6, rtol=1e-6)
    assert float(found.imag.abs().max()) < 1e-6
    layer = example("legt", copies=2)
    z, want = layer.poles(), torch.linalg.eigvals(matrices(layer)[0].detach())
    assert z.shape == (4, 8)
    got = (1 + z / 2) / (1 - z / 2)
    assert float((got[..., None] - want[:, None]).abs().min(-1).values.max()) < 1e-9


def test_extreme_time_scales_stay_finite():
    for dt in ((1e-6, 1e-6), (1e3, 1e3)):
        layer = S4(4, d_state=8, dt=dt).float()
        x = torch.randn(1, 500, 4, dtype=torch.float32, requires_grad=True)
        y, state = layer(x)
        y.sum().backward()
        assert torch.isfinite(y).all()
        assert torch.isfinite(state.h_BDN2).all()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_copies_are_shared_in_turn():
    layer = S4(6, d_state=4, copies=2)
    with torch.no_grad():
        layer.frequency[1] += 1
    eigenvalues = layer.system().eigenvalues_DN
    torch.testing.assert_close(eigenvalues[0::2], eigenvalues[:1].expand(3, -1))
    torch.testing.assert_close(eigenvalues[1::2], eigenvalues[:1].expand(3, -1) + 1j)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "lgs"}, "did you mean 'legs'"),
        ({"measure": "lmu"}, "legt"),
        ({"d_state": 5}, "even"),
        ({"dt": (0.1, 0.01)}, "in order"),
        ({"copies": 3}, "divide"),
        ({"copies": 0}, "whole number from 1 on"),
        ({"step_rescale": 0.0}, "positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        S4(4, **options)


@pytest.mark.parametrize("family", [S4, S4D, S5])
def test_a_kernel_of_negative_length_is_refused(family):
    assert family(2, d_state=2).kernel(0).shape == (2, 0)
    with pytest.raises(ValueError, match="length of 0 or more, not -1"):
        family(2, d_state=2).kernel(-1)


@torch.no_grad()
def test_a_kernel_is_finite_where_the_generating_function_has_a_pole():
    layer = S4(3, d_state=8, measure="fourier")
    layer.log_decay.fill_(-60.0)
    x = torch.zeros(1, 40, 3)
    x[:, 0] = 1
    _, states = zip(*(layer(x[:, : t + 1]) for t in range(40)))
    h = torch.stack([torch.view_as_complex(state.h_BDN2)[0] for state in states], -1)
    expected = 2 * (torch.view_as_complex(layer.c)[..., None] * h).sum(1).real
    torch.testing.assert_close(layer.kernel(40), expected)
