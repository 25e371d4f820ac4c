"""Alarms beside stretches of what is strange: counts made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conca.metrics.events import events, stretches


def flags(text: str) -> np.ndarray:
    """`#` is true."""
    return np.array([letter == "#" for letter in text])


def test_stretches_are_their_first_row_and_the_one_after_their_last() -> None:
    assert stretches(flags("##..#.###")).tolist() == [[0, 2], [4, 5], [6, 9]]
    assert stretches(flags("...")).shape == (0, 2)
    assert stretches(flags("")).shape == (0, 2)


def test_every_number_of_a_case_made_by_hand() -> None:
    judged = events(
        alarm=flags("#...#.##...#.."),
        strange=flags("..####.###..#."),
    )
    # rows 4 and 7 of the alarms at 0, 4, 6, 7 and 11 are strange; stretches begin at 2, 7 and 12, the last one is missed
    assert judged.alarms == 5
    assert judged.precision == 2 / 5
    assert (judged.found, judged.stretches, judged.recall) == (2, 3, 2 / 3)
    assert judged.rows == 2 / 8
    assert judged.delay == (2 + 0) / 2


def test_one_alarm_finds_a_stretch_but_no_other_rows_of_it() -> None:
    judged = events(np.arange(100) == 59, (np.arange(100) >= 10) & (np.arange(100) < 60))
    assert (judged.recall, judged.rows, judged.precision, judged.delay) == (1.0, 1 / 50, 1.0, 49.0)


def test_alarms_beside_a_stretch_do_not_find_it() -> None:
    judged = events(alarm=flags(".#..#."), strange=flags("..##.."))
    assert (judged.found, judged.precision) == (0, 0.0)
    assert math.isnan(judged.delay)


def test_only_the_first_alarm_of_a_stretch_delays() -> None:
    assert events(alarm=flags("..##.#"), strange=flags(".#####")).delay == 1.0


@pytest.mark.parametrize(
    ("alarm", "strange", "unknown"),
    [("....", ".##.", {"precision", "delay"}), (".#..", "....", {"recall", "rows", "delay"})],
)
def test_what_cannot_be_counted_is_not_a_number(alarm: str, strange: str, unknown: set[str]) -> None:
    judged = events(flags(alarm), flags(strange))
    names = ("precision", "recall", "rows", "delay")
    assert {name for name in names if math.isnan(getattr(judged, name))} == unknown


def test_numbers_serve_as_flags() -> None:
    assert events([0, 1, 1], [0, 0, 1]) == events(flags(".##"), flags("..#"))


def test_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 alarms and 3 rows"):
        events([0, 1], [0, 1, 1])
