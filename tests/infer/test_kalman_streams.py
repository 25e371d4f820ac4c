"""Streams through a structural forecaster: the numbers of rolling forecasts, in a state that does not grow."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

import conca
from conca.infer import Session

QUANTILES = ["q0.1", "q0.5", "q0.9"]
ROWS = 200
HOURS = pd.date_range("2024-01-01", periods=ROWS, freq="h")


@pytest.fixture(autouse=True)
def single() -> None:
    torch.set_default_dtype(torch.float32)


def hourly() -> pd.DataFrame:
    """Two series of different size, two targets, with gaps and missing values, and columns that are known in advance."""
    parts = []
    for seed, (site, scale) in enumerate((("a", 1.0), ("b", 300.0))):
        draw = np.random.default_rng(seed)
        wave = 5 + np.sin(np.arange(ROWS) / 24 * 2 * np.pi) + 0.2 * draw.normal(size=ROWS)
        table = pd.DataFrame({"time": HOURS, "site": site, "load": scale * wave, "flow": scale * wave**2})
        table["promotion"], table["kind"] = draw.random(ROWS).round(), draw.choice(["x", "y"], ROWS)
        table.loc[draw.random(ROWS) < 0.1, "load"] = np.nan
        parts.append(table.drop(index=[7, 8, 9, 61] if site == "a" else [70]))
    return pd.concat(parts, ignore_index=True)


def irregular() -> pd.DataFrame:
    draw = np.random.default_rng(1)
    gaps = draw.exponential(3600, ROWS).round() + 1
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(gaps.cumsum(), unit="s")
    load = np.sin(gaps.cumsum() / 86400 * 2 * np.pi) + 0.1 * draw.normal(size=ROWS)
    return pd.DataFrame({"time": times, "load": load})


@cache
def model(which: str) -> conca.Forecaster:
    """A forecaster that was hardly trained, made once."""
    new = conca.Forecaster(3, layers="kalman(harmonics=2)", length=64, epochs=1, batch_size=4)
    roles = {"target": "load", "time": "time"}
    if which == "hourly":
        roles = {"target": ["load", "flow"], "time": "time", "series": "site", "known": ["promotion", "kind"]}
    table = hourly() if which == "hourly" else irregular()
    return new.fit(table, **roles, refit=False, progress=False)


@pytest.mark.parametrize("sizes", [[1], [7, 1, 20]], ids=str)
@pytest.mark.parametrize("which", ["hourly", "irregular"])
def test_the_numbers_are_those_of_rolling_forecasts(which: str, sizes: list[int]) -> None:
    table, future = irregular().head(60), None
    if which == "hourly":
        table = hourly()
        future = table[["time", "site", "promotion", "kind"]]
        table = table[(HOURS[10] <= table.time) & (table.time < HOURS[55])].sort_values("time", kind="stable")
        future = future[future.time >= HOURS[10]]
    session, parts, begin, held = Session(model(which), future=future), [], 0, set()
    while begin < len(table):
        for size in sizes:
            if begin < len(table):
                parts.append(session.push(table.iloc[begin : begin + size]))
                held.add(session.size_in_bytes() // len(session))
                begin += size
    names = [name for name in ("site", "cutoff", "step", "target_name") if name in parts[0]]
    wanted = model(which).predict(table, rolling=True).set_index(names)[QUANTILES]
    assert len(wanted) > 150
    found = pd.concat(parts).set_index(names)[QUANTILES].loc[wanted.index]
    size = wanted.abs().groupby("target_name").transform("max")
    assert float(((found - wanted).abs() / size).to_numpy().max()) < 1e-5
    assert len(held) == 1


def test_a_saved_memory_goes_on(tmp_path) -> None:
    table = irregular()
    first, second = Session(model("irregular")), Session(model("irregular"))
    first.push(table.head(50))
    first.save(tmp_path / "air.state")
    second.load(tmp_path / "air.state")
    pd.testing.assert_frame_equal(second.push(table.iloc[50:60]), first.push(table.iloc[50:60]), check_exact=True)
