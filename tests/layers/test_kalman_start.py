"""A first state of which nothing is known: no unit and no level of the series may matter, and the limit is that of an infinite variance."""

import math

import numpy as np
import pytest
import torch
from statsmodels.tsa.statespace.structural import UnobservedComponents

from conca import GaussianSystem, LinearSystem, structural
from conca.layers.kalman_start import follows, unknown_start
from conca.ops.kalman import KalmanState
from conca.types import BadInput

NOISE = np.random.default_rng(1).normal(size=120)
WALK = np.cumsum(np.random.default_rng(2).normal(size=100)) + 0.5 * np.random.default_rng(3).normal(size=100)


def series(values):
    return torch.tensor(np.asarray(values))[None, :, None]


def fitted(values, **options):
    """Variances, and the forecast of the third sample to come."""
    system = structural(**options)
    assert system.fit(series(values)).converged
    ahead = system.forecast(system.filter(series(values)).state, 3)
    return np.array(list(system.variances().values())), ahead.mean_BTO[0, -1, 0].item()


@pytest.mark.parametrize(("level", "deviation"), [(2e4, 2e3), (1e5, 1e3), (1e8, 1e6), (5e3, 5e2), (1e8, 1.0)])
def test_noise_around_a_high_level_is_noise(level, deviation):
    wanted, forecast = fitted(NOISE)
    found, ahead = fitted(level + deviation * NOISE)
    np.testing.assert_allclose(found / deviation**2, wanted, rtol=1e-4, atol=1e-9)
    assert (ahead - level) / deviation == pytest.approx(forecast, abs=1e-6)
    assert found[0] == pytest.approx(np.var(level + deviation * NOISE), rel=0.02)


@pytest.mark.parametrize("options", [{}, {"trend": True}, {"seasonal": 4}], ids=str)
@pytest.mark.parametrize(("unit", "level"), [(1e4, 0.0), (1e8, 0.0), (1e-4, 0.0), (1.0, 1e4), (1.0, 1e8)])
def test_unit_and_level_do_not_matter(options, unit, level):
    wanted, forecast = fitted(WALK, **options)
    found, ahead = fitted(unit * WALK + level, **options)
    np.testing.assert_allclose(found / unit**2, wanted, rtol=1e-4, atol=1e-8)
    assert (ahead - level) / unit == pytest.approx(forecast, abs=3e-5)


@pytest.mark.parametrize(
    ("options", "specification", "theirs", "values"),
    [
        ({}, "llevel", {}, [1.3, 0.4]),
        ({"trend": True}, "lltrend", {}, [1.3, 0.4, 0.05]),
        ({"trend": True, "seasonal": 7}, "lltrend", {"seasonal": 7}, [0.7, 0.3, 0.02, 0.1]),
    ],
)
@pytest.mark.parametrize("level", [0.0, 1e4, 1e8])
@pytest.mark.parametrize("gaps", [[], [0, 5, 6, 40], list(range(30))])
def test_it_is_as_if_the_first_variance_were_infinite(options, specification, theirs, values, level, gaps):
    y = WALK[:90] + level
    y[gaps] = np.nan
    expected = UnobservedComponents(y, specification, use_exact_diffuse=True, **theirs).smooth(values)
    names = structural(**options).names
    system = structural(**options, variances=dict(zip(names, values)))
    with torch.no_grad():
        found, smoothed = system.filter(series(y)), system.smooth(series(y))
        known = 2 * system.system.n_states + 4 + len(gaps)
        likelihood = system.log_likelihood(series(y), burn=known).item()
    assert likelihood == pytest.approx(expected.llf_obs[known:].sum(), rel=1e-6)
    means, spreads = (
        torch.tensor(expected.smoothed_state.T),
        torch.tensor(expected.smoothed_state_cov.transpose(2, 0, 1)),
    )
    doubt = spreads.diagonal(dim1=1, dim2=2).sqrt()
    error = (smoothed.mean_BTN[0] - means) / doubt
    apart = (smoothed.covariance_BTNN[0] - spreads) / (doubt[:, :, None] * doubt[:, None])
    begin = 30 if len(gaps) == 30 else 0  # what lies before is known by what the noise of 30 samples lets through
    close = 2e-5 if level < 1e8 else 1e-4  # there y itself is rounded to 1.5e-8
    assert max(error[begin:].abs().max(), apart[begin:].abs().max()) < close
    assert max(error.abs().max(), apart.abs().max()) < 3e-4
    ahead = system.forecast(found.state, 5)
    np.testing.assert_allclose(ahead.mean_BTO[0, :, 0].detach(), expected.get_forecast(5).predicted_mean, atol=1e-6)


def test_a_given_number_is_taken_as_it_is():
    mean, covariance = structural(trend=True, diffuse=1e6).init_state(2, series(1e4 + NOISE).expand(2, -1, -1))
    assert mean.tolist() == [[0, 0]] * 2
    assert torch.equal(covariance, 1e6 * torch.eye(2).expand(2, 2, 2))


def test_filter_smoother_likelihood_and_steps_begin_alike():
    y = series(3e4 + WALK)
    system = structural(trend=True)
    for _ in range(2):
        first = system.init_state(1, y)
        whole = system.filter(y)
        torch.testing.assert_close(whole.predicted_mean_BTN[:, 0], first.mean_BN, rtol=0, atol=0)
        torch.testing.assert_close(tuple(system.smooth(y)), tuple(system.smooth(y, first)), rtol=0, atol=0)
        torch.testing.assert_close(system.log_likelihood(y), system.log_likelihood(y, first, burn=2), rtol=0, atol=0)
        state = first
        for sample in y.unbind(1):
            _, state = system.step(sample, state)
        torch.testing.assert_close(tuple(state), tuple(whole.state))
        fit = system.fit(y)
        assert fit.log_likelihood == pytest.approx(system.log_likelihood(y).item(), rel=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(system.init_state(1), system.init_state(1, y))), "kept by the fit"
    copy = structural(trend=True)
    assert copy.init_state(1).covariance_BNN[0].equal(1e6 * torch.eye(2)), "nothing is known of the series either"
    copy.load_state_dict(system.state_dict())
    assert torch.equal(copy.init_state(1).mean_BN, system.init_state(1).mean_BN)


def test_after_a_fit_the_variance_is_kept_and_the_place_is_that_of_the_series():
    system = structural()
    system.fit(series(1e4 + NOISE))
    width = system.start_variance.clone()
    other = system.init_state(1, series(5e7 + 30 * NOISE))
    assert other.covariance_BNN.item() == width
    assert other.mean_BN.item() == pytest.approx(5e7, abs=100)
    assert system.init_state(1).mean_BN.item() == pytest.approx(1e4, abs=3)


def test_rows_lie_where_they_lie():
    y = torch.cat([series(NOISE), series(1e6 + NOISE)])
    system = structural()
    system.fit(y)
    alone = structural()
    alone.fit(series(NOISE))
    assert system.variances()["irregular"] == pytest.approx(alone.variances()["irregular"], rel=1e-3)
    assert system.start_apart.item() == pytest.approx(2.5e11, rel=1e-3)
    mean, covariance = system.init_state(3)
    assert mean[0].item() == pytest.approx(5e5, rel=1e-3)
    assert covariance[0].item() > 10 * 5e5**2, "either row may follow"


def test_a_row_that_begins_late_is_followed_back_to_the_first_sample():
    y = series(1e5 + 1e3 * np.arange(120) + NOISE)
    y[:, :40] = math.nan
    mean, covariance = structural(trend=True).init_state(1, y)
    torch.testing.assert_close(mean[0], torch.tensor([1e5, 1e3]), atol=0, rtol=1e-2)
    passed = torch.tensor([[1.0, 40.0], [0.0, 1.0]])
    there = passed @ covariance[0] @ passed.T
    torch.testing.assert_close(there / there[0, 0], torch.eye(2), atol=1e-8, rtol=1e-8)


def test_samples_too_far_apart_for_pieces_still_give_a_scale():
    y = torch.full((1, 1200, 1), math.nan)
    y[0, ::15, 0] = torch.tensor(1e8 + NOISE[:80])
    found = unknown_start(y, structural(trend=True).model(), None)
    assert found.square == pytest.approx(np.var(NOISE[:80]), rel=1e-4)


def test_where_a_mean_is_given_it_is_kept_and_the_variance_reaches_the_series():
    still = LinearSystem.discrete(torch.eye(1), torch.zeros(1, 0))
    parts = {"state_noise": torch.zeros(1), "observation_noise": torch.ones(1)}
    system = GaussianSystem(still, **parts, mean=torch.tensor([2.0]))
    mean, covariance = system.init_state(1, series(1e6 + NOISE))
    assert mean.item() == 2
    assert covariance.item() > 10 * 1e12
    found = system.filter(series(1e6 + NOISE)).mean_BTN[0, -1, 0].item()
    assert found == pytest.approx(1e6 + NOISE.mean(), abs=1e-4)


def test_known_inputs_offsets_and_units_of_the_state_are_taken_off():
    """A state in units a thousand times smaller, driven, and read with an offset: only the noise is left."""
    A, B, C = torch.tensor([[1.0, 1.0], [0.0, 0.9]]), torch.tensor([[300.0], [1.0]]), torch.tensor([[1e-3, 0.0]])
    system = GaussianSystem(
        LinearSystem.discrete(A, B, C),
        state_noise=torch.zeros(2),
        observation_noise=torch.tensor([1e-6]),
        offset=torch.tensor([7.0]),
    )
    u, begin = torch.randn(2, 400, 1), torch.tensor([[2e6, 3.0], [-1e6, 40.0]])
    y = system.system(u, torch.linalg.solve(A, begin.mT).mT)[0] + 7 + 0.05 * torch.randn(2, 400, 1)
    lengths = torch.tensor([400, 390])
    y[1, 390:] = math.nan
    found = unknown_start(y, system.model(u), lengths)
    assert found.square == pytest.approx(2500, rel=0.2)
    assert found.noise == pytest.approx(1)
    torch.testing.assert_close(found.mean_BN[:, 0], begin[:, 0], atol=200, rtol=0)
    y[:, 1::2] = math.inf
    with pytest.raises(BadInput, match="infinite in row 0 at sample 1; NaN"):
        system.filter(y, u=u)


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 5.0], [0.0, 0.0, 0.0], [math.nan] * 4, [5.0, 5.0001, 4.9999]])
def test_what_says_little_gives_a_wide_start(values):
    y = torch.tensor(values).reshape(1, -1, 1)
    mean, covariance = structural(trend=True).init_state(1, y)
    assert mean.isfinite().all()
    assert covariance[0, 0, 0] >= 1e6
    assert structural().filter(y).state.mean_BN.isfinite().all()


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({}, np.full(100, 5.0)),
        ({}, np.zeros(9)),
        ({}, [5.0, 5.0]),
        ({"trend": True}, 1e4 + 0.1 * np.arange(200)),
        ({"seasonal": 4}, 3 + np.tile([1.0, -2, 4, 0.5], 40)),
        ({"seasonal": 12, "harmonics": 2}, np.sin(2 * np.pi * np.arange(90) / 12)),
    ],
)
def test_a_series_without_noise_is_named(options, values):
    system = structural(**options)
    with pytest.raises(BadInput, match="follows y exactly, without noise"):
        system.fit(series(values))
    assert not follows(series(np.asarray(values) + 1e-6 * np.resize(NOISE, len(values))), system.model(), None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, y: s.filter(y.numpy()), "y must be a tensor, got ndarray"),
        (lambda s, y: s.fit(y[0, :, 0]), r"y of shape \(batch, time, 1\), got \(120,\)"),
        (lambda s, y: s.filter(y, lengths=[1]), "lengths must be a tensor, got list"),
        (lambda s, y: s.filter(y, lengths=torch.tensor([121])), "lengths must be 1 integers from 0 to 120"),
        (lambda s, y: s.filter(y, (1, 2)), "state to be a KalmanState, got tuple"),
        (lambda s, y: s.forecast(y, 3), "state to be a KalmanState, got Tensor"),
        (lambda s, y: s.filter(y.to("meta")), "y is on meta, the system on cpu"),
        (lambda s, y: s.filter(y, KalmanState(*(p.to("meta") for p in s.init_state(1)))), "the state is on meta"),
        (lambda s, y: s.filter(y, u=[1]), "u must be a tensor"),
        (lambda s, y: s.log_likelihood(y, burn=-1), "at least 0, got -1"),
        (lambda s, y: s.fit(y, starts=(-1.0,)), "factors on variances, above 0"),
        (lambda s, y: s.fit(y.masked_fill(y > 1, math.inf)), "y is infinite in row 0"),
        (lambda s, y: s.step(-math.inf * y[:, 0], s.init_state(1)), "y is infinite in row 0"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(BadInput, match=message) as raised:
        call(structural(), series(NOISE))
    assert "\n" not in str(raised.value)


def test_padding_may_be_infinite():
    y = series(NOISE)
    padded = torch.cat([y, torch.full((1, 3, 1), math.inf)], 1)
    system, lengths = structural(), torch.tensor([120])
    torch.testing.assert_close(tuple(system.filter(padded, lengths=lengths).state), tuple(system.filter(y).state))
    assert system.fit(padded, lengths=lengths).log_likelihood == pytest.approx(structural().fit(y).log_likelihood)


def test_a_state_made_elsewhere_is_brought_to_the_model():
    y, system = series(WALK), structural(trend=True)
    wanted = system.filter(y[:, 50:], system.filter(y[:, :50]).state)
    with torch.inference_mode():
        closed = system.filter(y[:, :50]).state
    found = system.filter(y[:, 50:], closed)
    torch.testing.assert_close(found.mean_BTN, wanted.mean_BTN)
    system.log_likelihood(y[:, 50:], closed).sum().backward()
    assert system.log_state_noise.grad.abs().min() > 0
    _, after = system.step(y[:, 50], closed)
    assert after.mean_BN.requires_grad
    narrow = KalmanState(*(part.float() for part in closed))
    torch.testing.assert_close(system.filter(y[:, 50:], narrow).mean_BTN, wanted.mean_BTN, rtol=1e-5, atol=1e-5)
    assert system.forecast(narrow, 2).mean_BTO.dtype == torch.float64
