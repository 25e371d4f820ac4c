"""Cosine and sine of lanes against numpy's in higher precision."""

import numpy as np
import pytest

from conca.kernels.compiled import inlined
from conca.kernels.lane_circle import cosine, eighth, quarters, sine
from conca.kernels.lanes import load, store, width


@inlined
def both(x, c, s):
    for i in range(0, x.size, width(x)):
        v = load(x, i)
        m = quarters(v)
        a, b = eighth(v, m)
        store(c, i, cosine(m, a, b))
        store(s, i, sine(m, a, b))


@pytest.mark.parametrize(("dtype", "limit"), [(np.float32, 1.2e-7), (np.float64, 3e-15)])
def test_they_are_right_for_some_turns(dtype, limit):
    edges = np.arange(-64, 64) * np.pi / 8
    for top in (7, 6e4):
        x = np.append(np.random.default_rng(0).uniform(-top, top, 4096), edges).astype(dtype)
        c, s = np.empty_like(x), np.empty_like(x)
        both(x, c, s)
        wide = x.astype(np.longdouble)
        assert abs(c - np.cos(wide)).max() < limit
        assert abs(s - np.sin(wide)).max() < limit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends(dtype):
    x = np.array([0, np.nan, np.inf, -np.inf] * 4, dtype)
    c, s = np.empty_like(x), np.empty_like(x)
    both(x, c, s)
    assert c[0] == 1 and s[0] == 0
    assert np.isnan(c[1:4]).all() and np.isnan(s[1:4]).all()
