"""A small table and a small run of it, made once, and ways to stream through it."""

import contextlib
import lzma
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pytest
import torch

from conca.cli.main import main
from conca.report import drawing

SMALL = ["--layers", "s4d", "--d-model", "8", "--epochs", "1", "--batch-size", "4"]
Say = Callable[..., tuple[int, str, str]]
Feed = Callable[..., tuple[int, str, str]]


def hourly(rows: int = 400) -> pd.DataFrame:
    """A wave with a day's period, a covariate, and a few values missing."""
    hours = np.arange(rows)
    wave = np.sin(2 * np.pi * hours / 24) + 0.1 * np.random.default_rng(0).standard_normal(rows)
    table = pd.DataFrame({"time": pd.date_range("2024-01-01", periods=rows, freq="h"), "load": wave, "heat": wave**2})
    table.loc[[3, 50, 51], "load"] = np.nan
    return table


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written with empty pictures, which take most of the time of a small fit; tests/report draws them."""
    monkeypatch.setattr(drawing, "drawn", lambda figure: "<svg></svg>")


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Say:
    """Runs one command in a folder of its own: exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main([str(word) for word in words])
        return status, *capfd.readouterr()

    return run


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `air.csv.xz` and a run of it, `run`; nobody may change it."""
    folder = tmp_path_factory.mktemp("fitted")
    data = folder / "air.csv.xz"
    data.write_bytes(lzma.compress(hourly().to_csv(index=False).encode()))
    torch.set_default_dtype(torch.float32)
    words = ["fit", data, "--target", "load", "--time", "time", "--horizon", 6, "--out", folder / "run", "-q", *SMALL]
    assert main([str(word) for word in words]) == 0
    return folder


@pytest.fixture
def feed(say: Callable, fitted: Path, tmp_path: Path) -> Feed:
    """Runs `conca stream` on the fitted run with these bytes on stdin: exit status, stdout, stderr."""

    def run(data: bytes | str, *words: object, run: Path = fitted / "run") -> tuple[int, str, str]:
        (tmp_path / "stdin").write_bytes(data if isinstance(data, bytes) else data.encode())
        saved = os.dup(0)
        with (tmp_path / "stdin").open("rb") as file:
            os.dup2(file.fileno(), 0)
            try:
                return say("stream", run, *words)
            finally:
                os.dup2(saved, 0)
                os.close(saved)

    return run


@pytest.fixture(scope="module")
def table(fitted: Path) -> str:
    return pd.read_csv(fitted / "air.csv.xz").to_csv(index=False)


class Child:
    """`conca` in a child of this process, which needs not be started anew: as `subprocess.Popen`, in what is used here."""

    def __init__(self, words: list[str], stdout: IO[bytes] | int, before: Callable[[], None]) -> None:
        inward, self.stdin = pipe()
        self.stdout, outward = pipe()
        self.stderr, told = pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of forks beside threads: those of kernels are made anew
            self.pid = os.fork()
        if not self.pid:
            self.run(words, [inward, outward if stdout == -1 else stdout, told], before)
        for end in (inward, outward, told):
            end.close()
        self.returncode: int | None = None

    def run(self, words: list[str], ends: list[IO[bytes]], before: Callable[[], None]) -> None:
        """In the child: the command, and the end of the process, whatever happens."""
        status = 99
        try:
            for end in (self.stdin, self.stdout, self.stderr):
                end.close()
            for number, end in enumerate(ends):
                os.dup2(end.fileno(), number)
            os.closerange(3, 999)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            before()
            status = main(words)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def send_signal(self, number: int) -> None:
        """Send it."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status, less than 0 for the signal that ended it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def communicate(self, data: bytes = b"") -> tuple[bytes, bytes]:
        """Give it this, and read all that it says, until it ends. What it says on stderr fits into a pipe."""
        writer = threading.Thread(target=self.give, args=(data,))
        writer.start()
        out = b"" if self.stdout.closed else self.stdout.read()
        err = self.stderr.read()
        writer.join()
        self.wait()
        return out, err

    def give(self, data: bytes) -> None:
        """Write this, and the end, if somebody reads."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(data)
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()

    def end(self) -> None:
        """Kill it if it lives, and close what is open."""
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self.wait()
        for end in (self.stdout, self.stderr, self.stdin):
            with contextlib.suppress(BrokenPipeError):
                end.close()


def pipe() -> tuple[IO[bytes], IO[bytes]]:
    """The end to read from, and the one to write to."""
    out, into = os.pipe()
    return os.fdopen(out, "rb"), os.fdopen(into, "wb")


@pytest.fixture
def started(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Child]]:
    """Starts the command in a process of its own; it is dead afterwards."""
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    children: list[Child] = []

    def start(
        *words: object,
        stdout: IO[bytes] | int = -1,
        before: Callable[[], None] = lambda: None,
        run: Path = fitted / "run",
    ) -> Child:
        children.append(Child(["stream", *map(str, (run, *words))], stdout, before))
        return children[-1]

    yield start
    for child in children:
        child.end()
