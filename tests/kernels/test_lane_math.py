"""Exponentials of lanes against numpy's in higher precision, over the whole range, at its ends, and beyond."""

import numpy as np
import pytest

from conca.kernels import lane_math, lanes
from conca.kernels.compiled import compiled

NAMES = "exp2", "exp", "expm1", "sigmoid", "silu", "softplus", "larger", "smaller"


@compiled
def each(x, y, results):
    """Every function of all x (and y), a row each."""
    for i in range(0, x.size, lanes.width(x)):
        v, w = lanes.load(x, i), lanes.load(y, i)
        lanes.store(results, i, lane_math.exp2(v))
        lanes.store(results, x.size + i, lane_math.exp(v))
        lanes.store(results, 2 * x.size + i, lane_math.expm1(v))
        lanes.store(results, 3 * x.size + i, lane_math.sigmoid(v))
        lanes.store(results, 4 * x.size + i, lane_math.silu(v))
        lanes.store(results, 5 * x.size + i, lane_math.softplus(v))
        lanes.store(results, 6 * x.size + i, lanes.larger(v, w))
        lanes.store(results, 7 * x.size + i, lanes.smaller(v, lanes.neg(lanes.sub(v, w))))


def found(x, y=None):
    """By name."""
    x = np.append(x, np.ones(-x.size % 16, x.dtype))
    y = np.ones_like(x) if y is None else np.append(y, np.ones(-y.size % 16, y.dtype))
    results = np.empty(len(NAMES) * x.size, x.dtype)
    each(x, y, results)
    return dict(zip(NAMES, results.reshape(len(NAMES), -1)))


def wanted(x):
    """In numpy's widest type, which is wider than float64 on most machines."""
    x = x.astype(np.longdouble)
    with np.errstate(over="ignore"):
        e = np.exp(-x)
        return {
            "exp2": np.exp2(x), "exp": np.exp(x), "expm1": np.expm1(x), "sigmoid": 1 / (1 + e), "silu": x / (1 + e),
            "softplus": np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_within_the_stated_error_over_the_whole_range(dtype):
    size, least = (130, 1e-30) if dtype == np.float32 else (1100, 1e-200)
    random = np.random.default_rng(0)
    powers = np.exp(random.uniform(np.log(least), np.log(size), 30_000)) * random.choice([-1, 1], 30_000)
    x = np.concatenate([random.uniform(-size, size, 50_000), random.uniform(-2, 2, 20_000), powers]).astype(dtype)
    got, want, facts = found(x), wanted(x), np.finfo(dtype)
    for name, exact in want.items():
        values, least = got[name][: x.size], facts.smallest_normal * (size if name == "silu" else 1)
        normal = (np.abs(exact) >= least) & (np.abs(exact) <= facts.max)
        error = np.abs(values - exact)[normal] / np.abs(exact[normal])
        assert error.max() < (3e-7 if dtype == np.float32 else 1e-14), name
        assert (np.abs(values[np.abs(exact) < least]) <= least).all(), name
        assert np.isposinf(values[exact > facts.max]).all(), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_at_the_ends_and_beyond(dtype):
    inf, facts = np.inf, np.finfo(dtype)
    x = np.array([0, -0.0, inf, -inf, np.nan, facts.max, -facts.max, facts.smallest_subnormal], dtype)
    got = {name: value[: x.size].tolist() for name, value in found(x).items()}
    assert got["exp2"][:4] == got["exp"][:4] == [1, 1, inf, 0]
    assert got["exp2"][5:] == got["exp"][5:] == [inf, 0, 1]
    assert got["expm1"][:4] == [0, 0, inf, -1] and got["expm1"][5:7] == [inf, -1]
    assert got["sigmoid"][:4] == [0.5, 0.5, 1, 0] and got["sigmoid"][5:] == [1, 0, 0.5]
    assert got["softplus"][2:4] == [inf, 0] and got["softplus"][5:7] == [facts.max, 0]
    assert got["silu"][2] == inf and got["silu"][5:7] == [facts.max, 0]
    assert all(np.isnan(value[4]) for value in got.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_around_the_first_and_the_last_normal_number(dtype):
    facts = np.finfo(dtype)
    for name, base in (("exp2", np.log(np.longdouble(2))), ("exp", np.longdouble(1))):
        for edge in (np.log(facts.smallest_normal), np.log(np.longdouble(facts.max))):
            x = np.full(33, edge / base, dtype)
            for i in range(1, 33):
                x[i] = np.nextafter(x[i - 1], dtype(0)) if i < 16 else x[i]
                x[i] = x[0] if i == 16 else np.nextafter(x[i - 1], 2 * x[0]) if i > 16 else x[i]
            got, exact = found(x)[name][:33], wanted(x)[name]
            inside = (exact >= facts.smallest_normal * 1.00001) & (exact <= facts.max * 0.99999)
            np.testing.assert_allclose(got[inside], exact[inside].astype(dtype), rtol=3e-7, atol=0)
            assert ((got >= 0) & ((got <= 1.0001 * exact) | np.isinf(got))).all()
            assert (np.isfinite(got) | (exact >= 0.9999 * facts.max)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_larger_and_smaller_keep_what_is_no_number(dtype):
    x = np.array([1, 2, np.nan, 3, np.nan, -np.inf], dtype)
    y = np.array([2, 1, 3, np.nan, np.nan, np.inf], dtype)
    got = found(x, y)
    np.testing.assert_array_equal(got["larger"][:6], [2, 2, np.nan, np.nan, np.nan, np.inf])
    np.testing.assert_array_equal(got["smaller"][:5], [1, -1, np.nan, np.nan, np.nan])
