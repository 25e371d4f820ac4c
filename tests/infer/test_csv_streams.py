"""Streams of CSV mean what tables of CSV mean: names, categories, formats of times, local clocks, what is known in advance."""

import errno
import io
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import conca
from conca.infer import Session
from conca.infer import stream as module
from conca.infer.stream import Keeper, Stream
from conca.types import BadInput

QUANTILES = ["q0.1", "q0.5", "q0.9"]
ROWS = 80


def wave(rows: int = ROWS) -> np.ndarray:
    return 3 + np.sin(np.arange(rows) / 4)


def many() -> pd.DataFrame:
    """Two series with names that look like numbers, truths, and categories that are numbers and texts."""
    draw = np.random.default_rng(0)
    hours = pd.date_range("2024-01-01", periods=ROWS, freq="h")
    parts = [
        pd.DataFrame({"time": hours, "shop": name, "load": wave() * scale}) for name, scale in (("007", 1), ("7", 50))
    ]
    table = pd.concat(parts, ignore_index=True)
    table["open"] = draw.choice([True, False], 2 * ROWS)
    table["kind"] = draw.choice([1.0, 2.0, 30.0, np.nan], 2 * ROWS)
    table["wind"] = draw.choice(["N", "S, strong", '"gusty"', ""], 2 * ROWS)
    return table


def other_format() -> pd.DataFrame:
    times = pd.date_range("2024-01-01", periods=ROWS, freq="6h").strftime("%d/%m/%Y %H:%M")
    return pd.DataFrame({"time": times, "load": wave()})


def local() -> pd.DataFrame:
    """Hours of Rome as its clocks show them, around the night in which one of them is repeated."""
    times = pd.date_range("2024-10-26", periods=ROWS, freq="h", tz="Europe/Rome").tz_localize(None)
    return pd.DataFrame({"time": times, "load": wave()})


def untimed() -> pd.DataFrame:
    return pd.DataFrame({"load": np.where(np.arange(ROWS) % 9 == 4, np.nan, wave())})


def planned() -> pd.DataFrame:
    table = pd.DataFrame({"time": pd.date_range("2024-01-01", periods=ROWS, freq="h"), "load": wave()})
    table["holiday"] = np.arange(ROWS) % 7 == 0
    table["menu"] = np.where(np.arange(ROWS) % 5 == 0, "fish", "soup")
    table["price"] = np.cos(np.arange(ROWS))
    return table


TABLES: dict[str, tuple[Callable[[], pd.DataFrame], dict[str, object]]] = {
    "many": (many, {"time": "time", "series": "shop", "categorical": ["kind"]}),
    "other_format": (other_format, {"time": "time"}),
    "local": (local, {"time": "time", "tz": "Europe/Rome"}),
    "untimed": (untimed, {}),
    "planned": (planned, {"time": "time", "known": ["holiday", "menu", "price"]}),
}


@cache
def model(name: str, folder: Path) -> conca.Forecaster:
    """A forecaster that was hardly trained, on a file."""
    table, roles = TABLES[name]
    path = folder / f"{name}.csv"
    table().to_csv(path, index=False)
    new = conca.Forecaster(3, layers="s4d", d_model=8, length=16, members=1, epochs=1, batch_size=4)
    return new.fit(path, target="load", refit=False, progress=False, **roles)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(autouse=True)
def single() -> None:
    torch.set_default_dtype(torch.float32)


def run(stream: Stream, text: str, size: int = 1 << 16) -> tuple[pd.DataFrame, list[str]]:
    """All forecasts, and all that was said, of rows that come in blocks of `size` bytes."""
    data = text.encode()
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    answers = [answer for block in blocks for answer in stream.feed(block)]
    answers += list(stream.feed(b"", end=True))
    out = stream.header + "".join(answer.text for answer in answers)
    return pd.read_csv(io.StringIO(out), dtype={"shop": str}), [fault for a in answers for fault in a.faults]


def streamed(session: Session, text: str, size: int = 1 << 16) -> tuple[pd.DataFrame, list[str]]:
    first, _, rest = text.partition("\n")
    return run(Stream(session, first.encode(), "here"), rest, size)


def as_read(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype={"shop": str})


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    names = [name for name in wanted if name not in (*QUANTILES, "y")]
    assert list(found) == list(wanted)
    found, wanted = (frame.sort_values(names).reset_index(drop=True) for frame in (found, wanted))
    pd.testing.assert_frame_equal(found[names], wanted[names])
    for _, rows in wanted.groupby("shop") if "shop" in wanted else [((), wanted)]:
        size = rows[QUANTILES].abs().max().max()
        np.testing.assert_allclose(found.loc[rows.index, QUANTILES], rows[QUANTILES], rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("size", [1 << 16, 100])
@pytest.mark.parametrize("name", ["many", "other_format", "local", "untimed"])
def test_a_stream_means_what_the_file_means(name: str, size: int, folder: Path) -> None:
    fitted = model(name, folder)
    text = (folder / f"{name}.csv").read_text()
    found, faults = streamed(Session(fitted), text, size)
    assert faults == []
    same(found, as_read(fitted.predict(folder / f"{name}.csv", rolling=True)))


def test_series_that_take_turns(folder: Path) -> None:
    fitted = model("many", folder)
    mixed = pd.read_csv(folder / "many.csv", dtype={"shop": str, "open": str, "kind": str}).sort_values("time")
    found, faults = streamed(Session(fitted), mixed.to_csv(index=False), 500)
    assert faults == []
    same(found, as_read(fitted.predict(folder / "many.csv", rolling=True)))


def test_what_stands_in_a_cell_of_categories(folder: Path) -> None:
    fitted = model("many", folder)
    row = "2024-01-01,7,3,{},{},{}\n"
    texts = ["time,shop,load,open,kind,wind\n" + row.format(*cells) for cells in (
        ("True", "2", "N"), ("1", "2.0", "N"), ("true", "2.00", " N"), ("TRUE", " 2", "N "),
    )]  # fmt: skip
    first, *others = (streamed(Session(fitted), text) for text in texts)
    assert first[1] == []
    for other in others:
        pd.testing.assert_frame_equal(other[0], first[0])
    unknown = [streamed(Session(fitted), texts[0].replace(",2,N", cells))[0] for cells in (",999,E", ",,", ",NA,x y")]
    assert not unknown[0].equals(first[0])
    pd.testing.assert_frame_equal(unknown[1], unknown[0])
    pd.testing.assert_frame_equal(unknown[2], unknown[0])


def test_series_without_a_name_and_bad_cells_do_not_disturb_the_others(folder: Path) -> None:
    fitted = model("many", folder)
    header, *rows = (folder / "many.csv").read_text().splitlines(keepends=True)
    bad = ["2024-01-01,,3,True,2,N\n", "2024-01-01,7,x,True,2,N\n", "2024-01-01,7,3,maybe,2,N\n"]
    found, faults = streamed(Session(fitted), "".join([header, *rows[:80], *bad, *rows[80:]]))
    assert [fault.partition(":")[0] for fault in faults] == [
        "here, row 82, column 'shop'",
        "here, row 83, column 'load'",
        "here, row 84, column 'open'",
    ]
    same(found, as_read(fitted.predict(folder / "many.csv", rolling=True)))


def test_one_bad_time_among_many_of_another_format(folder: Path) -> None:
    fitted = model("other_format", folder)
    header, *rows = (folder / "other_format.csv").read_text().splitlines(keepends=True)
    rows.insert(30, "99/99/2024 00:00,3\n")
    found, faults = streamed(Session(fitted), "".join([header, *rows]))
    assert len(faults) == 1
    assert "row 32" in faults[0]
    assert "99/99/2024" in faults[0]
    same(found, as_read(fitted.predict(folder / "other_format.csv", rolling=True)))


def test_the_repeated_hour_is_read_twice_also_after_a_cut(folder: Path, tmp_path: Path) -> None:
    fitted = model("local", folder)
    header, *rows = (folder / "local.csv").read_text().splitlines(keepends=True)
    wanted = as_read(fitted.predict(folder / "local.csv", rolling=True))
    twice = [place for place, row in enumerate(rows) if row.startswith("2024-10-27 02:00")]
    assert len(twice) == 2
    for cut in (twice[0], twice[0] + 1, twice[1] + 1):
        one, other = Session(fitted), Session(fitted)
        first, _ = streamed(one, "".join([header, *rows[:cut]]))
        one.save(tmp_path / "state")
        other.load(tmp_path / "state")
        again = Stream(other, header.encode(), "here", resumed=True)
        second, faults = run(again, "".join(rows))
        assert faults == []
        assert again.passed == cut
        same(pd.concat([first, second], ignore_index=True), wanted)


def test_what_is_known_in_advance(folder: Path, tmp_path: Path) -> None:
    fitted, table = model("planned", folder), folder / "planned.csv"
    with pytest.raises(BadInput, match="'holiday'"):
        Session(fitted)
    with pytest.raises(BadInput, match="known in advance"):
        Session(model("other_format", folder), future=table)
    wanted = as_read(fitted.predict(table, rolling=True))
    assert len(wanted) == 3 * (ROWS - 3)
    session = Session(fitted, future=table)
    found, faults = streamed(session, table.read_text(), 300)
    same(found, wanted)
    assert len(faults) == 3
    assert "row 79" in faults[0]
    assert "2024-01-04 08:00:00" in faults[0]
    assert session.memories[()].rows == ROWS, "rows that cannot be forecast from are read"
    assert len(fitted.predict(table, rolling=True).merge(Session(fitted, table).push(planned().head(9)), on="time")) > 0
    with pytest.raises(BadInput, match="2024-01-04 08:00:00") as caught:
        Session(fitted, table).push(planned())
    assert "is read" not in str(caught.value)
    planned().drop(columns="menu").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(BadInput, match="menu"):
        Session(fitted, future=tmp_path / "less.csv")


def test_blank_rows_at_the_end_of_one_column_are_no_rows(folder: Path) -> None:
    fitted = model("untimed", folder)
    found, _ = streamed(Session(fitted), "load\n1\n\n2\n\n\n", 2)
    assert found.cutoff.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    wanted = Session(fitted).push(pd.DataFrame({"load": [1, np.nan, 2]}))
    same(found, as_read(wanted))


def test_rows_far_apart_are_read_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = model("other_format", folder)
    times = pd.date_range("2024-01-01", periods=30, freq="60h").strftime("%d/%m/%Y %H:%M")
    text = pd.DataFrame({"time": times, "load": wave(30)}).to_csv(index=False)
    wanted, _ = streamed(Session(fitted), text)
    sizes = []
    step = module.step
    monkeypatch.setattr(module, "MOST_FILLED", 50)
    monkeypatch.setattr(module, "step", lambda *given: sizes.append(len(given[2][0])) or step(*given))
    found, faults = streamed(Session(fitted), text)
    assert faults == []
    assert max(sizes) <= 6
    same(found, wanted)


def test_an_answer_that_is_not_taken_was_never_given(folder: Path) -> None:
    session = Session(model("untimed", folder))
    stream = Stream(session, b"load", "here")
    for answer in stream.feed(b"1\n2\n"):
        assert answer.text
        assert len(session) == 0
        break
    assert len(session) == 0


def test_a_file_that_cannot_be_written_is_told_once_until_it_can(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, told = Session(model("untimed", folder)), []
    keeper = Keeper(session, tmp_path / "gone" / "state", told.append)
    for _ in range(3):
        session.push({"load": 1.0})
        keeper.keep(now=True)
    assert len(told) == 1
    assert told[0].endswith("No such file or directory; the state is not saved")
    assert keeper.failed
    (tmp_path / "gone").mkdir()
    keeper.keep(now=True)
    assert not keeper.failed
    assert not keeper.behind
    session.push({"load": 1.0})
    keeper.keep()
    assert keeper.behind, "not before a second has passed"
    assert 0 < keeper.wait() <= 1
    monkeypatch.setattr(keeper, "due", 0.0)
    keeper.keep()
    assert not keeper.behind
    Session(model("untimed", folder)).load(tmp_path / "gone" / "state")


def test_room_is_asked_for_where_there_is_none(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, told = Session(model("untimed", folder)), []
    keeper = Keeper(session, tmp_path / "state", told.append)
    session.push({"load": 1.0})
    for number, advice in ((errno.ENOSPC, True), (errno.EACCES, False), (errno.EIO, False)):
        keeper.failed = False

        def full(_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(session, "save", full)
        keeper.keep(now=True)
        assert told.pop().endswith(", free some room") == advice
    assert not told


def test_a_row_in_the_place_of_the_header(folder: Path) -> None:
    session = Session(model("planned", folder), future=folder / "planned.csv")
    with pytest.raises(BadInput, match="row 1: there is no column 'time'") as caught:
        Stream(session, b"2024-01-01;3.5;1;soup;7", "here")
    line = "is the header missing? the first line must name the columns: time;load;"
    assert line in str(caught.value)
    with pytest.raises(BadInput, match="no column 'load'") as caught:
        Stream(session, b"time,laod,holiday,menu,price", "here")
    assert "header missing" not in str(caught.value)
