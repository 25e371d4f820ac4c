"""Training: reproducible, without side effects, calibrated."""

import contextlib
import signal
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

from conca.data.encoding import Encoded
from conca.models.forecast import ForecastNetwork, NetworkConfig
from conca.train import calibrate as calibration
from conca.train import forecast_learner, progress
from conca.train.calibrate import calibrate
from conca.train.fit import interruptible
from conca.train.forecast_lesson import train_forecast
from conca.train.pieces import Pieces, windows
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

RECIPE = Recipe(
    lr=1e-2,
    weight_decay=0.01,
    epochs=2,
    steps=3,
    patience=5,
    max_minutes=None,
    seed=0,
    devices="auto",
    precision="32-true",
)


def encoded(rows=200):
    wave = np.sin(np.arange(rows) / 3).astype(np.float32)[:, None]
    return Encoded(wave, np.zeros((rows, 0), np.int64), wave[:, None], wave, None, np.zeros(1), np.ones(1))


def network(layers="lstm", seed=0):
    config = NetworkConfig(layers, 8, 3, 1, (), (0.1, 0.5, 0.9), (0.0,), (0.0,), (1.0,), members=2, dropout=0.2)
    with seeded(seed):
        return ForecastNetwork(config)


def trained(folder, recipe=RECIPE, layers="lstm"):
    folder.mkdir()
    one, net = encoded(), network(layers)
    pieces = Pieces([one], [160], horizon=3, length=32, batch_size=8, seed=recipe.seed)
    checks = windows([one], [160], [200], horizon=3, length=32, batch_size=4)
    train_forecast(net, pieces, checks, recipe, folder, progress=False)
    return net, checks


def changed(recipe, **changes):
    return Recipe(**(recipe.__dict__ | changes))


def test_same_seed_same_weights(tmp_path):
    one, _ = trained(tmp_path / "a")
    torch.rand(5)
    two, _ = trained(tmp_path / "b")
    other, _ = trained(tmp_path / "c", changed(RECIPE, seed=1))
    states = [net.state_dict() for net in (one, two, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_nothing_of_the_user_changes(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), signal.getsignal(signal.SIGINT)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    net, _ = trained(tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert signal.getsignal(signal.SIGINT) is before[2]
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    assert torch.is_grad_enabled()
    assert not net.training
    assert list(home.iterdir()) == []


def test_what_is_written(tmp_path, capfd):
    trained(tmp_path / "run")
    found = {path.relative_to(tmp_path / "run").parts[0] for path in (tmp_path / "run").rglob("*")}
    assert found == {"metrics.csv", "checkpoints", "logs"}
    assert "val/mae" in (tmp_path / "run" / "metrics.csv").read_text()
    assert capfd.readouterr() == ("", "")


def test_it_learns(tmp_path):
    net, _ = trained(tmp_path / "run", changed(RECIPE, epochs=10, steps=15))
    one = encoded()
    with torch.no_grad():
        h, _ = net.read(torch.from_numpy(one.inputs[None]), torch.from_numpy(one.codes[None]))
        q = net(h, torch.from_numpy(one.anchor[None]))[0, 150:190, :, 0, 1].numpy()
    ahead = one.target[np.arange(150, 190)[:, None] + np.arange(1, 4), 0]
    assert np.abs(q - ahead).mean() < 0.5 * np.abs(one.target[150:190] - ahead).mean()


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions(tmp_path, precision):
    net, _ = trained(tmp_path / "run", changed(RECIPE, precision=precision), "s4d lstm")
    assert {p.dtype for p in net.parameters()} == {torch.float32}


def test_without_windows_it_runs_to_its_end(tmp_path):
    net = network()
    pieces = Pieces([encoded()], [160], horizon=3, length=32, batch_size=8, seed=0)
    train_forecast(net, pieces, [], RECIPE, tmp_path, progress=False)
    assert not torch.equal(net.towers[0].head.weight, network().towers[0].head.weight)


def test_unknown_devices_and_precisions(tmp_path):
    for change in ({"devices": "seven"}, {"devices": "cuda:7"}, {"precision": "3-true"}):
        with pytest.raises(BadInput, match=r"devices|precision") as error:
            trained(tmp_path / str(change), changed(RECIPE, **change))
        assert "\n" not in str(error.value)


def test_no_time_at_all(tmp_path):
    net, _ = trained(tmp_path / "run", changed(RECIPE, max_minutes=1e-9))
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_divergence_is_said(tmp_path):
    with pytest.raises(BadInput, match="smaller"):
        trained(tmp_path / "run", changed(RECIPE, lr=1e30, epochs=3))


def test_a_line_for_each_epoch_where_there_is_no_terminal(tmp_path, capfd):
    pieces = Pieces([encoded()], [160], horizon=3, length=32, batch_size=8, seed=0)
    checks = windows([encoded()], [160], [200], horizon=3, length=32, batch_size=4)
    train_forecast(network(), pieces, checks, RECIPE, tmp_path, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "epoch 2/2" in err
    assert "val MAE" in err


def test_a_bar_on_a_terminal_ends_full(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda file: Console(file=file, force_terminal=True, width=120))
    pieces = Pieces([encoded()], [160], horizon=3, length=32, batch_size=8, seed=0)
    checks = windows([encoded()], [160], [200], horizon=3, length=32, batch_size=4)
    train_forecast(network(), pieces, checks, RECIPE, tmp_path, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "epoch 2/2" in err
    assert "val MAE" in err
    assert "0:00:00" in err.rpartition("left")[2]


def test_ctrl_c_comes_out(tmp_path, monkeypatch):
    handler = signal.getsignal(signal.SIGINT)

    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(forecast_learner.ForecastLearner, "training_step", press)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is handler


def test_other_exits_pass():
    class Trainer:
        interrupted = False

    with pytest.raises(SystemExit), interruptible(Trainer()):
        sys.exit(3)


def test_calibration_puts_the_shares_right(monkeypatch):
    monkeypatch.setattr(calibration, "BOUNDS", (0.01, 100.0))
    net = network().eval()
    one = encoded(2000)
    checks = windows([one], [100], [2000], horizon=3, length=512, batch_size=4)
    calibrate(net, checks)
    factors = net.spread.clone()
    assert factors[0, 1] == 1
    inside = []
    with torch.no_grad():
        for batch in checks:
            h, _ = net.read(batch.inputs, batch.codes, lengths=batch.lengths)
            q, y = net(h[:, :, batch.rows], batch.anchor), batch.future[..., None]
            inside.append(torch.stack([(y <= q)[..., level][~torch.isnan(batch.future)] for level in (0, 2)], 1))
    shares = torch.cat(inside).double().mean(0)
    for level, share in enumerate((0.1, 0.9)):
        assert abs(float(shares[level]) - share) < 0.01
    calibrate(net, checks)
    torch.testing.assert_close(net.spread, factors)


def test_quantiles_are_moved_outward_alone():
    net = network().eval()
    with torch.no_grad():
        for tower in net.towers:
            tower.head.bias.view(3, 1, 3)[..., [0, 2]] += 20.0
    calibrate(net, windows([encoded(2000)], [100], [2000], horizon=3, length=512, batch_size=4))
    assert (net.spread == 1).all()


def test_few_values_calibrate_nothing():
    net = network().eval()
    calibrate(net, windows([encoded(20)], [10], [20], horizon=3, length=8, batch_size=4))
    calibrate(net, [])
    assert (net.spread == 1).all()


def test_seeded_leaves_the_generator_alone():
    before = torch.get_rng_state()
    with contextlib.suppress(ValueError), seeded(3):
        torch.rand(3)
        raise ValueError
    assert torch.equal(torch.get_rng_state(), before)
