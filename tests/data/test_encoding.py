"""The rows that a network reads."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conca.data.encoding import Encoding, bend, choose_bends
from conca.data.panel import Series, read_panel
from conca.types import BadInput


def panel(rows=60):
    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "time": pd.date_range("2024-01-01", periods=rows, freq="h").tolist() * 2,
            "site": ["a"] * rows + ["b"] * rows,
            "load": np.concatenate([draw.normal(size=rows), 500 + 100 * draw.normal(size=rows)]),
            "rain": draw.exponential(size=2 * rows) ** 3,
            "wind": draw.choice(["N", "S"], 2 * rows),
        }
    )
    table.loc[3:5, "load"] = np.nan
    table.loc[7, "rain"] = np.nan
    return read_panel(table, target=["load"], time="time", series="site")


def fitted(rows=60):
    found = panel(rows)
    return found, Encoding.fit(found.schema, found.series, [40, 40])


def test_every_series_has_its_own_scale():
    found, encoding = fitted()
    for series in found.series:
        target = encoding.encode(found.schema, series).target[:40]
        assert abs(np.nanmean(target)) < 1e-5
        assert abs(np.nanstd(target) - 1) < 1e-5


def test_target_comes_back():
    found, encoding = fitted()
    one = encoding.encode(found.schema, found.series[1])
    np.testing.assert_allclose(one.target * one.unit + one.origin, found.series[1].target, rtol=1e-5)


def test_rows_depend_on_rows_before_them_alone():
    found, encoding = fitted()
    series = found.series[0]
    whole = encoding.encode(found.schema, series)
    for end in (1, 4, 6, 8, 31):
        short = type(series)(
            series.key, *(getattr(series, n)[:end] for n in ("times", "target", "numeric", "categorical", "given"))
        )
        part = encoding.encode(found.schema, short)
        np.testing.assert_array_equal(part.inputs, whole.inputs[:end])
        np.testing.assert_array_equal(part.anchor, whole.anchor[:end])


def test_missing_values_are_marked_and_the_last_known_is_held():
    found, encoding = fitted()
    one = encoding.encode(found.schema, found.series[0])
    assert np.isfinite(one.inputs).all()
    np.testing.assert_array_equal(one.anchor[3:6, 0], one.anchor[[2, 2, 2], 0])
    value, anchor, missing = one.inputs[:, 0], one.inputs[:, 1], one.inputs[:, 2]
    np.testing.assert_array_equal(np.flatnonzero(missing), [3, 4, 5])
    assert (value[3:6] == 0).all()
    np.testing.assert_array_equal(anchor, one.anchor[:, 0, 0])
    assert one.inputs.shape == (60, encoding.inputs(found.schema))
    assert one.inputs[7, 4] == 1  # the mask of rain
    assert one.inputs[7, 3] == one.inputs[6, 3]


def test_held_out_rows_change_nothing():
    found, encoding = fitted()
    for series in found.series:
        series.target[40:] = 1e6
        series.numeric[40:] = -1e6
    assert Encoding.fit(found.schema, found.series, [40, 40]) == encoding


def test_an_unknown_series_is_scaled_as_the_average_one():
    found, encoding = fitted()
    series = found.series[0]
    strange = type(series)(("c",), series.times, series.target, series.numeric, series.categorical, series.given)
    assert not encoding.knows(strange.key)
    assert encoding.encode(found.schema, strange).unit == encoding.pooled.scale[0]


def test_bends_are_for_skewed_columns_without_negative_values():
    draw = np.random.default_rng(1)
    heavy = draw.lognormal(sigma=1.0, size=(5000, 1))
    rows = np.concatenate([heavy, heavy - 1, draw.normal(size=(5000, 1)), np.zeros((5000, 1)), 0 * heavy + 5], axis=1)
    rows[::7] = np.nan
    bends = choose_bends([rows], 5)
    assert bends[0] > 0
    assert bends[1:] == (0, 0, 0, 0)
    bent = bend(rows, bends)[:, 0]
    np.testing.assert_allclose(np.sinh(bent * bends[0]) / bends[0], rows[:, 0], rtol=1e-12)
    assert choose_bends([], 2) == (0, 0)
    assert choose_bends([np.full((9, 1), np.nan)], 1) == (0,)


def test_json_and_back():
    _, encoding = fitted()
    assert Encoding.from_dict(json.loads(json.dumps(encoding.as_dict()))) == encoding


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bend": 1}, "did you mean 'bends'"),
        ({"cycles": None}, "cannot be read"),
        ({"own": []}, "one scaler for each"),
        ({"scaler": {"mean": [0.0], "scale": [-1.0]}}, "positive"),
    ],
)
def test_ill_descriptions_are_refused(change, words):
    _, encoding = fitted()
    with pytest.raises(BadInput, match=words):
        Encoding.from_dict(encoding.as_dict() | change)


def test_a_missing_key_is_named():
    _, encoding = fitted()
    saved = encoding.as_dict()
    del saved["pooled"]
    with pytest.raises(BadInput, match="'pooled' is missing"):
        Encoding.from_dict(saved)


def test_irregular_rows_say_how_much_time_went_by():
    times = np.cumsum([1, 2, 1, 1, 5, 1, 1, 2, 7, 1] * 4) * 1.0
    days = pd.to_datetime("2024-01-01") + pd.to_timedelta(times * 3600 + 17 * (times % 3), unit="s")
    found = read_panel(pd.DataFrame({"t": days, "y": np.sin(times)}), target="y", time="t")
    assert not found.schema.grid.regular
    encoding = Encoding.fit(found.schema, found.series, [30])
    one = encoding.encode(found.schema, found.series[0])
    assert one.elapsed is not None
    np.testing.assert_allclose(one.inputs[:, -1], np.log1p(one.elapsed), rtol=1e-6)


def irregular(rows=60):
    draw = np.random.default_rng(3)
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.exponential(3600, rows).cumsum(), unit="s")
    table = pd.DataFrame({"time": times, "load": draw.exponential(size=rows) ** 3, "rain": draw.normal(size=rows)})
    table.loc[[0, 1, 7, 30, 31], "load"] = np.nan
    table.loc[[0, 2, 59], "rain"] = np.nan
    found = read_panel(table, target="load", time="time")
    assert not found.schema.grid.regular
    return found, Encoding.fit(found.schema, found.series, [40])


def in_zone(rows=60):
    """Hours of a spring night in Rome, in which one of them is skipped."""
    times = pd.date_range("2024-03-30", periods=rows, freq="h", tz="Europe/Rome")
    table = pd.DataFrame({"time": times, "load": np.sin(np.arange(rows)) * 1e3})
    table.loc[3:5, "load"] = np.nan
    found = read_panel(table, target="load", time="time")
    return found, Encoding.fit(found.schema, found.series, [40])


def counted(rows=60):
    draw = np.random.default_rng(5)
    table = pd.DataFrame({"load": draw.normal(size=rows), "heat": draw.lognormal(size=rows)})
    table.loc[::7, "heat"] = np.nan
    found = read_panel(table, target=["load"])
    return found, Encoding.fit(found.schema, found.series, [40])


def rows_of(series, begin, end):
    names = "times", "target", "numeric", "categorical", "given"
    return Series(series.key, *(getattr(series, name)[begin:end] for name in names))


MADE = {name: make() for name, make in (("grid", fitted), ("uneven", irregular), ("zone", in_zone), ("row", counted))}


@pytest.mark.parametrize("name", MADE)
@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_series_read_in_parts_becomes_the_same_bits(name, cuts):
    found, encoding = MADE[name]
    series = found.series[0]
    whole = encoding.encode(found.schema, series)
    carry = None
    for begin, end in pairwise([0, *sorted(cuts), 60]):
        part = encoding.encode(found.schema, rows_of(series, begin, end), carry)
        for field in ("inputs", "anchor", "target", "codes", "elapsed"):
            wanted, got = getattr(whole, field), getattr(part, field)
            assert (wanted is None and got is None) or wanted[begin:end].tobytes() == got.tobytes(), field
        carry = part.carry
    assert carry is not None
    assert whole.carry is not None
    assert carry.time == whole.carry.time
    np.testing.assert_array_equal(carry.anchor, whole.carry.anchor)
    np.testing.assert_array_equal(carry.numeric, whole.carry.numeric)


def test_a_carry_is_not_the_rows_it_came_from():
    found, encoding = MADE["grid"]
    first = encoding.encode(found.schema, rows_of(found.series[0], 0, 30))
    before = first.carry.anchor.copy(), first.carry.numeric.copy()
    encoding.encode(found.schema, rows_of(found.series[0], 30, 60), first.carry)
    np.testing.assert_array_equal(first.carry.anchor, before[0])
    np.testing.assert_array_equal(first.carry.numeric, before[1])
    assert first.carry.anchor.base is None
    assert encoding.encode(found.schema, rows_of(found.series[0], 0, 0)).carry is None
