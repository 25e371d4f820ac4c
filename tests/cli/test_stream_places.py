"""Where `conca stream` writes: states behind links and beside other streams, full devices, and headers that are none."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from conca.cli.main import main; sys.exit(main())"
Feed = Callable[..., tuple[int, str, str]]


def program(run: Path, rows: str, *words: object, **ends: object) -> subprocess.CompletedProcess[str]:
    """The program itself, to the end of its process."""
    command = [sys.executable, "-c", MAIN, "stream", *map(str, (run, *words))]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **ends}
    return subprocess.run(command, input=rows, text=True, env={**os.environ, "PYTHONPATH": paths}, **streams)


def test_a_link_is_followed(feed: Feed, table: str) -> None:
    lines = table.splitlines(keepends=True)
    Path("deep").mkdir()
    Path("link").symlink_to("deep/state")
    assert feed("".join(lines[:21]), "--state", "link")[0] == 0
    assert Path("link").is_symlink()
    assert os.listdir("deep") == ["state"]
    status, _, err = feed("".join(lines[:31]), "--state", "link")
    assert (status, err) == (0, "conca: 20 rows were read before, as link says, and passed over\n")
    assert Path("link").is_symlink()
    assert os.listdir("deep") == ["state"]
    Path("astray").symlink_to("nowhere/state")
    status, out, err = feed(table, "--state", "astray")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "no such folder" in err


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_no_regular_file_is_refused(kind: str, feed: Feed, table: str) -> None:
    os.mkfifo("pipe")
    path = "pipe" if kind == "pipe" else os.devnull
    told = f"conca: {path}: is no regular file; name another\n"
    assert feed(table, "--state", path) == (2, "", told)
    assert Path("pipe").is_fifo()


def test_two_streams_do_not_share_a_state(started: Callable, feed: Feed, table: str, tmp_path: Path) -> None:
    lines, lock = table.splitlines(keepends=True), tmp_path / ".state.lock"
    process = started("--state", "state")
    end = time.monotonic() + 60
    while not lock.exists() or not lock.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    Path("link").symlink_to("state")
    for name in ("state", "link"):
        status, out, err = feed(table, "--state", name)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"conca: {name}: another stream (process {process.pid}) goes on from it")
    assert feed("".join(lines[:3]), "--state", "other")[0] == 0
    process.communicate("".join(lines[:11]).encode())
    assert process.returncode == 0
    assert not lock.exists()
    status, _, err = feed("".join(lines[:11]), "--state", "state")
    assert (status, err) == (0, "conca: 10 rows were read before, as state says, and passed over\n")
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_takes_no_lock(feed: Feed, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "x" * 300
    status, out, err = feed(table, "--state", name)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert ".lock" not in err


def test_stdout_that_is_full(fitted: Path, feed: Feed, table: str) -> None:
    lines = table.splitlines(keepends=True)
    feed("".join(lines[:21]), "--state", "state")
    before = Path("state").read_bytes()
    with open("/dev/full", "wb") as full:
        done = program(fitted / "run", table, "--state", "state", stdout=full)
    told = "conca: stdout: No space left on device; nothing more can be written, so the stream ends\n"
    assert (done.returncode, done.stderr) == (2, told)
    assert Path("state").read_bytes() == before
    assert not Path(".state.lock").exists()


def test_stderr_that_is_full_changes_nothing(fitted: Path, feed: Feed, table: str) -> None:
    lines = table.splitlines(keepends=True)
    rows = "".join([*lines[:5], "yesterday,1,2\n", *lines[5:20]])
    status, out, err = feed(rows)
    assert status == 0
    assert err.count("\n") == 2
    with open("/dev/full", "wb") as full:
        done = program(fitted / "run", rows, "-v", stderr=full)
    assert done.returncode == 0
    pd.testing.assert_frame_equal(*(pd.read_csv(io.StringIO(text)) for text in (done.stdout, out)), rtol=1e-5)


def test_a_header_that_is_missing(feed: Feed, table: str) -> None:
    status, out, err = feed("".join(table.splitlines(keepends=True)[1:]))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "is the header missing? the first line must name the columns: time,load,heat" in err


def test_lines_that_end_with_carriage_returns(feed: Feed, table: str) -> None:
    status, out, err = feed(table.replace("\n", "\r"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "carriage return" in err
    assert "universal" not in err


def test_one_row_is_one_row(feed: Feed, table: str) -> None:
    head, row, *_ = table.splitlines(keepends=True)
    assert feed(head + "x,1,2\n")[2].endswith("conca: 1 row was refused\n")
    assert feed(head + row, "-v")[2].startswith("conca: 1 row, ")
