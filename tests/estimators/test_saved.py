"""Saved forecasters whose parts do not fit each other, and what JSON does to names of series."""

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

import conca
from conca.estimators.forecaster import Forecaster
from conca.models.run import read_tensors, write_tensors
from conca.types import BadInput

SMALL = {"horizon": 3, "d_model": 8, "layers": "lstm", "members": 1, "epochs": 1, "length": 32, "batch_size": 4}


def table(names=("a", "b")):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": np.repeat(np.arange(len(names)), 60), "wind": draw.choice(["N", "S"], 60 * len(names))}
    )
    frame["site"] = pd.Series([names[i] for i in frame["site"]], dtype=object)
    return frame.assign(load=np.sin(np.arange(len(frame)) / 4), heat=draw.normal(size=len(frame)))


def fit(frame):
    return Forecaster(**SMALL).fit(frame, target="load", series="site", progress=False)


@pytest.fixture(scope="module")
def fitted():
    torch.set_default_dtype(torch.float64)
    return fit(table())


PARTS = {
    "levels": lambda c: c["forecast"].update(quantiles=[0.1, 0.5, 0.8]),
    "horizon": lambda c: c["forecast"].update(horizon=4),
    "members": lambda c: c["forecast"].update(members=1000),
    "width": lambda c: c["network"].update(d_model=2**40),
    "inputs": lambda c: c["network"].update(inputs=6),
    "categories": lambda c: c["network"].update(categories=[7]),
    "level": lambda c: c["schema"]["levels"][0].append("W"),
    "numeric": lambda c: c["schema"].update(numeric=["heat", "cold"]),
    "targets": lambda c: c["schema"].update(target=["load", "cold"]),
    "bends": lambda c: c["network"].update(bends=[]),
    "bend": lambda c: c["encoding"].update(bends=[-1.0]),
    "scale": lambda c: [c["network"].update(scales=[0.0]), c["encoding"]["scaler"].update(scale=[0.0])],
    "mean": lambda c: [c["network"].update(means=[1e999]), c["encoding"]["scaler"].update(mean=[1e999])],
    "own": lambda c: c["encoding"]["own"][0].update(mean=[0.0, 0.0], scale=[1.0, 1.0]),
    "pooled": lambda c: c["encoding"]["pooled"].update(mean=[], scale=[]),
    "covariates": lambda c: c["encoding"]["covariates"].update(mean=[], scale=[]),
    "keys": lambda c: c["encoding"]["keys"].reverse(),
    "series": lambda c: c["schema"].update(series=[]),
    "kind": lambda c: c["latest"].update(kind="month"),
    "times": lambda c: c["latest"]["times"].__setitem__(0, 2**70),
    "text for names": lambda c: c["schema"].update(target="load"),
    "a name": lambda c: c["schema"].update(target=[1]),
    "time": lambda c: c["schema"].update(time="when"),
    "twice": lambda c: c["schema"].update(numeric=["load"]),
    "a level": lambda c: c["schema"].update(levels=[[1, 2]]),
    "equal levels": lambda c: c["schema"].update(levels=[["N", "N"]]),
    "step": lambda c: c["schema"]["grid"].update(step=10**30),
    "months": lambda c: c["schema"]["grid"].update(months=3),
    "regular": lambda c: c["schema"]["grid"].update(regular="no"),
    "zone": lambda c: c["schema"]["grid"].update(zone="Mars/Base"),
    "zone of another kind": lambda c: c["schema"]["grid"].update(zone=5),
    "wall": lambda c: c["schema"]["grid"].update(wall=True),
    "grid": lambda c: c["schema"].update(time="when", grid={"kind": "datetime", "zone": "Mars/Base"}),
    "format": lambda c: c.update(format=True),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_do_not_fit(fitted, tmp_path, name):
    fitted.save(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    PARTS[name](config)
    path.write_text(json.dumps(config))
    with pytest.raises(BadInput) as error:
        conca.load(tmp_path / "run")
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_weights_that_are_no_numbers(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    tensors = read_tensors(path)
    tensors["spread"][0, 0] = torch.nan
    write_tensors(path, tensors)
    with pytest.raises(BadInput, match="the run is damaged"):
        conca.load(tmp_path / "run")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"hello\nworld\n", b'{"a": 1}', b'a,"b\n', b"forecast,MAE\nmodel,x\n"]
)
def test_damaged_tables(fitted, tmp_path, content):
    fitted.save(tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_bytes(content)
    found = conca.load(tmp_path / "run")
    pd.testing.assert_frame_equal(found.predict(), fitted.predict(), check_exact=True)
    assert found.history_.empty
    (tmp_path / "run" / "scores.csv").write_bytes(content)
    with pytest.raises(BadInput, match=r"scores\.csv: .*the run is damaged"):
        conca.load(tmp_path / "run")


@pytest.mark.parametrize(
    "names",
    [
        (pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")),
        (pd.Timedelta("1h"), pd.Timedelta("2h")),
        (0.1, 2.5),
        (np.float32(0.1), np.float32(0.2)),
        (Decimal("1"), Decimal("2")),
        (True, False),
        (1, 2),
    ],
    ids=lambda names: type(names[0]).__name__,
)
def test_names_of_series_are_the_same_before_and_after(tmp_path, names):
    frame = table(names)
    model = fit(frame)
    model.save(tmp_path / "run")
    found = conca.load(tmp_path / "run")
    pd.testing.assert_frame_equal(found.predict(), model.predict(), check_exact=True)
    pd.testing.assert_frame_equal(found.predict(frame), model.predict(frame), check_exact=True)
    assert not found.notices_
