"""The table of the main example is what its page says."""

import time
from pathlib import Path

import numpy as np
import pytest

from conca.data.panel import read_panel
from conca.data.split import cutoffs, split_by_time
from conca.metrics.baselines import History, LastValue, Ridge, SeasonalNaive, season_of
from conca.metrics.forecast import naive_error, scores

AIR = Path(__file__).parents[2] / "examples" / "data" / "beijing-air.csv.xz"


@pytest.fixture(scope="module")
def panel():
    return read_panel(AIR, target="pm2.5", time="time")


def test_what_the_table_holds(panel):
    schema, series = panel.schema, panel.series[0]
    assert AIR.stat().st_size < 330_000
    assert schema.numeric == ("DEWP", "TEMP", "PRES", "Iws", "Is", "Ir")
    assert (schema.categorical, schema.levels) == (("wind",), (("NE", "NW", "SE", "cv"),))
    assert schema.grid.describe() == "1 h"
    assert (panel.notices, panel.left_out) == ([], [])
    assert len(series) == 43_824
    assert series.given.all()
    assert np.isnan(series.target).sum() == 2067
    assert np.nansum(series.target) == pytest.approx(98.613215 * 41_757, rel=1e-7)
    assert not np.isnan(series.numeric).any()
    assert (series.categorical > 0).all()
    assert series.times[[0, -1]].astype("datetime64[h]").tolist() == [
        np.datetime64("2010-01-01T00").item(),
        np.datetime64("2014-12-31T23").item(),
    ]


def test_it_is_read_in_well_under_a_second(panel):
    times = []
    for _ in range(3):
        start = time.process_time()
        read_panel(AIR, target="pm2.5", time="time")
        times.append(time.process_time() - start)
    assert min(times) < 1


def test_the_simplest_forecasts_of_the_last_fifth(panel):
    """Measured by hand in another way: 49.96, 67.76 and 46.00."""
    series, horizon = panel.series[0], 24
    split = split_by_time(len(series))
    covariates = np.concatenate([series.numeric, panel.schema.one_hot(series.categorical)], axis=1)
    history = History(series.target, covariates, split.validation)
    rows = cutoffs(split.validation, split.total, horizon)
    assert len(rows) == 8741
    y = series.target[rows[:, None] + 1 + np.arange(horizon)]
    season = season_of(panel.schema.grid.seconds)
    scale = naive_error(series.target[: split.validation], season)
    expected = {
        LastValue(horizon): (49.96, 17.55, 0.818),
        SeasonalNaive(horizon, season): (67.76, 23.44, 0.814),
        Ridge(horizon): (45.94, 15.39, 0.805),
    }
    for baseline, (mae, pinball, coverage) in expected.items():
        point, quantiles = baseline.fit([history]).predict(history, rows)
        found = scores(y, quantiles, baseline.levels, scale, point)
        assert found["mae"] == pytest.approx(mae, abs=0.006)
        assert found["pinball"] == pytest.approx(pinball, abs=0.006)
        assert found["coverage"] == pytest.approx(coverage, abs=0.0006)
        assert found["mase"] == pytest.approx(found["mae"] / scale[0])
