"""Where forecasts start: the last value, moved by what came a season ago."""

import json

import numpy as np
import pytest

from conca.data.anchor import Anchor, seasons_of
from conca.data.grid import DAY, Grid
from conca.types import BadInput

HOUR = DAY // 24


def wave(rows, season, targets=1):
    at = np.arange(rows)[:, None] + np.arange(targets)
    return np.sin(2 * np.pi * at / season) + 0.3 * (at % season == 0)


def by_hand(anchor, held, c):
    """One row, from the definition."""
    weights = np.asarray(anchor.weights)
    horizon, targets, _ = weights.shape
    found = np.empty((horizon, targets))
    for h in range(1, horizon + 1):
        for k in range(targets):
            total, then, now = held[c, k], 0.0, 0.0
            for s, season in enumerate(anchor.seasons):
                place = c + h
                while place > c:
                    place -= season
                then = held[place, k] - held[c, k] if place >= 0 else then
                now = held[c - season, k] - held[c, k] if c >= season else now
                total += weights[h - 1, k, 2 * s] * then + weights[h - 1, k, 2 * s + 1] * now
            found[h - 1, k] = total
    return found


def test_seasons_are_days_weeks_and_years_of_the_grid():
    cycles = ("day", "week", "year")
    assert seasons_of(Grid("datetime", HOUR), cycles, 10_000) == (24, 168)
    assert seasons_of(Grid("datetime", HOUR), ("day",), 10_000) == (24,)
    assert seasons_of(Grid("datetime", HOUR), cycles, 100) == (24,)
    assert seasons_of(Grid("datetime", HOUR), cycles, 71) == ()
    assert seasons_of(Grid("datetime", DAY), ("week", "year"), 5000) == (7, 364)
    assert seasons_of(Grid("datetime", HOUR // 60), cycles, 10**6) == (1440,)
    assert seasons_of(Grid("datetime", HOUR, regular=False), cycles, 10_000) == ()
    assert seasons_of(Grid("integer", 1), cycles, 10_000) == ()


@pytest.mark.parametrize("seasons", [(5,), (5, 15)])
@pytest.mark.parametrize("horizon", [1, 4, 12])
def test_starts_are_what_the_definition_says(seasons, horizon):
    held = np.random.default_rng(0).normal(size=(40, 2))
    weights = np.random.default_rng(1).normal(size=(horizon, 2, 2 * len(seasons)))
    anchor = Anchor(seasons, tuple(map(tuple, (tuple(map(tuple, w)) for w in weights))))
    found = anchor.starts(held, 0)
    assert found.shape == (40, horizon, 2)
    for c in range(40):
        np.testing.assert_allclose(found[c], by_hand(anchor, held, c), rtol=1e-6, atol=1e-6)


def test_a_cut_changes_no_bit(monkeypatch):
    held = wave(90, 15) + 0.1 * np.random.default_rng(0).normal(size=(90, 1))
    anchor = Anchor.fit((5, 15), 3, [held], [held])
    assert anchor.seasons == (5, 15)
    whole = anchor.starts(held, 0)
    for cut in (1, 14, 15, 16, 60):
        past = held[max(0, cut - 15) : cut]
        np.testing.assert_array_equal(anchor.starts(np.concatenate([past, held[cut:]]), len(past)), whole[cut:])
    monkeypatch.setattr("conca.data.anchor.BLOCK", 7)
    np.testing.assert_array_equal(anchor.starts(held, 0), whole)


def test_a_pure_season_is_found_exactly():
    held = wave(400, 24)
    anchor = Anchor.fit((24,), 30, [held], [held])
    found = anchor.starts(held, 0)
    for c in (100, 250, 360):
        np.testing.assert_allclose(found[c], held[c + 1 : c + 31], atol=0.01)


def test_a_walk_stays_at_its_last_value():
    held = np.random.default_rng(0).normal(size=(5000, 1)).cumsum(0)
    assert Anchor.fit((24,), 6, [held], [held]) == Anchor()
    both = np.concatenate([held, wave(5000, 24)], axis=1)
    weights = np.asarray(Anchor.fit((24,), 6, [both], [both]).weights)
    assert (weights[:, 0] == 0).all()
    np.testing.assert_allclose(weights[:, 1, 0], 1.0, atol=0.01)


def test_without_seasons_it_is_the_last_value():
    held = np.arange(6.0).reshape(3, 2)
    assert Anchor.fit((), 5, [held], [held]) == Anchor()
    np.testing.assert_array_equal(Anchor().starts(held, 1), held[1:, None].astype(np.float32))


def test_missing_targets_and_short_series_are_no_obstacle():
    target = wave(200, 24)
    target[::7] = np.nan
    held = np.nan_to_num(target)
    short = np.zeros((4, 1))
    anchor = Anchor.fit((24,), 6, [held, short], [target, short])
    assert anchor.seasons == (24,)
    assert np.isfinite(np.asarray(anchor.weights)).all()
    assert Anchor.fit((24,), 6, [short], [short]) == Anchor()


def test_it_survives_json():
    held = wave(100, 24)
    anchor = Anchor.fit((24,), 2, [held], [held])
    assert Anchor.from_dict(json.loads(json.dumps(anchor.as_dict()))) == anchor


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"seasons": [24], "weights": []},
        {"seasons": [0], "weights": [[[1, 2]]]},
        {"seasons": [24], "weights": [[[1]]]},
    ],
)
def test_what_does_not_fit_is_refused(saved):
    with pytest.raises(BadInput, match="anchor"):
        Anchor.from_dict(saved)


def test_how_far_a_row_is_from_the_one_a_season_before():
    held = np.random.default_rng(0).normal(size=(20, 2))
    anchor = Anchor((3, 6), ())
    found = anchor.since(held, 0)
    assert found.shape == (20, 4)
    np.testing.assert_array_equal(found[:3], 0)
    np.testing.assert_array_equal(found[3:, :2], held[3:] - held[:-3])
    np.testing.assert_array_equal(found[3:6, 2:], found[3:6, :2])
    np.testing.assert_array_equal(found[6:, 2:], held[6:] - held[:-6])
    np.testing.assert_array_equal(anchor.since(held[4:], 6), found[10:])
    assert Anchor().since(held, 3).shape == (17, 0)
