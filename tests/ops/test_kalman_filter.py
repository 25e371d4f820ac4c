"""Kalman filter, smoother and forecast against the joint normal distribution of everything, conditioned by brute force."""

import math

import pytest
import torch

from conca.layers import states
from conca.ops import kalman_pass
from conca.ops.kalman import (
    GaussianModel,
    KalmanState,
    kalman_filter,
    kalman_forecast,
    kalman_step,
    log_likelihood,
)
from conca.ops.kalman_smoother import kalman_smoother
from conca.types import BadInput

MISSING = float("nan")


def covariance(size):
    root = torch.randn(size, size)
    return root @ root.T + 0.3 * torch.eye(size)


def make(N=3, O=2, *, varying=0, inputs=True):  # noqa: E741
    front = (varying,) if varying else ()

    def several(function, *size):
        return torch.stack([function(*size) for _ in range(varying)]) if varying else function(*size)

    turn = several(lambda n: torch.linalg.qr(torch.randn(n, n)).Q * 0.95, N)
    model = GaussianModel(turn, torch.randn(*front, O, N), several(covariance, N), several(covariance, O))
    return model._replace(drive=torch.randn(*front, N), offset=torch.randn(*front, O)) if inputs else model


def start(batch, N=3):
    return KalmanState(torch.randn(batch, N), torch.stack([covariance(N) for _ in range(batch)]))


def at(value, axes, t):
    return value if value.dim() == axes else value[t]


class Joint:
    """Mean and covariance of all states and observations of a row, and what is known when some of them are."""

    def __init__(self, model, mean, spread, T):
        N, O = mean.shape[0], model.design.shape[-2]  # noqa: E741
        means, moves = [], torch.eye(N)
        noise = torch.zeros(T * N, T * N)
        chain = torch.zeros(T * N, N + (T - 1) * N)  # every state as a map of first state and disturbances
        shock = torch.block_diag(spread, *(at(model.state_noise, 2, t) for t in range(T - 1)))
        for t in range(T):
            mean = mean + (0 if model.drive is None else at(model.drive, 1, t))
            means.append(mean)
            chain[t * N : (t + 1) * N, :N] = moves
            for s in range(t):
                path = torch.eye(N)
                for k in range(s + 1, t):
                    path = at(model.transition, 2, k) @ path
                chain[t * N : (t + 1) * N, N * (s + 1) : N * (s + 2)] = path
            moves = at(model.transition, 2, t) @ moves
            mean = at(model.transition, 2, t) @ mean
        noise = chain @ shock @ chain.T
        Z = torch.block_diag(*(at(model.design, 2, t) for t in range(T)))
        H = torch.block_diag(*(at(model.observation_noise, 2, t) for t in range(T)))
        self.state_mean, self.state_spread = torch.cat(means), noise
        offset = torch.zeros(T * O) if model.offset is None else model.offset.expand(T, O).flatten()
        self.mean, self.cross = Z @ self.state_mean + offset, noise @ Z.T
        self.spread = Z @ noise @ Z.T + H
        self.N, self.O, self.T = N, O, T

    def given(self, y, until):
        """Mean (T, N) and covariance (T, N, N) of the states, given what of `y` (T, O) is there before sample `until`."""
        seen = ~y.isnan().flatten() & (torch.arange(self.T).repeat_interleave(self.O) < until)
        gain = self.cross[:, seen] @ torch.linalg.inv(self.spread[seen][:, seen])
        mean = self.state_mean + gain @ (y.flatten()[seen] - self.mean[seen])
        spread = self.state_spread - gain @ self.cross[:, seen].T
        blocks = spread.unflatten(0, (self.T, self.N)).unflatten(2, (self.T, self.N))
        return mean.unflatten(0, (self.T, self.N)), torch.stack([blocks[t, :, t] for t in range(self.T)])

    def log_likelihood(self, y, until=None):
        seen = ~y.isnan().flatten()
        if until is not None:
            seen &= torch.arange(self.T).repeat_interleave(self.O) < until
        apart, spread = y.flatten()[seen] - self.mean[seen], self.spread[seen][:, seen]
        square = apart @ torch.linalg.inv(spread) @ apart
        return -0.5 * (square + torch.logdet(spread) + len(apart) * math.log(2 * math.pi))


def series(batch=3, T=7, O=2):  # noqa: E741
    """One row whole, one with samples missing in part and altogether, one with other gaps."""
    y = torch.randn(batch, T, O) * 2
    y[1, 2, 0] = y[1, 3] = y[2, 0] = y[2, -2, -1] = MISSING
    return y


@pytest.mark.parametrize("varying", [0, 7])
def test_filter_smoother_and_likelihood_are_those_of_the_joint_distribution(varying):
    model, y, state = make(varying=varying), series(), start(3)
    found, smoothed = kalman_filter(y, model, state), kalman_smoother(y, model, state)
    likelihood = log_likelihood(y, model, state)
    for row in range(3):
        joint = Joint(model, state.mean_BN[row], state.covariance_BNN[row], 7)
        mean, spread = joint.given(y[row], 7)
        torch.testing.assert_close(smoothed.mean_BTN[row], mean)
        torch.testing.assert_close(smoothed.covariance_BTNN[row], spread)
        torch.testing.assert_close(likelihood[row], joint.log_likelihood(y[row]))
        torch.testing.assert_close(found.log_likelihood_BT[row].sum(), likelihood[row])
        for t in range(7):
            before, after = joint.given(y[row], t), joint.given(y[row], t + 1)
            torch.testing.assert_close(found.predicted_mean_BTN[row, t], before[0][t])
            torch.testing.assert_close(found.predicted_covariance_BTNN[row, t], before[1][t])
            torch.testing.assert_close(found.mean_BTN[row, t], after[0][t])
            torch.testing.assert_close(found.covariance_BTNN[row, t], after[1][t])
            gain = joint.log_likelihood(y[row], t + 1) - joint.log_likelihood(y[row], t)
            torch.testing.assert_close(found.log_likelihood_BT[row, t], gain, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("varying", [0, 11])
def test_forecasts_are_those_of_the_joint_distribution(varying):
    model, y, state = make(varying=varying), series(), start(3)
    ahead = kalman_forecast(model, kalman_filter(y, model, state).state, 4, time=7)
    low, high = ahead.interval(0.9)
    for row in range(3):
        joint = Joint(model, state.mean_BN[row], state.covariance_BNN[row], 11)
        mean, spread = joint.given(torch.cat([y[row], torch.full((4, 2), MISSING)]), 11)
        for t in range(4):
            design, error = at(model.design, 2, 7 + t), at(model.observation_noise, 2, 7 + t)
            expected = design @ mean[7 + t] + at(model.offset, 1, 7 + t)
            torch.testing.assert_close(ahead.mean_BTO[row, t], expected)
            variance = design @ spread[7 + t] @ design.T + error
            torch.testing.assert_close(ahead.covariance_BTOO[row, t], variance)
            torch.testing.assert_close(high[row, t] - expected, 1.6448536269514722 * variance.diagonal().sqrt())
            torch.testing.assert_close(low[row, t] + high[row, t], 2 * expected)


def test_steps_are_the_filter_and_a_state_is_saved_and_goes_on(tmp_path):
    model, y, state = make(varying=7), series(), start(3)
    whole = kalman_filter(y, model, state)
    for t in range(7):
        update, state = kalman_step(y[:, t], model, state, time=t)
        torch.testing.assert_close(update.mean_BN, whole.mean_BTN[:, t])
        torch.testing.assert_close(update.covariance_BNN, whole.covariance_BTNN[:, t])
        torch.testing.assert_close(update.innovation_BO, whole.innovation_BTO[:, t])
        torch.testing.assert_close(update.log_likelihood_B, whole.log_likelihood_BT[:, t])
        states.save(state, tmp_path / "state.safetensors")
        state = states.load(tmp_path / "state.safetensors", state)
    torch.testing.assert_close(tuple(state), tuple(whole.state))


@pytest.mark.parametrize("settles", [True, False])
def test_a_run_may_be_split_anywhere(settles):
    model = make(inputs=True)
    y = series(T=61) if not settles else torch.randn(3, 61, 2)
    state = start(3) if not settles else KalmanState(torch.randn(3, 3), torch.eye(3).expand(3, 3, 3))
    whole = kalman_filter(y, model, state)
    for cut in (0, 1, 4, 30, 59, 61):
        first = kalman_filter(y[:, :cut], model, state)
        second = kalman_filter(y[:, cut:], model, first.state)
        torch.testing.assert_close(torch.cat([first.mean_BTN, second.mean_BTN], 1), whole.mean_BTN)
        both = torch.cat([first.covariance_BTNN, second.covariance_BTNN], 1)
        torch.testing.assert_close(both, whole.covariance_BTNN)
        torch.testing.assert_close(tuple(second.state), tuple(whole.state))


def test_a_row_gives_what_it_gives_alone_and_padding_may_hold_anything():
    model, y, state = make(), series(T=9), start(3)
    lengths = torch.tensor([9, 4, 0])
    y[1, 4:], y[2] = float("inf"), MISSING
    found = kalman_filter(y, model, state, lengths=lengths)
    smoothed = kalman_smoother(y, model, state, lengths=lengths)
    likelihood = log_likelihood(y, model, state, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        own = KalmanState(state.mean_BN[row : row + 1], state.covariance_BNN[row : row + 1])
        part = y[row : row + 1, :length]
        alone, back = kalman_filter(part, model, own), kalman_smoother(part, model, own)
        for together, apart in zip((*found[:6], *smoothed), (*alone[:6], *back)):
            torch.testing.assert_close(together[row, :length], apart[0], atol=1e-12, rtol=1e-10)
            assert not together[row, length:].any()
        torch.testing.assert_close(found.state.mean_BN[row], alone.state.mean_BN[0])
        torch.testing.assert_close(found.state.covariance_BNN[row], alone.state.covariance_BNN[0])
        torch.testing.assert_close(likelihood[row], log_likelihood(part, model, own)[0])


def test_shared_covariances_stay_shared_and_change_nothing(monkeypatch):
    """Rows with one covariance and one pattern of gaps are worked out once; with their own, row by row."""
    model = make()
    y = torch.randn(3, 12, 2)
    y[:, 4, 1] = y[:, 6] = MISSING
    state = KalmanState(torch.randn(3, 3), covariance(3).expand(3, 3, 3))
    found, _ = kalman_pass.forward_pass(y, model, state, None, 0)
    assert {len(part) for part in found.covariance} == {1}
    shared = kalman_filter(y, model, state), kalman_smoother(y, model, state)
    monkeypatch.setattr(kalman_pass, "shared", lambda covariance: covariance)
    apart = kalman_filter(y, model, state), kalman_smoother(y, model, state)
    for one, other in zip((*shared[0][:6], *shared[1]), (*apart[0][:6], *apart[1])):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("O", [1, 2])
def test_a_settled_covariance_is_left_alone_without_a_trace(monkeypatch, O, gaps):  # noqa: E741
    model, T = make(O=O), 120
    model = model._replace(transition=0.5 * model.transition, drive=torch.randn(T, 3))
    y = torch.randn(2, T, O)
    if gaps:
        y[:, 70] = MISSING
        y[1, 71, 0] = MISSING
    lengths = torch.tensor([120, 110])
    state = KalmanState(torch.randn(2, 3), 1e6 * torch.eye(3).expand(2, 3, 3))
    noise = model.observation_noise.requires_grad_()
    coasted = []
    coast = kalman_pass.coast
    monkeypatch.setattr(kalman_pass, "coast", lambda *a: coasted.append(a[1].shape[1]) or coast(*a))

    def outcome():
        found = kalman_filter(y, model, state, lengths=lengths)
        smoothed = kalman_smoother(y, model, state, lengths=lengths)
        slope = torch.autograd.grad(found.log_likelihood_BT.sum() + smoothed.mean_BTN.square().sum(), noise)
        return *found[:6], *found.state, *smoothed, *slope

    fast = outcome()
    assert sum(coasted) > 70 - 40 * gaps
    monkeypatch.setattr(kalman_pass, "STILL", -1.0)
    coasted.clear()
    slow = outcome()
    assert not coasted
    for one, other in zip(fast, slow):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_an_empty_series_and_an_empty_batch_leave_everything():
    model, state = make(), start(2)
    found = kalman_filter(torch.zeros(2, 0, 2), model, state)
    assert found.mean_BTN.shape == (2, 0, 3)
    assert found.covariance_BTNN.shape == (2, 0, 3, 3)
    torch.testing.assert_close(tuple(found.state), tuple(state))
    assert log_likelihood(torch.zeros(2, 0, 2), model, state).tolist() == [0, 0]
    assert kalman_smoother(torch.zeros(2, 0, 2), model, state).mean_BTN.shape == (2, 0, 3)
    assert kalman_forecast(model, state, 0).mean_BTO.shape == (2, 0, 2)
    assert kalman_filter(
        torch.zeros(0, 5, 2), model, start(2)._replace(mean_BN=torch.zeros(0, 3), covariance_BNN=torch.zeros(0, 3, 3))
    ).mean_BTN.shape == (0, 5, 3)


def test_where_all_is_missing_the_filter_only_predicts():
    model, state = make(), start(2)
    y = torch.full((2, 5, 2), MISSING)
    found = kalman_filter(y, model, state)
    assert log_likelihood(y, model, state).tolist() == [0, 0]
    torch.testing.assert_close(found.mean_BTN, found.predicted_mean_BTN)
    ahead = kalman_forecast(model, state, 5)
    torch.testing.assert_close(ahead.mean_BTO, found.mean_BTN @ model.design.T + model.offset)
    smoothed = kalman_smoother(y, model, state)
    torch.testing.assert_close(smoothed.covariance_BTNN, found.covariance_BTNN)


def test_rows_may_have_models_of_their_own():
    models = [make() for _ in range(3)]
    y, state = series(), start(3)
    joint = GaussianModel(*(torch.stack(parts)[:, None] for parts in zip(*models)))
    found, smoothed = kalman_filter(y, joint, state), kalman_smoother(y, joint, state)
    ahead = kalman_forecast(joint, found.state, 3)
    for row, model in enumerate(models):
        own = KalmanState(state.mean_BN[row : row + 1], state.covariance_BNN[row : row + 1])
        alone = kalman_filter(y[row : row + 1], model, own)
        torch.testing.assert_close(found.mean_BTN[row], alone.mean_BTN[0])
        torch.testing.assert_close(found.log_likelihood_BT[row], alone.log_likelihood_BT[0])
        torch.testing.assert_close(smoothed.covariance_BTNN[row], kalman_smoother(y[row : row + 1], model, own)[1][0])
        torch.testing.assert_close(ahead.covariance_BTOO[row], kalman_forecast(model, alone.state, 3)[1][0])


@pytest.mark.parametrize("O", [1, 2])
def test_gradients(O):  # noqa: E741
    model, y, state = make(2, O), series(3, 4, O)[1:], start(2, 2)
    roots = [torch.linalg.cholesky(m) for m in (model.state_noise, model.observation_noise, state.covariance_BNN)]
    parts = [
        model.transition,
        model.design,
        *roots[:2],
        model.drive,
        model.offset,
        state.mean_BN,
        roots[2],
        y.nan_to_num(),
    ]
    parts = [part.clone().requires_grad_() for part in parts]
    gaps, lengths = y.isnan(), torch.tensor([4, 3])

    def outcome(T, Z, q, h, c, d, mean, p, values):
        inner = GaussianModel(T, Z, q @ q.mT, h @ h.mT, c, d)
        series = torch.where(gaps, MISSING, values)
        found = kalman_filter(series, inner, KalmanState(mean, p @ p.mT), lengths=lengths)
        back = kalman_smoother(series, inner, KalmanState(mean, p @ p.mT), lengths=lengths)
        ahead = kalman_forecast(inner, found.state, 2)
        return found.log_likelihood_BT.sum(1), found.mean_BTN, back.mean_BTN, back.covariance_BTNN, *ahead

    assert torch.autograd.gradcheck(outcome, parts, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *p: outcome(*p)[0], parts, fast_mode=True)


def test_covariances_may_be_singular():
    """A level that never moves, a copy of it, and exact observations."""
    model = GaussianModel(torch.eye(2), torch.tensor([[1.0, 0.0]]), torch.zeros(2, 2), torch.tensor([[4.0]]))
    first = torch.tensor([[9.0, 9.0], [9.0, 9.0]])[None]
    y = torch.tensor([1.0, 5.0, 3.0])[None, :, None]
    state = KalmanState(torch.zeros(1, 2), first)
    smoothed = kalman_smoother(y, model, state)
    variance = 1 / (1 / 9 + 3 / 4)
    torch.testing.assert_close(smoothed.covariance_BTNN, torch.full((1, 3, 2, 2), variance))
    torch.testing.assert_close(smoothed.mean_BTN, torch.full((1, 3, 2), variance * 9 / 4))
    exact = GaussianModel(torch.eye(1), torch.eye(1), torch.ones(1, 1), torch.zeros(1, 1))
    known = kalman_smoother(y, exact, KalmanState(torch.zeros(1, 1), torch.ones(1, 1, 1)))
    torch.testing.assert_close(known.mean_BTN, y)
    assert not known.covariance_BTNN.any()


@pytest.mark.parametrize("O", [1, 2])
def test_a_prediction_without_room_for_error_is_refused(O):  # noqa: E741
    model = GaussianModel(torch.eye(1), torch.ones(O, 1), torch.zeros(1, 1), torch.zeros(O, O))
    y, state = torch.ones(1, 4, O), KalmanState(torch.zeros(1, 1), torch.ones(1, 1, 1))
    with pytest.raises(BadInput, match=f"sample {2 - O} is predicted without any room for error.*observation noise"):
        kalman_filter(y, model, state)


def test_ten_thousand_samples_stay_positive_and_symmetric():
    """Almost nothing is disturbed, almost everything is seen: where the plain difference of covariances turns negative."""
    model = GaussianModel(
        torch.tensor([[1.0, 1.0], [0.0, 1.0]]),
        torch.tensor([[1.0, 0.0]]),
        torch.diag(torch.tensor([0.0, 1e-12])),
        torch.tensor([[1e-8]]),
    )
    y = torch.linspace(0, 1, 10_000)[None, :, None] + 1e-4 * torch.randn(1, 10_000, 1)
    found = kalman_filter(y, model, KalmanState(torch.zeros(1, 2), 1e6 * torch.eye(2)[None]))
    covariance_TNN = found.covariance_BTNN[0]
    assert torch.equal(covariance_TNN[-1], covariance_TNN[-1].T)
    assert float(torch.linalg.eigvalsh(covariance_TNN[5:]).min()) > 0
    assert float((found.mean_BTN[0, 100:, 1] - 1e-4).abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(3, 7, 3)}, r"y of shape \(batch, time, 2\)"),
        ({"y": torch.zeros(7, 2)}, "y of shape"),
        ({"lengths": torch.tensor([8, 1, 1])}, "from 0 to 7"),
        ({"lengths": torch.tensor([1.0, 1.0, 1.0])}, "3 integers"),
        ({"state": start(2)}, r"a state of shapes \(3, 3\)"),
        ({"time": 3}, "samples 3 to 9 are read"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"y": series(), "model": make(varying=7), "state": start(3)} | change
    with pytest.raises(BadInput, match=message):
        kalman_filter(**arguments)


def test_a_model_that_does_not_fit_and_levels_outside_are_refused():
    with pytest.raises(BadInput, match=r"observation_noise has shape \(3, 3\), expected \(2, 2\)"):
        kalman_filter(series(), make()._replace(observation_noise=torch.eye(3)), start(3))
    with pytest.raises(BadInput, match="between 0 and 1, got 90"):
        kalman_forecast(make(), start(3), 2).interval(90)
    with pytest.raises(BadInput, match="at least 0"):
        kalman_forecast(make(), start(3), -1)
