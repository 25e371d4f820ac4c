"""What is refused before anything is learnt, and what may surround a fit."""

import threading

import numpy as np
import pandas as pd
import pytest
import torch

from conca.estimators.forecaster import Forecaster
from conca.types import BadInput

SMALL = {"horizon": 3, "d_model": 8, "layers": "lstm", "members": 1, "epochs": 1, "length": 32, "batch_size": 4}


def table(**more):
    return pd.DataFrame({"load": np.sin(np.arange(120) / 4), **more})


def fit(frame=None, seed=0, **options):
    return Forecaster(**SMALL, seed=seed, dropout=0.5).fit(
        table() if frame is None else frame, **{"target": "load", "progress": False, **options}
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_minutes": 1e20}, "max_minutes must be a positive number up to"),
        ({"max_minutes": float("nan")}, "max_minutes must be"),
        ({"lr": 1e39}, "lr must be a positive number up to 1000"),
        ({"lr": True}, "lr must be"),
        ({"seed": 99999999999999999999}, "seed must be a whole number from 0 to"),
        ({"d_model": 99999999999999999999}, "d_model must be a whole number from 1 to 16,384"),
        ({"batch_size": 10**9}, "batch_size must be"),
        ({"horizon": True}, "horizon must be"),
        ({"members": "3"}, "members must be"),
        ({"epochs": 3.0}, "epochs must be"),
        ({"layers": 5}, "layers must be"),
        ({"precision": "transformer-engine"}, "precision must be one of 32-true, bf16-mixed, 64-true, 16-mixed"),
        ({"precision": 16}, "precision must be one of"),
        ({"quantiles": (0.12345671, 0.12345672)}, "two of them are the column 'q0.123457'"),
    ],
)
def test_values_beyond_all_bounds(options, words):
    with pytest.raises(BadInput, match=words) as error:
        Forecaster(**options)
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_become_plain_ones():
    config = Forecaster(np.int64(3), d_model=np.int32(8), lr=np.float32(0.5), seed=np.uint8(7)).config
    assert [type(v) for v in (config.horizon, config.d_model, config.lr, config.seed)] == [int, int, float, int]
    assert (config.horizon, config.d_model, config.lr, config.seed) == (3, 8, 0.5, 7)


@pytest.mark.parametrize("share", ["a", None, 1, -0.1, float("nan"), True])
def test_ill_shares(share):
    with pytest.raises(BadInput, match="test_fraction must be"):
        fit(test_fraction=share)


@pytest.mark.parametrize("name", ["step", "y", "cutoff", "target_name", "q0.5"])
def test_columns_that_the_forecasts_have_too(name, tmp_path):
    sites = table(**{name: np.repeat(["a", "b"], 60)})
    with pytest.raises(BadInput, match=f"column '{name}': .* rename yours"):
        fit(sites, series=name, out=tmp_path / "run")
    with pytest.raises(BadInput, match=f"column '{name}': .* rename yours"):
        fit(table(**{name: np.arange(120)}), time=name, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    assert "step" in fit(sites.rename(columns={name: "q0.2"}), series="q0.2").predict()


def test_the_layers_of_a_device_that_is_not_there():
    with pytest.raises(BadInput, match="more than 500 layers"):
        Forecaster(**(SMALL | {"layers": "s4d*1000000"})).fit(table(), target="load", progress=False)
    with pytest.raises(BadInput, match="layers"):
        Forecaster(**(SMALL | {"layers": "s4d(device='meta')"})).fit(table(), target="load", progress=False)


def test_half_precision_needs_a_gpu():
    with pytest.raises(BadInput, match="16-mixed' needs a GPU"):
        Forecaster(**SMALL, precision="16-mixed", devices="cpu").fit(table(), target="load", progress=False)


def test_inside_inference_mode():
    with torch.inference_mode():
        found = fit()
        forecast = found.predict()
    assert not any(p.is_inference() for p in found.network_.parameters())
    pd.testing.assert_frame_equal(forecast, fit().predict(), check_exact=True)


def test_two_threads_learn_what_each_would_alone():
    alone = [fit(seed=seed).predict() for seed in (0, 1)]
    found = {}
    threads = [threading.Thread(target=lambda s=s: found.update({s: fit(seed=s).predict()})) for s in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (0, 1):
        pd.testing.assert_frame_equal(found[seed], alone[seed], check_exact=True)
