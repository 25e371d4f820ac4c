"""Forecasts from chosen rows: the same whatever stands beside them and after them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conca.data.encoding import Encoded
from conca.infer import forecast as module
from conca.infer.forecast import forecast
from conca.models.forecast import ForecastNetwork, NetworkConfig

LAYERS = ("lstm", "s4d", "s4d attention(window=5)", "attention")


def network(layers):
    config = NetworkConfig(layers, 8, 3, 4, (3,), (0.1, 0.5, 0.9), (0.0, 1.5), (0.0, 0.3), (1.0, 2.0), members=2)
    return ForecastNetwork(config).eval()


def series(rows, seed, timed=False):
    draw = np.random.default_rng(seed)
    return Encoded(
        inputs=draw.normal(size=(rows, 4)).astype(np.float32),
        codes=draw.integers(0, 3, (rows, 1)),
        anchor=draw.normal(size=(rows, 1, 2)).astype(np.float32),
        target=draw.normal(size=(rows, 2)).astype(np.float32),
        elapsed=draw.exponential(size=rows).astype(np.float32) if timed else None,
        origin=np.array([5.0, 0.0]),
        unit=np.array([2.0, 100.0]),
    )


def head(one, rows):
    elapsed = None if one.elapsed is None else one.elapsed[:rows]
    return Encoded(
        one.inputs[:rows], one.codes[:rows], one.anchor[:rows], one.target[:rows], elapsed, one.origin, one.unit
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(module, "ROWS", 3)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
def test_neighbours_and_later_rows_do_not_matter(layers, timed):
    net = network(layers)
    many = [series(rows, rows, timed) for rows in (30, 1, 17, 8, 25)]
    every = [np.arange(len(one)) for one in many]
    together = forecast(net, many, every, context=10)
    for one, quantiles in zip(many, together):
        assert quantiles.shape == (len(one), 3, 2, 3)
        for rows in {1, 2, 5, 8, 9, len(one)}:
            if rows <= len(one):
                alone = forecast(net, [head(one, rows)], [np.array([rows - 1])], context=10)
                np.testing.assert_allclose(alone[0][0], quantiles[rows - 1], rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("layers", LAYERS)
def test_by_hand(layers):
    net, one = network(layers), series(9, 0)
    with torch.no_grad():
        h, _ = net.read(torch.from_numpy(one.inputs[None]), torch.from_numpy(one.codes[None]))
        q = net(h, torch.from_numpy(one.anchor[None]))[0].double().numpy()
    wanted = q * np.array([2.0, 100.0])[:, None] + np.array([5.0, 0.0])[:, None]
    np.testing.assert_allclose(forecast(net, [one], [np.arange(9)], context=100)[0], wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("layers", LAYERS)
def test_no_cutoffs_no_forecasts(layers):
    net = network(layers)
    found = forecast(net, [series(9, 0), series(5, 1)], [np.array([], np.int64), np.array([4])], context=4)
    assert found[0].shape == (0, 3, 2, 3)
    assert found[1].shape == (1, 3, 2, 3)
    assert forecast(net, [], [], context=4) == []


def test_a_growing_state_sees_the_context_at_most():
    net, one = network("attention"), series(40, 0)
    assert not net.bounded
    changed = replace(one, inputs=one.inputs.copy())
    changed.inputs[:20] = 7.0
    last = [np.array([39])]
    np.testing.assert_array_equal(forecast(net, [one], last, context=20), forecast(net, [changed], last, context=20))
    changed.inputs[30] = 7.0
    assert not np.array_equal(forecast(net, [one], last, context=20), forecast(net, [changed], last, context=20))


def test_modes_stay_and_no_gradient_is_kept():
    net = network("lstm").train()
    found = forecast(net, [series(9, 0)], [np.array([8])], context=4)
    assert net.training
    assert isinstance(found[0], np.ndarray)
