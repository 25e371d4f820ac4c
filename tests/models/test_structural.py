"""The structural forecaster: equal to the general filter and to statsmodels, whole or in parts, missing, uneven, padded."""

import json
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from conca.models.forecast import ForecastNetwork, NetworkConfig
from conca.models.structural import Structural, Structure
from conca.models.words import structure_options
from conca.ops.bodies import plain_bodies, watched
from conca.ops.kalman import GaussianModel, KalmanState, kalman_filter
from conca.types import BadInput

DAY = 1 / 24
"""Turns of a day from one hour to the next."""


def tower(targets=1, horizon=4, turns=(DAY,), **options):
    """A member whose parameters are drawn."""
    known, sizes = options.pop("known", 0), options.pop("sizes", ())
    structure = Structure(turns, harmonics=2, **options)
    levels = (0.1, 0.5, 0.9)
    new = Structural(structure, targets=targets, horizon=horizon, levels=levels, known=known, sizes=sizes)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    return new


def rows(batch=2, time=30, targets=1, begin=0, gaps=None):
    """Inputs as the encoding makes them: values, held values, masks, and the day's sine and cosine, once and doubled."""
    values = torch.randn(batch, time, targets)
    missing = torch.rand(batch, time, targets) < 0.2
    passed = torch.arange(begin, begin + time).expand(batch, -1) if gaps is None else gaps.cumsum(1)
    angle = 2 * math.pi * DAY * passed[..., None]
    day = torch.cat([torch.sin(angle), torch.cos(angle), torch.sin(2 * angle), torch.cos(2 * angle)], -1)
    inputs = torch.cat([values.masked_fill(missing, 0), values, missing.to(values), day], -1)
    return inputs, torch.zeros(batch, time, 0, dtype=torch.int64)


def general(member, inputs, target=0):
    """The same model for the general filter: what is believed of the sample to come, and a design that varies."""
    model = member.model(1)
    decay, noise, error = (part[target] for part in model)
    x = inputs.double()
    y = x[..., target : target + 1].masked_fill(x[..., 2 * member.targets + target, None] > 0, math.nan)
    design = member.design(member.turns(x))[:, :, None]
    before = member.init_state(len(inputs))
    mean, covariance = before.mean_BN[:, target] * decay, before.covariance_BNN[:, target]
    covariance = decay[:, None] * covariance * decay + noise
    gaussian = GaussianModel(torch.diag(decay), design, noise, error.reshape(1, 1))
    return y, gaussian, KalmanState(mean, covariance)


def test_the_filter_is_the_general_one():
    member = tower(targets=2)
    inputs, codes = rows(targets=2, time=90)
    found, _ = member.read(inputs, codes)
    for target in range(2):
        wanted = kalman_filter(*general(member, inputs, target))
        own = [part.unflatten(0, (2, 2))[:, target] for part in (*found.asked, found.innovation_BT)]
        assert_close(own[0], wanted.mean_BTN)
        assert_close(own[1], wanted.covariance_BTNN)
        assert_close(own[2], wanted.innovation_BTO[..., 0])
        likelihood = member.log_likelihood(inputs, codes)[:, target]
        assert_close(likelihood, wanted.log_likelihood_BT.sum(1))


def test_forecasts_are_rows_that_are_missing():
    member = tower(horizon=5)
    inputs, codes = rows(time=20)
    h, _ = member(inputs, codes, rows=torch.tensor([19]))
    y, model, state = general(member, torch.cat([inputs, rows(time=5, begin=20)[0]], 1))
    y[:, 20:] = math.nan
    wanted = kalman_filter(y, model, state)
    design = model.design[:, 20:, 0]
    mean, deviation = h.reshape(2, 5, 2).unbind(-1)
    assert_close(mean, (design * wanted.predicted_mean_BTN[:, 20:]).sum(-1))
    spread = torch.einsum("bti,btij,btj->bt", design, wanted.predicted_covariance_BTNN[:, 20:], design)
    assert_close(deviation, (spread + model.observation_noise[0, 0]).sqrt())


@pytest.mark.parametrize("body", ["plain", "kernel"])
@pytest.mark.parametrize("uneven", [False, True])
def test_whole_is_row_by_row_is_in_parts(uneven, body):
    member = tower(targets=2)
    gaps = torch.rand(2, 30) * 3 if uneven else None
    inputs, codes = rows(targets=2, gaps=gaps)

    def cut(a, b, state):
        return member(inputs[:, a:b], codes[:, a:b], state, elapsed=None if gaps is None else gaps[:, a:b])

    whole, last = cut(0, 30, None)
    state, parts, each, own = None, [], [], member.init_state(2)
    for a, b in ((0, 0), (0, 7), (7, 8), (8, 30)):
        h, state = cut(a, b, state)
        parts.append(h)
    with plain_bodies() if body == "plain" else watched():
        for t in range(30):
            h, own = member.step(inputs[:, t], codes[:, t], own, elapsed=None if gaps is None else gaps[:, t])
            each.append(h)
    assert_close(torch.cat(parts, 1), whole)
    assert_close(torch.stack(each, 1), whole)
    for leaf, other, wanted in zip(state, own, last):
        assert_close(leaf, wanted)
        assert_close(other, wanted)


def test_a_long_step_is_short_ones_without_samples():
    member = tower()
    gaps = torch.tensor([[1, 3, 1, 2, 5, 1], [2, 1, 1, 4, 1, 3]])
    sparse, codes = rows(time=6, gaps=gaps.double())
    _, last = member(sparse, codes, elapsed=gaps.double())
    for row, some in enumerate(gaps):
        dense, none = rows(batch=1, time=int(some.sum()), begin=1)
        dense[..., 2] = 1
        dense[0, some.cumsum(0) - 1] = sparse[row]
        found, wanted = member(dense, none)[1], [leaf[row : row + 1] for leaf in last]
        for leaf, other in zip(found, wanted):
            assert_close(leaf, other)


def test_padding_is_not_read():
    member = tower(targets=2)
    inputs, codes = rows(batch=3, targets=2)
    lengths = torch.tensor([30, 0, 11])
    padded = inputs.clone()
    for row, length in enumerate(lengths.tolist()):
        padded[row, length:] = math.nan
    for elapsed in (None, torch.rand(3, 30) + 0.5):
        h, state = member(padded, codes, lengths=lengths, elapsed=elapsed)
        for row, length in enumerate(lengths.tolist()):
            late = None if elapsed is None else elapsed[row : row + 1, :length]
            alone, own = member(inputs[row : row + 1, :length], codes[row : row + 1, :length], elapsed=late)
            assert_close(h[row : row + 1, :length], alone)
            for leaf, wanted in zip(state, own):
                assert_close(leaf[row : row + 1], wanted)


def test_what_is_known_in_advance_is_taken_off_and_put_back():
    member = tower(horizon=2, known=4, numbers=2, known_numbers=(1,), known_categories=(0,), sizes=(3,))
    inputs, _ = rows(time=12)
    numbers, absent = torch.randn(2, 12, 2), torch.rand(2, 12, 2) < 0.3
    codes = torch.randint(0, 3, (2, 12, 1))
    whole = torch.cat([inputs[..., :3], numbers, absent.to(numbers), inputs[..., 3:]], -1)
    known = member.known(whole, codes)
    one_hot = torch.stack([codes[..., 0] == 1, codes[..., 0] == 2], -1)
    assert_close(known, torch.cat([numbers[..., 1:].masked_fill(absent[..., 1:], 0), absent[..., 1:], one_hot], -1))
    effect = (known @ member.effect.double().mT).detach()
    shifted = whole.clone()
    shifted[..., :1] -= effect
    still = member.known(whole, codes) * 0
    assert member.effect.abs().min() > 0
    h, _ = member(whole, codes)
    bare = tower(horizon=2, numbers=2)
    bare.load_state_dict({k: v for k, v in member.state_dict().items() if k != "effect"})
    plain, _ = bare(shifted, codes)
    assert_close(h, plain)
    ahead = torch.randn(2, 12, 2, 4)
    found = member.quantiles(h, torch.zeros(1), ahead) - member.quantiles(
        h, torch.zeros(1), still[:, :, None].expand_as(ahead)
    )
    assert_close(found, (ahead @ member.effect.double().mT)[..., None].expand_as(found))
    with pytest.raises(ValueError, match="4 known numbers"):
        member.quantiles(h, torch.zeros(1))


def test_the_likelihood_is_that_of_statsmodels():
    """A local level and a season of three harmonics, begun where its own model begins, as unlikely as our normalised rows."""
    structural = pytest.importorskip("statsmodels.tsa.statespace.structural")
    member = Structural(Structure((DAY,), harmonics=3), targets=1, horizon=3, levels=(0.5,), known=0, sizes=())
    with torch.no_grad():
        member.trend.fill_(-60.0)
        member.memory.fill_(-60.0)
        member.spread.copy_(torch.tensor([[1.0, -60.0, -60.0] + [0.3] * 6]))
        member.seasons.fill_(-3.0)
        member.level.fill_(-2.0)
    inputs, codes = rows(batch=1, time=120, begin=1)
    y = inputs[0, :, 0].masked_fill(inputs[0, :, 2] > 0, math.nan).numpy()
    model = structural.UnobservedComponents(
        y, "local level", freq_seasonal=[{"period": 24, "harmonics": 3}], stochastic_freq_seasonal=[True]
    )
    error, level, season = (float(p.detach().double().exp()) for p in (member.error, member.level, member.seasons))
    start = np.diag([math.e + level] + [math.exp(0.3) + season] * 6)
    model.ssm.initialize_known(np.zeros(7), start)
    model.loglikelihood_burn = 0
    wanted = model.smooth([error + 1e-6, level, season])
    assert_close(float(member.log_likelihood(inputs, codes).detach()), float(wanted.llf), rtol=1e-6, atol=1e-6)
    h, _ = member(inputs, codes, rows=torch.tensor([119]))
    ahead = wanted.get_forecast(3)
    mean, deviation = h.reshape(3, 2).unbind(-1)
    assert_close(mean.detach().numpy(), ahead.predicted_mean, rtol=1e-5, atol=1e-6)
    assert_close(deviation.detach().numpy(), ahead.se_mean, rtol=1e-5, atol=1e-6)


def test_waves_are_not_counted_twice():
    assert Structure((1 / 7,), harmonics=8).waves == [(0, 1), (0, 2), (0, 3)]
    day_and_week = Structure((DAY, DAY / 7), harmonics=6).waves
    assert [k for c, k in day_and_week if c == 0] == [1, 2, 3, 4, 5, 6]
    assert [k for c, k in day_and_week if c == 1] == [1, 2, 3, 5, 6, 8, 9, 13, 15]
    assert len(Structure((DAY, DAY / 7), harmonics=100).waves) == 12 + 84 - 12
    assert Structure((0.25,), harmonics=8).waves == [(0, 1), (0, 2)]
    assert Structure((1 / 7, 1 / 365.2425), harmonics=2).waves[2:] == [(1, 1), (1, 2), (1, 3)]
    assert Structure((DAY,), harmonics=0).waves == []


def test_one_forecaster_alone():
    assert structure_options("Kalman") == {"harmonics": 6}
    assert structure_options("s4d attention") is structure_options("mine.py:Kalman2") is None
    for layers, words in (
        ("kalman lstm", "no layer"),
        ("kalman*2", "no layer"),
        ("kalman(harmonic=2)", "did you mean 'harmonics'"),
        ("kalman(harmonics=-1)", "whole number"),
        ("kalman(harmonics=True)", "whole number"),
    ):
        with pytest.raises(BadInput, match=words):
            structure_options(layers)


def test_the_configuration_survives_json():
    structure = Structure((DAY, DAY / 7), 2, (1,), (0,), harmonics=3)
    values = {"layers": "kalman", "d_model": 8, "horizon": 2, "inputs": 12, "categories": (3,), "levels": (0.5,)}
    config = NetworkConfig(**values, bends=(0.0,), means=(0.0,), scales=(1.0,), known=4, structure=structure)
    assert NetworkConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    network = ForecastNetwork(config)
    assert network.bounded
    assert all(p.dtype == torch.float32 for p in network.parameters())
    with pytest.raises(BadInput, match="structure"):
        NetworkConfig.from_dict(config.as_dict() | {"structure": {"turn": 3}})
