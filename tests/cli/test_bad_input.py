"""Bad input is one clear line on stderr and exit status 2; nothing is written, nothing overwritten."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

ROWS = 200
FIT = ("--target", "load", "--time", "time", "--horizon", 6, "--epochs", 1)


def good() -> pd.DataFrame:
    hours = np.arange(ROWS)
    times = pd.date_range("2024-01-01", periods=ROWS, freq="h").astype(str)
    return pd.DataFrame({"time": times, "load": np.sin(hours / 4), "heat": np.cos(hours / 4)}).astype({"load": object})


def with_cell(row: int, column: str, value: object) -> pd.DataFrame:
    table = good()
    table.loc[row, column] = value
    return table


def snapshot(folder: Path) -> dict[str, object]:
    return {str(p): (p.read_bytes() if p.is_file() else None, p.stat().st_mtime_ns) for p in folder.rglob("*")}


def one_line(said: tuple[int, str, str], *expected: str) -> None:
    status, out, err = said
    assert (status, out) == (2, ""), err
    assert err.startswith("conca: ")
    assert err.count("\n") == 1, err
    for word in expected:
        assert word in err


TABLES = {
    "text": (with_cell(41, "load", "broken"), ["row 43", "load", "broken"]),
    "infinite": (with_cell(7, "load", "inf"), ["row 9", "load", "infinite"]),
    "twice": (with_cell(30, "time", good().time[29]), ["time", "2024-01-02 05:00"]),
    "unparsable": (with_cell(12, "time", "yesterday"), ["row 14", "time", "yesterday"]),
    "short": (good().head(5), ["5 rows", "8"]),
    "missing": (good().assign(load=np.nan), ["load", "missing"]),
    "no_rows": (good().head(0), ["no rows"]),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_used(name: str, say: Callable, tmp_path: Path) -> None:
    table, expected = TABLES[name]
    table.to_csv("table.csv", index=False)
    before = snapshot(tmp_path)
    one_line(say("fit", "table.csv", *FIT, "--out", "run"), "table.csv", *expected)
    assert snapshot(tmp_path) == before


WORDS = {
    "a file that is not there": (["none.csv", *FIT], ["none.csv"]),
    "an empty file": (["empty.csv", *FIT], ["empty.csv", "empty"]),
    "a folder": (["folder", *FIT], ["folder"]),
    "another kind of file": (["notes.txt", *FIT], ["notes.txt", ".csv"]),
    "a target that is no column": (["table.csv", *FIT, "--target", "laod"], ["laod", "load"]),
    "a time that is no column": (["table.csv", "--target", "load", "--time", "tiem", "--horizon", 6], ["tiem", "time"]),
    "a series that is no column": (["table.csv", *FIT, "--series", "hat"], ["hat", "heat"]),
    "an unknown layer": (["table.csv", *FIT, "--layers", "s4dd"], ["s4dd", "s4d"]),
    "an unknown option of a layer": (["table.csv", *FIT, "--layers", "s4d(d_stat=4)"], ["d_stat", "d_state"]),
    "a pattern that cannot be read": (["table.csv", *FIT, "--layers", "s4d(d_state"], ["s4d(d_state"]),
    "an unknown option": (["table.csv", *FIT, "--layrs", "s4d"], ["--layrs", "--layers"]),
    "no horizon": (["table.csv", "--target", "load"], ["--horizon"]),
    "a horizon of nothing": (["table.csv", "--target", "load", "--horizon", 0], ["horizon", "not 0"]),
    "a horizon that is a word": (["table.csv", "--target", "load", "--horizon", "day"], ["--horizon"]),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_command_that_cannot_be_followed(name: str, say: Callable, tmp_path: Path) -> None:
    words, expected = WORDS[name]
    good().to_csv("table.csv", index=False)
    Path("empty.csv").touch()
    Path("notes.txt").write_text("notes")
    Path("folder").mkdir()
    before = snapshot(tmp_path)
    one_line(say("fit", *words, "--out", "run"), *expected)
    assert snapshot(tmp_path) == before


def test_an_output_folder_that_exists(say: Callable, tmp_path: Path) -> None:
    good().to_csv("table.csv", index=False)
    Path("run").mkdir()
    Path("run/precious.txt").write_text("mine")
    before = snapshot(tmp_path)
    one_line(say("fit", "table.csv", *FIT, "--out", "run"), "run", "--force")
    one_line(say("fit", "table.csv", *FIT, "--out", "table.csv"), "table.csv")
    assert snapshot(tmp_path) == before


def test_a_series_that_is_too_short_is_refused_when_strict(say: Callable, tmp_path: Path) -> None:
    table = pd.concat([good().assign(site="a"), good().head(3).assign(site="b")])
    table.to_csv("table.csv", index=False)
    before = snapshot(tmp_path)
    one_line(say("fit", "table.csv", *FIT, "--series", "site", "--out", "run", "--strict"), "series b", "3 rows")
    assert snapshot(tmp_path) == before


def test_an_unknown_command_names_the_nearest(say: Callable) -> None:
    one_line(say("predcit"), "predcit", "predict")


def truncated(run: Path) -> None:
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def foreign(run: Path) -> None:
    save_file({"strange": torch.zeros(3)}, run / "model.safetensors")


def rubbish(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"not a model")


def newer(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": config["format"] + 1}))


def unknown_key(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "horizn": 3}))


def no_json(run: Path) -> None:
    (run / "config.json").write_text("{")


def no_weights(run: Path) -> None:
    (run / "model.safetensors").unlink()


def no_config(run: Path) -> None:
    (run / "config.json").unlink()


RUNS = {
    truncated: ["model.safetensors"],
    foreign: ["model.safetensors"],
    rubbish: ["model.safetensors"],
    newer: ["config.json", "newer"],
    unknown_key: ["config.json", "horizn"],
    no_json: ["config.json"],
    no_weights: ["model.safetensors"],
    no_config: ["config.json"],
    shutil.rmtree: ["run"],
}


@pytest.mark.parametrize("spoil", RUNS, ids=lambda spoil: spoil.__name__)
def test_a_run_that_cannot_be_used(spoil: Callable[[Path], None], say: Callable, fitted: Path, tmp_path: Path) -> None:
    shutil.copytree(fitted / "run", "run")
    spoil(Path("run"))
    before = snapshot(tmp_path)
    one_line(say("predict", "run", fitted / "air.csv.xz", "--out", "forecast.csv"), *RUNS[spoil])
    one_line(say("info", "run"), *RUNS[spoil])
    assert snapshot(tmp_path) == before


def test_a_forecast_that_cannot_be_made_or_put_there(say: Callable, fitted: Path, tmp_path: Path) -> None:
    data = fitted / "air.csv.xz"
    good().drop(columns="heat").to_csv("narrow.csv", index=False)
    Path("forecast.csv").write_text("precious")
    before = snapshot(tmp_path)
    one_line(say("predict", fitted / "run", data, "--out", "forecast.csv"), "forecast.csv", "--force")
    one_line(say("predict", fitted / "run", data, "--out", "none/forecast.csv"), "none")
    one_line(say("predict", fitted / "run", data, "--out", "."), ".")
    one_line(say("predict", fitted / "run", "narrow.csv", "--out", "new.csv"), "narrow.csv", "heat")
    one_line(say("predict", fitted / "run", "none.csv", "--out", "new.csv"), "none.csv")
    one_line(say("predict", fitted / "run"), "DATA")
    assert snapshot(tmp_path) == before
