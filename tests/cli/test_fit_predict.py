"""`conca fit`, `predict` and `info` on a small table, from file to file."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
FIT = ("--target", "load", "--time", "time", "--horizon", 6, "--layers", "s4d", "--d-model", 8, "--epochs", 1)


@pytest.fixture
def data(fitted: Path) -> Path:
    return fitted / "air.csv.xz"


def test_fit_compares_with_simple_forecasts_and_writes_a_run(say: Callable, data: Path) -> None:
    status, out, err = say("fit", data, *FIT, "--out", "runs/a")
    assert status == 0
    assert all(word in out for word in ("MAE", "RMSE", "MASE", "pinball", "coverage"))
    assert all(f"\n {word}" in out for word in ("model", "last value", "same hour yesterday", "ridge"))
    assert "conca: wrote runs/a\n" in err
    assert {"config.json", "model.safetensors", "metrics.csv"} <= {path.name for path in Path("runs/a").iterdir()}
    assert [path.name for path in Path().iterdir()] == ["runs"]
    assert [path.name for path in Path("runs").iterdir()] == ["a"]


def test_quiet_leaves_stderr_empty(say: Callable, data: Path) -> None:
    status, out, err = say("fit", data, *FIT, "--out", "run", "-q")
    assert (status, err) == (0, "")
    assert "ridge" in out


def test_force_replaces_a_run_and_nothing_else(say: Callable, data: Path) -> None:
    Path("run").mkdir()
    Path("run/mine.txt").write_text("precious")
    status, _, err = say("fit", data, *FIT, "--out", "run", "--force", "-q")
    assert status == 2
    assert err.count("\n") == 1
    assert Path("run/mine.txt").read_text() == "precious"
    assert say("fit", data, *FIT, "--out", "other", "-q")[0] == 0
    first = Path("other/model.safetensors").read_bytes()
    assert say("fit", data, *FIT, "--out", "other", "-q", "--force", "--seed", 1)[0] == 0
    assert Path("other/model.safetensors").read_bytes() != first


def test_a_link_is_replaced_when_asked_for_alone(say: Callable, fitted: Path) -> None:
    Path("link.csv").symlink_to("nowhere.csv")
    words = "predict", fitted / "run", fitted / "air.csv.xz", "-q", "--out", "link.csv"
    status, _, err = say(*words)
    assert (status, err.count("\n")) == (2, 1)
    assert Path("link.csv").is_symlink()
    assert say(*words, "--force")[0] == 0
    assert not Path("link.csv").is_symlink()


def test_rows_out_of_order_and_short_series_are_told_once(say: Callable, data: Path) -> None:
    table = pd.read_csv(data)
    long, short = table.iloc[::-1].assign(site="a"), table.head(3).assign(site="b")
    pd.concat([long, short]).to_csv("table.csv", index=False)
    status, _, err = say("fit", "table.csv", *FIT, "--series", "site", "--out", "run")
    assert status == 0
    assert err.count("sorted") == 1
    assert err.count("series b") == 1


def test_predict_goes_on_from_the_end(say: Callable, fitted: Path, data: Path) -> None:
    assert say("predict", fitted / "run", data, "--out", "forecast.csv")[:2] == (0, "")
    forecast = pd.read_csv("forecast.csv")
    assert list(forecast) == ["time", "cutoff", "step", "target_name", "q0.1", "q0.5", "q0.9", "y"]
    assert list(forecast.step) == [1, 2, 3, 4, 5, 6]
    last = pd.read_csv(data).time.iloc[-1]
    assert set(forecast.cutoff) == {last}
    assert forecast.time[0] == str(pd.Timestamp(last) + pd.Timedelta("1h"))
    assert forecast.y.isna().all()
    assert [path.name for path in Path().iterdir()] == ["forecast.csv"]


def test_stdout_gets_what_the_file_gets(say: Callable, fitted: Path, data: Path) -> None:
    assert say("predict", fitted / "run", data, "--out", "forecast.csv")[0] == 0
    for words in ([], ["--out", "-"]):
        assert say("predict", fitted / "run", data, *words) == (0, Path("forecast.csv").read_text(), "")
    Path("forecast.csv.part").write_text("somebody's own")
    assert say("predict", fitted / "run", data, "--out", "forecast.csv", "--force")[0] == 0
    assert Path("forecast.csv.part").read_text() == "somebody's own"


def test_rolling_forecasts_from_every_row_and_quantiles_never_cross(say: Callable, fitted: Path, data: Path) -> None:
    status, out, _ = say("predict", fitted / "run", data, "--rolling")
    forecast, table = pd.read_csv(io.StringIO(out)), pd.read_csv(data)
    assert status == 0
    assert len(forecast) == 6 * len(table)
    assert (forecast["q0.1"] <= forecast["q0.5"]).all()
    assert (forecast["q0.5"] <= forecast["q0.9"]).all()
    known = forecast.merge(table[["time", "load"]], on="time")
    assert (known.y.isna() == known.load.isna()).all()
    assert ((known.y - known.load).abs().max()) < 1e-9


def test_a_new_file_has_the_permissions_of_any_other(say: Callable, fitted: Path, data: Path) -> None:
    Path("other.csv").touch()
    assert say("predict", fitted / "run", data, "--out", "forecast.csv")[0] == 0
    assert Path("forecast.csv").stat().st_mode == Path("other.csv").stat().st_mode


def test_info_says_what_a_run_is(say: Callable, fitted: Path) -> None:
    status, out, err = say("info", fitted / "run")
    assert (status, err) == (0, "")
    rows = {line.strip().split("  ")[0]: line for line in out.splitlines() if line.strip()}
    assert "load" in rows["forecasts"]
    assert "heat" in rows["covariates"]
    assert "state bytes" in rows["layer"]
    from conca import S4D
    from conca.layers.states import size_in_bytes

    layer = S4D(8)
    assert f" {size_in_bytes(layer.init_state(1)):,} " in rows["1: S4D"]
    assert "ridge" in out
    assert "kernel (" in out or "plain PyTorch" in out


def test_info_says_that_attention_grows(say: Callable, data: Path) -> None:
    options = [*FIT, "--layers", "attention(n_heads=2)"]
    assert say("fit", data, *options, "--out", "run", "-q")[0] == 0
    assert "grows" in say("info", "run")[1]


INTERRUPTED = """
import os, signal, sys
from conca.train.forecast_learner import ForecastLearner
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have been told to ignore it
learn = ForecastLearner.training_step
def step(self, batch, place):
    os.kill(os.getpid(), signal.SIGINT)
    return learn(self, batch, place)
ForecastLearner.training_step = step
from conca.cli.main import main
sys.exit(main())
"""


def test_an_interrupted_training_leaves_nothing(data: Path, tmp_path: Path) -> None:
    words = [str(word) for word in ("fit", data, *FIT, "--out", "runs/a", "-q")]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (signal.SIGINT + 128, "", "conca: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_quantiles_and_members_can_be_chosen(say: Callable, data: Path) -> None:
    options = ("--quantiles", "0.05,0.5,0.95", "--members", 1, "--length", 32)
    assert say("fit", data, *FIT, *options, "--out", "run", "-q")[0] == 0
    _, out, _ = say("predict", "run", data)
    assert pd.read_csv(io.StringIO(out)).filter(like="q0.").columns.tolist() == ["q0.05", "q0.5", "q0.95"]
    status, _, err = say("fit", data, *FIT, "--quantiles", "low,high", "--out", "other")
    assert (status, err.count("\n")) == (2, 1)
    assert "--quantiles: cannot read 'low,high'" in err


def test_windows_and_score_give_tables_of_one_form(say: Callable, data: Path) -> None:
    status, table, _ = say("fit", data, *FIT, "--windows", 4, "--step", 3, "--out", "run", "-q")
    assert status == 0
    assert Path("run/refit_scores.csv").exists()
    more = pd.concat([pd.read_csv(data), later(60)])
    more.to_csv("more.csv", index=False)
    status, scores, err = say("score", "run", "more.csv")
    assert status == 0
    assert "judged: 55 forecasts of 6 steps, from 2024-01-17 16:00:00" in err
    first = [line.split("  ")[0].strip() for line in table.splitlines()]
    assert first == [line.split("  ")[0].strip() for line in scores.splitlines()]
    status, out, err = say("score", "run", data)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "nothing to judge" in err


def later(rows: int) -> pd.DataFrame:
    hours = pd.date_range("2024-01-17 16:00", periods=rows, freq="h")
    return pd.DataFrame({"time": hours, "load": 0.5, "heat": 0.25})


def test_no_refit_keeps_the_model_that_was_judged(say: Callable, data: Path) -> None:
    assert say("fit", data, *FIT, "--no-refit", "--out", "run", "-q")[0] == 0
    assert not Path("run/refit").exists()
    assert not Path("run/refit_scores.csv").exists()


def test_what_is_known_in_advance_goes_through_files(say: Callable, data: Path) -> None:
    table = pd.read_csv(data).assign(holiday=lambda t: (t.index % 50 == 0).astype(int))
    table.to_csv("table.csv", index=False)
    assert say("fit", "table.csv", *FIT, "--known", "holiday", "--out", "run", "-q")[0] == 0
    status, out, err = say("predict", "run", "table.csv")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--make-future" in err
    assert say("predict", "run", "table.csv", "--make-future", "--out", "future.csv")[0] == 0
    future = pd.read_csv("future.csv")
    assert list(future) == ["time", "holiday"]
    assert len(future) == 6
    future.fillna({"holiday": 1}).to_csv("future.csv", index=False)
    status, out, _ = say("predict", "run", "table.csv", "--future", "future.csv")
    assert status == 0
    assert len(pd.read_csv(io.StringIO(out))) == 6
    future.fillna({"holiday": 1}).drop(index=2).to_csv("short.csv", index=False)
    status, _, err = say("predict", "run", "table.csv", "--future", "short.csv")
    assert status == 2
    assert "short.csv" in err
    assert str(future["time"][2]) in err


def test_conventional_names_and_a_zone(say: Callable, data: Path) -> None:
    table = pd.read_csv(data).rename(columns={"time": "ds", "load": "y"})
    table.to_csv("table.csv", index=False)
    words = ("fit", "table.csv", *FIT[4:], "--out", "run", "--no-refit", "--tz", "Europe/Rome")
    status, _, err = say(*words)
    assert status == 0
    assert "'ds' as time" in err
    status, _, err = say(*words[:-1], "Europe/Rom", "--force")
    assert status == 2
    assert "did you mean 'Europe/Rome'" in err


def test_what_is_no_regular_file_is_not_replaced(say: Callable, fitted: Path, data: Path) -> None:
    os.mkfifo("pipe")
    for words in (("predict", fitted / "run", data), ("report", fitted / "run")):
        status, _, err = say(*words, "--out", "pipe", "--force")
        assert (status, err.count("\n")) == (2, 1)
        assert "is no regular file" in err


def test_a_report_does_not_take_the_place_of_a_part_of_the_run(say: Callable, fitted: Path) -> None:
    status, _, err = say("report", fitted / "run", "--out", fitted / "run" / "config.json", "--force")
    assert status == 2
    assert "is a part of the run" in err
    assert say("info", fitted / "run")[0] == 0
