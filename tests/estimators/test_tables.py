"""Tables as they come: names by convention, frames of polars, gaps, zones, uneven times, a thousand short series."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from conca.estimators.forecaster import Forecaster
from conca.types import BadInput

SMALL = {"horizon": 3, "d_model": 8, "layers": "s4d", "members": 1, "epochs": 1, "length": 32, "batch_size": 4}
Q = ["q0.1", "q0.5", "q0.9"]


def wave(rows, start="2024-01-01", freq="h"):
    noise = np.random.default_rng(0).normal(size=rows)
    return pd.DataFrame(
        {"t": pd.date_range(start, periods=rows, freq=freq), "y": np.sin(np.arange(rows) / 4) + 0.1 * noise}
    )


def fit(frame, model=None, **options):
    return Forecaster(**(SMALL | (model or {}))).fit(frame, progress=False, **({"refit": False} | options))


def same_weights(one, other):
    a, b = one.network_.state_dict(), other.network_.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


CONVENTIONS = [("unique_id", "ds", "y"), ("item_id", "timestamp", "target")]


@pytest.mark.parametrize("names", CONVENTIONS, ids=lambda names: names[0])
def test_conventional_columns_are_found_unasked(names):
    series, time, target = names
    frame = pd.concat([wave(60).assign(s="a"), wave(60).assign(s="b")]).rename(
        columns={"s": series, "t": time, "y": target}
    )
    frame["heat"] = np.arange(120.0)
    found = fit(frame)
    told = fit(frame, series=series, time=time, target=target)
    assert found.schema_ == told.schema_
    assert found.schema_.series == (series,)
    assert same_weights(found, told)
    assert any(series in line for line in found.notices_)
    assert fit(frame.drop(columns=series).iloc[:60]).schema_.series == ()


def test_frames_of_polars_and_arrow_go_in_and_polars_comes_back():
    frame = wave(80)
    plain = fit(frame, target="y", time="t")
    expected = plain.predict(frame)
    for other in (pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        model = fit(other, target="y", time="t")
        assert same_weights(model, plain)
        found = model.predict(other)
        assert type(found) is (pl.DataFrame if isinstance(other, pl.DataFrame) else pd.DataFrame)
        as_pandas = found.to_pandas() if isinstance(found, pl.DataFrame) else found
        np.testing.assert_array_equal(as_pandas[Q], expected[Q])
        assert as_pandas["t"].tolist() == expected["t"].tolist()
    with pytest.raises(BadInput, match=r"\.collect\(\)"):
        fit(pl.from_pandas(frame).lazy(), target="y", time="t")


def test_gaps_as_absent_rows_or_as_missing_values_give_the_same():
    frame = wave(150).assign(heat=np.random.default_rng(1).normal(size=150))
    holes = [*range(20, 29), 60, 61, 100]
    missing = frame.copy()
    missing.loc[holes, ["y", "heat"]] = np.nan
    absent = frame.drop(index=holes)
    one, other = (fit(f, target="y", time="t") for f in (missing, absent))
    assert same_weights(one, other)
    pd.testing.assert_frame_equal(one.scores_, other.scores_)
    key = ["cutoff", "step"]
    rolling = one.predict(missing, rolling=True).set_index(key)
    fewer = other.predict(absent, rolling=True).set_index(key)
    pd.testing.assert_frame_equal(fewer, rolling.loc[fewer.index])
    pd.testing.assert_frame_equal(one.predict(absent), other.predict(missing))


def test_local_times_are_those_of_their_zone():
    utc = wave(24 * 60, "2024-10-01").assign(t=lambda f: f["t"].dt.tz_localize("UTC"))
    local = utc.assign(t=utc["t"].dt.tz_convert("Europe/Rome").dt.tz_localize(None))
    assert local["t"].duplicated().sum() == 1
    with pytest.raises(BadInput, match="--tz"):
        fit(local, target="y", time="t")
    one, other = fit(local, target="y", time="t", tz="Europe/Rome"), fit(utc, target="y", time="t", tz="Europe/Rome")
    assert same_weights(one, other)
    found, expected = one.predict(local), other.predict(utc)
    np.testing.assert_array_equal(found[Q], expected[Q])
    assert found["t"].tolist() == expected["t"].tolist()
    assert str(found["t"].dt.tz) == "Europe/Rome"
    spring = wave(24 * 60, "2024-03-01").assign(
        t=lambda f: f["t"].dt.tz_localize("UTC").dt.tz_convert("Europe/Rome").dt.tz_localize(None)
    )
    model = fit(spring, target="y", time="t", tz="Europe/Rome")
    assert not any("are not in the table" in line for line in model.notices_)
    skipped = spring.copy()
    skipped.loc[5, "t"] = pd.Timestamp("2024-03-31 02:30")
    with pytest.raises(BadInput, match="Europe/Rome"):
        model.predict(skipped)


def test_uneven_times_matter():
    draw = np.random.default_rng(0)
    times = np.cumsum(draw.integers(1, 4000, size=300))
    frame = pd.DataFrame(
        {"t": pd.Timestamp("2024-01-01") + pd.to_timedelta(times, unit="s"), "y": np.sin(times / 9000)}
    )
    model = fit(frame, target="y", time="t")
    assert not model.schema_.grid.regular
    slower = frame.assign(t=frame["t"].iloc[0] + 3 * (frame["t"] - frame["t"].iloc[0]))
    assert not np.allclose(model.predict(frame)[Q], model.predict(slower)[Q])


def test_a_thousand_short_series_in_one_fit():
    draw = np.random.default_rng(0)
    sizes = draw.integers(20, 60, size=1000)
    frame = pd.DataFrame(
        {
            "unique_id": np.repeat(np.arange(1000), sizes),
            "ds": np.concatenate([np.arange(n) for n in sizes]),
            "y": draw.normal(size=sizes.sum()),
        }
    )
    model = fit(frame, model={"batch_size": 64}, test_fraction=0.1)
    found = model.predict()
    assert found["unique_id"].nunique() == 1000
    assert np.isfinite(found[Q]).all(axis=None)
    assert 1000 < len(model.evaluation_.y) <= 2000


def test_several_targets_have_forecasts_of_their_own():
    frame = wave(200).assign(z=lambda f: 1000 - 50 * f["y"])
    model = fit(frame, target=["y", "z"], time="t")
    found = model.predict(frame)
    assert found.groupby("target_name")["q0.5"].mean()["z"] > 500
    assert list(model.target_scores_.index.get_level_values(0).unique()) == ["y", "z"]
