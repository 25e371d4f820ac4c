"""Several processes train as one would."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from conca.data.encoding import Encoded
from conca.models.forecast import ForecastNetwork, NetworkConfig
from conca.train import keeper, places
from conca.train.forecast_lesson import train_forecast
from conca.train.pieces import Pieces, windows
from conca.train.places import Place, place_of
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Recipe(
    lr=1e-2,
    weight_decay=0.01,
    epochs=2,
    steps=4,
    patience=5,
    max_minutes=None,
    seed=0,
    devices="cpu",
    precision="64-true",
)


def series(rows):
    """A fifth of the targets are missing."""
    draw = np.random.default_rng(rows)
    wave = np.sin(np.arange(rows) / 3).astype(np.float32)[:, None]
    target = np.where(draw.random((rows, 1)) < 0.2, np.nan, wave).astype(np.float32)
    return Encoded(wave, np.zeros((rows, 0), np.int64), wave[:, None], target, None, np.zeros(1), np.ones(1))


def network(members=2, dropout=0.0):
    config = NetworkConfig(
        "lstm", 8, 3, 1, (), (0.1, 0.5, 0.9), (0.0,), (0.0,), (1.0,), members=members, dropout=dropout
    )
    with seeded(0):
        return ForecastNetwork(config)


def train(folder, devices, *, batch=5, dropout=0.0, resume=False, **changes):
    folder.mkdir(exist_ok=True)
    net, both = network(dropout=dropout), [series(200), series(23)]
    pieces = Pieces(both, [160, 20], horizon=3, length=32, batch_size=2 * batch, seed=0)
    checks = windows(both, [160, 20], [200, 23], horizon=3, length=16, batch_size=1)
    recipe = Recipe(**(RECIPE.__dict__ | {"devices": devices} | changes))
    return net, train_forecast(net, pieces, checks, recipe, folder, progress=False, resume=resume)


def close(one, two, tolerance):
    (net, trained), (other, also) = one, two
    assert [row.keys() for row in trained.history] == [row.keys() for row in also.history]
    for row, second in zip(trained.history, also.history):
        assert list(row.values()) == pytest.approx(list(second.values()), rel=tolerance)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


def test_two_processes_are_one_at_the_same_batch(tmp_path):
    """Members, missing targets, pieces that end early, a batch that cannot be halved, cuts in time."""
    one = train(tmp_path / "one", "cpu", truncate=10, precision="32-true")
    two = train(tmp_path / "two", "cpu:2", truncate=10, precision="32-true")
    close(one, two, 1e-6)
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["checkpoints", "logs", "metrics.csv"]
    assert not torch.distributed.is_initialized()


def test_more_processes_than_pieces_are_refused(tmp_path):
    with pytest.raises(BadInput, match="batch_size 1 is too small for 2 devices"):
        train(tmp_path / "run", "cpu:2", batch=1)


KILLED = """
import os, sys
from pathlib import Path
import torch
sys.path.insert(0, "tests/train")
import test_ranks as t
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
t.keeper.PAUSE, t.keeper.SHARE = 0.0, 0
end = t.keeper.Keeper.on_train_batch_end
def deadly(self, trainer, module, *rest):
    end(self, trainer, module, *rest)
    if self.course.step == 6:
        os.kill(os.getpid(), 9)
t.keeper.Keeper.on_train_batch_end = deadly
if __name__ == "__main__":
    t.train(Path(sys.argv[1]), "cpu:2", dropout=0.2)
"""


def test_killed_and_resumed_two_end_with_the_same_bits(tmp_path, monkeypatch):
    """The first process dies, and the other with it."""
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    found = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], cwd=ROOT, check=False, timeout=120)
    assert found.returncode == -signal.SIGKILL
    one, whole = train(tmp_path / "whole", "cpu:2", dropout=0.2)
    two, resumed = train(tmp_path / "run", "cpu:2", dropout=0.2, resume=True)
    assert resumed == whole
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_process_that_is_killed_ends_all_with_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper.Keeper, "on_train_batch_end", kill_children(keeper.Keeper.on_train_batch_end))
    begin = time.monotonic()
    with pytest.raises(ChildProcessError, match=r"process 1 of the training ended with status -9.*resume") as error:
        train(tmp_path / "run", "cpu:2", epochs=1000)
    assert time.monotonic() - begin < 60
    assert "\n" not in str(error.value)
    assert not torch.distributed.is_initialized()


def kill_children(end):
    def deadly(self, trainer, module, *rest):
        end(self, trainer, module, *rest)
        if self.course.step == 3:
            own = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and parent(p) == os.getpid()]
            for process in own:
                if b"conca.train.worker" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, signal.SIGKILL)

    return deadly


def parent(process):
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_a_process_that_cannot_begin_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ChildProcessError, match=r"process 1 .*No module named"):
        train(tmp_path / "run", "cpu:2")


SCRIPT = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, "tests/train")
import test_ranks as t
from conca.train.ranks import first
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
net, trained = t.train(Path(sys.argv[1]) / ("run" if first() else "none"), "auto")
_, late = t.train(Path(sys.argv[1]) / ("late" if first() else "none"), "auto", max_minutes=1e-9)
assert late.steps == 2
torch.save([net.state_dict(), trained.history], Path(sys.argv[1]) / f"{t.os.environ['RANK']}.pt")
"""


def test_torchrun(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path)],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    one = train(tmp_path / "one", "cpu")
    for number in range(2):
        weights, history = torch.load(tmp_path / f"{number}.pt", weights_only=True)
        net = network()
        net.load_state_dict(weights)
        close(one, (net, one[1].__class__(one[1].steps, one[1].epochs, history)), 1e-9)
    assert not list((tmp_path / "none").iterdir())


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("auto", Place("cpu", (0,))),
        ("1", Place("cpu", (0,))),
        ("2", Place("cpu", (0, 1))),
        ("cpu", Place("cpu", (0,))),
        ("cpu:3", Place("cpu", (0, 1, 2))),
    ],
)
def test_words_for_places_without_a_gpu(monkeypatch, words, place):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert place_of(words) == place


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("auto", Place("cuda", (0,))),
        ("2", Place("cuda", (0, 1))),
        ("cpu:2", Place("cpu", (0, 1))),
        ("cuda", Place("cuda", (0,))),
        ("cuda:1", Place("cuda", (1,))),
        ("cuda:1,0", Place("cuda", (1, 0))),
    ],
)
def test_words_for_places_with_two_gpus(monkeypatch, words, place):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert place_of(words) == place
    assert [place.devices(n) for n in range(place.processes)] == [
        1 if place.kind == "cpu" else [number] for number in place.numbers
    ]


@pytest.mark.parametrize(
    "words", ["", "0", "cpu:0", "cpu:", "cuda:", "cuda:a", "auto:2", "seven", "-1", "2,3", "cuda:0,", "cpu:0,1", " 2"]
)
def test_no_words_for_places(words):
    with pytest.raises(BadInput, match="say auto, cpu"):
        place_of(words)


@pytest.mark.parametrize("words", ["3", "cuda:2", "cuda:0,0"])
def test_gpus_that_are_not_there(monkeypatch, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadInput, match="this machine has 2 GPUs that PyTorch sees; name those, or say cpu"):
        place_of(words)


def test_torchrun_knows_how_many(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(places, "launched", lambda: True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert place_of("auto") == place_of("cpu") == place_of("2") == Place("cpu", (0, 1))
    with pytest.raises(BadInput, match="torchrun started 2"):
        place_of("3")
