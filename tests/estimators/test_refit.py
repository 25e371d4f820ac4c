"""Held out rows, windows, the last training on all rows, and scores on new tables."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import conca
from conca.estimators.forecaster import Forecaster
from conca.types import BadInput

SMALL = {"horizon": 4, "d_model": 8, "layers": "lstm", "members": 1, "epochs": 2, "length": 32, "batch_size": 4}
Q = ["q0.1", "q0.5", "q0.9"]


def table(rows=120):
    draw = np.random.default_rng(0)
    time = np.arange(rows)
    return pd.DataFrame(
        {
            "when": np.tile(pd.date_range("2024-03-01", periods=rows, freq="h"), 2),
            "site": np.repeat(["a", "b"], rows),
            "y": np.concatenate([np.sin(time / 4), 100 + 30 * np.cos(time / 4)]) + 0.1 * draw.normal(size=2 * rows),
        }
    )


def fit(frame=None, model=None, **options):
    rest = {"target": "y", "time": "when", "series": "site"} | options
    return Forecaster(**(SMALL | (model or {}))).fit(table() if frame is None else frame, progress=False, **rest)


@pytest.fixture(scope="module")
def refitted():
    torch.set_default_dtype(torch.float64)
    return fit()


@pytest.fixture(scope="module")
def evaluated():
    torch.set_default_dtype(torch.float64)
    return fit(refit=False)


def test_scores_are_those_of_the_model_that_did_not_see_the_rows(refitted, evaluated):
    pd.testing.assert_frame_equal(refitted.scores_, evaluated.scores_)
    assert evaluated.refit_scores_.empty
    assert list(refitted.refit_scores_.index) == ["model"]
    assert refitted.refit_scores_.loc["model", "MAE"] != refitted.scores_.loc["model", "MAE"]


def test_the_last_training_sees_all_rows_for_the_steps_that_were_found(refitted, evaluated):
    changed = table()
    changed.loc[changed.groupby("site").cumcount() >= 110, "y"] += 5
    other = fit(changed)
    differ = [not torch.equal(a, b) for a, b in zip(refitted.network_.parameters(), other.network_.parameters())]
    assert all(differ)
    same = fit(changed, refit=False)
    for a, b in zip(evaluated.network_.parameters(), same.network_.parameters()):
        assert torch.equal(a, b)
    assert refitted.fitted.encoding.own != evaluated.fitted.encoding.own
    assert torch.equal(refitted.network_.spread, evaluated.network_.spread)


def test_both_scores_are_kept_in_the_run(tmp_path):
    model = fit(out=tmp_path / "run")
    loaded = conca.load(tmp_path / "run")
    pd.testing.assert_frame_equal(loaded.scores_, model.scores_)
    pd.testing.assert_frame_equal(loaded.refit_scores_, model.refit_scores_)
    assert (tmp_path / "run" / "refit" / "checkpoints").is_dir()
    loaded.save(tmp_path / "copy")
    again = conca.load(tmp_path / "copy")
    pd.testing.assert_frame_equal(again.refit_scores_, model.refit_scores_)
    found, kept = again.evaluation_, model.evaluation_
    assert (found.keys, found.names) == (kept.keys, kept.names)
    for name in ("series", "cutoffs", "past", "y", "quantiles", "by_step"):
        np.testing.assert_array_equal(getattr(found, name), getattr(kept, name))


def test_the_evaluation_is_the_rolling_forecast(evaluated):
    found, frame = evaluated.evaluation_, table()
    rolling = evaluated.predict(frame, rolling=True)
    assert len(found.y) == 2 * (24 - 4 + 1)
    for i in (0, 7, 30):
        key, cutoff = found.keys[found.series[i]][0], pd.Timestamp(found.cutoffs[i])
        own = rolling[(rolling["site"] == key) & (rolling["cutoff"] == cutoff)]
        np.testing.assert_allclose(found.quantiles[i, :, 0], own[Q], rtol=1e-9)
        np.testing.assert_array_equal(found.y[i, :, 0], own["y"])
        past = frame[(frame["site"] == key) & (frame["when"] <= cutoff)]["y"].tail(12)
        np.testing.assert_array_equal(found.past[i, :, 0], past)
    model = found.names.index("model")
    np.testing.assert_allclose(found.by_step[model, :, 0].mean(), evaluated.scores_.loc["model", "MAE"])


def test_windows_hold_out_the_last_windows():
    model = fit(windows=3, step=2, refit=False)
    assert len(model.evaluation_.y) == 2 * 3
    last = table().groupby("site")["when"].max().iloc[0]
    ends = sorted({pd.Timestamp(c) for c in model.evaluation_.cutoffs})
    assert ends == [last - pd.Timedelta(hours=4 + 2 * i) for i in (2, 1, 0)]
    changed = table()
    changed.loc[changed.groupby("site").cumcount() >= 112, "y"] = 1e6
    other = fit(changed, windows=3, step=2, refit=False)
    for a, b in zip(model.network_.parameters(), other.network_.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"windows": 0}, "windows must be a whole number"),
        ({"windows": True}, "windows must be"),
        ({"windows": 2, "step": 0}, "step must be"),
        ({"step": 3}, "say how many there are"),
        ({"windows": 2, "test_fraction": 0.1}, "not both"),
        ({"windows": 40}, "162 needed"),
    ],
)
def test_ill_windows_are_one_line(options, words):
    with pytest.raises(BadInput, match=words) as error:
        fit(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("refit", [False, True])
def test_a_backtest_forecasts_as_one_would_have_then(refit):
    frame, model = table(), Forecaster(**(SMALL | {"epochs": 1}))
    roles = {"target": "y", "time": "when", "series": "site"}
    found = model.backtest(frame, windows=3, step=5, refit=refit, progress=False, **roles)
    assert found.groupby("site")["cutoff"].nunique().tolist() == [3, 3]
    assert len(found) == 2 * 3 * 4
    assert found["y"].notna().all()
    error = (found["y"] - found["q0.5"]).abs().mean()
    assert model.backtest_scores_.loc["model", "MAE"] == pytest.approx(error)
    assert "ridge" in model.backtest_scores_.index
    with pytest.raises(RuntimeError, match="not fitted"):
        model.predict()
    # what comes after a window changes nothing before it
    first = found["cutoff"].min()
    changed = frame.copy()
    changed.loc[changed["when"] > first, "y"] = -50.0
    again = model.backtest(changed, windows=3, step=5, refit=refit, progress=False, **roles)
    early = found["cutoff"] == first
    np.testing.assert_array_equal(found.loc[early, Q], again.loc[early, Q])
    late = found["cutoff"] == found["cutoff"].max()
    assert not np.array_equal(found.loc[late, Q], again.loc[late, Q])


def test_a_backtest_of_a_fitted_forecaster_takes_its_columns_and_leaves_it_alone(refitted):
    before = refitted.predict()
    found = refitted.backtest(table(), windows=2, progress=False)
    assert set(found["site"]) == {"a", "b"}
    pd.testing.assert_frame_equal(refitted.predict(), before)
    with pytest.raises(BadInput, match="did you mean 'target'"):
        refitted.backtest(table(), progress=False, taget="y")


def test_score_judges_the_rows_after_those_learnt_from(refitted, evaluated):
    evaluated_judged = "judged: 42 forecasts of 4 steps of 2 series, from 2024-03-05 00:00:00 to 2024-03-05 23:00:00"
    pd.testing.assert_frame_equal(evaluated.score(table()), evaluated.scores_, rtol=1e-6)
    assert evaluated.notices_ == [evaluated_judged]
    new = table(150)
    scores = refitted.score(new)
    assert list(scores.index) == list(refitted.scores_.index)
    rolling = refitted.predict(new, rolling=True)
    ends = table()["when"].max()
    counted = rolling[(rolling["cutoff"] >= ends) & (rolling["cutoff"] <= new["when"].max() - pd.Timedelta(hours=4))]
    error = (counted["y"] - counted["q0.5"]).abs().mean()
    assert scores.loc["model", "MAE"] == pytest.approx(error, rel=1e-6)
    with pytest.raises(BadInput, match="nothing to judge; give rows with values of y after"):
        refitted.score(table())


def test_score_says_what_it_judges(refitted):
    few = refitted.score(table(122))
    assert refitted.notices_ == [
        "judged: 4 forecasts of 4 steps of 2 series, from 2024-03-06 00:00:00 to 2024-03-06 01:00:00"
    ]
    rolling = refitted.predict(table(122), rolling=True)
    counted = rolling[(rolling["cutoff"] >= table()["when"].max()) & rolling["y"].notna()]
    mean = (counted["y"] - counted["q0.5"]).abs().mean()
    assert few.loc["model", "MAE"] == pytest.approx(
        mean, abs=1e-6
    )  # forecasts of size 1 in single precision, by two ways
    later = table(150).groupby("site").tail(30)
    refitted.score(later)
    assert any("begins after the rows that were learnt from" in line for line in refitted.notices_)
    mixed = pd.concat([table().iloc[:120], table(150).iloc[150:]])
    refitted.score(mixed)
    assert any(line.startswith("1 of 2 series have no rows after") for line in refitted.notices_)
    assert refitted.score(later.assign(site="new" + later["site"])).notna().all(axis=None)


def test_without_times_all_rows_are_judged():
    frame = pd.DataFrame({"y": np.sin(np.arange(100) / 4)})
    model = Forecaster(**SMALL).fit(frame, target="y", progress=False, refit=False)
    model.score(frame)
    assert model.notices_[:2] == [
        "without times it cannot be told which rows were learnt from; all are judged",
        "judged: 96 forecasts of 4 steps",
    ]
    assert model.notices_[2].startswith("the lowest MAE here is that of 'ridge'")


def test_score_of_a_loaded_run_is_the_same(evaluated, tmp_path):
    evaluated.save(tmp_path / "run")
    pd.testing.assert_frame_equal(conca.load(tmp_path / "run").score(table()), evaluated.score(table()))


def test_score_of_too_little_is_one_line(refitted):
    with pytest.raises(BadInput, match="nothing to judge"):
        refitted.score(table().groupby("site").head(3))


def test_several_targets_are_scored_one_by_one(tmp_path):
    frame = table()
    frame["z"] = frame["y"] * 1000
    model = fit(frame, target=["y", "z"], refit=False, out=tmp_path / "run")
    assert list(model.target_scores_.loc["z"].index) == list(model.scores_.index)
    assert model.target_scores_.loc[("z", "last value"), "MAE"] == pytest.approx(
        1000 * model.target_scores_.loc[("y", "last value"), "MAE"]
    )
    pd.testing.assert_frame_equal(conca.load(tmp_path / "run").target_scores_, model.target_scores_)


def test_nothing_held_out_is_still_refitted():
    model = fit(test_fraction=0)
    assert model.scores_.empty
    assert model.evaluation_ is None
    assert len(model.predict()) == 8


def test_a_run_that_does_not_say_what_it_learnt_from_learnt_all(evaluated, tmp_path):
    evaluated.save(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    del config["latest"]["learnt"]
    path.write_text(json.dumps(config))
    assert conca.load(tmp_path / "run").fitted.ends.learnt == conca.load(tmp_path / "run").fitted.ends.times


@pytest.mark.parametrize("name", ["refit", "strict", "progress", "force", "resume"])
def test_a_switch_is_true_or_false(name):
    with pytest.raises(BadInput, match=f"{name} must be True or False, not 'no'"):
        Forecaster(**SMALL).fit(table(), target="y", **{"progress": False, name: "no"})


@pytest.mark.parametrize("out", [3, "a\0b", "x" * 300])
def test_what_can_be_no_folder_is_one_line(out):
    with pytest.raises(BadInput, match="run folder") as error:
        fit(out=out)
    assert "\n" not in str(error.value)
