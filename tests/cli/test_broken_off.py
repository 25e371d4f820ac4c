"""`conca fit` broken off: killed, told to end, out of disk, twice at once; and taken up again."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conca.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "--target y --time time --horizon 3 --layers lstm --d-model 8 --length 32 --epochs 3 --batch-size 4 --members 2 -q"
)
PROGRAM = """
import io, os, sys
import torch
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
from conca.train import checkpoint, keeper
keeper.PAUSE, keeper.SHARE = 0.0, 0
where, when = sys.argv[1].split(":")
steps, writes = 0, 0
end, write = keeper.Keeper.on_train_batch_end, checkpoint.write_whole
def stepped(self, *rest):
    global steps
    end(self, *rest)
    steps += 1
    if where == "step" and steps == int(when):
        os.kill(os.getpid(), 9)
    if steps == 3:
        print("three steps", flush=True)
        if where == "wait":
            sys.stdin.read()
def written(path, data):
    global writes
    writes += 1
    if where == "write" and writes == int(when):
        memory = io.BytesIO()
        data(memory)
        path.with_name(path.name + ".part").write_bytes(memory.getvalue()[: memory.tell() // 2])
        os.kill(os.getpid(), 9)
    write(path, data)
keeper.Keeper.on_train_batch_end, checkpoint.write_whole = stepped, written
from conca.cli.main import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def table(tmp_path):
    draw, rows = np.random.default_rng(0), 240
    y = np.sin(np.arange(rows) / 4) + 0.1 * draw.normal(size=rows)
    times = pd.date_range("2024-01-01", periods=rows, freq="h")
    pd.DataFrame({"time": times, "y": y}).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def words(table, out, *more):
    return ["fit", str(table), *OPTIONS.split(), "--out", str(out), *more]


def program(when, arguments, **options):
    command = [sys.executable, "-c", PROGRAM, when, *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def contents(run):
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.suffix != ".html"}


def test_killed_in_both_trainings_it_ends_as_if_nothing_had_been(tmp_path, table):
    assert main(words(table, tmp_path / "whole")) == 0
    for when in ("step:13", "write:40"):  # in an epoch; and while the last training writes a checkpoint
        with program(when, words(table, tmp_path / "run", "--resume")) as process:
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "run").exists()
    assert main(words(table, tmp_path / "run", "--resume")) == 0
    one, two = contents(tmp_path / "whole"), contents(tmp_path / "run")
    assert one.keys() == two.keys() >= {"model.safetensors", "metrics.csv", "scores.csv", "refit_scores.csv"}
    assert [name for name in one if one[name] != two[name]] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "table.csv", "whole"]


def test_two_at_once_and_told_to_end(tmp_path, table, capsys):
    with program("wait:", words(table, tmp_path / "run")) as process:
        assert process.stdout.readline() == "three steps\n"
        for more in ([], ["--force"], ["--resume"]):
            assert main(words(table, tmp_path / "run", *more)) == 2
            line = f"another training (process {process.pid}) is writing it"
            assert line in capsys.readouterr().err
        assert main(words(table, tmp_path / "other")) == 0
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err
    for more, line in (([], "continue with resume (--resume)"), (["--resume", "--lr", "0.1"], "lr")):
        assert main(words(table, tmp_path / "run", *more)) == 2
        err = capsys.readouterr().err
        assert line in err
        assert err.count("\n") == 1
    assert main(words(table, tmp_path / "run", "--resume")) == 0
    one, two = contents(tmp_path / "other"), contents(tmp_path / "run")
    assert [name for name in one if one[name] != two[name]] == []
    assert main(words(table, tmp_path / "run", "--resume")) == 2
    assert "finished" in capsys.readouterr().err


def test_a_classifier_killed_twice_ends_as_if_nothing_had_been(tmp_path):
    draw = np.random.default_rng(0)
    speed = np.tile([0.3, 0.9], 15)[:, None]
    x = np.sin(speed * np.arange(12) + draw.uniform(0, 6, (30, 1)))[:, :, None]
    np.savez(tmp_path / "table.npz", X=x, y=np.tile(["slow", "fast"], 15))
    options = ["--task", "classify", "--layers", "s4d(d_state=4)", "--d-model", "8", "--epochs", "2", "-q"]

    def fit(out, *more):
        return ["fit", str(tmp_path / "table.npz"), *options, "--out", str(tmp_path / out), *more]

    assert main(fit("whole")) == 0
    for when in ("step:9", "write:30"):
        with program(when, fit("run", "--resume")) as process:
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "run").exists()
    assert main(fit("run", "--resume")) == 0
    one, two = contents(tmp_path / "whole"), contents(tmp_path / "run")
    assert one.keys() == two.keys() >= {"model.safetensors", "metrics.csv", "scores.csv", "evaluation.safetensors"}
    assert [name for name in one if one[name] != two[name]] == []


def limited(size):
    """No file of this process may become larger; a write beyond that is an error, as on a full disk."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_full_disk(tmp_path, table):
    assert main(words(table, tmp_path / "run", "--epochs", "1")) == 0
    before = contents(tmp_path / "run")
    with program("never:", words(table, tmp_path / "run", "--force"), preexec_fn=limited(30_000)) as process:
        _, err = process.communicate()
    assert process.returncode == 2, err
    assert err.count("\n") == 1
    assert "File too large" in err
    assert contents(tmp_path / "run") == before
    left = [path for path in tmp_path.iterdir() if path.name not in ("run", "table.csv")]
    assert all((path / "checkpoints" / "last.ckpt").exists() for path in left)
    assert main(words(table, tmp_path / "run", "--force", "--resume")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "table.csv"]
