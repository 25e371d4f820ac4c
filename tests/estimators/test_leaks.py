"""Nothing that is held out reaches the trained model."""

import numpy as np
import pandas as pd
import pytest
import torch

from conca.estimators.forecaster import Forecaster
from conca.types import BadInput

SMALL = {"horizon": 3, "d_model": 8, "layers": "s4d", "members": 1, "epochs": 1, "length": 32, "batch_size": 4}


def table(rows=100):
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "site": np.repeat(["a", "b"], rows),
            "y": draw.normal(size=2 * rows).cumsum(),
            "wind": draw.choice(["N", "S", "W"], 2 * rows),
            "x": draw.normal(size=2 * rows),
        }
    )


def weights(frame):
    model = Forecaster(**SMALL).fit(frame, target="y", series="site", progress=False, refit=False)
    return model, model.network_.state_dict()


def test_held_out_rows_leave_the_weights_as_they_are():
    frame = table()
    changed = frame.copy()
    last = frame.groupby("site").cumcount() >= 80
    changed.loc[last, "wind"] = [f"{i % 7}-{place}" for i, place in enumerate(frame["wind"][last])]
    changed.loc[last, "x"] = 1e9
    changed.loc[last, "y"] *= -100
    (one, before), (other, after) = weights(frame), weights(changed)
    assert before.keys() == after.keys()
    for name in before:
        assert torch.equal(before[name], after[name]), name
    assert other.schema_.levels == (("N", "S", "W"),)
    assert any("are not met in training" in line for line in other.notices_)
    assert not any("are not met in training" in line for line in one.notices_)


def test_a_name_that_is_not_text_is_refused_before_anything_else():
    for roles in ({"time": ["site"]}, {"target": 0}, {"time": ["site"], "target": "y"}):
        with pytest.raises(BadInput, match=r"is not the name of|no target is named"):
            Forecaster(**SMALL).fit(table(), progress=False, **roles)
