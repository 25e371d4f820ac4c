"""HiPPO memories: the updates of the scaled one, and the past rebuilt from the state, to the error that theory gives."""

import math

import pytest
import torch

from conca.ops.hippo import MEASURES, legs, transition
from conca.ops.hippo_memory import (
    ALPHAS,
    METHODS,
    gauss,
    legs_advance,
    legs_stretch,
    project,
    scaled_steps,
    translated_steps,
)
from conca.ops.hippo_rebuild import basis, legendre, reach, rebuild
from conca.types import BadInput

WINDOWS = ("legt", "lmu", "chebt", "fourier", "fourier_decay")


def smooth(t):
    return torch.sin(2 * t) + 0.5 * torch.cos(3 * t + 1)


def middles(steps, length):
    """The middles of `steps` steps that fill 0..length."""
    return (torch.arange(steps) + 0.5) * length / steps


def legs_exactly(u, size, pieces=None):
    """The coefficients of u (y), 0 <= y <= 1, by Gauss's quadrature; of held samples piece by piece."""
    edges = torch.linspace(0, 1, (pieces or 1) + 1)
    nodes, weights = gauss(40)
    y = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * nodes
    values = u(y) if pieces is None else u[:, None].expand_as(y)
    weighted = values * (edges[1:] - edges[:-1])[:, None] * weights
    r = torch.sqrt(2 * torch.arange(size) + 1.0)
    return (weighted[..., None] * r * legendre(2 * y - 1, size)).sum((0, 1))


def test_zero_order_hold_is_the_projection_of_the_held_samples():
    u = torch.randn(23)
    torch.testing.assert_close(project(u[None], "legs", 8)[0], legs_exactly(u, 8, pieces=23))


def test_scaled_memory_does_not_know_how_fast_time_runs():
    """Each sample twice, or three times, is the same past at another rate: the same memory (HiPPO, proposition 3)."""
    u = torch.randn(2, 11)
    once = project(u, "legs", 12)
    for times in (2, 3):
        torch.testing.assert_close(project(u.repeat_interleave(times, 1), "legs", 12), once)
    assert not torch.allclose(project(u.repeat_interleave(2, 1), "legs", 12, method="forward"), once)


@pytest.mark.parametrize(
    ("method", "least", "most"),
    [("forward", 0.95, 1.05), ("backward", 0.95, 1.05), ("bilinear", 1.6, 2.05), ("zoh", 1.95, 2.05)],
)
def test_orders_of_error(method, least, most):
    """One for Euler, two for a hold read at the middles, h^2 log h for the bilinear rule, whose first steps are long beside the time."""
    exact = legs_exactly(lambda y: smooth(3 * y), 8)
    errors = [
        float((project(smooth(middles(n, 3.0))[None], "legs", 8, method=method)[0] - exact).norm()) for n in (400, 800)
    ]
    assert least < math.log2(errors[0] / errors[1]) < most


@pytest.mark.parametrize("method", ALPHAS)
def test_the_update_in_linear_time_is_the_dense_one(method):
    A, B = legs(16)
    c, u = torch.randn(5, 2, 16), torch.randn(5, 2)
    before, passed = torch.tensor([0.0, 1.0, 2.0, 50.0, 3.5]), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.25])
    a, b = scaled_steps(A, B, before, passed, method)
    expected = torch.einsum("bij,bmj->bmi", a, c) + u[..., None] * b[:, None]
    inputs = [t.requires_grad_() for t in (c, u, passed)]
    got = legs_advance(c, u, before, passed, ALPHAS[method])
    torch.testing.assert_close(got, expected.detach(), atol=1e-11, rtol=1e-11)
    assert torch.autograd.gradcheck(lambda c, u, p: legs_advance(c, u, before, p, ALPHAS[method]), inputs)


@pytest.mark.parametrize("size", [1, 5, 64])
def test_zero_order_hold_in_closed_form_is_the_exponential(size):
    before = torch.tensor([0.0, 1.0, 2.0, 9.0, 1000.0])
    a, b = legs_stretch(before / (before + 1), size)
    expected = scaled_steps(*legs(size), before, torch.ones(5), "zoh")
    torch.testing.assert_close((a, b), expected, atol=1e-11, rtol=1e-9)


def test_two_stretches_are_one():
    (a, b), (c, d), (both, entered) = (legs_stretch(torch.tensor(r), 9) for r in (0.5, 0.8, 0.4))
    torch.testing.assert_close(c @ a, both)
    torch.testing.assert_close(c @ b + d, entered)


@pytest.mark.parametrize("method", METHODS)
def test_scaled_methods_by_their_definition(method):
    """Step by step as the rule is written, k = 1, 2, 3, from the constant past."""
    A, B = legs(4)
    u, eye, alpha = torch.randn(4), torch.eye(4), ALPHAS.get(method)
    c = torch.tensor([1.0, 0, 0, 0]) * u[0]
    for k in (1, 2, 3):
        if method == "zoh":
            hold = torch.linalg.matrix_exp(A * (math.log(k + 1) - math.log(k)))
            c = hold @ c + A.inverse() @ (hold - eye) @ B * u[k]
        else:
            right = (eye + (1 - alpha) * A / k) @ c + ((1 - alpha) / k + alpha / (k + 1)) * B * u[k]
            c = torch.linalg.inv(eye - alpha * A / (k + 1)) @ right
        torch.testing.assert_close(project(u[None, : k + 1], "legs", 4, method=method)[0], c)


@pytest.mark.parametrize("measure", ["legs", "legsd", "legt", "glagt"])
@pytest.mark.parametrize("method", METHODS)
def test_a_memory_is_resumed(measure, method):
    u = torch.randn(2, 9, 3)
    options = {"dt": 0.01, "method": method}
    every = project(u, measure, 4, every=True, **options)
    assert every.shape == (2, 9, 3, 4)
    torch.testing.assert_close(every[:, -1], project(u, measure, 4, **options))
    first = project(u[:, :4], measure, 4, **options)
    torch.testing.assert_close(first, every[:, 3])
    rest = project(u[:, 4:], measure, 4, state=first, seen=4, every=True, **options)
    torch.testing.assert_close(rest, every[:, 4:])
    torch.testing.assert_close(project(u[..., 1], measure, 4, **options), every[:, -1, 1])


def test_lengths_zero_and_more_than_a_block_and_single_precision():
    assert project(torch.zeros(2, 0), "legs", 4).abs().sum() == 0
    assert project(torch.zeros(2, 0, 3), "legt", 4, every=True).shape == (2, 0, 3, 4)
    u = torch.randn(1, 300)
    wide = project(u, "legs", 4)
    torch.testing.assert_close(wide[0], legs_exactly(u[0], 4, pieces=300))
    narrow = project(u.float(), "legs", 4)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_samples_and_state(method):
    u, state = torch.randn(1, 4, requires_grad=True), torch.randn(1, 3, requires_grad=True)
    for measure in ("legs", "legt"):
        assert torch.autograd.gradcheck(
            lambda u, state, m=measure: project(u, m, 3, dt=0.1, state=state, seen=2, method=method), (u, state)
        )


# The past rebuilt.


@pytest.mark.parametrize("measure", WINDOWS)
def test_what_a_window_can_hold_is_rebuilt_exactly(measure):
    """A polynomial below degree N, or waves of the window's period, carried over half a window by steps of it: the error of the steps."""
    size, window = 6, reach(measure)
    steps, dt = 2000, reach(measure) / 4000
    if measure.startswith("fourier"):
        c = torch.randn(size)
        c[1] = 0

        def u(t):
            return basis(measure, size, -t % 2) @ c
    else:
        powers = torch.randn(size)

        def u(t):
            return sum(p * t**k for k, p in enumerate(powers))

    ages, used = torch.linspace(0, window, 50), [n for n in range(size) if n != 1 or not measure.startswith("fourier")]
    start = torch.zeros(size)
    start[used] = torch.linalg.lstsq(basis(measure, size, ages)[:, used], u(-ages)[:, None]).solution[:, 0]
    torch.testing.assert_close(rebuild(measure, start, ages), u(-ages))
    state = project(u(middles(steps, steps * dt))[None], measure, size, dt=dt, state=start[None])[0]
    torch.testing.assert_close(rebuild(measure, state, ages), u(steps * dt - ages), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("measure", ["legt", "lmu", "chebt"])
def test_a_window_over_a_smooth_past_is_rebuilt_ever_better(measure):
    """From an empty memory, four windows long; the error falls faster than any power of N, down to that of the steps."""
    window, steps = reach(measure), 1000
    ages = torch.linspace(0, window, 101)
    past = smooth(middles(4 * steps, 4 * window) - 4 * window)[None]
    errors = []
    for size in (4, 8, 12):
        state = project(past, measure, size, dt=window / steps)[0]
        errors.append(float((rebuild(measure, state, ages) - smooth(-ages)).abs().max()))
    assert errors[1] < errors[0] / 100 and errors[2] < 5e-5


def test_waves_over_a_past_that_is_not_periodic_converge_slowly():
    """The ends do not meet: in the mean over the window the error falls as the root of N, at the ends not at all."""
    ages = middles(400, 2.0)
    state = {n: project(smooth(middles(8000, 4.0) - 4)[None], "fourier", n, dt=5e-4)[0] for n in (16, 64)}
    errors = {n: float((rebuild("fourier", s, ages) - smooth(-ages)).square().mean().sqrt()) for n, s in state.items()}
    assert 0.3 < errors[64] / errors[16] < 0.7


def test_legs_rebuilds_to_the_error_of_its_steps():
    """16 numbers, a smooth past: to 2e-9, over all of it."""
    t = torch.linspace(0, 1, 25_001)
    u = torch.cos(2 * t)
    state = project((u[1:] + u[:-1])[None] / 2, "legs", 16, method="bilinear")[0]
    ages = torch.linspace(0, 1, 101)
    assert float((rebuild("legs", state, ages, span=1.0) - torch.cos(2 * (1 - ages))).abs().max()) < 2e-9


@pytest.mark.parametrize("size", [4, 16, 64])
def test_the_error_of_legs_is_what_the_coefficients_leave(size):
    """Parseval: mean square error = mean square of the past - sum of squares kept; for a kink under the bound L t / sqrt(N)."""
    held = (middles(1024, 1.0) - 0.4).abs()
    state = project(held[None], "legs", size)[0]
    nodes, weights = gauss(40)
    ages = 1 - (torch.arange(1024)[:, None] + nodes) / 1024
    left = rebuild("legs", state, ages.flatten(), span=1.0).view_as(ages) - held[:, None]
    error = (left.square() * weights).sum(1).mean()
    torch.testing.assert_close(error, held.square().mean() - state.square().sum(), atol=1e-10, rtol=1e-6)
    assert float(error.sqrt()) < 1 / math.sqrt(size)


FADING = {
    "legs": ({}, lambda s: torch.exp(-s)),
    "lagt": ({}, torch.ones_like),
    "tlagt": ({"beta": 0.5}, lambda s: 0.25 * torch.exp(-0.5 * s)),
    "glagt": ({"alpha": 0.0, "beta": 0.5}, lambda s: 0.5 * torch.exp(-0.5 * s)),
}


@pytest.mark.parametrize("measure", FADING)
def test_a_fading_memory_keeps_the_projection_and_nothing_else(measure):
    """Parseval under the weight of the measure, and an error that falls with N."""
    options, weight = FADING[measure]
    dt, steps = 0.01, 12_000
    ages = middles(steps, steps * dt)

    def bump(s):
        return torch.exp(-((s - 3) ** 2))

    total, errors = float((bump(ages).square() * weight(ages)).sum() * dt), []
    for size in (6, 12, 24):
        state = project(bump(ages).flip(0)[None], measure, size, dt=dt, scaled=False, **options)[0]
        left = rebuild(measure, state, ages, **options) - bump(ages)
        errors.append(float((left.square() * weight(ages)).sum() * dt))
        assert errors[-1] == pytest.approx(total - float(state.square().sum()), abs=1e-4 * total)
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]
    assert errors[2] < (0.4 if measure == "legs" else 0.02) * total


def test_generalised_laguerre_rebuilds_what_it_can_hold():
    """A past that is one of its functions: the state is 1 at its place, by the steps' error (the weight is singular at age 0)."""
    options = {"alpha": 0.4, "beta": 0.5}
    ages = middles(20_000, 60.0)
    past = basis("glagt", 5, ages, **options)[:, 2]
    state = project(past.flip(0)[None], "glagt", 5, dt=60 / 20_000, **options)[0]
    torch.testing.assert_close(state, torch.eye(5)[2], atol=3e-3, rtol=0)
    torch.testing.assert_close(rebuild("glagt", state, ages[100:2000], **options), past[100:2000], atol=2e-2, rtol=0)


def test_laps_laid_over_each_other_are_rebuilt_with_the_least_energy():
    """The past that foud gives has the state that it was given, and no past with this state is smaller."""
    torch.manual_seed(3)
    state = torch.randn(6)
    state[1] = 0
    steps, laps = 500, 30
    ages = middles(steps * laps, float(laps))
    past = rebuild("foud", state, ages)
    again = project(past.flip(0)[None], "foud", 6, dt=1 / steps)[0]
    torch.testing.assert_close(again, state, atol=1e-4, rtol=1e-4)
    other = torch.where(ages < 1, 1.3 * past, past)  # more now, less a lap ago
    lap = (ages >= 1) & (ages < 2)
    other[lap] = past[lap] - 0.3 * past[ages < 1] * math.exp(0.5)
    torch.testing.assert_close(project(other.flip(0)[None], "foud", 6, dt=1 / steps)[0], again, atol=1e-3, rtol=1e-3)
    assert float(other.square().sum()) > float(past.square().sum())


@pytest.mark.parametrize(("size", "bound"), [(16, 1.5e-3), (64, 3e-6)])
def test_the_normal_part_is_legs_as_memory_grows(size, bound):
    """HiPPO-N, A + P P' and half of B, on a smooth input: the first 8 coefficients. With all of B they are far off."""
    steps = 1500
    u = torch.exp(-((middles(steps, 10.0) - 5) ** 2) / 2)[None]
    truth, close = (project(u, m, size, method="bilinear")[0, :8] for m in ("legs", "legsd"))
    assert float((truth - close).abs().max()) < bound
    whole = project(2 * u, "legsd", size, method="bilinear")[0, :8]  # linear in B as in u
    assert float((whole - truth).abs().max()) > 0.1


def test_without_the_division_the_same_in_warped_time():
    """x' = A x + B u on u(t) with t = log of the time of the scaled memory."""
    size, steps = 64, 4000
    s = middles(steps, 12.0)
    u = torch.exp(-((torch.exp(-s) - 0.5) ** 2) * 8).flip(0)[None]
    constant = torch.eye(1, size) * u[0, 0]  # before
    plain, close = (project(u, m, size, dt=12 / steps, scaled=False, state=constant)[0, :8] for m in ("legs", "legsd"))
    scaled = legs_exactly(lambda y: torch.exp(-((y - 0.5) ** 2) * 8), 8)
    torch.testing.assert_close(plain, scaled, atol=2e-5, rtol=0)
    torch.testing.assert_close(close, plain, atol=3e-6, rtol=0)


def test_translated_steps_of_several_lengths():
    a, b = translated_steps(*transition("legt", 4), torch.tensor([[0.1, 0.2]]), "bilinear")
    assert a.shape == (1, 2, 4, 4) and b.shape == (1, 2, 4)


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_rebuilds(measure):
    state = project(torch.randn(2, 30, 3), measure, 6, dt=0.05)
    ages = torch.linspace(0.0, min(reach(measure), 5.0), 7) if measure != "glagt" else torch.linspace(0.1, 5, 7)
    values = rebuild(measure, state, ages)
    assert values.shape == (2, 3, 7) and torch.isfinite(values).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda u: project(u, "lagt", 4, scaled=True), "does not close at finite N"),
        (lambda u: project(u, "chebt", 4, scaled=True), "spans the polynomials of LegS"),
        (lambda u: project(u, "legt", 4, scaled=True), "use 'legs'"),
        (lambda u: project(u, "fourier", 4, scaled=True), "multiplies a wave"),
        (lambda u: project(u, "lgst", 4), "did you mean"),
        (lambda u: project(u, "legs", 4, method="euler"), "known: backward"),
        (lambda u: project(u[0], "legs", 4), "batch, time"),
        (lambda u: project(u, "legs", 4, state=torch.zeros(2, 3)), "expected"),
        (lambda u: rebuild("legt", torch.zeros(4), torch.tensor([2.5])), "0..2"),
        (lambda u: rebuild("legs", torch.zeros(4), torch.tensor([-0.1])), "0..inf"),
        (lambda u: rebuild("legs", torch.zeros(4), torch.tensor([5.0]), span=4.0), "0..4"),
        (lambda u: rebuild("legt", torch.zeros(4), torch.tensor([1.0]), span=4.0), "span"),
        (lambda u: rebuild("legs", torch.zeros(4), torch.tensor([math.nan])), "0..inf"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_reason(call, message):
    with pytest.raises(BadInput, match=message):
        call(torch.zeros(2, 5))


@pytest.mark.parametrize("dt", [0.0, -1.0, math.nan, math.inf])
def test_a_step_must_take_time(dt):
    with pytest.raises(BadInput, match="dt is the time between samples, above 0"):
        project(torch.ones(1, 3), "legt", 4, dt=dt)


def test_less_than_nothing_cannot_have_been_seen():
    with pytest.raises(BadInput, match="seen is how many samples were read before, at least 0, got -1"):
        project(torch.ones(1, 3), "legs", 4, seen=-1)


def test_what_is_rebuilt_must_be_a_list_of_ages_and_real_numbers():
    with pytest.raises(BadInput, match=r"ages must be a list \(K,\), got shape \(\); of one age, give ages\[None\]"):
        rebuild("legt", torch.ones(4), torch.tensor(0.5))
    with pytest.raises(BadInput, match="coefficients must be floating point"):
        rebuild("legt", torch.ones(2, 4, dtype=torch.int64), torch.tensor([0.5]))
    with pytest.raises(BadInput, match="coefficients must be floating point"):
        rebuild("legt", torch.tensor(1.0), torch.tensor([0.5]))
