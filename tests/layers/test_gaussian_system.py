"""GaussianSystem and structural models: equal to statsmodels, streamed, fitted, refused."""

import numpy as np
import pytest
import torch
from statsmodels.tsa.statespace.structural import UnobservedComponents

import conca
from conca import GaussianSystem, LinearSystem, structural
from conca.layers import states
from conca.layers.kalman_fit import rescale, shift
from conca.ops.kalman import KalmanState
from conca.types import BadInput

MODELS = {
    "level": ({}, "llevel", {}, [1.3, 0.4]),
    "trend": ({"trend": True}, "lltrend", {}, [1.3, 0.4, 0.05]),
    "season": ({"seasonal": 4}, "llevel", {"seasonal": 4}, [0.7, 0.3, 0.2]),
    "trend and season": ({"trend": True, "seasonal": 7}, "lltrend", {"seasonal": 7}, [0.7, 0.3, 0.02, 0.1]),
    "harmonics": (
        {"trend": True, "seasonal": 12, "harmonics": 3},
        "lltrend",
        {"freq_seasonal": [{"period": 12, "harmonics": 3}]},
        [0.7, 0.3, 0.02, 0.1],
    ),
    "half turn": ({"seasonal": 6, "harmonics": 3}, "llevel", {"freq_seasonal": [{"period": 6}]}, [0.7, 0.3, 0.1]),
    "season alone": ({"level": False, "seasonal": 4}, "irregular", {"seasonal": 4}, [0.7, 0.2]),
    "certain trend": ({"trend": True}, "lltrend", {}, [1.3, 0.4, 0.0]),
}


def simulated(T=60, *, gaps=False, season=7):
    rng = np.random.default_rng(3)
    y = np.cumsum(0.3 * rng.normal(size=T)) + 2 * np.sin(2 * np.pi * np.arange(T) / season) + rng.normal(size=T) + 20
    if gaps:
        y[[0, 5, 6, 30, 31, 32, T - 1]] = np.nan
    return y


def pair(name):
    """Ours and theirs, at the same variances."""
    options, specification, theirs, values = MODELS[name]
    system = structural(**options)
    system = structural(**options, variances=dict(zip(system.names, values)), diffuse=1e6)
    return system, lambda y: UnobservedComponents(y, specification, **theirs).smooth(values)


def tensor(values):
    return torch.tensor(np.array(values))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_structural_models_are_those_of_statsmodels(name, gaps):
    y = simulated(gaps=gaps)
    system, reference = pair(name)
    expected, series = reference(y), tensor(y)[None, :, None]
    found, smoothed = system.filter(series), system.smooth(series)
    close = {"atol": 1e-8, "rtol": 1e-8}
    torch.testing.assert_close(system.log_likelihood(series), tensor([expected.llf]), **close)
    burnt = tensor(expected.llf_obs)[system.system.n_states :]
    torch.testing.assert_close(found.log_likelihood_BT[0, system.system.n_states :], burnt, **close)
    torch.testing.assert_close(found.mean_BTN[0], tensor(expected.filtered_state.T), **close)
    torch.testing.assert_close(found.predicted_mean_BTN[0], tensor(expected.predicted_state.T[:-1]), **close)
    torch.testing.assert_close(
        found.covariance_BTNN[0], tensor(expected.filtered_state_cov.transpose(2, 0, 1)), **close
    )
    torch.testing.assert_close(smoothed.mean_BTN[0], tensor(expected.smoothed_state.T), **close)
    # While the first state is unknown the peer's smoothed covariance has lost ten digits to a variance of 1e6; see below.
    known = slice(2 * system.system.n_states + 4, None)
    theirs = tensor(expected.smoothed_state_cov.transpose(2, 0, 1))
    torch.testing.assert_close(smoothed.covariance_BTNN[0, known], theirs[known], **close)
    torch.testing.assert_close(smoothed.covariance_BTNN[0], theirs, atol=2e-3, rtol=0)
    ahead, forecast = system.forecast(found.state, 9), expected.get_forecast(9)
    torch.testing.assert_close(ahead.mean_BTO.flatten(), tensor(forecast.predicted_mean), **close)
    torch.testing.assert_close(ahead.covariance_BTOO.flatten(), tensor(forecast.var_pred_mean), **close)
    torch.testing.assert_close(torch.cat(ahead.interval(0.8), 2)[0], tensor(forecast.conf_int(alpha=0.2)), **close)


@pytest.mark.parametrize("name", ["trend", "trend and season", "harmonics"])
def test_smoothed_covariances_are_those_of_statsmodels_from_a_known_start(name):
    options, specification, theirs, values = MODELS[name]
    y = simulated(gaps=True)
    size = structural(**options).system.n_states
    mean, root = torch.randn(size), torch.randn(size, size)
    spread = root @ root.T + torch.eye(size)
    peer = UnobservedComponents(y, specification, **theirs)
    peer.ssm.initialize_known(mean.numpy(), spread.numpy())
    peer.loglikelihood_burn = 0
    expected = peer.smooth(values)
    ours = structural(**options, variances=dict(zip(structural(**options).names, values)))
    series, state = tensor(y)[None, :, None], KalmanState(mean[None], spread[None])
    smoothed = ours.smooth(series, state)
    torch.testing.assert_close(smoothed.mean_BTN[0], tensor(expected.smoothed_state.T), atol=1e-8, rtol=1e-8)
    covariance = tensor(expected.smoothed_state_cov.transpose(2, 0, 1))
    torch.testing.assert_close(smoothed.covariance_BTNN[0], covariance, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(ours.log_likelihood(series, state), tensor([expected.llf]), atol=1e-8, rtol=1e-8)


def test_a_smoothed_level_is_right_where_nothing_was_known():
    """Two levels of one series, seen twice: the covariance of the first state by hand, to ten digits; diffuse starts cost none."""
    q, h, diffuse = 0.4, 1.3, 1e6
    system = structural(variances={"irregular": h, "level": q}, diffuse=diffuse)
    smoothed = system.smooth(torch.tensor([1.0, 2.0])[None, :, None])
    joint = torch.tensor([[diffuse, diffuse], [diffuse, diffuse + q]])
    expected = torch.linalg.inv(torch.tensor([[1 / diffuse + 1 / q, -1 / q], [-1 / q, 1 / q]]) + torch.eye(2) / h)
    assert torch.allclose(torch.linalg.inv(torch.linalg.inv(joint) + torch.eye(2) / h), expected, atol=1e-3)
    torch.testing.assert_close(smoothed.covariance_BTNN[0, :, 0, 0], expected.diagonal(), atol=1e-9, rtol=0)


def general():
    """Two states, an input, two outputs, a direct path, noise with correlations, a known start."""
    A, B = torch.tensor([[-0.3, 1.0], [-1.0, -0.2]]), torch.tensor([[0.5], [1.0]])
    C, D = torch.tensor([[1.0, 0.0], [0.5, -1.0]]), torch.tensor([[0.2], [0.0]])
    system = LinearSystem(A, B, C, D, dt=0.3, transform="bilinear")
    spread = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    return GaussianSystem(
        system,
        state_noise=torch.tensor([[0.5, 0.2], [0.2, 0.4]]),
        observation_noise=torch.tensor([[0.3, -0.1], [-0.1, 0.2]]),
        offset=torch.tensor([1.0, -2.0]),
        mean=torch.tensor([0.5, 0.1]),
        covariance=spread,
    )


def test_without_noise_it_is_the_linear_system():
    quiet = general()
    with torch.no_grad():
        quiet.log_state_noise.fill_(-torch.inf)
    quiet.covariance.zero_()
    u = torch.randn(2, 8, 1)
    y, _ = quiet.system(u, torch.linalg.solve(quiet.system.discretised()[0], quiet.mean).expand(2, 2))
    ahead = quiet.forecast(quiet.init_state(2), 8, u=u)
    torch.testing.assert_close(ahead.mean_BTO, y + quiet.offset)
    found = quiet.filter(torch.randn(2, 8, 2), u=u)
    torch.testing.assert_close(found.mean_BTN @ quiet.system.C.T + u @ quiet.system.D.T, y)
    torch.testing.assert_close(quiet.model().observation_noise, torch.tensor([[0.3, -0.1], [-0.1, 0.2]]))


def test_the_noise_of_the_state_is_held_over_a_step_like_an_input():
    noisy = general()
    _, r = LinearSystem(noisy.system.A, torch.eye(2), dt=0.3, transform="bilinear").discretised()
    torch.testing.assert_close(noisy.model().state_noise, r @ torch.tensor([[0.5, 0.2], [0.2, 0.4]]) @ r.T)


def test_streamed_saved_and_resumed_it_is_the_filter(tmp_path):
    system = general()
    y, u = torch.randn(2, 9, 2), torch.randn(2, 9, 1)
    y[0, 3], y[1, 4, 1] = float("nan"), float("nan")
    whole = system.filter(y, u=u)
    state = system.init_state(2)
    for t in range(9):
        update, state = system.step(y[:, t], state, u[:, t])
        torch.testing.assert_close(update.mean_BN, whole.mean_BTN[:, t])
        if t == 5:
            states.save(state, tmp_path / "kept.safetensors")
    torch.testing.assert_close(tuple(state), tuple(whole.state))
    kept = states.load(tmp_path / "kept.safetensors", state)
    rest = system.filter(y[:, 6:], kept, u=u[:, 6:])
    torch.testing.assert_close(rest.mean_BTN, whole.mean_BTN[:, 6:])
    parts = system.log_likelihood(y[:, :6], u=u[:, :6]), system.log_likelihood(y[:, 6:], kept, u=u[:, 6:])
    torch.testing.assert_close(sum(parts), system.log_likelihood(y, u=u))


def test_gradients_reach_every_parameter_and_the_start():
    A, B = torch.tensor([[-0.3, 1.0], [-1.0, -0.2]]), torch.tensor([[0.5], [1.0]])
    C, D = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.2]])
    y, u = torch.randn(2, 5, 1), torch.randn(2, 5, 1)
    y[0, 2] = float("nan")

    def outcome(A, B, C, D, offset, mean, covariance):
        system = LinearSystem(A, B, C, D, dt=0.3)
        noise = {"state_noise": torch.tensor([0.5, 0.2]), "observation_noise": torch.tensor([0.3])}
        whole = GaussianSystem(system, **noise, offset=offset, mean=mean, covariance=covariance @ covariance.T)
        return whole.log_likelihood(y, u=u)

    parts = [A, B, C, D, torch.zeros(1), torch.zeros(2), torch.eye(2)]
    assert torch.autograd.gradcheck(outcome, [part.requires_grad_() for part in parts])
    system = general()
    (slope,) = torch.autograd.grad(system.log_likelihood(torch.randn(1, 6, 2)).sum(), system.log_state_noise)
    assert slope.abs().min() > 0


@pytest.mark.parametrize(
    ("options", "specification", "theirs", "y"),
    [
        ({}, "llevel", {}, simulated(80, season=1e9)),
        ({"trend": True}, "lltrend", {}, simulated(60, gaps=True, season=1e9)),
        ({"seasonal": 4}, "llevel", {"seasonal": 4}, simulated(60, season=4)),
    ],
    ids=["level", "trend", "season"],
)
def test_a_fit_is_at_least_as_likely_as_that_of_statsmodels(options, specification, theirs, y):
    system = structural(**options, diffuse=1e6)
    fit = system.fit(tensor(y)[None, :, None])
    expected = UnobservedComponents(y, specification, **theirs).fit(disp=0, maxiter=500)
    assert fit.converged
    assert fit.log_likelihood > expected.llf - 2e-4
    assert fit.log_likelihood == pytest.approx(float(system.log_likelihood(tensor(y)[None, :, None]).detach()))
    assert set(system.variances()) == set(system.names)


def test_a_fit_finds_what_a_series_was_made_with():
    A = torch.nn.Parameter(torch.tensor([[0.2]]))
    system = GaussianSystem(
        LinearSystem.discrete(A, torch.ones(1, 1)),
        state_noise=torch.ones(1),
        observation_noise=torch.ones(1),
        covariance=torch.ones(1, 1),
    )
    u, x, y = torch.randn(4, 150, 1), torch.zeros(4, 1), []
    for t in range(150):
        x = 0.8 * x + u[:, t] + 0.5 * torch.randn(4, 1)
        y.append(x + 0.2 * torch.randn(4, 1))
    fit = system.fit(torch.stack(y, 1), u=u, steps=40, starts=(1.0,))
    assert fit.converged
    assert A.item() == pytest.approx(0.8, abs=0.03)
    assert system.variances()["state 0"] == pytest.approx(0.25, rel=0.2)


def test_a_start_is_brought_to_the_scale_of_the_series_by_one_factor():
    y, system = 1e3 * tensor(simulated(80))[None, :, None], structural(trend=True, diffuse=1e6)
    noises = system.log_state_noise, system.log_observation_noise
    rescale(noises, lambda: system.log_likelihood(y).sum(), 78)
    assert len(set(system.variances().values())) == 1, "all were 1 before"
    best = float(system.log_likelihood(y).detach())
    for factor in (0.98, 1.02):
        shift(noises, factor)
        assert float(system.log_likelihood(y).detach()) < best
        shift(noises, 1 / factor)


def test_a_fit_that_does_not_converge_says_so():
    system = structural(trend=True)
    with pytest.warns(UserWarning, match="not converged after 1 steps.*more steps"):
        fit = system.fit(tensor(simulated(20))[None, :, None], steps=1, starts=(1e-3,))
    assert not fit.converged
    assert fit.words.startswith("not converged")


def test_a_variance_of_0_stays_0():
    system = structural(trend=True, variances={"trend": 0.0})
    system.fit(tensor(simulated(30))[None, :, None], starts=(1.0,))
    assert system.variances()["trend"] == 0
    assert system.variances()["level"] > 0


def test_one_observation_and_none():
    system = structural(variances={"irregular": 4.0, "level": 0.0})
    once = system.filter(torch.tensor([[[5.0]]]))
    assert once.mean_BTN.item() == pytest.approx(5, abs=1e-4)
    assert once.covariance_BTNN.item() == pytest.approx(4, abs=1e-4)
    assert system.log_likelihood(torch.zeros(3, 0, 1)).tolist() == [0, 0, 0]
    assert system.log_likelihood(torch.tensor([[[5.0]]])).tolist() == [0], "it went into the unknown first state"


def test_small_numbers_are_fitted_with_a_smaller_diffuse_variance():
    y = 1e-3 * tensor(simulated(80))[None, :, None]
    small, large = structural(seasonal=7, diffuse=1.0), structural(seasonal=7)
    assert small.fit(y).converged
    large.fit(1e3 * y)
    for one, other in zip(small.variances().values(), large.variances().values()):
        assert one == pytest.approx(1e-6 * other, rel=1e-2)


def test_padding_is_not_read():
    system, series = structural(trend=True), tensor(simulated(20))[None, :, None]
    padded = torch.cat([series, torch.full((1, 5, 1), 7.0)], 1)
    lengths = torch.tensor([20])
    torch.testing.assert_close(system.log_likelihood(padded, lengths=lengths), system.log_likelihood(series))
    torch.testing.assert_close(tuple(system.filter(padded, lengths=lengths).state), tuple(system.filter(series).state))
    torch.testing.assert_close(system.smooth(padded, lengths=lengths)[0][:, :20], system.smooth(series)[0])


def test_its_parameters_are_kept_on_disk():
    system = structural(trend=True, seasonal=4, variances={"trend": 0.3})
    copy = structural(trend=True, seasonal=4)
    copy.load_state_dict(system.state_dict())
    assert copy.variances() == system.variances()
    assert conca.structural is structural


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": False}, "there must be a level or a season"),
        ({"level": False, "trend": True, "seasonal": 4}, "a trend needs a level"),
        ({"harmonics": 2}, "harmonics need a season"),
        ({"seasonal": 1}, "a season has 2 samples or more, got seasonal=1"),
        ({"seasonal": 0}, "got seasonal=0"),
        ({"seasonal": 7, "harmonics": 4}, "from 1 to 3 harmonics, got 4"),
        ({"variances": {"levle": 1.0}}, "did you mean 'level'"),
        ({"variances": {"level": -1.0}}, "negative variance"),
    ],
)
def test_impossible_parts_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        structural(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_noise": torch.ones(3)}, r"3 noises enter 2 states through noise_input of shape \(2, 2\)"),
        ({"observation_noise": torch.ones(2)}, "2 entries for 1 outputs"),
        ({"tied": torch.tensor([0, 2])}, "must hold 0 to 1"),
        ({"state_noise": torch.tensor([[1.0, 0.0], [1.0, 1.0]])}, "symmetric"),
        ({"observation_noise": torch.tensor([[-1.0]])}, "negative variance"),
        ({"system": LinearSystem(torch.eye(2).expand(3, 2, 2), torch.ones(2, 1), torch.ones(1, 2))}, "A vary in time"),
        ({"system": torch.eye(2)}, "must be a LinearSystem, got Tensor"),
        ({"state_noise": 1.0}, "state_noise must be a tensor, got float"),
        ({"offset": 1.0}, "offset must be a tensor, got float"),
        ({"state_noise": torch.tensor([1.0, torch.nan])}, "state_noise holds a number that is not finite"),
        ({"covariance": torch.tensor([[1.0, 2.0], [2.0, 1.0]])}, "covariance has a negative variance along"),
        ({"covariance": torch.tensor([[1.0, 0.5], [0.0, 1.0]])}, "covariance must be finite and symmetric"),
        ({"covariance": torch.ones(2)}, r"covariance has shape \(2,\), expected \(2, 2\)"),
        ({"offset": torch.ones(5)}, r"offset must be 1 finite numbers, one for each output, got shape \(5,\)"),
        ({"mean": torch.ones(3)}, "mean must be 2 finite numbers, one for each state"),
        ({"mean": torch.tensor([1.0, torch.inf])}, "mean must be 2 finite numbers"),
        ({"tied": torch.tensor([0.0, 1.0])}, "tied must be a list of integers"),
        ({"tied": torch.tensor(0)}, "tied must be a list of integers"),
        ({"names": ("a",)}, "names must be 3 different ones"),
        ({"names": ("a", "b", "a")}, "names must be 3 different ones"),
        ({"diffuse": -1.0}, "diffuse is a variance above 0, or None"),
        ({"diffuse": torch.nan}, "diffuse is a variance above 0, or None"),
    ],
)
def test_noise_that_does_not_fit_is_refused(change, message):
    parts = {"system": LinearSystem.discrete(torch.eye(2), torch.ones(2, 1), torch.ones(1, 2))}
    parts |= {"state_noise": torch.ones(2), "observation_noise": torch.ones(1)}
    with pytest.raises(BadInput, match=message):
        GaussianSystem(**parts | change)


def test_inputs_that_do_not_fit_are_refused():
    system = general()
    with pytest.raises(BadInput, match=r"expected u of shape \(2, 5, 1\)"):
        system.filter(torch.zeros(2, 5, 2), u=torch.zeros(2, 4, 1))
    with pytest.raises(BadInput, match=r"u of shape \(batch, 3, 1\)"):
        system.forecast(system.init_state(2), 3, u=torch.zeros(2, 4, 1))
    with pytest.raises(BadInput, match="0 observations"):
        structural().fit(torch.full((1, 5, 1), float("nan")))
