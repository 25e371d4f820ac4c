"""`conca tour` from the command line: tables, a page, and an exit status that tells the truth."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conca.bench import tour
from conca.bench.composing import composing
from conca.bench.stop import Claim, Stop
from conca.bench.tub import tub


def wrong() -> Stop:
    stop = tub()
    return Stop(
        "A tub that leaks", stop.reading, [*stop.claims, Claim("litres at last", 4.0, 3.9, 1e-12)], stop.picture
    )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stops; tests/bench walks them all."""
    monkeypatch.setattr(tour, "STOPS", (tub, composing))


def test_it_prints_each_claim_and_writes_one_page(say: Callable) -> None:
    status, out, err = say("tour")
    assert (status, err) == (0, "conca: wrote tour.html\n")
    lines = [line.split() for line in out.splitlines()]
    assert ["litres", "after", "4", "min,", "by", "a", "scan", "3.75", "3.75", "ok"] in lines
    assert "Composition is a sum" in out and " NO" not in out
    assert [path.name for path in Path().iterdir()] == ["tour.html"]
    assert Path("tour.html").read_text().count("<figure>") == 2


def test_a_claim_that_does_not_hold_is_told_by_the_status(say: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "STOPS", (composing, wrong))
    status, out, err = say("tour", "-q", "--out", "mine.html")
    assert status == 1
    assert [line.split() for line in out.splitlines() if "NO" in line] == [["litres", "at", "last", "4", "3.9", "NO"]]
    assert "Composition" not in out, "only what does not hold"
    assert "1 of" in err and err.count("\n") == 1
    assert "A tub that leaks" in Path("mine.html").read_text()


def test_an_older_page_is_kept_unless_forced(say: Callable) -> None:
    Path("tour.html").write_text("mine")
    status, out, err = say("tour")
    assert (status, out) == (2, "")
    assert err == "conca: tour.html: exists; --force replaces it\n"
    assert Path("tour.html").read_text() == "mine"
    assert say("tour", "-q", "--force") == (0, "", "")
    assert "<figure>" in Path("tour.html").read_text()


def test_a_place_that_cannot_be_written_is_said_before_the_walk(say: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "STOPS", ())
    status, out, err = say("tour", "--out", "no/such/folder.html")
    assert (status, out) == (2, "")
    assert "there is no such folder" in err
