"""A training that was killed goes on, and ends as if nothing had happened."""

import errno
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from conca.data.encoding import Encoded
from conca.models.forecast import ForecastNetwork, NetworkConfig
from conca.models.run import CHECKPOINT
from conca.train import keeper
from conca.train.checkpoint import read_checkpoint, write_checkpoint
from conca.train.forecast_lesson import train_forecast
from conca.train.pieces import Pieces, windows
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

RECIPE = Recipe(
    lr=1e-2,
    weight_decay=0.01,
    epochs=4,
    steps=6,
    patience=2,
    max_minutes=None,
    seed=0,
    devices="cpu",
    precision="32-true",
)


def series(rows=200):
    wave = np.sin(np.arange(rows) / 3).astype(np.float32)[:, None]
    return Encoded(wave, np.zeros((rows, 0), np.int64), wave[:, None], wave, None, np.zeros(1), np.ones(1))


def network(layers="lstm"):
    config = NetworkConfig(layers, 8, 3, 1, (), (0.1, 0.5, 0.9), (0.0,), (0.0,), (1.0,), members=2, dropout=0.2)
    with seeded(0):
        return ForecastNetwork(config)


def train(folder, recipe=RECIPE, resume=False, checks=True, layers="lstm"):
    """With a checkpoint after every step."""
    keeper.PAUSE, keeper.SHARE = 0.0, 0
    folder.mkdir(exist_ok=True)
    net = network(layers)
    pieces = Pieces([series()], [160], horizon=3, length=32, batch_size=8, seed=0)
    found = windows([series()], [160], [200], horizon=3, length=32, batch_size=4) if checks else []
    return net, train_forecast(net, pieces, found, recipe, folder, progress=False, resume=resume)


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    monkeypatch.setattr(keeper, "SHARE", 0)


def test_interrupted_it_ends_with_the_same_bits(tmp_path):
    one, whole = train(tmp_path / "whole")
    for steps in (9, 10, 17, 18):
        broken_off(tmp_path / "run", RECIPE, steps)
    two, resumed = train(tmp_path / "run", resume=True)
    assert same(one, two)
    assert resumed == whole
    tables = [(tmp_path / name / "metrics.csv").read_text() for name in ("whole", "run")]
    assert tables[0] == tables[1]
    assert len(tables[0].splitlines()) == 1 + len(whole.history)


def test_before_the_first_checkpoint_it_begins_again(tmp_path):
    one, _ = train(tmp_path / "whole")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.ckpt.part").write_bytes(b"PK")
    two, _ = train(tmp_path / "run", resume=True)
    assert same(one, two)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("checks", [True, False])
def test_what_has_ended_comes_back_at_once(tmp_path, monkeypatch, checks):
    one, first = train(tmp_path / "run", checks=checks)
    monkeypatch.setattr(keeper, "Keeper", None)
    two, second = train(tmp_path / "run", resume=True, checks=checks)
    assert same(one, two)
    assert first == second


def test_patience_is_remembered(tmp_path):
    """It ends before the last epoch, and what is kept is an earlier one."""
    recipe = Recipe(**(RECIPE.__dict__ | {"lr": 0.5, "epochs": 12, "patience": 1}))
    one, whole = train(tmp_path / "whole", recipe)
    assert whole.epochs < len(whole.history) < 12
    assert whole.epochs == 1 + int(np.argmin([row["val/loss"] for row in whole.history]))
    assert whole.steps == whole.epochs * 6
    for steps in range(3, 6 * len(whole.history), 9):
        broken_off(tmp_path / "run", recipe, steps)
    two, resumed = train(tmp_path / "run", recipe, resume=True)
    assert same(one, two)
    assert resumed == whole


def broken_off(folder, recipe, steps, checks=True):
    """Ctrl-C after so many steps, all interruptions counted."""
    end = keeper.Keeper.on_train_batch_end

    def press(self, *rest):
        end(self, *rest)
        if self.course.step == steps:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keeper.Keeper, "on_train_batch_end", press)
        train(folder, recipe, resume=True, checks=checks)


def test_it_ends_after_the_steps_that_are_told(tmp_path):
    """On the schedule of the longer training: the weights are those that it had then."""
    _, whole = train(tmp_path / "whole", checks=False)
    stopped = Recipe(**(RECIPE.__dict__ | {"stop": 15}))
    one, trained = train(tmp_path / "stopped", stopped, checks=False)
    assert (trained.steps, trained.epochs, len(trained.history)) == (15, 3, 3)
    assert trained.history[:2] == whole.history[:2]
    broken_off(tmp_path / "long", RECIPE, 15)
    kept = read_checkpoint(tmp_path, (tmp_path / "long" / CHECKPOINT).read_bytes())["averaged"]
    assert all(torch.equal(tensor, kept[f"module.{name}"]) for name, tensor in one.state_dict().items())
    broken_off(tmp_path / "again", stopped, 14, checks=False)
    two, again = train(tmp_path / "again", stopped, resume=True, checks=False)
    assert same(one, two)
    assert again == trained


def test_the_minutes_before_an_interruption_count(tmp_path, monkeypatch):
    broken_off(tmp_path / "run", RECIPE, 7)
    path = tmp_path / "run" / CHECKPOINT
    saved = read_checkpoint(path, path.read_bytes())
    assert 0 < saved["course"]["seconds"] < 60
    saved["course"]["seconds"] += 3600
    write_checkpoint(path, saved)
    recipe = Recipe(**(RECIPE.__dict__ | {"max_minutes": 60.0}))
    _, trained = train(tmp_path / "run", recipe, resume=True)
    assert trained.history[-1]["step"] == 8


def test_a_checkpoint_of_another_training(tmp_path):
    broken_off(tmp_path / "run", RECIPE, 7)
    for changes, words in (({"lr": 0.1}, "lr was 0.01, now it is 0.1"), ({"stop": 9}, "stop was None")):
        with pytest.raises(BadInput, match=words) as error:
            train(tmp_path / "run", Recipe(**(RECIPE.__dict__ | changes)), resume=True)
        assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match="another network"):
        train(tmp_path / "run", resume=True, layers="lstm*2")


def test_a_damaged_checkpoint(tmp_path):
    broken_off(tmp_path / "run", RECIPE, 7)
    path = tmp_path / "run" / CHECKPOINT
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for ill in (b"x", data[:-1], data[: len(data) // 2], bytes(flipped), b"PK\x05\x06" + bytes(18)):
        path.write_bytes(ill)
        with pytest.raises(BadInput, match=r"last\.ckpt: not a whole checkpoint of conca") as error:
            train(tmp_path / "run", resume=True)
        assert "\n" not in str(error.value)


def test_a_foreign_checkpoint(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for content in ([1], {"state_dict": {}}, {"conca": 1}, {"conca": 1, "course": {}, "network": {}}):
        torch.save(content, tmp_path / "run" / CHECKPOINT)
        with pytest.raises(BadInput, match="checkpoint"):
            train(tmp_path / "run", resume=True)


def test_no_code_is_run_from_a_checkpoint(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    torch.save({"conca": 1, "course": Evil()}, tmp_path / "run" / CHECKPOINT)
    with pytest.raises(BadInput, match="not a whole checkpoint"):
        train(tmp_path / "run", resume=True)
    assert not (tmp_path / "touched").exists()


def test_a_signal_to_end_is_an_exit_that_can_be_resumed(tmp_path):
    def end(signum=signal.SIGTERM):
        signal.raise_signal(signum)

    before, step = signal.getsignal(signal.SIGTERM), keeper.Keeper.on_train_batch_end

    def told(self, *rest):
        step(self, *rest)
        if self.course.step == 8:
            end()

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as error:
        patch.setattr(keeper.Keeper, "on_train_batch_end", told)
        train(tmp_path / "run")
    assert error.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    one, _ = train(tmp_path / "whole")
    two, _ = train(tmp_path / "run", resume=True)
    assert same(one, two)


def test_a_full_disk_comes_out_and_what_was_there_stays(tmp_path, monkeypatch):
    writes = []

    def full(number):
        writes.append(number)
        if len(writes) == 9:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as error:
        patch.setattr(os, "fsync", full)
        train(tmp_path / "run")
    assert error.value.filename.endswith(("last.ckpt", "metrics.csv"))
    one, _ = train(tmp_path / "whole")
    two, _ = train(tmp_path / "run", resume=True)
    assert same(one, two)
