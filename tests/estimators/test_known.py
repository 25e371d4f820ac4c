"""Covariates that are known in advance: they move the forecasts, and only from where they are known."""

import numpy as np
import pandas as pd
import pytest

import conca
from conca.estimators.forecaster import Forecaster
from conca.types import BadInput

SMALL = {
    "horizon": 5,
    "d_model": 16,
    "layers": "lstm",
    "members": 1,
    "length": 64,
    "batch_size": 8,
    "epochs": 20,
    "lr": 0.01,
}
Q = ["q0.1", "q0.5", "q0.9"]


def table(rows=400):
    """A level, and a promotion that adds five on the day itself; nothing before tells of it but the plan."""
    draw = np.random.default_rng(0)
    promotion = draw.random(rows) < 0.2
    kind = np.where(promotion, draw.choice(["small", "large"], rows), "none")
    y = 10 + 5 * (kind == "small") + 15 * (kind == "large") + 0.1 * draw.normal(size=rows)
    days = pd.date_range("2020-01-01", periods=rows, freq="D")
    return pd.DataFrame(
        {"day": days, "y": y, "plan": kind, "price": 3 - promotion * 1.0, "rain": draw.normal(size=rows)}
    )


ROLES = {"target": "y", "time": "day", "known": ["plan", "price"], "progress": False}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known") / "run"
    Forecaster(**SMALL).fit(table(), out=folder, **ROLES)
    return conca.load(folder)


def filled(model, frame):
    future = model.make_future(frame)
    future["plan"], future["price"] = ["none", "large", "none", "small", "none"], [3.0, 2.0, 3.0, 2.0, 3.0]
    return future


def test_it_beats_what_does_not_know(fitted):
    blind = Forecaster(**SMALL).fit(table(), refit=False, **(ROLES | {"known": ()}))
    assert fitted.scores_.loc["model", "MAE"] < 0.6 * blind.scores_.loc["model", "MAE"]


def test_the_plan_moves_the_forecast_of_its_day(fitted):
    frame = table()
    future = filled(fitted, frame)
    found = fitted.predict(frame, future=future)
    assert len(found) == 5
    middle = found["q0.5"].to_numpy()
    assert middle[1] > middle[3] > max(middle[[0, 2, 4]])
    calm = fitted.predict(frame, future=future.assign(plan="none", price=3.0))
    np.testing.assert_allclose(calm["q0.5"].to_numpy()[[0, 2, 4]], middle[[0, 2, 4]], rtol=1e-5)
    assert calm["q0.5"][1] < middle[1]


def test_the_empty_table(fitted):
    future = fitted.make_future(table())
    assert future.columns.tolist() == ["day", "price", "plan"]
    assert future["day"].tolist() == list(pd.date_range("2021-02-04", periods=5))
    assert future[["price", "plan"]].isna().all(axis=None)
    pd.testing.assert_frame_equal(fitted.make_future(), future)


def test_rolling_is_the_forecast_of_each_history_with_its_future(fitted):
    frame = table()
    rolling = fitted.predict(frame, rolling=True)
    assert any("left out" in line for line in fitted.notices_)
    assert rolling["cutoff"].nunique() == 395
    whole = fitted.predict(frame, rolling=True, future=filled(fitted, frame))
    assert whole["cutoff"].nunique() == 400
    pd.testing.assert_frame_equal(whole.head(len(rolling))[Q], rolling[Q])
    for rows in (1, 77, 395):
        alone = fitted.predict(frame.head(rows), future=frame)
        same = whole[whole["cutoff"] == frame["day"][rows - 1]]
        np.testing.assert_allclose(alone[Q], same[Q], rtol=1e-4)


def test_what_lacks_is_named(fitted):
    frame = table()
    with pytest.raises(BadInput, match=r"the values of 'price', 'plan' in the steps ahead are needed.*make_future"):
        fitted.predict(frame)
    future = filled(fitted, frame)
    with pytest.raises(BadInput, match="2021-02-06"):
        fitted.predict(frame, future=future.drop(index=2))
    with pytest.raises(BadInput, match="'price'"):
        fitted.predict(frame, future=future.drop(columns="price"))
    with pytest.raises(BadInput, match="needs a table"):
        fitted.predict()
    with pytest.raises(BadInput, match=r"it can be one thing only|known"):
        Forecaster(**SMALL).fit(frame, **(ROLES | {"known": ["y"]}))
    with pytest.raises(BadInput, match="did you mean 'plan'"):
        Forecaster(**SMALL).fit(frame, **(ROLES | {"known": ["plam"]}))
    plain = Forecaster(**(SMALL | {"epochs": 1})).fit(frame, refit=False, **(ROLES | {"known": ()}))
    for ask in (lambda: plain.make_future(), lambda: plain.predict(frame, future=future)):
        with pytest.raises(BadInput, match="no column of this forecaster is known in advance"):
            ask()


def test_backtest_and_score_know_the_plan(fitted):
    found = fitted.backtest(table(), windows=2, progress=False)
    assert found["cutoff"].nunique() == 2
    assert np.isfinite(found[Q]).all(axis=None)
    later = table().assign(day=lambda t: t["day"] + pd.Timedelta(days=200))
    assert np.isfinite(fitted.score(later)).all(axis=None)


def test_a_plan_with_too_many_categories_is_refused():
    frame = table().assign(plan=[f"plan {i % 300}" for i in range(400)])
    with pytest.raises(BadInput, match="'plan': it is known in advance and has 3"):
        Forecaster(**SMALL).fit(frame, **ROLES)
