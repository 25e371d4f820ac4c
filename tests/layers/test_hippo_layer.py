"""HiPPO as a recurrent network: its memory is the projection, time is part of the state, and the past can be read off it."""

import math

import pytest
import torch

from conca.layers.hippo import BLOCK, HiPPO, HiPPOState
from conca.layers.states import put, take
from conca.ops.hippo import MEASURES
from conca.ops.hippo_memory import METHODS, project
from conca.ops.hippo_rebuild import rebuild


def watching(d_model=3, **options):
    """A layer that remembers its first input features as they are."""
    layer = HiPPO(d_model, **options)
    with torch.no_grad():
        layer.again.weight.zero_()
        layer.read.weight[: layer.channels] = torch.eye(layer.channels, d_model)
        layer.read.bias[: layer.channels] = 0
    return layer


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("method", METHODS)
def test_its_memory_is_the_projection_of_what_it_chose(measure, method):
    layer = watching(d_state=6, channels=2, measure=measure, method=method, dt=0.01)
    x = torch.randn(2, BLOCK + 9, 3)
    options = {"dt": 0.01, "method": method}
    _, state = layer(x)
    expected = project(x[..., :2], measure, 6, **options)
    torch.testing.assert_close(state.m_BMN, expected, atol=1e-9, rtol=1e-9)
    assert state.t_B.tolist() == [BLOCK + 9] * 2
    _, state = layer(x, state)
    expected = project(x[..., :2], measure, 6, state=expected, seen=BLOCK + 9, **options)
    torch.testing.assert_close(state.m_BMN, expected, atol=1e-9, rtol=1e-9)


def test_the_cell_by_its_equations():
    layer = HiPPO(3, d_state=4, channels=2, measure="lagt", method="zoh")
    x, h, m = torch.randn(2, 5, 3), torch.randn(2, 3), torch.randn(2, 2, 4)
    y, state = layer(x, HiPPOState(h, m, torch.zeros(2)))
    a, b = layer.fixed
    weight, bias, width = layer.read.weight, layer.read.bias, 3
    for t in range(5):
        f = x[:, t] @ weight[:2].T + bias[:2] + h @ layer.again.weight.T
        m = torch.einsum("ij,bmj->bmi", a, m) + torch.einsum("i,bm->bmi", b, f)
        both = x[:, t] @ weight[2:].T + bias[2:] + m.reshape(2, 8) @ layer.recall.weight.T
        gate = torch.sigmoid(both[:, :width])
        h = (1 - gate) * h + gate * torch.tanh(both[:, width:])
        torch.testing.assert_close(y[:, t], h)
    torch.testing.assert_close((state.h_BD, state.m_BMN), (h, m))


def test_a_closed_gate_keeps_the_output():
    layer = HiPPO(3, d_state=4)
    with torch.no_grad():
        layer.read.weight[1:4] = 0
        layer.read.bias[1:4] = -60
        layer.recall.weight[:3] = 0
    start = HiPPOState(torch.randn(2, 3), torch.randn(2, 1, 4), torch.full((2,), 7.0))
    y, _ = layer(torch.randn(2, 5, 3), start)
    torch.testing.assert_close(y, start.h_BD[:, None].expand(2, 5, 3))


@pytest.mark.parametrize("options", [{}, {"method": "zoh"}, {"measure": "legsd"}])
def test_rows_have_read_for_different_times(options):
    """Rows of unequal age, merged into one batch, go on as they would alone, whether or not they share a matrix."""
    layer = HiPPO(3, d_state=5, **options)
    x, more = torch.randn(3, 9, 3), torch.randn(3, BLOCK + 5, 3)
    states = [layer(x[i : i + 1, :n])[1] for i, n in enumerate((9, 4, 0))]
    merged = layer.init_state(3)
    for i, state in enumerate(states):
        merged = put(merged, torch.tensor([i]), state)
    y, end = layer(more, merged)
    for i, state in enumerate(states):
        alone, last = layer(more[i : i + 1], state)
        torch.testing.assert_close(y[i : i + 1], alone)
        torch.testing.assert_close(tuple(take(end, torch.tensor([i]))), tuple(last))


@pytest.mark.parametrize("measure", ["legs", "legsd", "legt", "lagt", "chebt"])
def test_a_long_step_is_two_short_ones_under_held_input(measure):
    layer = watching(d_state=6, measure=measure, method="zoh")
    x = torch.randn(2, 7, 3)
    _, once = layer(x, elapsed=torch.full((2, 7), 2.0))
    _, twice = layer(x.repeat_interleave(2, 1))
    torch.testing.assert_close(once.m_BMN, twice.m_BMN, atol=1e-9, rtol=1e-9)
    assert once.t_B.tolist() == twice.t_B.tolist() == [14.0, 14.0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("measure", ["legs", "legsd", "legt"])
def test_a_step_of_no_duration_leaves_the_memory(measure, method):
    layer = HiPPO(3, d_state=6, measure=measure, method=method)
    _, state = layer(torch.randn(2, 5, 3))
    _, same = layer(torch.randn(2, 1, 3), state, elapsed=torch.zeros(2, 1))
    torch.testing.assert_close(same.m_BMN, state.m_BMN)
    elapsed = torch.zeros(2, 2, requires_grad=True)
    y, fresh = layer(torch.randn(2, 2, 3), elapsed=elapsed)
    y.sum().backward()
    assert torch.isfinite(y).all() and fresh.t_B.tolist() == [0, 0] and torch.isfinite(elapsed.grad).all()


@pytest.mark.parametrize(
    ("measure", "method"), [("legs", "bilinear"), ("legs", "zoh"), ("legsd", "zoh"), ("legt", "zoh")]
)
def test_gradients_reach_elapsed_and_the_time_read_of_each_row(measure, method):
    """Rows of equal times too, which could share their matrices if nothing had to come back."""
    layer = HiPPO(2, d_state=4, measure=measure, method=method)
    x, h, m = torch.randn(2, 3, 2), torch.randn(2, 2), torch.randn(2, 1, 4)
    inputs = [torch.tensor([[0.6, 1.0, 1.3]] * 2, requires_grad=True), torch.full((2,), 4.0, requires_grad=True)]
    assert torch.autograd.gradcheck(lambda elapsed, t: layer(x, HiPPOState(h, m, t), elapsed=elapsed)[0], inputs)


def test_there_is_no_longest_time():
    """After a hundred thousand steps a new sample weighs a hundred-thousandth."""
    layer = watching(d_state=4)
    state = HiPPOState(torch.zeros(1, 3), torch.eye(1, 4)[None] * 2.0, torch.full((1,), 1e5))
    _, after = layer(torch.full((1, 1, 3), 3.0), state)
    assert float(after.m_BMN.detach()[0, 0, 0]) == pytest.approx(2 + 1e-5, abs=1e-9)


@pytest.mark.parametrize(("measure", "bound"), [("legs", 1e-2), ("legt", 2e-2), ("chebt", 2e-2)])
def test_the_past_is_read_off_the_state(measure, bound):
    layer = watching(1, d_state=12, measure=measure, method="zoh").float()
    t = torch.arange(400.0)
    u = torch.sin(t / 40).float()
    _, state = layer(u[None, :, None])
    memory = state.m_BMN.detach()[0, 0]
    if measure == "legs":
        ages, span = torch.linspace(0, 400, 50), 400.0
        values = rebuild(measure, memory, ages, span=span)
    else:  # 200 steps, dt = 0.01 time units each
        ages = torch.linspace(0, 200, 50)
        values = rebuild(measure, memory, ages * layer.dt)
    assert values.dtype == torch.float32
    assert float((values - torch.sin((400 - 0.5 - ages) / 40)).abs().max()) < bound


def test_default_windows():
    steps = {m: HiPPO(2, d_state=4, measure=m).dt for m in MEASURES}
    assert steps["legt"] == steps["chebt"] == steps["fourier"] == 0.01
    assert steps["lmu"] == 0.005 and steps["lagt"] == steps["glagt"] == 1


def test_matrices_are_not_parameters_and_not_narrowed():
    layer = HiPPO(3, d_state=4, measure="legt").bfloat16()
    assert layer.fixed[0].dtype == torch.float64
    assert all(p.dtype == torch.get_default_dtype() for p in layer.parameters())
    names = {n for n, _ in layer.named_parameters()}
    assert names == {"read.weight", "read.bias", "again.weight", "recall.weight"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "lgs"}, "did you mean 'legs'"),
        ({"method": "euler"}, "known: backward"),
        ({"measure": "fourier", "d_state": 5}, "even"),
        ({"d_state": 0}, "whole number from 1 on"),
        ({"channels": 0}, "whole number from 1 on"),
        ({"dt": 0.0}, "positive"),
        ({"dt": math.nan}, "positive"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HiPPO(4, **options)
