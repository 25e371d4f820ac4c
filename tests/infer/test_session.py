"""Streams in Python: the numbers of rolling forecasts, however the rows come; memories that are values, and files."""

import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import conca
from conca.infer import Session, push
from conca.infer import memory as module
from conca.layers.states import leaves
from conca.types import BadInput

ROOT = Path(__file__).resolve().parents[2]
HOURS = pd.date_range("2024-01-01", periods=90, freq="h")
QUANTILES = ["q0.1", "q0.5", "q0.9"]
BOUNDED = ("lstm", "s4d", "s4d attention(window=5)")
LAYERS = (*BOUNDED, "attention", "attention s4d")


def hourly() -> pd.DataFrame:
    """Two series of different scale, with gaps, missing values, two targets, a covariate and categories."""
    draw = np.random.default_rng(0)
    parts = []
    for site, scale in (("a", 1.0), ("b", 300.0)):
        wave = scale * (2 + np.sin(np.arange(90) / 4) + 0.1 * draw.normal(size=90))
        table = pd.DataFrame({"time": HOURS, "site": site, "load": wave, "flow": wave**2})
        table["rain"] = draw.exponential(size=90)
        table["wind"] = draw.choice(["N", "S"], 90)
        table.loc[[3, 4, 40], "load"] = np.nan
        table.loc[[0, 1, 50], "rain"] = np.nan
        parts.append(table.drop(index=[7, 8, 9, 61] if site == "a" else [80]))
    return pd.concat(parts, ignore_index=True)


def irregular() -> pd.DataFrame:
    draw = np.random.default_rng(1)
    gaps = draw.exponential(3600, 80).round() + 1
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(gaps.cumsum(), unit="s")
    return pd.DataFrame({"time": times, "load": np.sin(np.arange(80) / 4) + 5})


def counted() -> pd.DataFrame:
    return pd.DataFrame({"load": np.sin(np.arange(80) / 4), "heat": np.cos(np.arange(80) / 4)})


def zoned() -> pd.DataFrame:
    """Hours of Rome around the night in which one of them is skipped."""
    times = pd.date_range("2024-03-29", periods=80, freq="h", tz="Europe/Rome")
    return pd.DataFrame({"time": times, "load": np.sin(np.arange(80) / 4)})


def monthly() -> pd.DataFrame:
    return pd.DataFrame({"time": pd.date_range("2010-01-31", periods=80, freq="ME"), "load": np.arange(80) % 12.0})


def integers() -> pd.DataFrame:
    return pd.DataFrame({"time": np.arange(100, 500, 5), "load": np.sin(np.arange(80) / 4)})


TABLES = {f.__name__: f for f in (hourly, irregular, counted, zoned, monthly, integers)}


def model(layers: str, table: str = "hourly") -> conca.Forecaster:
    """A forecaster that was hardly trained, made once."""
    return made(layers, table)


@cache
def made(layers: str, table: str) -> conca.Forecaster:
    data = TABLES[table]()
    roles = {"target": ["load", "flow"] if table == "hourly" else "load", "series": "site" if table == "hourly" else ()}
    roles["time"] = "time" if "time" in data else None
    new = conca.Forecaster(3, layers=layers, d_model=8, length=16, members=2, epochs=1, batch_size=4)
    return new.fit(data, **roles, refit=False, progress=False)


def rolled(layers: str, table: str = "hourly") -> pd.DataFrame:
    return model(layers, table).predict(TABLES[table](), rolling=True)


def close(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """The same rows in any order, numbers within 1e-5 of the size of theirs; a stream does not know y."""
    assert list(found) == list(wanted)
    assert found.dtypes.equals(wanted.dtypes)
    assert found.y.isna().all()
    names = [name for name in wanted if name not in (*QUANTILES, "y")]
    a, b = (frame.sort_values(names).reset_index(drop=True) for frame in (found, wanted))
    pd.testing.assert_frame_equal(a[names], b[names])
    for _, rows in b.groupby([name for name in ("site", "target_name") if name in b]):
        size = rows[QUANTILES].abs().to_numpy().max()
        np.testing.assert_allclose(a.loc[rows.index, QUANTILES], rows[QUANTILES], rtol=0, atol=1e-5 * size)


def pushed(session: Session, table: pd.DataFrame, sizes: list[int]) -> pd.DataFrame:
    """All rows in parts of these sizes, over and over."""
    parts, begin = [], 0
    while begin < len(table):
        for size in sizes:
            if begin < len(table):
                parts.append(session.push(table.iloc[begin : begin + size]))
                begin += size
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(autouse=True)
def single() -> None:
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("sizes", [[1], [7, 1, 20], [1000]], ids=str)
def test_the_numbers_are_those_of_rolling_forecasts(layers: str, sizes: list[int]) -> None:
    mixed = hourly().sort_values(["time", "site"]).reset_index(drop=True)
    if sizes == [1]:  # slow: a third of the rows, which reach over a piece of attention
        mixed = mixed.head(58)
    close(pushed(Session(model(layers)), mixed, sizes), model(layers).predict(mixed, rolling=True))


@pytest.mark.parametrize("layers", ["s4d", "lstm", "attention"])
@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("hourly", "irregular")])
def test_every_kind_of_time(layers: str, table: str) -> None:
    if layers == "s4d" or table == "zoned":
        close(pushed(Session(model(layers, table)), TABLES[table](), [1, 30, 2]), rolled(layers, table))


@pytest.mark.parametrize("layers", ["s4d", "lstm", "attention"])
def test_uneven_times(layers: str) -> None:
    table = irregular()
    assert not model(layers, "irregular").schema_.grid.regular
    found, wanted = pushed(Session(model(layers, "irregular")), table, [1, 9, 3]), rolled(layers, "irregular")
    np.testing.assert_allclose(
        found[QUANTILES], wanted[QUANTILES], rtol=0, atol=1e-5 * wanted[QUANTILES].abs().max().max()
    )
    assert found.cutoff.equals(wanted.cutoff)
    step = pd.Timedelta(model(layers, "irregular").schema_.grid.step, "ns")
    assert (found.time == found.cutoff + found.step * step).all()


@pytest.mark.parametrize("table", ["hourly", "integers", "zoned", "counted"])
def test_a_row_is_a_mapping_or_a_series(table: str) -> None:
    rows, fitted = TABLES[table](), model("s4d", table)
    for place in (0, 3):
        row = rows.iloc[place]
        texts = {**row, "time": str(row["time"])} if "time" in row and table != "integers" else row.to_dict()
        given = [rows.iloc[place : place + 1], row, row.to_dict(), row.to_frame().T, texts, {**row, "more": [1, 2]}]
        found = [Session(fitted).push(one) for one in given]
        for one in found[1:]:
            pd.testing.assert_frame_equal(one, found[0])


def test_values_of_a_row_that_are_not_plain_are_read_as_those_of_a_table() -> None:
    row = hourly().iloc[20].to_dict()
    for name, value in (
        ("load", True),
        ("load", "3"),
        ("load", None),
        ("wind", None),
        ("wind", " S "),
        ("wind", "E"),
        ("rain", 10**29),
    ):
        changed = {**row, name: value}
        pd.testing.assert_frame_equal(
            Session(model("s4d")).push(changed), Session(model("s4d")).push(pd.DataFrame([changed]))
        )


def test_a_series_that_was_not_fitted_is_scaled_as_the_average_one_and_unknown_categories_are_missing() -> None:
    table = hourly().query("site == 'a'").assign(site="new", wind="E")
    close(Session(model("s4d")).push(table), model("s4d").predict(table, rolling=True))


def counted_leaves(session: Session) -> list[torch.Tensor]:
    """What counts of all states, copied: a cache has room that does not."""
    towers = session.fitted.network.towers
    states = [state for memory in session.memories.values() for state in memory.states]
    kept = [tower.stack.canonical(own) for state in states for tower, own in zip(towers, state)]
    return [leaf.clone() for part in kept for leaf in leaves(part)]


@pytest.mark.parametrize("layers", LAYERS)
def test_a_snapshot_is_a_value(layers: str) -> None:
    table = hourly().sort_values(["time", "site"]).reset_index(drop=True)
    session = Session(model(layers))
    pushed(session, table.head(61), [1, 20])
    saved, bits = session.snapshot(), counted_leaves(session)
    first = pushed(session, table.iloc[61:76], [1])
    session.restore(saved)
    other = table.iloc[61:].assign(load=-table.load)
    pushed(session, other, [1, 25])
    session.restore(saved)
    assert all(torch.equal(a, b) for a, b in zip(bits, counted_leaves(session), strict=True))
    pd.testing.assert_frame_equal(pushed(session, table.iloc[61:76], [1]), first)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_file_goes_on_as_the_stream_does(layers: str, tmp_path) -> None:
    table = hourly().sort_values(["time", "site"]).reset_index(drop=True)
    one, other = Session(model(layers)), Session(model(layers))
    pushed(one, table.head(77), [1, 13])
    one.save(tmp_path / "state")
    other.load(tmp_path / "state")
    assert other.size_in_bytes() == one.size_in_bytes() > 0
    close_enough = {"rtol": 1e-6, "atol": 1e-5}
    pd.testing.assert_frame_equal(pushed(other, table[77:], [5]), pushed(one, table[77:], [5]), **close_enough)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_an_empty_stream_can_be_saved(tmp_path) -> None:
    Session(model("s4d")).save(tmp_path / "state")
    session = Session(model("s4d"))
    session.load(tmp_path / "state")
    assert len(session) == 0


@pytest.mark.parametrize("layers", LAYERS)
def test_many_streams_are_stepped_at_once(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = hourly()
    series = [table[table.site == site].reset_index(drop=True) for site in ("a", "b")]
    streams = [Session(model(layers)) for _ in range(4)]
    feeds = [one.iloc[start:] for one in series for start in (0, 3)]
    apart = [pushed(Session(model(layers)), feed.head(20), [1]) for feed in feeds]
    calls: list[int] = []
    feed = module.feed
    monkeypatch.setattr(module, "feed", lambda network, group: calls.append(len(group)) or feed(network, group))
    together = [push(streams, [feed.iloc[at] for feed in feeds]) for at in range(20)]
    for place, wanted in enumerate(apart):
        found = pd.concat([frames[place] for frames in together], ignore_index=True)
        size = wanted[QUANTILES].abs().to_numpy().max()
        np.testing.assert_allclose(found[QUANTILES], wanted[QUANTILES], rtol=0, atol=1e-5 * size)
    if layers in BOUNDED:
        assert calls == [4] * 20


def test_a_stream_cannot_be_stepped_twice_at_once_nor_with_another_model() -> None:
    one, row = Session(model("s4d")), hourly().iloc[0]
    with pytest.raises(ValueError, match="twice"):
        push([one, one], [row, row])
    with pytest.raises(ValueError, match="one model"):
        push([one, Session(model("lstm"))], [row, row])
    with pytest.raises(ValueError, match="do not match"):
        push([one], [])
    assert push([], []) == []


@pytest.mark.parametrize("layers", ["lstm", "attention"])
def test_two_threads_with_a_stream_each(layers: str) -> None:
    table = hourly()
    wanted = pushed(Session(model(layers)), table, [20])
    found: dict[int, pd.DataFrame] = {}

    def run(number: int) -> None:
        found[number] = pushed(Session(model(layers)), table, [20])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for frame in found.values():
        pd.testing.assert_frame_equal(frame, wanted)
    assert len(found) == 2


@pytest.mark.parametrize("layers", LAYERS)
def test_memory_does_not_grow(layers: str) -> None:
    session = Session(model(layers))
    many = pd.DataFrame({"time": pd.date_range("2024-01-01", periods=400, freq="h"), "load": 1.0, "flow": 2.0})
    many = many.assign(rain=0.5, wind="N")
    both = pd.concat([many.assign(site="a"), many.assign(site="b")]).sort_values("time", kind="stable")
    sizes = []
    for begin in range(0, len(both) - 14, 14):
        session.push(both.iloc[begin : begin + 14])
        sizes.append(session.size_in_bytes())
    assert len(sizes) > 50
    assert max(sizes[20:]) <= max(sizes[:20])


@pytest.mark.parametrize("layers", ["lstm", "attention"])
def test_one_series_does_not_keep_the_others_in_memory(layers: str) -> None:
    session = Session(model(layers))
    rows = hourly().query("site == 'a'").head(1)
    session.push(pd.concat([rows.assign(site=f"s{number}") for number in range(50)]))
    for memory in session.memories.values():
        for state in memory.states:
            for leaf in leaves(state):
                assert leaf.untyped_storage().nbytes() <= max(64, 4 * leaf.numel() * leaf.element_size())


def refused(session: Session, row: object, *words: str) -> None:
    before = session.snapshot()
    with pytest.raises(BadInput) as caught:
        session.push(row)
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line
    assert session.snapshot() == before


def test_rows_that_cannot_be_read_are_refused_and_change_nothing() -> None:
    table = hourly().query("site == 'a'").reset_index(drop=True)
    session = Session(model("s4d"))
    session.push(table.head(20))
    last = table.iloc[19]
    refused(session, last, "2024-01-01 22:00:00", "last row of series a", "each time once")
    refused(session, table.iloc[4], "2024-01-01 04:00:00", "older", "2024-01-01 22:00:00")
    refused(session, table.iloc[[20, 22, 21]], "row 2", "older")
    refused(session, {**last, "time": "2024-01-01 23:30"}, "whole number of steps of 1 h")
    refused(session, {**last, "time": "2099-01-01"}, "rows of series a are missing", "2024-01-01 22:00:00", "new state")
    refused(session, {**last, "time": "soon"}, "soon", "not a time")
    refused(session, {**last, "time": None}, "time is missing")
    refused(session, {**last, "time": 7}, "times are whole numbers")
    refused(session, {**last, "time": "2024-01-01 23:00+01:00"}, "without a time zone")
    refused(session, {**last, "load": "much"}, "load", "much", "number")
    refused(session, {**last, "load": np.inf}, "load", "infinite")
    refused(session, {**last, "load": [1.0, 2.0]}, "load", "one value")
    refused(session, {**last, "site": None}, "name of the series is missing")
    refused(session, last.drop("rain"), "no column 'rain'")
    refused(session, 7, "int")
    session.push(table.iloc[20])


def test_a_long_gap_is_filled_and_a_longer_one_refused() -> None:
    session = Session(model("s4d"))
    row = hourly().iloc[0].to_dict()
    session.push(row)
    session.push({**row, "time": HOURS[0] + pd.Timedelta(hours=10_001)})
    refused(session, {**row, "time": HOURS[0] + pd.Timedelta(hours=20_003)}, "10,001 rows")
    refused(session, {**row, "time": pd.Timestamp("2261-12-31 23:00")}, "2261")
    assert session.memories[("a",)].rows == 10_002


def test_files_of_other_runs_and_damaged_ones_are_refused(tmp_path) -> None:
    path = tmp_path / "state"
    session = Session(model("s4d"))
    session.push(hourly().head(30))
    session.save(path)
    before = session.snapshot()
    with pytest.raises(BadInput, match="another run"):
        Session(model("lstm")).load(path)
    whole = path.read_bytes()
    for place in (4, 40, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BadInput, match=str(path)):
            session.load(path)
    for bad in (b"", b"no state", whole[:-7], whole[:20]):
        path.write_bytes(bad)
        with pytest.raises(BadInput, match="damaged"):
            session.load(path)
    path.unlink()
    with pytest.raises(BadInput, match="no such file"):
        session.load(path)
    assert session.snapshot() == before


def test_another_seed_is_another_run() -> None:
    one = model("s4d")
    assert Session(one).run == Session(one).run
    other = Session(one)
    with torch.no_grad():
        weight = next(other.fitted.network.parameters())
        weight += 1e-3
        changed = Session(one).run
        weight -= 1e-3
    assert changed != other.run


def test_importing_the_room_imports_nothing_heavy() -> None:
    heavy = "torch", "pandas", "numba", "lightning"
    code = f"import conca.infer, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="pull"):
        _ = conca.infer.pull
