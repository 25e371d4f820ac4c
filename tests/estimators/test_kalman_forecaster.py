"""`layers="kalman"`: a structural forecaster in the place of the network, through everything that a run is good for."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import conca
from conca.cli.main import app
from conca.models.structural import Structural
from conca.types import BadInput

QUANTILES = ["q0.1", "q0.5", "q0.9"]
HOURS = pd.date_range("2024-01-01", periods=900, freq="h")


@pytest.fixture(autouse=True)
def single() -> None:
    torch.set_default_dtype(torch.float32)


def simulated(seed: int = 0, rows: int = 900) -> pd.Series:
    """A local level, a day with two harmonics, and noise: what the model is made of."""
    draw = np.random.default_rng(seed)
    hour = 2 * np.pi * np.arange(rows) / 24
    day = 2 * np.sin(hour) + np.cos(2 * hour)
    return 20 + day + (0.15 * draw.normal(size=rows)).cumsum() + 0.5 * draw.normal(size=rows)


def hourly() -> pd.DataFrame:
    """Two series of different size, two targets, with gaps and missing values, and a column that is known in advance."""
    parts = []
    for seed, (site, scale) in enumerate((("a", 1.0), ("b", 300.0))):
        draw = np.random.default_rng(seed + 10)
        promotion, kind = (draw.random(900) < 0.2).astype(float), draw.choice(["x", "y"], 900)
        table = pd.DataFrame({"time": HOURS, "site": site, "promotion": promotion, "kind": kind})
        table["load"] = scale * (simulated(seed) + 4 * promotion - 2 * (kind == "x"))
        table["flow"] = scale * simulated(seed + 5)
        table.loc[draw.random(900) < 0.05, "load"] = np.nan
        parts.append(table.drop(index=[7, 8, 9, 610] if site == "a" else [700]))
    return pd.concat(parts, ignore_index=True)


@cache
def one() -> conca.Forecaster:
    table = pd.DataFrame({"time": HOURS, "load": simulated()})
    model = conca.Forecaster(24, layers="kalman(harmonics=3)", length=256, epochs=3, batch_size=6)
    return model.fit(table, target="load", time="time", refit=False, progress=False)


@cache
def many() -> conca.Forecaster:
    model = conca.Forecaster(3, layers="kalman(harmonics=2)", length=128, epochs=2, batch_size=6)
    roles = {"target": ["load", "flow"], "series": "site", "time": "time", "known": ["promotion", "kind"]}
    return model.fit(hourly(), **roles, refit=False, progress=False)


def test_it_stands_in_the_table_and_beats_the_simple_forecasts() -> None:
    scores = one().scores_
    assert scores.index[0] == "model"
    for simple in scores.index[1:]:
        assert scores.loc["model", "pinball"] < scores.loc[simple, "pinball"]
        assert scores.loc["model", "MAE"] < scores.loc[simple, "MAE"]
    assert abs(scores.loc["model", "coverage"] - 0.8) < 0.06


def test_it_is_one_member_and_small() -> None:
    model = one()
    assert model.config.members == len(model.network_.towers) == 1
    tower = model.network_.towers[0]
    assert isinstance(tower, Structural)
    assert sum(p.numel() for p in tower.parameters()) < 50


def test_a_true_model_is_found() -> None:
    """The variances that the series was made with, in its unit, within a factor of two."""
    model = one()
    tower, scale = (
        model.network_.towers[0],
        model.fitted.encoding.own[0].scale[0] * model.fitted.encoding.scaler.scale[0],
    )
    with torch.no_grad():
        error, level = float(tower.error.exp()), float(tower.level.exp() + tower.trend.exp())
    assert 0.5 < error**0.5 * scale / 0.5 < 2
    assert 0.3 < level**0.5 * scale / 0.15 < 3


def test_what_is_known_in_advance_counts() -> None:
    model = many()
    tower = model.network_.towers[0]
    load = {True: [], False: []}
    table = hourly()
    found = model.predict(table, rolling=True)
    found = found[(found.target_name == "load") & (found.site == "a") & (found.step == 2)]
    promotion = table[table.site == "a"].set_index("time").promotion
    for given in (True, False):
        load[given] = found[(found.time.map(promotion) == 1) == given]["q0.5"].mean()
    assert 2.5 < load[True] - load[False] < 5.5
    assert tower.effect.shape == (2, 4)


def test_saved_and_loaded_it_gives_the_same_bits(tmp_path: Path) -> None:
    table = pd.DataFrame({"time": HOURS, "load": simulated()})
    one().save(tmp_path / "run")
    loaded = conca.load(tmp_path / "run")
    pd.testing.assert_frame_equal(loaded.predict(table), one().predict(table), check_exact=True)
    for name, tensor in loaded.network_.state_dict().items():
        assert torch.equal(tensor, one().network_.state_dict()[name])
    assert loaded.config == one().config


def test_missing_rows_widen_the_forecast() -> None:
    table = pd.DataFrame({"time": HOURS, "load": simulated()})
    whole = one().predict(table)
    table.loc[860:, "load"] = np.nan
    blind = one().predict(table)
    width = [(frame["q0.9"] - frame["q0.1"]).to_numpy() for frame in (whole, blind)]
    assert (width[1] > 1.05 * width[0]).all()


def test_backtest_refit_and_the_same_again(tmp_path: Path) -> None:
    table = pd.DataFrame({"time": HOURS[:300], "load": simulated(rows=300)})
    roles = {"target": "load", "time": "time", "progress": False}
    model = conca.Forecaster(6, layers="kalman(harmonics=2)", length=64, epochs=1, batch_size=2)
    first = model.fit(table, **roles).predict(table)
    assert len(model.refit_scores_) == 1
    assert len(model.backtest(table, windows=2, **roles)) == 12
    assert next(iter(model.backtest_scores_.index)) == "model"
    again = conca.Forecaster(**model.config.as_dict()).fit(table, **roles).predict(table)
    pd.testing.assert_frame_equal(first, again, check_exact=True)


def test_a_training_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"time": HOURS[:300], "load": simulated(rows=300)})

    def fit(out: str, **options: bool) -> conca.Forecaster:
        model = conca.Forecaster(6, layers="kalman(harmonics=2)", length=64, epochs=2, batch_size=2)
        return model.fit(table, target="load", time="time", out=tmp_path / out, progress=False, refit=False, **options)

    wanted = fit("whole")
    real, calls = Structural.forward, []

    def broken(self: Structural, *args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 50:
            raise KeyboardInterrupt
        return real(self, *args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Structural, "forward", broken)
        fit("part")
    found = fit("part", resume=True)
    for name, tensor in wanted.network_.state_dict().items():
        assert torch.equal(tensor, found.network_.state_dict()[name])


def test_the_command_line_says_what_it_is(tmp_path: Path) -> None:
    pd.DataFrame({"time": HOURS[:200], "load": simulated(rows=200)}).to_csv(tmp_path / "t.csv", index=False)
    runner, run = CliRunner(), str(tmp_path / "run")
    options = ["--layers", "kalman(harmonics=2)", "--length", "64", "--epochs", "1", "--no-refit"]
    fitted = runner.invoke(
        app, ["fit", str(tmp_path / "t.csv"), "--time", "time", "--horizon", "4", "--out", run, *options]
    )
    assert fitted.exit_code == 0, fitted.output
    assert "model" in fitted.output
    assert (tmp_path / "run" / "report.html").is_file()
    told = runner.invoke(app, ["info", run])
    assert told.exit_code == 0, told.output
    assert "kalman(harmonics=2)" in told.output
    assert "Structural" in told.output


@pytest.mark.parametrize("layers", ["kalman lstm", "kalman*3", "kalman(season=3)"])
def test_what_it_cannot_be_is_one_line(layers: str) -> None:
    with pytest.raises(BadInput, match="kalman") as error:
        conca.Forecaster(3, layers=layers)
    assert "\n" not in str(error.value)


def test_what_is_left_aside_is_said() -> None:
    table = pd.DataFrame({"load": simulated(rows=120), "heat": np.arange(120.0)})
    model = conca.Forecaster(2, layers="kalman", length=32, epochs=1, batch_size=2)
    model.fit(table, target="load", refit=False, progress=False)
    said = " ".join(model.notices_)
    assert "not used: heat; 'kalman' uses covariates that are known in advance" in said
    assert "no seasons: 'kalman' finds them by the calendar" in said
    assert "not used" not in " ".join(many().notices_) and "no seasons" not in " ".join(many().notices_)
