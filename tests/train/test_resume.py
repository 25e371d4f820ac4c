"""A training that was killed goes on, and ends as if nothing had happened."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conca.data.encoding import Encoded
from conca.models.forecast import ForecastNetwork, NetworkConfig
from conca.models.run import CHECKPOINT
from conca.train import course as courses
from conca.train import keeper
from conca.train.checkpoint import read_checkpoint, write_checkpoint
from conca.train.fit import train_forecast
from conca.train.pieces import Pieces, windows
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

ROOT = Path(__file__).resolve().parents[2]
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
KILLED = """
import os, sys
from pathlib import Path
import torch
sys.path.insert(0, "tests/train")
import test_resume as t
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
where, when = sys.argv[2], int(sys.argv[3])
calls = 0
def deadly(function, half=False):
    def wrapped(*args):
        global calls
        calls += 1
        if calls == when:
            if half:
                args[0].with_name(args[0].name + ".part").write_bytes(bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), 9)
        return function(*args)
    return wrapped
if where == "step":
    t.keeper.Keeper.on_train_batch_end = deadly(t.keeper.Keeper.on_train_batch_end)
if where == "write":
    import conca.train.checkpoint as c
    c.write_whole = deadly(c.write_whole, half=True)
if where == "table":
    t.courses.write_whole = deadly(t.courses.write_whole, half=True)
t.train(Path(sys.argv[1]), resume=True)
"""


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


def killed(folder, where, when):
    command = [sys.executable, "-c", KILLED, str(folder), where, str(when)]
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert found.returncode == -signal.SIGKILL, found.stderr


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    monkeypatch.setattr(keeper, "SHARE", 0)


@pytest.mark.parametrize(
    "kills", [[("step", 9), ("step", 4)], [("write", 8), ("table", 2)], [("step", 1), ("write", 1)]]
)
def test_killed_twice_and_resumed_it_ends_with_the_same_bits(tmp_path, kills):
    one, whole = train(tmp_path / "whole")
    for where, when in kills:
        killed(tmp_path / "run", where, when)
    two, resumed = train(tmp_path / "run", resume=True)
    assert same(one, two)
    assert resumed == whole
    tables = [(tmp_path / name / "metrics.csv").read_text() for name in ("whole", "run")]
    assert tables[0] == tables[1]
    assert len(tables[0].splitlines()) == 1 + len(whole.history)
