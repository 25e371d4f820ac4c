"""Fit, predict, save and load, on small tables."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import conca
from conca.estimators.config import ForecastConfig
from conca.estimators.forecaster import Forecaster
from conca.types import BadInput

SMALL = {"horizon": 4, "d_model": 8, "layers": "lstm", "members": 1, "epochs": 1, "length": 32, "batch_size": 4}
QUANTILES = ["q0.1", "q0.5", "q0.9"]
TABLES = {"metrics.csv", "scores.csv", "target_scores.csv"}
FILES = {"config.json", *TABLES, *(f"{name}.safetensors" for name in ("model", "latest", "simple", "evaluation"))}


def table(rows=120):
    draw = np.random.default_rng(0)
    time = np.arange(rows)
    frame = pd.DataFrame(
        {
            "when": np.tile(pd.date_range("2024-03-01", periods=rows, freq="h"), 2),
            "site": np.repeat(["a", "b"], rows),
            "load": np.concatenate([np.sin(time / 4), 100 + 30 * np.cos(time / 4)]) + 0.1 * draw.normal(size=2 * rows),
            "rain": draw.exponential(size=2 * rows) ** 2,
            "heat": draw.normal(size=2 * rows),
            "wind": draw.choice(["N", "S"], 2 * rows),
        }
    )
    frame.loc[10:14, "load"] = np.nan
    frame.loc[50, "wind"] = None
    frame.loc[[3, 70], "heat"] = np.nan
    return frame


def fit(frame=None, **options):
    known = set(ForecastConfig.__dataclass_fields__)
    model = {k: v for k, v in options.items() if k in known}
    rest = {"target": ["load", "rain"], "time": "when", "series": "site", "refit": False} | {
        k: v for k, v in options.items() if k not in known
    }
    return Forecaster(**(SMALL | model)).fit(table() if frame is None else frame, progress=False, **rest)


@pytest.fixture(scope="module")
def fitted():
    torch.set_default_dtype(torch.float64)
    return fit()


def test_scores_are_a_table(fitted):
    assert list(fitted.scores_.index) == ["model", "last value", "same hour yesterday", "ridge"]
    assert list(fitted.scores_.columns) == ["MAE", "RMSE", "MASE", "pinball", "coverage"]
    assert np.isfinite(fitted.scores_.to_numpy()).all()


def test_scores_are_those_of_the_rolling_forecast(fitted):
    frame = table()
    rolling = fitted.predict(frame, rolling=True)
    held_out = frame.groupby("site").nth(96)["when"].iloc[0]
    counted = rolling[(rolling["cutoff"] >= held_out - pd.Timedelta(hours=1))]
    last = frame["when"].max() - pd.Timedelta(hours=4)
    counted = counted[(counted["cutoff"] <= last) & counted["y"].notna()]
    error = (counted["y"] - counted["q0.5"]).abs().mean()
    assert fitted.scores_.loc["model", "MAE"] == pytest.approx(error, rel=1e-6)
    inside = ((counted["q0.1"] <= counted["y"]) & (counted["y"] <= counted["q0.9"])).mean()
    assert fitted.scores_.loc["model", "coverage"] == pytest.approx(inside)


def test_forecast_from_the_end(fitted):
    frame = table()
    copy = frame.copy(deep=True)
    forecast = fitted.predict(frame)
    pd.testing.assert_frame_equal(frame, copy)
    assert list(forecast.columns) == ["site", "when", "cutoff", "step", "target_name", *QUANTILES, "y"]
    assert len(forecast) == 2 * 4 * 2
    end = frame["when"].max()
    assert (forecast["cutoff"] == end).all()
    assert (forecast["when"] == end + pd.to_timedelta(forecast["step"], unit="h")).all()
    assert forecast["y"].isna().all()
    assert (forecast[QUANTILES].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert sorted(set(forecast["target_name"])) == ["load", "rain"]


def test_without_data_it_goes_on_from_the_end(fitted):
    pd.testing.assert_frame_equal(fitted.predict(), fitted.predict(table()), rtol=1e-5)
    with pytest.raises(BadInput, match="need a table"):
        fitted.predict(rolling=True)


@pytest.mark.parametrize("layers", ["lstm*2", "s4d", "s4d*2 attention(window=16)", "attention"])
def test_rolling_is_the_forecast_of_each_truncated_history(layers):
    model, frame = fit(layers=layers), table()
    rolling = model.predict(frame, rolling=True)
    assert len(rolling) == 240 * 4 * 2
    key = ["site", "cutoff", "step", "target_name"]
    for rows in (1, 2, 31, 32, 33, 100, 120):
        alone = model.predict(frame.groupby("site").head(rows)).set_index(key)
        same = rolling.set_index(key).loc[alone.index]
        np.testing.assert_allclose(alone[QUANTILES], same[QUANTILES], rtol=1e-5, atol=1e-4)


def test_rows_in_any_order_and_other_series_do_not_matter(fitted):
    frame = table()
    whole = fitted.predict(frame)
    shuffled = fitted.predict(frame.sample(frac=1, random_state=0)).sort_values(["site", "step", "target_name"])
    ordered = whole.sort_values(["site", "step", "target_name"])
    np.testing.assert_allclose(shuffled[QUANTILES], ordered[QUANTILES], rtol=1e-6)
    alone = fitted.predict(frame[frame["site"] == "b"])
    np.testing.assert_allclose(alone[QUANTILES], whole.loc[whole["site"] == "b", QUANTILES], rtol=1e-5)


def test_y_is_there_where_it_is_known(fitted):
    frame = table()
    rolling = fitted.predict(frame, rolling=True)
    load = rolling[rolling["target_name"] == "load"].merge(frame, on=["site", "when"], how="left")
    np.testing.assert_array_equal(load["y"], load["load"])


def test_a_missing_or_unknown_column_is_named(fitted):
    with pytest.raises(BadInput, match="heat"):
        fitted.predict(table().drop(columns="heat"))
    with pytest.raises(BadInput, match="did you mean 'load'"):
        fit(target="lod")


def test_an_unknown_series_is_noted(fitted):
    frame = table()
    frame["site"] = frame["site"].replace("b", "c")
    fitted.predict(frame)
    assert any("not fitted" in line for line in fitted.notices_)
    fitted.predict(table())
    assert fitted.notices_ == []


def test_save_and_load_keep_every_bit(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    loaded = conca.load(tmp_path / "run")
    assert isinstance(loaded, Forecaster)
    assert loaded.config == fitted.config
    pd.testing.assert_frame_equal(loaded.predict(table()), fitted.predict(table()), check_exact=True)
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict(), check_exact=True)
    pd.testing.assert_frame_equal(loaded.scores_, fitted.scores_)
    pd.testing.assert_frame_equal(loaded.history_, fitted.history_)
    with pytest.raises(BadInput, match="exists"):
        fitted.save(tmp_path / "run")
    loaded.save(tmp_path / "run", force=True)
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES


def test_a_run_folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    model = fit(out=tmp_path / "runs" / "a")
    assert {path.name for path in (tmp_path / "runs" / "a").iterdir()} == FILES | {"checkpoints", "logs"}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
    assert list(home.iterdir()) == []
    loaded = conca.load(tmp_path / "runs" / "a")
    pd.testing.assert_frame_equal(loaded.predict(table()), model.predict(table()), check_exact=True)
    with pytest.raises(BadInput, match="exists"):
        fit(out=tmp_path / "runs" / "a")


def test_a_failed_fit_leaves_nothing_and_an_old_run_alone(fitted, tmp_path):
    broken = table()
    broken["heat"] = broken["heat"].astype(object)
    broken.loc[7, "heat"] = "warm"
    with pytest.raises(BadInput, match="warm"):
        fit(broken, out=tmp_path / "run")
    with pytest.raises(BadInput, match="unknown layer"):
        fit(out=tmp_path / "run", layers="nothing")
    assert list(tmp_path.iterdir()) == []
    fitted.save(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(BadInput, match="unknown layer"):
        fit(out=tmp_path / "run", layers="nothing", force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_same_seed_same_forecast(fitted):
    pd.testing.assert_frame_equal(fit().predict(), fitted.predict(), check_exact=True)


def spoil(name, change):
    def apply(run):
        path = run / name
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return apply


def cut(name, size):
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:size])


BOTH = "forecast", "network"
SPOILED = {
    "newer": (spoil("config.json", lambda c: c.update(format=99)), "newer"),
    "kind": (spoil("config.json", lambda c: c.update(kind="forecasts")), "did you mean 'forecast'"),
    "key": (spoil("config.json", lambda c: c.update(shema=1)), "unknown key 'shema'; did you mean 'schema'"),
    "lost": (spoil("config.json", lambda c: c.pop("encoding")), "'encoding' is missing"),
    "option": (spoil("config.json", lambda c: c["forecast"].update(horizont=3)), "did you mean 'horizon'"),
    "network": (spoil("config.json", lambda c: c["network"].update(d_modl=3)), "did you mean 'd_model'"),
    "type": (spoil("config.json", lambda c: c["network"].update(d_model="wide")), "damaged: network.d_model is 'wide'"),
    "list": (spoil("config.json", lambda c: c.update(schema=[])), "cannot be understood"),
    "layer": (spoil("config.json", lambda c: [c[part].update(layers="lsm") for part in BOTH]), "did you mean 'lstm'"),
    "shape": (spoil("config.json", lambda c: [c[part].update(d_model=16) for part in BOTH]), "the model needs"),
    "members": (spoil("config.json", lambda c: [c[part].update(members=2) for part in BOTH]), "is missing"),
    "ends": (spoil("config.json", lambda c: c["latest"].update(times=[])), "do not fit"),
    "text": (cut("config.json", 40), "cannot be read"),
    "model": (cut("model.safetensors", 1000), "not a whole safetensors file"),
    "empty": (cut("model.safetensors", 0), "not a whole safetensors file"),
    "no model": (lambda run: (run / "model.safetensors").unlink(), "is missing"),
    "no end": (lambda run: (run / "latest.safetensors").unlink(), "is missing"),
    "no scores": (lambda run: (run / "scores.csv").unlink(), "is missing"),
    "foreign": (lambda run: shutil.copy(run / "latest.safetensors", run / "model.safetensors"), "another model"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_damaged_runs_are_one_clear_line(fitted, tmp_path, name):
    change, words = SPOILED[name]
    fitted.save(tmp_path / "run")
    change(tmp_path / "run")
    with pytest.raises(BadInput, match=words) as error:
        conca.load(tmp_path / "run")
    assert "\n" not in str(error.value)
    assert str(tmp_path / "run") in str(error.value)


def test_no_run():
    with pytest.raises(BadInput, match="no such folder"):
        conca.load("nowhere")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"horizont": 3}, "did you mean 'horizon'"),
        ({"horizon": 0}, "horizon must be"),
        ({"d_model": 1.5}, "d_model must be"),
        ({"quantiles": (0.9, 0.1)}, "quantiles must be"),
        ({"quantiles": ()}, "quantiles must be"),
        ({"quantiles": (0.0, 0.5)}, "quantiles must be"),
        ({"quantiles": 0.5}, "quantiles must be"),
        ({"quantiles": "half"}, "quantiles must be"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"lr": 0}, "lr must be"),
        ({"lr": "fast"}, "lr must be"),
        ({"seed": -1}, "seed must be"),
        ({"max_minutes": 0}, "max_minutes must be"),
    ],
)
def test_ill_options(options, words):
    with pytest.raises(BadInput, match=words):
        Forecaster(**options)


def test_before_fit():
    for call in (lambda m: m.predict(), lambda m: m.save("x"), lambda m: m.schema_):
        with pytest.raises(RuntimeError, match="fit"):
            call(Forecaster())


def test_configuration_to_json_and_back():
    config = ForecastConfig(horizon=3, quantiles=[0.25, 0.75], max_minutes=1.5)
    assert ForecastConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_a_plain_column_without_times():
    frame = pd.DataFrame({"y": np.sin(np.arange(90) / 3)})
    model = fit(frame, target="y", time=None, series=(), quantiles=(0.2, 0.8), covariates=[])
    forecast = model.predict()
    assert list(forecast.columns) == ["cutoff", "step", "target_name", "q0.2", "q0.8", "y"]
    assert forecast["cutoff"].tolist() == [89] * 4
    assert list(model.scores_.index) == ["model", "last value", "ridge"]


def test_irregular_times():
    draw = np.random.default_rng(0)
    seconds = draw.integers(1800, 9000, size=150).cumsum()
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds, unit="s")
    frame = pd.DataFrame({"when": when, "y": np.sin(seconds / 40000)})
    model = fit(frame, target="y", series=(), layers="s4d lstm")
    assert not model.schema_.grid.regular
    rolling, end = model.predict(frame, rolling=True), model.predict(frame)
    np.testing.assert_allclose(rolling[QUANTILES].tail(4), end[QUANTILES], rtol=1e-4, atol=1e-5)
    known = rolling[rolling["y"].notna()]
    assert known["when"].isin(frame["when"]).all()


def test_gaps_are_rows_without_values():
    frame = table().query("site == 'a'").drop(index=range(40, 50))
    model = fit(frame, target="load", series=())
    rolling = model.predict(frame, rolling=True)
    assert set(rolling["cutoff"]) == set(frame["when"])
    assert np.isfinite(rolling[QUANTILES].to_numpy()).all()


def test_time_zones_come_back():
    frame = table().query("site == 'a'")
    frame["when"] = frame["when"].dt.tz_localize("Asia/Tokyo")
    forecast = fit(frame, target="load", series=()).predict()
    assert str(forecast["when"].dt.tz) == "Asia/Tokyo"
    assert forecast["cutoff"].iloc[0] == frame["when"].max()


def test_nothing_held_out():
    model = fit(test_fraction=0.0)
    assert model.scores_.empty
    assert list(model.scores_.columns) == ["MAE", "RMSE", "MASE", "pinball", "coverage"]
    with pytest.raises(BadInput, match="test_fraction"):
        fit(test_fraction=1.0)


def test_short_series_are_left_out():
    frame = pd.concat([table(), table().query("site == 'a'").head(3).assign(site="c")])
    model = fit(frame)
    assert any("left out" in line for line in model.notices_)
    with pytest.raises(BadInput, match="left out"):
        fit(frame, strict=True)
    with pytest.raises(BadInput, match="no series can be used"):
        fit(frame.groupby("site").head(3))


def test_barely_long_enough():
    frame = table().groupby("site").head(6)
    forecast = fit(frame).predict()
    assert np.isfinite(forecast[QUANTILES].to_numpy()).all()


def test_constant_and_empty_columns():
    frame = table()
    frame["load"] = 7.0
    frame["heat"] = np.nan
    forecast = fit(frame).predict()
    assert np.isfinite(forecast[QUANTILES].to_numpy()).all()


def test_large_numbers_keep_their_digits():
    frame = table().query("site == 'a'")
    frame["load"] = 1e9 + frame["load"]
    forecast = fit(frame, target="load", series=()).predict(frame, rolling=True)
    assert (forecast["q0.5"] - 1e9).abs().max() < 100


def test_numbers_as_names_of_series(tmp_path):
    frame = table()
    frame["site"] = frame["site"].map({"a": 1, "b": 2})
    model = fit(frame, out=tmp_path / "run")
    loaded = conca.load(tmp_path / "run")
    pd.testing.assert_frame_equal(loaded.predict(), model.predict(), check_exact=True)
    assert loaded.predict()["site"].tolist() == model.predict(frame)["site"].tolist()


def test_paths_are_read(tmp_path):
    table().to_csv(tmp_path / "t.csv", index=False)
    model = fit(str(tmp_path / "t.csv"))
    assert len(model.predict(tmp_path / "t.csv")) == 16


def test_the_only_column_of_numbers_is_the_target():
    frame = table()[["when", "site", "load"]]
    assert fit(frame, target=None).schema_.target == ("load",)
    with pytest.raises(BadInput, match=r"no target is named.*'load', 'rain', 'heat'"):
        fit(target=None)
    with pytest.raises(BadInput, match="none"):
        fit(table()[["when", "site", "wind"]], target=None)


def test_forecasts_of_what_is_never_negative_are_not():
    frame = table()
    forecast = fit(frame).predict(frame, rolling=True)
    rain = forecast[forecast["target_name"] == "rain"]
    assert (rain[QUANTILES] >= 0).all(axis=None)
    assert (forecast[QUANTILES] < 0).any(axis=None)


def test_forecasting_needs_no_lightning(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    table().to_csv(tmp_path / "t.csv", index=False)
    program = (
        "import sys; sys.modules['lightning'] = None; import conca; model = conca.load(sys.argv[1]);"
        "import conca.estimators.image_diffusion, conca.estimators.image_energy;"  # of images neither
        "assert len(model.predict(sys.argv[2])) == 16"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "run"), str(tmp_path / "t.csv")]
    assert subprocess.run(run, capture_output=True, text=True, check=False).stderr == ""
