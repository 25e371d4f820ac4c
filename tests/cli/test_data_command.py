"""`conca data` from the command line: whole files or none, a checksum, nothing overwritten unasked."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from conca.data import listops, making


def test_lists_are_written_whole_with_a_checksum(say: Callable) -> None:
    status, out, err = say("data", "listops", "--out", "a.npz", "--count", 60, "--seed", 2, "--processes", 1)
    assert status == 0 and re.fullmatch(r"sha256 [0-9a-f]{64}\n", out)
    assert err == "conca: wrote a.npz: 60 sequences of symbols, 10 classes\n"
    assert say("data", "listops", "--out", "b.npz", "--count", 60, "--seed", 2, "--processes", 2, "-q") == (0, out, "")
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()
    assert [path.name for path in sorted(Path().iterdir())] == ["a.npz", "b.npz"]


def test_nothing_is_overwritten_unasked(say: Callable) -> None:
    Path("a.npz").write_text("mine")
    words = ["data", "listops", "--count", 5, "--processes", 1, "-q", "--out"]
    assert say(*words, "a.npz") == (2, "", "conca: a.npz: exists; --force replaces it\n")
    assert Path("a.npz").read_text() == "mine"
    assert say(*words, "a.npz", "--force")[0] == 0 and np.load("a.npz")["X"].shape == (5, 1999)
    assert say(*words, "tables")[0] == 0
    assert say(*words, "tables") == (2, "", "conca: tables: exists; --force replaces it\n")
    assert say(*words, "tables", "--force")[0] == 0
    Path("tables/mine.txt").write_text("mine")
    status, _, err = say(*words, "tables", "--force")
    assert status == 2 and err == "conca: tables: holds other things ('mine.txt'); name another folder\n"
    assert sorted(path.name for path in Path().iterdir()) == ["a.npz", "tables"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["listops", "--out", "a.csv"], "a.csv: name a file that ends in .npz"),
        (["listops", "--out", "no/a.npz"], "no: there is no such folder; make it first"),
        (["listops", "--out", "no/tables"], "no: there is no such folder; make it first"),
        (["pathfinder", "--out", "tables"], "tables: name a file that ends in .npz"),
        (["pathfinder", "--out", "a.npz", "--size", "48"], "pathfinder: size 48 is not one of 32, 64, 128, 256"),
        (["pathfinder", "--out", "a.npz", "--contour", "10"], "pathfinder: contour 10 is not one of 6, 9, 14"),
        ([], "Missing command."),
    ],
)
def test_bad_input_is_one_line(say: Callable, words: list[str], line: str) -> None:
    assert say("data", *words) == (2, "", f"conca: {line}\n")
    assert not list(Path().iterdir())


def test_a_count_of_nothing_is_refused(say: Callable) -> None:
    status, _, err = say("data", "listops", "--out", "a.npz", "--count", 0)
    assert status == 2 and "--count" in err and err.count("\n") == 1


@pytest.mark.parametrize("out", ["a.npz", "tables"])
def test_what_breaks_off_leaves_nothing(say: Callable, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    def broken(symbols: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(listops, "value_of", broken)
    status, _, err = say("data", "listops", "--out", out, "--count", 5, "--processes", 1)
    assert (status, err) == (130, "conca: interrupted\n")
    assert not list(Path().iterdir())


def test_pictures_are_written(say: Callable) -> None:
    words = ["data", "pathfinder", "--out", "p.npz", "--count", 10, "--contour", 6, "--processes", 1]
    status, out, err = say(*words)
    assert status == 0 and out.startswith("sha256 ")
    compiling = "conca: compiling kernels for this machine, once (some seconds)"  # said by the first of a process
    said = [line for line in err.splitlines() if line != compiling]
    assert said == ["conca: wrote p.npz: 10 sequences of 1024 pixels, 2 classes"]
    with np.load("p.npz") as file:
        assert file["X"].shape == (10, 1024, 1) and file["X"].max() == 255 and set(file["y"]) <= {0, 1}


def living(parent: int) -> set[int]:
    """Processes whose parent this is."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path: Path, number: int) -> None:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # not so below a shell's `&`
    start = f"{heard}; import sys; from conca.cli.main import main; sys.exit(main())"
    words = [sys.executable, "-c", start, "data", "listops", "--out", "a.npz", "--processes", "2", "-q"]
    child = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    started: set[int] = set()
    until = time.monotonic() + 60
    while not (any(tmp_path.iterdir()) and len(started) >= 3) and time.monotonic() < until:
        started = living(child.pid)
        time.sleep(0.05)
    assert len(started) >= 3, "two at work, and one that tidies up"
    (child.send_signal if number == signal.SIGKILL else lambda n: os.killpg(child.pid, n))(number)
    err = child.communicate(timeout=60)[1].decode()
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    if number == signal.SIGINT:
        assert (child.returncode, err) == (130, "conca: interrupted\n")
        assert not list(tmp_path.iterdir())


def test_results_keep_their_order_and_an_error_comes_through() -> None:
    with closing(making.in_order(abs, range(-9, 9), 1)) as found:
        assert list(found) == [abs(n) for n in range(-9, 9)]
    with pytest.raises(TypeError), closing(making.in_order(len, range(3), 2)) as found:
        next(found)
