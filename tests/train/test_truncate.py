"""Gradients cut in time, the state going on."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from conca.data.encoding import Encoded
from conca.layers.states import tree_map
from conca.models.forecast import ForecastNetwork, NetworkConfig, pinball
from conca.train import fit
from conca.train.forecast_lesson import train_forecast
from conca.train.pieces import Pieces
from conca.train.recipe import Recipe
from conca.train.seeds import seeded

LEVELS = 0.1, 0.5, 0.9
RECIPE = Recipe(
    lr=1e-2,
    weight_decay=0.01,
    epochs=1,
    steps=1,
    patience=5,
    max_minutes=None,
    seed=0,
    devices="cpu",
    precision="64-true",
)
LAYERS = ["lstm", "s4d lstm", "attention(window=5) s4d"]


def series(rows, timed=True):
    draw = np.random.default_rng(rows)
    wave = (np.sin(np.arange(rows) / 3) + 0.1 * draw.normal(size=rows)).astype(np.float32)[:, None]
    target = np.where(draw.random((rows, 1)) < 0.1, np.nan, wave).astype(np.float32)
    elapsed = draw.uniform(0.5, 2, rows).astype(np.float32) if timed else None
    return Encoded(wave, np.zeros((rows, 0), np.int64), wave[:, None], target, elapsed, np.zeros(1), np.ones(1))


def network(layers, members=2):
    config = NetworkConfig(layers, 8, 3, 1, (), LEVELS, (0.0,), (0.0,), (1.0,), members=members)
    with seeded(0):
        return ForecastNetwork(config)


def pieces(members=2, timed=True):
    """Some of them shorter than others."""
    return Pieces(
        [series(80, timed), series(23, timed)], [80, 23], horizon=3, length=32, batch_size=4 * members, seed=0
    )


class Gradients(Callback):
    """Those that the optimiser is given, before they are clipped."""

    def __init__(self):
        self.found = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.found.append([p.grad.clone() for p in pl_module.network.parameters()])


def trained(folder, monkeypatch, layers, truncate, precision="64-true", steps=1, timed=True):
    folder.mkdir()
    kept, plain = Gradients(), fit.trainer_of
    with monkeypatch.context() as patch:
        patch.setattr(fit, "trainer_of", lambda place, recipe, found: plain(place, recipe, [*found, kept]))
        net = network(layers)
        recipe = Recipe(**(RECIPE.__dict__ | {"truncate": truncate, "precision": precision, "steps": steps}))
        result = train_forecast(net, pieces(timed=timed), [], recipe, folder, progress=False)
    return net, kept.found, result


def by_hand(layers, size, timed=True):
    """The gradients of the first step, from nothing but towers, detached states and backward."""
    net, batch, levels = network(layers).double(), pieces(timed=timed)[0], torch.tensor(LEVELS).double()
    batch = batch.to("cpu", torch.float64)
    count = (~torch.isnan(batch.future)).sum() * len(LEVELS)
    for member, tower in enumerate(net.towers):
        part, state = batch.share(member, 2), None
        for begin in range(0, 32, size):
            cut = slice(begin, begin + size)
            lengths = None if part.lengths is None else (part.lengths - begin).clamp(0, len(range(32)[cut]))
            elapsed = None if part.elapsed is None else part.elapsed[:, cut]
            h, state = tower(part.inputs[:, cut], part.codes[:, cut], state, lengths=lengths, elapsed=elapsed)
            state = tree_map(torch.Tensor.detach, state)
            q = net.straighten(tower.quantiles(h, part.anchor[:, cut]))
            (pinball(part.future[:, cut], q, levels)[0] / count).backward()
    return [p.grad for p in net.parameters()]


@pytest.mark.parametrize("layers", LAYERS)
def test_gradients_are_those_made_by_hand(tmp_path, monkeypatch, layers):
    found = {}
    for size in (8, 5, 32):
        _, (found[size],), _ = trained(tmp_path / str(size), monkeypatch, layers, size)
        for own, hand in zip(found[size], by_hand(layers, size), strict=True):
            torch.testing.assert_close(own, hand)
    largest = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found[8], found[32]))
    assert largest > 1e-3, "cutting changes them"


@pytest.mark.parametrize("layers", LAYERS)
def test_a_cut_at_the_end_is_none(tmp_path, monkeypatch, layers):
    whole, _, one = trained(tmp_path / "whole", monkeypatch, layers, None, "32-true", steps=3)
    for size in (32, 1000):
        net, _, two = trained(tmp_path / str(size), monkeypatch, layers, size, "32-true", steps=3)
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), net.parameters()))
        assert one == two


def test_the_loss_does_not_depend_on_the_cuts(tmp_path, monkeypatch):
    losses = [trained(tmp_path / str(k), monkeypatch, "lstm", k)[2].history[0]["train/loss"] for k in (None, 3, 31)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-12)


def test_in_half_precision(tmp_path, monkeypatch):
    _, (half,), _ = trained(tmp_path / "half", monkeypatch, "lstm", 8, "bf16-mixed")
    own, hand = (torch.cat([g.double().flatten() for g in found]) for found in (half, by_hand("lstm", 8)))
    assert float((own - hand).norm()) < 0.03 * float(hand.norm())


def most_saved(folder, monkeypatch, truncate, layers):
    """Bytes that backward wants, of what was not released yet, at the worst moment."""
    now, most = 0, 0

    class Kept:
        def __init__(self, tensor):
            nonlocal now, most
            self.tensor, self.size = tensor, tensor.numel() * tensor.element_size()
            now += self.size
            most = max(most, now)

        def __del__(self):
            nonlocal now
            now -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        trained(folder, monkeypatch, layers, truncate)
    return most


@pytest.mark.parametrize("layers", ["lstm", "s4d"])
def test_one_slice_alone_is_in_memory(tmp_path, monkeypatch, layers):
    whole = most_saved(tmp_path / "whole", monkeypatch, None, layers)
    parts = [most_saved(tmp_path / str(k), monkeypatch, k, layers) for k in (16, 8)]
    assert parts[0] < 0.62 * whole
    assert parts[1] < 0.37 * whole
