"""Pathfinder: the published settings, snakes that keep to the rules, labels that are true, and pictures that are bright."""

import hashlib
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from conca.data import pathfinder
from conca.data.labelled_source import read_labelled
from conca.data.making import numbers
from conca.data.pathfinder import Scene, Setting, brush, paint, scene, setting, write_pictures
from conca.data.pathfinder_drawing import DEGREES, FINER, Brush, disc, flipped, moved, put_circle, shrunk, stretched
from conca.types import BadInput

DECISIONS = "a3661bc89de6aa2b5713dade22a4f1a3ba8c486d274be01713b9922a24c60770"
"""Of the first ten scenes of 32 pixels, and PICTURES of what is painted of them."""
PICTURES = "abaa3f42325e4a5ea7d6fa53e52b71eace9e9ad26a08b9872fc509e2b0acf8f4"


def scenes(size: int, count: int, contour: int = 14) -> tuple[Setting, list[Scene]]:
    given = setting(size, contour)
    return given, [scene(given, numbers("pathfinder", 0, place)) for place in range(count)]


@pytest.fixture(scope="module")
def small() -> tuple[Setting, list[Scene]]:
    return scenes(32, 300)


@pytest.fixture(scope="module")
def large() -> tuple[Setting, list[Scene]]:
    return scenes(128, 12)


def test_the_published_settings() -> None:
    assert [setting(size).distractors for size in (32, 64, 128, 256)] == [5, 5, 8, 7]
    assert [(setting(32, n).shorter, setting(32, n).distractors) for n in (6, 9, 14)] == [(2, 10), (3, 6), (4, 5)]
    assert setting(128) == Setting(128, 14, 4, 8, (2, 3), 5, 1.5, 20, 3.0, 1.8, 0.9, 0.9)
    with pytest.raises(BadInput, match="size 28 is not one of 32, 64, 128, 256"):
        setting(28)
    with pytest.raises(BadInput, match="contour 7 is not one of 6, 9, 14"):
        setting(32, 7)


def test_a_label_says_whether_the_dots_are_on_one_snake(small: tuple, large: tuple) -> None:
    for given, made in (small, large):
        assert {s.margin for s in made} == set(given.margins)
        for s in made:
            tails, heads = ([tuple(snake[at, :2]) for snake in s.snakes] for at in (0, -1))
            assert s.dots == (tails[s.origin], heads[s.goal])
            assert (s.origin == s.goal) == bool(s.label)
            assert tails[0] != tails[1]
    shares = np.mean([(s.label, s.origin) for s in small[1]], axis=0)
    assert (abs(shares - 0.5) < 0.09).all(), "of 300, three standard deviations"


def onward(point: tuple[int, int], angle: float, distance: float) -> tuple[int, int]:
    """As `moved`, far from 0, where a sine of pi is nothing."""
    y, x = moved((1024, 1024), angle, distance)
    return int(point[0]) + y - 1024, int(point[1]) + x - 1024


def keep_to_the_rules(given: Setting, s: Scene) -> None:
    """Walk the two snakes once more, by the rules as they are written."""
    pen = brush(given, s.margin)
    ground = np.ones((given.size + 2 * pen.reach,) * 2)
    ground[:] = 0.0
    window = ground[pen.reach : -pen.reach, pen.reach : -pen.reach]
    window[:] = 1.0
    window[1:-1, 1:-1] = 0.0
    angles = [math.radians(int(snake[0, 2]) - 180) for snake in s.snakes]
    pivots = [
        onward(onward(tuple(snake[0, :2]), angle, given.length), flipped(angle), given.length + s.margin)
        for snake, angle in zip(s.snakes, angles)
    ]

    def mask(paddle: np.ndarray) -> tuple[tuple[slice, slice], np.ndarray]:
        y, x, direction = paddle.tolist()
        side = 2 * pen.reach + 1
        return (slice(y, y + side), slice(x, x + side)), pen.paddle(pen.drawn[direction])[1]

    for number in range(1, given.contour):
        for which, snake in enumerate(s.snakes):
            pivots[which] = onward(pivots[which], angles[which], given.length + 2 * s.margin)
            y, x, direction = snake[number].tolist()
            assert 0 <= y < given.size and 0 <= x < given.size
            step = np.array([y, x]) - pivots[which]
            assert abs(np.hypot(*(step + 0.5)) - given.length - s.margin) < 0.9
            angle = math.atan2(*step.tolist())
            turn = abs((angle - angles[which] + math.pi) % (2 * math.pi) - math.pi)
            assert turn * given.continuity < math.pi / 2
            assert abs((pen.drawn[direction] - angle) % (2 * math.pi) - math.pi) < 1e-9, "drawn backward"
            near = window[max(y - s.margin, 0) : y + s.margin + 1, max(x - s.margin, 0) : x + s.margin + 1]
            assert near.shape == (2 * s.margin + 1,) * 2 and window[y, x] < 1.0
            where, taken = mask(snake[number])
            inside = (
                slice(*np.clip([where[i].start, where[i].stop], pen.reach, pen.reach + given.size)) for i in (0, 1)
            )
            both = np.zeros_like(ground)
            both[where] += taken
            assert (ground + both)[tuple(inside)].max() < 1.8
            before, old = mask(snake[number - 1])
            np.maximum(ground[before], old, out=ground[before])
            angles[which] = angle


def test_snakes_keep_to_the_rules(small: tuple, large: tuple) -> None:
    for given, made in (small, large):
        for s in made[:12]:
            keep_to_the_rules(given, s)


def test_snakes_begin_in_the_middle_and_hold_together(small: tuple, large: tuple) -> None:
    for given, made in (small, large):
        for s in made[:100]:
            first, second = s.snakes[:, 0, :2]
            border = 2 * given.between - 1
            assert (first >= border - 1).all() and (first < given.size - border + 1).all()
            assert abs(np.hypot(*(second - first)) - given.between) < 1
            assert 0 < len(s.shorter) <= given.distractors
            reach = 2 * (given.length + 2 * s.margin) + 1
            for snake in (*s.snakes, *s.shorter):
                assert all(np.hypot(*(b - a)) < reach for a, b in pairwise(snake[1:, :2]))


def test_pictures_are_bright_and_shorter_snakes_at_32_pixels_brighter(small: tuple, large: tuple) -> None:
    for given, made in (small, large):
        for s in made[:10]:
            picture = paint(s, given)
            assert picture.shape == (given.size, given.size) and picture.dtype == np.uint8
            assert picture.min() == 0 and picture.max() == 255
            assert 0.02 < (picture > 60).mean() < 0.35
    given, made = small
    levels = {"two": [], "shorter": []}
    for s in made[:20]:
        bare = Scene(s.label, s.margin, s.snakes, s.shorter[:0], s.origin, s.goal, s.begins)
        both, only = paint(s, given).astype(float), paint(bare, given).astype(float)
        levels["shorter"].append(both[only == 0].max())
        levels["two"].append(both[both < 0.76 * 255].max())
    assert np.mean(levels["shorter"]) > 1.25 * np.mean(levels["two"])


def test_shrinking_stretches_to_bytes_first() -> None:
    line = np.zeros((20, 20))
    line[8:12, 2:18] = 1e-3
    small = shrunk(line, (10, 10))
    assert np.array_equal(small, shrunk(1e3 * line, (10, 10))) and small.max() > 0.9
    assert stretched(np.array([[0.0, 1.0], [2.0, 0.5]])).tolist() == [[0, 128], [255, 64]]
    assert not stretched(np.full((2, 2), 7.0)).any()


@pytest.mark.parametrize("at", [(20, 20), (0, 3), (31, 30), (5, 27)])
def test_a_dot_drawn_near_its_edge_alone_is_the_whole_drawing(at: tuple[int, int]) -> None:
    picture, radius = np.zeros((32, 32)), 2.5
    put_circle(picture, at, radius)
    y, x = (np.arange(32 * FINER) - FINER * place for place in at)
    whole = shrunk((y[:, None] ** 2 + x**2 <= (radius * FINER) ** 2).astype(float), (32, 32))
    assert np.array_equal(picture, whole) and picture[at] > 0.9


def test_a_paddle_and_its_ground() -> None:
    pen = Brush(128, 5, 1.5, 3)
    line, mask = pen.paddle(0.0)
    middle = pen.reach
    assert line[middle, middle + 2] > 0.9 and line[middle, middle - 3] < 0.1, "it goes to the right"
    assert (mask >= line - 0.05).all() and mask[middle + 3, middle + 2] > 0.4 and mask[middle + 6, middle] < 0.05
    assert len(pen.drawn) == DEGREES + len(pen.ring) and len(pen.near) == disc(3).sum() == 29
    assert all((size := len(Brush(32, 2, 0.5, 1).footprint(angle))) and size < 25 for angle in pen.drawn[:DEGREES])


def test_decisions_and_pictures_are_those_of_before(small: tuple) -> None:
    given, made = small
    decided, painted = hashlib.sha256(), hashlib.sha256()
    for s in made[:10]:
        for numbers_ in (s.snakes, s.shorter, np.array([s.label, s.margin, s.origin, s.goal, s.begins])):
            decided.update(numbers_.astype("<i8").tobytes())
        painted.update(paint(s, given).tobytes())
    assert decided.hexdigest() == DECISIONS
    assert painted.hexdigest() == PICTURES


def test_what_is_written_is_read_and_depends_on_the_place_alone(tmp_path: Path, small: tuple) -> None:
    given, made = small
    path, moved_on = tmp_path / "pictures.npz", []
    count = pathfinder.BLOCK + 6
    write_pictures(path, pathfinder.pathfinder(given, count), given, count, moved_on.append)
    data = read_labelled(path)
    assert moved_on == [pathfinder.BLOCK, 6]
    assert data.labels.tolist() == [s.label for s in made[:count]]
    assert set(data.lengths.tolist()) == {1024} and data.channels == ("1",)
    assert [int((data.parts == part).sum()) for part in ("train", "validation", "test")] == [56, 7, 7]
    for place in (0, 63, 64, 69):
        assert np.array_equal(data.sequence(place)[:, 0], paint(made[place], given).reshape(-1))
