"""`conca stream`: rows in, forecasts out at once, whatever comes, and on from where it ended."""

import io
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from conca.cli.main import main; sys.exit(main())"
NAMES = ["time", "cutoff", "step", "target_name"]
QUANTILES = ["q0.1", "q0.5", "q0.9"]
Feed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rolled(say: Callable, fitted: Path) -> pd.DataFrame:
    return frame(say("predict", fitted / "run", fitted / "air.csv.xz", "--rolling")[1])


def frame(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text))


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """The same rows, numbers within 1e-5 of their size; y is not known."""
    assert list(found) == list(wanted)
    pd.testing.assert_frame_equal(found[NAMES], wanted[NAMES].reset_index(drop=True))
    size = wanted[QUANTILES].abs().max().max()
    np.testing.assert_allclose(found[QUANTILES], wanted[QUANTILES], rtol=0, atol=1e-5 * size)
    assert found.y.isna().all()


def union(parts: list[str], wanted: pd.DataFrame) -> None:
    """Together, in whatever order and however often, these texts hold the wanted rows and no others."""
    rows = [line for text in parts for line in text.splitlines() if line and not line.startswith("time,")]
    text = "\n".join([",".join(wanted), *rows])
    found = frame(text)
    assert found[QUANTILES].notna().all(axis=None)
    found = found.drop_duplicates(NAMES).sort_values(["cutoff", "step"]).reset_index(drop=True)
    same(found, wanted)


def test_the_numbers_are_those_of_predict(feed: Feed, table: str, rolled: pd.DataFrame) -> None:
    status, out, err = feed(table)
    assert (status, err) == (0, "")
    same(frame(out), rolled)


FORMS: dict[str, Callable[[pd.DataFrame], bytes]] = {
    "other order, more columns": lambda t: (
        t.assign(more="x")[["more", "heat", "load", "time"]].to_csv(index=False).encode()
    ),
    "semicolons": lambda t: t.to_csv(index=False, sep=";").encode(),
    "tabs, CRLF": lambda t: t.to_csv(index=False, sep="\t", lineterminator="\r\n").encode(),
    "BOM, no last newline": lambda t: b"\xef\xbb\xbf" + t.to_csv(index=False).strip().encode(),
    "quotes, blanks": lambda t: t.assign(note='a "b",\nc').to_csv(index=False, quoting=1).replace(",", ", ").encode(),
    "words for missing": lambda t: t.to_csv(index=False, na_rep="NA").encode(),
    "blank lines": lambda t: t.to_csv(index=False).replace("\n", "\n\n").encode(),
    "T between": lambda t: t.to_csv(index=False, date_format="%Y-%m-%dT%H:%M").encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_csv_that_predict_reads(form: str, feed: Feed, fitted: Path, rolled: pd.DataFrame) -> None:
    rows = pd.read_csv(fitted / "air.csv.xz", parse_dates=["time"])
    status, out, err = feed(FORMS[form](rows))
    assert (status, err) == (0, "")
    same(frame(out), rolled)


def test_rows_that_are_absent_count_as_missing(feed: Feed, say: Callable, fitted: Path) -> None:
    rows = pd.read_csv(fitted / "air.csv.xz").drop(index=[5, 6, 7, 90, *range(200, 300)])
    rows.to_csv("gaps.csv", index=False)
    wanted = frame(say("predict", fitted / "run", "gaps.csv", "--rolling", "-q")[1])
    same(frame(feed(rows.to_csv(index=False))[1]), wanted)


def hostile(rows: list[str]) -> tuple[list[str], dict[int, list[str]]]:
    """Rows with bad ones among them, and what must be said of each, by its line."""
    bad = {
        "2024-01-01 05:00:00,1": ["2 cells", "3 columns"],
        "2024-01-01 05:00:00,1,2,3": ["4 cells", "3 columns"],
        "2024-01-01 05:00:00,much,2": ["column 'load'", "much", "number"],
        "2024-01-01 05:00:00,1,1e40": ["column 'heat'", "1e+40"],
        "2024-01-01 05:00:00,inf,2": ["column 'load'", "infinite"],
        "2024-01-01 05:00:00,1_0,2": ["column 'load'", "1_0"],
        "yesterday,1,2": ["column 'time'", "yesterday", "not a time"],
        ",1,2": ["column 'time'", "the time is missing"],
        "2024-02-30 05:00:00,1,2": ["column 'time'", "2024-02-30", "not a time"],
        "2024-01-01 04:00:00,1,2": ["column 'time'", "2024-01-01 04:00:00", "last row", "each time once"],
        "2024-01-01 01:00:00,1,2": ["column 'time'", "2024-01-01 01:00:00", "older", "2024-01-01 04:00:00"],
        "2024-01-01 04:30:00,1,2": ["column 'time'", "whole number of steps of 1 h", "2024-01-01 04:00:00"],
        "2124-01-01 04:00:00,1,2": ["column 'time'", "rows are missing", "2024-01-01 04:00:00"],
        "1500-01-01 04:00:00,1,2": ["column 'time'", "1678"],
        "2024-01-01 05:00:00+01:00,1,2": ["column 'time'", "without a time zone"],
        "7,1,2": ["column 'time'"],
        '2024-01-01 05:00:00,"1,2': ["quoted cell"],
        "2024-01-01 05:00:00,\0,2": ["NUL"],
    }
    head, tail = rows[:5], rows[5:]
    said = {2 + 5 + place: words for place, words in enumerate(bad.values())}
    return [*head, *bad, *tail], said


@pytest.mark.parametrize("block", [1 << 16, 41])
def test_bad_rows_are_told_and_the_stream_goes_on(
    block: int, feed: Feed, table: str, rolled: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conca.cli.stream.SIZE", block)
    header, *rows = table.splitlines()
    rows, said = hostile(rows[:150])
    status, out, err = feed("\n".join([header, *rows]) + "\n")
    assert status == 0
    lines = err.splitlines()
    assert lines.pop() == f"conca: {len(said)} rows were refused"
    assert [line.partition(", row ")[2].partition(":")[0].partition(",")[0] for line in lines] == list(map(str, said))
    for line, words in zip(lines, said.values(), strict=True):
        assert line.startswith("conca: stdin, row ")
        for word in words:
            assert word in line, line
    same(frame(out), rolled[: 150 * 6])


def test_text_that_is_not_utf8(feed: Feed, table: str, rolled: pd.DataFrame) -> None:
    head, *rows = table.encode().splitlines(keepends=True)
    status, out, err = feed(b"".join([head, *rows[:3], b"2024-01-01 03:00:00,\xff,1\n", *rows[3:20]]))
    assert status == 0
    assert "row 5: not UTF-8" in err
    same(frame(out), rolled[: 20 * 6])


HEADERS = {
    "": ["stdin is empty"],
    "\n1,2\n": ["blank"],
    "time,laod,heat\n": ["no column 'load'", "laod"],
    "time,load,load,heat\n": ["two columns are named 'load'"],
    "time\0,load\n": ["NUL"],
    "x" * 2_000_000: ["bytes"],
}


@pytest.mark.parametrize("text", HEADERS, ids=lambda text: repr(text[:12]))
def test_a_header_that_cannot_be_used(text: str, feed: Feed) -> None:
    status, out, err = feed(text, "--state", "state")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert all(word in err for word in ("stdin", *HEADERS[text]))
    assert not Path("state").exists()


def test_a_header_alone_gives_a_header(feed: Feed) -> None:
    assert feed("time,load,heat") == (0, ",".join([*NAMES, *QUANTILES, "y"]) + "\n", "")


@pytest.mark.parametrize("cut", [1, 20, 777, 6000])
def test_what_was_read_is_passed_over_when_it_comes_again(
    cut: int, feed: Feed, table: str, rolled: pd.DataFrame
) -> None:
    end = table.index("\n") + cut
    begin = feed(table[:end], "--state", "state")
    assert begin[0] == 0
    status, out, err = feed(table, "--state", "state")
    assert status == 0
    read = len(frame(begin[1])) // 6
    if read:
        assert f"{read:,} row" in err
        assert "read before" in err
    union([begin[1], out], rolled)
    assert feed(table, "--state", "state", "-q") == (0, ",".join(rolled) + "\n", "")


def test_after_the_first_new_row_an_old_one_is_an_error(feed: Feed, table: str) -> None:
    lines = table.splitlines(keepends=True)
    feed("".join(lines[:20]), "--state", "state")
    status, _, err = feed("".join([lines[0], *lines[15:22], lines[16]]), "--state", "state")
    assert status == 0
    assert "row 9, column 'time'" in err
    assert "5 rows were read before" in err
    assert "1 row was refused" in err


def test_a_row_is_answered_at_once_and_memory_stays(
    started: Callable, table: str, rolled: pd.DataFrame, tmp_path: Path
) -> None:
    process = started("--state", "state", "-v")
    header, *rows = table.splitlines(keepends=True)
    process.stdin.write(header.encode())
    process.stdin.flush()
    lines = [process.stdout.readline()]
    for row in rows[:10]:
        process.stdin.write(row.encode())
        process.stdin.flush()
        lines += [process.stdout.readline() for _ in range(6)]
    same(frame(b"".join(lines).decode()), rolled[:60])
    until((tmp_path / "state").exists)  # it is written although no more rows come
    _, err = process.communicate()
    assert process.returncode == 0
    assert "10 rows, " in err.decode()
    assert "1 series, " in err.decode()


def until(what: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_killed_in_the_middle_and_resumed(started: Callable, table: str, rolled: pd.DataFrame, tmp_path: Path) -> None:
    header, *rows = table.splitlines(keepends=True)
    outputs, state = [], tmp_path / "state"
    for attempt in range(3):
        path, before = tmp_path / f"out{attempt}", state.read_bytes() if state.exists() else b""
        first = 30 * (attempt + 1)
        with path.open("wb") as out:
            process = started("--state", "state", stdout=out)
            process.stdin.write("".join([header, *rows[:first]]).encode())
            process.stdin.flush()
            if attempt < 2:
                until(
                    lambda file=path, old=before: (
                        file.stat().st_size > 999 and state.exists() and state.read_bytes() != old
                    )
                )
                for row in rows[first : first + 20]:
                    process.stdin.write(row.encode())
                    process.stdin.flush()
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
                process.wait()
                process.stdin.close()
            else:
                _, err = process.communicate("".join(rows[first:]).encode())
        assert process.returncode == (0 if attempt == 2 else -signal.SIGKILL)
        text = path.read_text()
        outputs.append(text[: text.rindex("\n") + 1])
    assert "were read before" in err.decode()
    assert len(frame(outputs[0])) < len(rolled)
    assert len(frame(outputs[2])) < len(rolled), "the last one began in the middle"
    union(outputs, rolled)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_with_the_state_saved(
    number: int, status: int, started: Callable, table: str, feed: Feed, rolled: pd.DataFrame
) -> None:
    process = started("--state", "state")
    process.stdin.write("".join(table.splitlines(keepends=True)[:31]).encode())
    process.stdin.flush()
    first = b"".join(process.stdout.readline() for _ in range(1 + 30 * 6))
    process.send_signal(number)
    rest, err = process.communicate()
    assert (process.returncode, rest) == (status, b"")
    assert b"Traceback" not in err
    union([first.decode(), feed(table, "--state", "state")[1]], rolled)


def test_a_reader_that_leaves_ends_it_quietly(started: Callable, table: str, feed: Feed, rolled: pd.DataFrame) -> None:
    process = started("--state", "state")
    lines = table.splitlines(keepends=True)
    process.stdin.write("".join(lines[:31]).encode())
    process.stdin.flush()
    first = b"".join(process.stdout.readline() for _ in range(1 + 30 * 6))
    process.stdout.close()
    process.stdin.write("".join(lines[31:]).encode())
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")
    union([first.decode(), feed(table, "--state", "state")[1]], rolled)


def test_a_disk_that_is_full_costs_one_line_and_the_old_state_stays(
    started: Callable, table: str, feed: Feed, rolled: pd.DataFrame, tmp_path: Path
) -> None:
    lines = table.splitlines(keepends=True)
    begin = feed("".join(lines[:31]), "--state", "state")[1]
    old = (tmp_path / "state").read_bytes()

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    process = started("--state", "state", before=full)
    out, err = process.communicate(table.encode())
    assert process.returncode == 2
    told = [line for line in err.decode().splitlines() if "were read before" not in line]
    assert len(told) == 1
    assert "state" in told[0]
    assert "not saved" in told[0]
    assert (tmp_path / "state").read_bytes() == old
    union([begin, out.decode()], rolled)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "stdin"]


def test_states_that_cannot_be_used(feed: Feed, say: Callable, table: str, fitted: Path) -> None:
    feed(table, "--state", "state")
    whole = Path("state").read_bytes()
    fit = "--target", "load", "--time", "time", "--horizon", 6, "--layers", "s4d", "--d-model", 8, "--epochs", 1
    assert say("fit", fitted / "air.csv.xz", *fit, "--seed", 1, "--no-refit", "-q", "--out", "other")[0] == 0
    status, out, err = feed(table, "--state", "state", run=Path("other"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "another run" in err
    for bad in (whole[:100], b"", whole[:-9] + b"\0" * 9):
        Path("state").write_bytes(bad)
        status, out, err = feed(table, "--state", "state")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert Path("state").read_bytes() == bad
    for place in ("nowhere/state", "."):
        status, out, err = feed(table, "--state", place)
        assert (status, out, err.count("\n")) == (2, "", 1)


def test_the_header_is_not_repeated_in_a_file(started: Callable, table: str, tmp_path: Path) -> None:
    lines = table.splitlines(keepends=True)
    for rows in (lines[:11], lines[:21]):
        with (tmp_path / "out.csv").open("ab") as out:
            started("--state", "state", stdout=out).communicate("".join(rows).encode())
    text = (tmp_path / "out.csv").read_text()
    assert text.count("time,cutoff") == 1
    assert len(frame(text)) == 20 * 6


def test_memory_stays_flat(started: Callable) -> None:
    times = pd.date_range("2024-01-01", periods=20_000, freq="h").astype(str)
    rows = [f"{when},{place % 24},1\n" for place, when in enumerate(times)]
    held = []
    with open(os.devnull, "wb") as nowhere:
        process = started("--state", "state", stdout=nowhere)
        process.stdin.write(b"time,load,heat\n")
        for begin in range(0, len(rows), 2_000):
            process.stdin.write("".join(rows[begin : begin + 2_000]).encode())
            process.stdin.flush()
            status = Path(f"/proc/{process.pid}/status").read_text()
            held.append(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")))
        process.communicate()
    assert process.returncode == 0
    assert held[-1] - held[4] < 12_000, f"kilobytes: {held}"


def test_the_program_itself(fitted: Path, tmp_path: Path, table: str) -> None:
    """One row by itself is answered, in a process that imports nothing before it is asked to."""
    command = [sys.executable, "-W", "error", "-c", MAIN, "stream", str(fitted / "run")]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    text = "".join(table.splitlines(keepends=True)[:2])
    done = subprocess.run(command, input=text, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stderr) == (0, "")
    assert len(frame(done.stdout)) == 6


def test_help_names_what_cannot_be_known(say: Callable) -> None:
    status, out, _ = say("stream", "--help")
    assert status == 0
    assert "has no times" in " ".join(out.split())
