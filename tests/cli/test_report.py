"""`conca report` from the command line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from conca.cli.info import facts
from conca.data.schema import Schema
from conca.estimators.config import ForecastConfig


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A run of one's own, without a report; named as a user might."""
    folder = shutil.copytree(fitted / "run", tmp_path / "my run")
    (folder / "report.html").unlink(missing_ok=True)
    return folder


def test_it_writes_a_page_into_the_run_and_again(run: Path, say: Callable) -> None:
    assert say("report", run) == (0, "", f"conca: wrote {run / 'report.html'}\n")
    text = (run / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
    assert text.count("<section ") == 8
    (run / "report.html").write_text("older")
    assert say("report", run, "-q") == (0, "", "")
    assert (run / "report.html").read_text(encoding="utf-8") == text
    assert say("info", run)[0] == 0, "the run is a run as before"


def test_another_file_is_replaced_only_by_force(run: Path, say: Callable) -> None:
    Path("mine.html").write_text("mine")
    before = sorted(path.name for path in run.iterdir())
    status, out, err = say("report", run, "--out", "mine.html")
    assert (status, out, err) == (2, "", "conca: mine.html: exists; --force replaces it\n")
    assert Path("mine.html").read_text() == "mine"
    assert say("report", run, "--out", "mine.html", "--force", "-q") == (0, "", "")
    assert "<section " in Path("mine.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nothing"], "there is no such folder"),
        (["my run", "--out", "no/such/place.html"], "there is no such folder"),
        (["my run", "--out", "my run"], "is a directory"),
        ([], "RUN"),
    ],
)
def test_bad_input_is_one_line(words: list[str], expected: str, run: Path, say: Callable) -> None:
    status, out, err = say("report", *words)
    assert (status, out) == (2, "")
    assert err.startswith("conca: ") and err.count("\n") == 1
    assert expected in err


def test_a_folder_in_the_place_of_the_page(run: Path, say: Callable) -> None:
    (run / "report.html").mkdir()
    status, _, err = say("report", run)
    assert status == 2
    assert "is a directory" in err


def test_a_damaged_run_is_no_report(run: Path, say: Callable) -> None:
    (run / "model.safetensors").write_bytes(b"nothing")
    status, _, err = say("report", run)
    assert status == 2
    assert "model.safetensors" in err
    assert not (run / "report.html").exists()


def test_info_says_what_is_known_in_advance() -> None:
    schema = Schema(
        ("sold",), "day", ("city",), ("heat", "holiday"), ("kind",), (("a", "b"),), known=("holiday", "kind")
    )
    said = dict(facts(SimpleNamespace(config=ForecastConfig(), schema_=schema)))
    assert said["covariates"] == "heat, holiday, kind"
    assert said["known in advance"] == "holiday, kind"
    schema = Schema(("sold",))
    said = dict(facts(SimpleNamespace(config=ForecastConfig(), schema_=schema)))
    assert said["known in advance"] == "none"
