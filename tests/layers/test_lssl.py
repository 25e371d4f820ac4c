"""LSSL: the kernel of its definition, what learns and what does not, stability, sampling rate, what is kept between calls."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from conca.layers.lssl import LSSL
from conca.layers.s4 import S4
from conca.models.stack import Block, pattern
from conca.ops.dense import dense_kernel
from conca.ops.hippo import MEASURES, transition
from conca.ops.hippo_forms import diagonal_plus_low_rank
from conca.train.groups import param_groups


def bare(layer):
    """The layer without its output map: out = gelu(y), with one output per channel."""
    layer.out = nn.Identity()
    return layer


def by_definition(layer, matrix, b, d):
    """Abar and Bbar of channel d, each by an inverse written out."""
    z = matrix * layer.log_dt[d].exp() * layer.step_rescale
    eye = torch.eye(len(matrix))
    inverse = torch.linalg.inv(eye - layer.alpha * z)
    return inverse @ (eye + (1 - layer.alpha) * z), inverse @ b[d] * layer.log_dt[d].exp() * layer.step_rescale


@pytest.mark.parametrize("measure", ["legs", "legt", "lmu", "fourier"])
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.7, 1.0])
def test_the_kernel_is_c_a_b(alpha, measure):
    layer = LSSL(3, d_state=6, measure=measure, alpha=alpha, channels=2, dt=(1e-3, 1e-2), step_rescale=1.3)
    kernel = dense_kernel(*layer.discretised(), layer.c, 70)
    matrix, inputs = transition(measure, 6)
    b = inputs.expand(3, 6)
    for d in range(3):
        a_bar, b_bar = by_definition(layer, matrix, b, d)
        for t in range(70):
            expected = layer.c[d] @ torch.linalg.matrix_power(a_bar, t) @ b_bar
            assert_close(kernel[d, :, t], expected, rtol=1e-9, atol=1e-11)
    assert_close(layer.kernel(70), kernel[:, 0])


def test_it_is_the_convolution_with_its_kernel():
    layer, x = LSSL(3, d_state=6, channels=2), torch.randn(2, 50, 3)
    kernel = dense_kernel(*layer.discretised(), layer.c, 50)
    y = torch.stack([(kernel[..., : t + 1].flip(-1) * x.mT[:, :, None, : t + 1]).sum(-1) for t in range(50)], 1)
    expected = layer.out(F.gelu(y + layer.skip * x[..., None]).flatten(2))
    assert_close(layer(x)[0], expected, atol=1e-12, rtol=1e-10)


def test_the_response_to_a_state_is_c_a_h():
    layer = bare(LSSL(3, d_state=5))
    state = layer.init_state(2)._replace(h_BDN=torch.randn(2, 3, 5, requires_grad=True))
    y, last = layer(torch.zeros(2, 70, 3), state)
    a, _ = layer.discretised()
    for t in (0, 1, 63, 64, 69):
        moved = torch.einsum("dnk,bdk->bdn", torch.linalg.matrix_power(a, t + 1), state.h_BDN)
        assert_close(y[:, t], F.gelu(torch.einsum("dn,bdn->bd", layer.c[:, 0], moved)))
    assert_close(last.h_BDN, moved)
    (slope,) = torch.autograd.grad(last.h_BDN.sum(), state.h_BDN)
    assert_close(slope, torch.linalg.matrix_power(a, 70).sum(1).expand(2, 3, 5))


class Ungated(nn.Module):
    """In place of S4's output map: its gate stands open, so that the activations come out."""

    def forward(self, x):
        return torch.cat([x, torch.full_like(x, 1e3)], -1)


@pytest.mark.parametrize(("measure", "size"), [("legs", 16), ("legs", 64), ("lagt", 16), ("legt", 16), ("fourier", 16)])
@torch.no_grad()
def test_when_fixed_it_is_s4_in_other_coordinates(measure, size):
    dense, low = bare(LSSL(3, d_state=size, measure=measure)), S4(3, d_state=size, measure=measure)
    vectors = diagonal_plus_low_rank(measure, size).vectors_NN  # x = 2 Re(V z), z = V* x
    low.out = Ungated()
    low.c.copy_(torch.view_as_real(dense.c[:, 0].to(vectors.dtype) @ vectors))
    low.log_dt.copy_(dense.log_dt)
    low.skip.copy_(dense.skip[:, 0])
    if measure != "legs":
        low.log_decay.fill_(-700.0)  # the normal part does not decay, and S4 begins with a little
    h = torch.randn(2, 3, size)
    state = dense.init_state(2)._replace(h_BDN=h)
    other = low.init_state(2)._replace(h_BDN2=torch.view_as_real(h.to(vectors.dtype) @ vectors.conj()))
    x = torch.randn(2, 300, 3)
    y, state = dense(x, state)
    z, other = low(x, other)
    assert_close(z, y, rtol=0, atol=1e-8)
    back = 2 * (torch.view_as_complex(other.h_BDN2) @ vectors.T).real
    assert_close(back, state.h_BDN, rtol=0, atol=1e-8)
    if measure != "fourier":  # which has a pole of the Cauchy sum at its node 0
        assert_close(low.kernel(300), dense.kernel(300), rtol=0, atol=1e-8)


@pytest.mark.parametrize("learn", ["", "c", "bc", "abc", "abct", "t"])
def test_what_learns_is_a_parameter_and_the_rest_is_a_buffer(learn):
    layer = LSSL(4, d_state=6, learn=learn)
    names = {"a": {"turn", "damp"}, "b": {"b"}, "c": {"c"}, "t": {"log_dt"}}
    learned = set().union(*(names[letter] for letter in learn)) | {"skip"}
    fixed = {"a", "b", "c", "log_dt"} - learned - ({"a"} if "a" in learn else set())
    assert {name for name, _ in layer.named_parameters() if "." not in name} == learned
    assert {name for name, _ in layer.named_buffers()} == fixed
    assert learned | fixed < set(layer.state_dict())
    y, state = layer(torch.randn(2, 9, 4))
    (y.square().sum() + state.h_BDN.square().sum()).backward()
    for name, parameter in layer.named_parameters():
        assert (parameter.grad != 0).any(), name
    groups = {id(p): group["lr"] for group in param_groups(layer, lr=1.0) for p in group["params"]}
    slow = {name for name in learned if groups[id(layer.get_parameter(name))] < 1}
    assert slow == learned & {"turn", "damp", "log_dt", "b"}


def test_a_fixed_layer_is_whole_in_its_state_dict():
    one, two = LSSL(4, d_state=6, measure="legt"), LSSL(4, d_state=6)
    x = torch.randn(2, 9, 4)
    two(x)
    two.load_state_dict(one.state_dict())
    assert_close(two(x)[0], one(x)[0])


def test_by_default_the_matrix_and_the_times_stay_and_training_moves_the_rest():
    layer = LSSL(4, d_state=6)
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        layer(torch.randn(2, 9, 4))[0].square().sum().backward()
        optimiser.step()
    moved = {name for name, t in layer.state_dict().items() if not torch.equal(t, before[name])}
    assert moved == set(before) - {"a", "log_dt"}


@pytest.mark.parametrize("measure", MEASURES)
def test_a_learned_matrix_begins_as_the_fixed_one_and_cannot_grow(measure):
    size = 8
    matrix = transition(measure, size)[0]
    if float(torch.linalg.eigvalsh(matrix + matrix.mT).max()) > 1e-9:
        with pytest.raises(ValueError, match=f"A of measure '{measure}' cannot be learned"):
            LSSL(2, d_state=size, measure=measure, learn="a")
        return
    layer = LSSL(2, d_state=size, measure=measure, learn="abct")
    assert_close(layer.transition(), matrix, atol=1e-9, rtol=1e-9)
    with torch.no_grad():
        for parameter in (layer.turn, layer.damp):
            parameter.add_(torch.randn_like(parameter), alpha=3)
        layer.log_dt.add_(3 * torch.randn(2))
    a = layer.discretised()[0].detach()
    assert float(torch.linalg.matrix_norm(a, 2).max()) <= 1 + 1e-9


def test_the_memories_of_legendre_laguerre_and_fourier_can_be_learned():
    for measure in ("legs", "legt", "lagt", "fourier"):
        LSSL(2, d_state=4, measure=measure, learn="abct")


@pytest.mark.parametrize(("measure", "alpha"), [("legs", 0.0), ("legt", 0.2), ("lagt", 0.4)])
def test_a_step_that_would_make_the_state_grow_is_refused(measure, alpha):
    eigenvalues = torch.linalg.eigvals(transition(measure, 16)[0])

    def radius(dt):
        return float(((1 + (1 - alpha) * dt * eigenvalues) / (1 - alpha * dt * eigenvalues)).abs().max())

    with pytest.raises(ValueError, match="the state grows for dt above") as error:
        LSSL(2, d_state=16, measure=measure, alpha=alpha, dt=(1e-3, 1e3))
    limit = float(str(error.value).split("dt above ")[1].split(",")[0])
    assert radius(0.97 * limit) < 1 < radius(1.03 * limit)
    LSSL(2, d_state=16, measure=measure, alpha=alpha, dt=(1e-4, 0.97 * limit))
    with pytest.raises(ValueError, match="the state grows for dt above"):
        LSSL(2, d_state=16, measure=measure, alpha=alpha, dt=(1e-4, 0.97 * limit), step_rescale=1.1)
    LSSL(2, d_state=16, measure=measure, alpha=0.5, dt=(1e3, 1e3))


@torch.no_grad()
def test_half_the_sampling_rate_with_dt_doubled_is_the_same_function():
    layer = bare(LSSL(4, d_state=16, dt=(1e-3, 1e-2)))
    halved = bare(copy.deepcopy(layer))
    halved.step_rescale = 2.0

    def gaps(slower):
        """Distance of the coarse from the fine output, with and without the doubled steps, for periods so many times longer."""
        t = torch.arange(1000.0 * slower)
        x = torch.stack([torch.sin(2 * math.pi * t / (period * slower)) for period in (100, 150, 230, 400)], 1)[None]
        layer.log_dt -= math.log(slower)
        halved.log_dt -= math.log(slower)
        fine = layer(x)[0][:, 1::2]
        coarse, unchanged = (one(x[:, 1::2])[0] for one in (halved, layer))
        return [float((y - fine).norm() / fine.norm()) for y in (coarse, unchanged)]

    first, second = gaps(1), gaps(4)
    assert first[0] < 0.03 < 0.3 < first[1]
    assert second[0] < 0.3 * first[0], "the difference is that of the step, and goes with it"
    assert second[1] > 0.3


def test_poles():
    layer = LSSL(3, d_state=6, step_rescale=2.0)
    expected = -2 * layer.log_dt.exp()[:, None] * torch.arange(1, 7)  # LegS has the eigenvalues -1 .. -N
    assert_close(layer.poles().real.sort(descending=True).values, expected)
    assert (layer.poles().imag == 0).all()
    waves = LSSL(3, d_state=6, measure="legt").poles()
    assert waves.shape == (3, 3)
    assert float(waves.imag.min()) > 0


def test_what_is_kept_between_calls_follows_every_change():
    layer, x = LSSL(3, d_state=4), torch.randn(2, 9, 3)
    first = layer(x)[0]
    kept = layer._discrete
    assert layer(x)[0].requires_grad
    assert layer._discrete is kept

    def fresh():
        twin = copy.deepcopy(layer)
        twin._discrete = None
        return twin(x)[0]

    for change in (
        lambda: setattr(layer, "step_rescale", 3.0),
        lambda: layer.a.mul_(0.5),
        lambda: layer.log_dt.data.add_(1.0),
        lambda: layer.load_state_dict(LSSL(3, d_state=4, measure="lagt").state_dict()),
    ):
        change()
        second = layer(x)[0]
        assert_close(second, fresh())
        assert float((first - second).detach().abs().max()) > 1e-6
        first = second
    assert layer.float()(x.float())[0].dtype == torch.float32


def test_what_is_kept_in_inference_serves_training():
    layer, x = LSSL(3, d_state=4), torch.randn(2, 9, 3)
    with torch.inference_mode():
        y = layer(x)[0].clone()
    again = layer(x)[0]
    again.sum().backward()
    assert_close(again, y)
    learned = LSSL(3, d_state=4, learn="abct")
    with torch.no_grad():
        learned(x)
        learned.log_dt.add_(1.0)
        moved = learned(x)[0]
    again = learned(x)[0]
    again.sum().backward()
    assert_close(again, moved)
    assert (learned.log_dt.grad != 0).any()


def test_fixed_buffers_stay_wide_in_half_precision():
    layer = LSSL(3, d_state=4, learn="").float()
    layer(torch.randn(1, 2, 3, dtype=torch.float32))
    before = {name: t.clone() for name, t in layer.named_buffers()}
    layer.bfloat16()
    for name, tensor in layer.named_buffers():
        assert torch.equal(tensor, before[name])
    assert layer.out.weight.dtype == torch.bfloat16
    assert layer.double().a.dtype == torch.float64


def test_single_precision_is_near_double():
    layer = LSSL(4, d_state=64)
    x = torch.randn(1, 2000, 4)
    y, state = layer(x)
    narrow, h = layer.float()(x.float())
    assert_close(narrow.double(), y, atol=1e-4 * float(y.detach().abs().max()), rtol=0)
    assert_close(h.h_BDN.double(), state.h_BDN, atol=1e-4 * float(state.h_BDN.detach().abs().max()), rtol=0)


def test_its_block_is_norm_layer_gelu_residual():
    stack = pattern("lssl(d_state=4,measure='legt',learn='abct',channels=2)", d_model=3)
    (block,) = stack.parts
    assert isinstance(block, Block)
    layer, x = block.inner, torch.randn(2, 9, 3)
    u = block.norm(x)
    kernel = dense_kernel(*layer.discretised(), layer.c, 9)
    y = torch.stack([(kernel[..., : t + 1].flip(-1) * u.mT[:, :, None, : t + 1]).sum(-1) for t in range(9)], 1)
    hidden = F.gelu(y + layer.skip * u[..., None])
    assert_close(stack(x)[0], x + F.linear(hidden.flatten(2), layer.out.weight, layer.out.bias))


def test_initial_time_scales_and_work():
    dt = LSSL(200, d_state=2, dt=(1e-2, 1e-1)).log_dt.exp()
    assert 1e-2 <= float(dt.min()) < 2e-2
    assert 5e-2 < float(dt.max()) <= 1e-1
    assert LSSL(1, d_state=1, measure="lagt")(torch.randn(1, 3, 1))[0].shape == (1, 3, 1)
    small, large = (LSSL(8, d_state=n).work().multiply_adds for n in (64, 128))
    assert 3.5 < large / small < 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "lgs"}, "did you mean 'legs'"),
        ({"learn": "abcd"}, "letters a, b, c, t"),
        ({"d_state": 0}, "whole number from 1 on"),
        ({"channels": 1.5}, "whole number from 1 on"),
        ({"dt": (0.1, 0.01)}, "in order"),
        ({"dt": (0.0, 0.1)}, "positive"),
        ({"alpha": 1.5}, "must lie in 0..1"),
        ({"step_rescale": 0.0}, "step_rescale must be positive"),
        ({"measure": "lmu", "learn": "abc"}, "'lmu' cannot be learned"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LSSL(4, **options)


def test_a_state_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"expected a state of shape \(batch, 4, 3\)"):
        LSSL(4, d_state=3)(torch.zeros(2, 3, 4), LSSL(4, d_state=2).init_state(2))


@torch.no_grad()
def test_what_is_kept_of_the_transition_follows_its_options():
    layer, x = LSSL(3, d_state=4), torch.randn(1, 6, 3)
    first, _ = layer(x)
    for name, value in (("alpha", 1.0), ("step_rescale", 2.0)):
        setattr(layer, name, value)
        y, _ = layer(x)
        layer._discrete = None
        assert_close(y, layer(x)[0])
        assert not torch.allclose(y, first)
