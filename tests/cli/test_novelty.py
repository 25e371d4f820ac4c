"""`conca score --rows` and `conca stream --novelty`: the same numbers, resumed anywhere, and what is refused."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

COLUMNS = ["time", "novelty", "rank", "alarm"]
Feed = Callable[..., tuple[int, str, str]]
SHARE = "--quantile", 0.9


def frame(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text))


@pytest.fixture
def judged(say: Callable, fitted: Path) -> pd.DataFrame:
    status, out, err = say("score", fitted / "run", fitted / "air.csv.xz", "--rows", *SHARE)
    assert status == 0 and "alarm" in err
    return frame(out)


def test_both_write_the_same_text(feed: Feed, table: str, say: Callable, fitted: Path) -> None:
    _, whole, _ = say("score", fitted / "run", fitted / "air.csv.xz", "--rows", *SHARE, "-q")
    _, streamed, _ = feed(table, "--novelty", *SHARE, "-q")
    alike = [a == b for a, b in zip(whole.splitlines(), streamed.splitlines(), strict=True)]
    assert sum(alike) > 0.9 * len(alike)  # the last of six digits may differ


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    assert list(found) == list(wanted) == COLUMNS
    pd.testing.assert_series_equal(pd.to_datetime(found.time), pd.to_datetime(wanted.time))
    np.testing.assert_allclose(found.novelty, wanted.novelty, rtol=1e-4, atol=1e-4)
    assert found.novelty.isna().sum() == 4  # the first row, and three without a target


def test_a_stream_gives_the_numbers_of_score(feed: Feed, table: str, judged: pd.DataFrame) -> None:
    status, out, err = feed(table, "--novelty", *SHARE)
    assert (
        status == 0 and err.count("\n") == 1 and "--no-refit" in err
    )  # the run has learnt from what it is measured by
    same(frame(out), judged)
    some = judged.dropna()
    assert (some.alarm == (some["rank"] >= 0.9)).all()


@pytest.mark.parametrize("cut", [2, 60])
def test_the_forecast_of_the_next_row_is_kept(
    cut: int, feed: Feed, table: str, judged: pd.DataFrame, tmp_path: Path
) -> None:
    lines = table.splitlines(keepends=True)
    words = "--novelty", *SHARE, "--state", tmp_path / "state", "-q"
    _, first, _ = feed("".join(lines[:cut]), *words)
    _, second, _ = feed("".join([lines[0], *lines[cut:]]), *words)
    same(frame(first + second.removeprefix(",".join(COLUMNS) + "\n")), judged)


def test_a_state_of_forecasts_scores_from_the_second_row_on(
    feed: Feed, table: str, judged: pd.DataFrame, tmp_path: Path
) -> None:
    """A stream of forecasts keeps none for the next row: that one is unscored, nothing is invented."""
    lines = table.splitlines(keepends=True)
    feed("".join(lines[:60]), "--state", tmp_path / "state", "-q")
    status, out, _ = feed("".join([lines[0], *lines[60:90]]), "--novelty", *SHARE, "--state", tmp_path / "state", "-q")
    found = frame(out).novelty
    assert status == 0 and np.isnan(found[0])
    _, _, err = feed(table, "--novelty", *SHARE, "--state", tmp_path / "state")
    assert "no score" not in err  # it is kept from now on
    np.testing.assert_allclose(found[1:], judged.novelty[60:89], rtol=1e-4, atol=1e-4)


def test_a_spike_is_an_alarm(say: Callable, fitted: Path, tmp_path: Path, judged: pd.DataFrame) -> None:
    rows = pd.read_csv(fitted / "air.csv.xz")
    rows.loc[200, "load"] = 50.0
    rows.to_csv(tmp_path / "spike.csv", index=False)
    out = tmp_path / "n.csv"
    assert say("score", fitted / "run", "spike.csv", "--rows", "--out", out, *SHARE, "-q") == (0, "", "")
    found = pd.read_csv(out)
    assert found.novelty.idxmax() == 200 and found.alarm[200] == 1
    np.testing.assert_allclose(found.novelty[:200], judged.novelty[:200], rtol=1e-4, atol=1e-4)  # nothing looks ahead
    status, _, err = say("score", fitted / "run", "spike.csv", "--rows", "--out", out, *SHARE)
    assert status == 2 and "--force" in err and pd.read_csv(out).equals(found)


REFUSED = {
    "a quantile of one": (["--rows", "--quantile", 1], "between 0 and 1"),
    "a quantile that no row can reach": (["--rows", "--quantile", 0.9999], "none would reach 0.9999"),
    "a quantile without --rows": (["--quantile", 0.9], "belong to --rows"),
    "a file without --rows": (["--out", "n.csv"], "belong to --rows"),
    "options of labels": (["--rows", "--label", "x"], "--label"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_score_refuses(case: str, say: Callable, fitted: Path) -> None:
    words, told = REFUSED[case]
    status, out, err = say("score", fitted / "run", fitted / "air.csv.xz", *words)
    assert (status, out) == (2, "") and told in err and err.count("\n") == 1


def test_a_table_without_the_target_is_refused(say: Callable, feed: Feed, fitted: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(fitted / "air.csv.xz").drop(columns="load")
    rows.to_csv(tmp_path / "no.csv", index=False)
    for status, _, err in (
        say("score", fitted / "run", "no.csv", "--rows", *SHARE),
        feed(rows.to_csv(index=False), "--novelty", *SHARE),
    ):
        assert status == 2 and "load" in err and err.count("\n") == 1


@pytest.mark.parametrize("words", [["--quantile", 0.9], ["--novelty", "--future", "x"], ["--novelty", "--quantile", 2]])
def test_what_stream_refuses(words: list[object], feed: Feed, table: str) -> None:
    status, out, err = feed(table, *words)
    assert (status, out) == (2, "") and err.count("\n") == 1
