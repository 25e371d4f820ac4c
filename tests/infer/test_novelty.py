"""How strange rows are: the density of a forecast, ranks among what was held out, and streams that give the numbers of a table."""

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import conca
from conca.estimators.novelty import held_out_rows
from conca.infer.novelty import Calibration
from conca.infer.novelty_stream import NoveltySession
from conca.metrics.likelihood import split_normal_nll
from conca.types import BadInput

LEVELS = [0.1, 0.5, 0.9]
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rows = np.arange(300)
    wave = np.sin(rows / 4) + 0.1 * np.random.default_rng(0).standard_normal(300)
    both = pd.DataFrame({"name": np.where(rows % 2, "a", "b"), "time": rows // 2, "y": wave, "z": wave**2})
    both.loc[[20, 41, 42], "y"] = np.nan
    both.loc[41, "z"] = np.nan
    return both


@pytest.fixture(scope="module", params=["s4d", "attention"])
def model(table: pd.DataFrame, request: pytest.FixtureRequest) -> conca.Forecaster:
    options = {"layers": request.param, "d_model": 8, "epochs": 1, "length": 32}
    fit = conca.Forecaster(horizon=3, **options).fit
    return fit(table, target=["y", "z"], time="time", series="name", progress=False)


@pytest.mark.parametrize("quantiles", [[-1.0, 0.0, 1.0], [-0.2, 0.0, 3.0], [-3.0, -2.9, -2.0]])
def test_the_density_has_mass_one(quantiles: list[float]) -> None:
    y = np.linspace(-40, 40, 400_001)
    density = np.exp(-split_normal_nll(y, np.tile(quantiles, (len(y), 1)), LEVELS))
    assert density.sum() * (y[1] - y[0]) == pytest.approx(1, abs=1e-6)


def test_a_forecast_that_is_sure_has_a_density_all_the_same() -> None:
    found = split_normal_nll([0.0, 1.0, np.nan], np.zeros((3, 3)), LEVELS, 0.01)
    assert found[0] == pytest.approx(np.log(0.01 * np.sqrt(2 * np.pi)))
    assert found[1] == pytest.approx(found[0] + 5_000)
    assert np.isnan(found[2])


def test_a_rank_counts_the_new_one_among_those_held_out() -> None:
    held = Calibration.of(np.array([3.0, 1.0, np.nan, 2.0]))
    np.testing.assert_allclose(held.rank(np.array([0.0, 2.0, 2.5, 9.0, np.nan])), [0, 0.25, 0.5, 0.75, np.nan])
    assert held.checked(0.75) == 0.75
    with pytest.raises(BadInput, match=r"3 rows held out rank up to 0\.75"):
        held.checked(0.76)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0, float("nan")])
def test_a_quantile_lies_between_0_and_1(quantile: float) -> None:
    with pytest.raises(BadInput, match="between 0 and 1"):
        Calibration.of(np.arange(9.0)).checked(quantile)


def test_scores_are_those_of_the_forecasts(model: conca.Forecaster, table: pd.DataFrame) -> None:
    """Against `predict`: from the row before, one step ahead, summed over the targets that are there."""
    found = model.novelty(table, quantile=0.5).set_index(["name", "time"])
    ahead = model.predict(table, rolling=True).query("step == 1").dropna(subset="y")
    encoding = model.fitted.encoding
    scales = {key[0]: encoding.own[encoding.places[key]].scale for key in encoding.keys}
    unit = np.array([abs(scales[n][["y", "z"].index(t)]) for n, t in zip(ahead.name, ahead.target_name)])
    each = split_normal_nll(ahead.y, ahead[["q0.1", "q0.5", "q0.9"]], LEVELS, 1e-3 * unit)
    wanted = pd.Series(each, pd.MultiIndex.from_frame(ahead[["name", "time"]])).groupby(level=[0, 1]).sum()
    np.testing.assert_allclose(found.novelty.dropna().sort_index(), wanted.sort_index(), rtol=1e-4, atol=1e-4)
    assert found.novelty[[("a", 0), ("b", 0), ("a", 20)]].isna().all()  # first rows, and one without a target
    assert found.novelty.notna().sum() == len(table) - 3
    assert found.alarm[found.novelty.isna()].isna().all()


@pytest.mark.parametrize("size", [1, 37])
def test_a_stream_gives_the_numbers_of_the_table(size: int, model: conca.Forecaster, table: pd.DataFrame) -> None:
    rows = table.head(120)
    stream = NoveltySession(model, held_out_rows(model.run_), 0.5)
    parts = [stream.push(rows[begin : begin + size]) for begin in range(0, len(rows), size)]
    found = pd.concat(parts).sort_values(["name", "time"]).reset_index(drop=True)
    wanted = model.novelty(rows, quantile=0.5).sort_values(["name", "time"]).reset_index(drop=True)
    assert list(found) == list(wanted)
    np.testing.assert_allclose(found.novelty, wanted.novelty, rtol=1e-4, atol=1e-4)


def test_nothing_held_out_is_said(table: pd.DataFrame) -> None:
    model = conca.Forecaster(horizon=3, layers="s4d", d_model=8, epochs=1)
    model.fit(table, target="y", time="time", series="name", test_fraction=0, progress=False)
    with pytest.raises(BadInput, match="nothing was held out"):
        model.novelty(table)
