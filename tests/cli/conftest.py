"""A small table and a small run of it, made once."""

import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from conca.cli.main import main

SMALL = ["--layers", "s4d", "--d-model", "8", "--epochs", "1", "--batch-size", "4"]
Say = Callable[..., tuple[int, str, str]]


def hourly(rows: int = 400) -> pd.DataFrame:
    """A wave with a day's period, a covariate, and a few values missing."""
    hours = np.arange(rows)
    wave = np.sin(2 * np.pi * hours / 24) + 0.1 * np.random.default_rng(0).standard_normal(rows)
    table = pd.DataFrame({"time": pd.date_range("2024-01-01", periods=rows, freq="h"), "load": wave, "heat": wave**2})
    table.loc[[3, 50, 51], "load"] = np.nan
    return table


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
