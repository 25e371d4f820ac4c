"""What streams hold: snapshots and files know their model, threads take turns, and what is no row or no model is one line."""

import copy
import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import polars as pl
import pytest
import torch
from safetensors.torch import save

import conca
from conca.infer import Session, kept, push, sealed
from conca.infer.session import Snapshot
from conca.types import BadInput

ROWS, SERIES = 60, ("aa", "bb", "cc")


def table() -> pd.DataFrame:
    """Three series of hours, in the order of time."""
    hours = pd.date_range("2024-01-01", periods=ROWS, freq="h")
    parts = [
        pd.DataFrame({"time": hours, "site": name, "load": [(place * step) % 13 + 1.0 for place in range(ROWS)]})
        for step, name in enumerate(SERIES, start=2)
    ]
    return pd.concat(parts).sort_values("time", kind="stable", ignore_index=True)


@cache
def model(d_model: int = 4, seed: int = 0) -> conca.Forecaster:
    """A forecaster that was hardly trained."""
    new = conca.Forecaster(2, layers="s4d", d_model=d_model, length=16, members=1, epochs=1, batch_size=4, seed=seed)
    return new.fit(table(), target="load", time="time", series="site", refit=False, progress=False)


@pytest.fixture(autouse=True)
def single() -> None:
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def started(*works) -> None:
    """Each in a thread of its own, to their ends."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "two threads wait for each other"


@pytest.mark.usefixtures("hasty")
def test_threads_that_share_a_stream_take_turns() -> None:
    rows = table()
    wanted = Session(model()).push(rows)
    shared, found = Session(model()), {}

    def work(name: str) -> None:
        own = rows[rows.site == name]
        found[name] = pd.concat([shared.push(own.iloc[at : at + 1]) for at in range(len(own))])
        shared.snapshot()

    started(*(lambda name=name: work(name) for name in SERIES))
    for name in SERIES:
        alone = wanted[wanted.site == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(found[name].reset_index(drop=True), alone, rtol=1e-5, atol=1e-5)
    assert {memory.rows for memory in shared.memories.values()} == {ROWS}


class Slow:
    """A lock that lets others go ahead once it is held."""

    def __init__(self) -> None:
        self.own = threading.RLock()

    def __enter__(self) -> None:
        self.own.acquire()
        time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self.own.release()


def test_streams_that_are_stepped_together_in_any_order_do_not_block_each_other() -> None:
    one, other, rows = Session(model()), Session(model()), table()
    one.lock, other.lock = Slow(), Slow()

    def work(streams: list[Session], name: str) -> None:
        own = rows[rows.site == name]
        for at in range(10):
            push(streams, [own.iloc[at], own.iloc[at]])

    started(lambda: work([one, other], "aa"), lambda: work([other, one], "bb"))
    for session in (one, other):
        assert {name: memory.rows for name, memory in session.memories.items()} == {("aa",): 10, ("bb",): 10}


def test_copies_have_locks_of_their_own() -> None:
    session, rows = Session(model()), table()
    session.push(rows.head(30))
    copies = [pickle.loads(pickle.dumps(session)), copy.deepcopy(session), copy.copy(session)]
    with session.lock:
        found: list[pd.DataFrame] = []
        started(*(lambda one=one: found.append(one.push(rows[30:])) for one in copies))
    wanted = session.push(rows[30:])
    for frame in found:
        pd.testing.assert_frame_equal(frame, wanted)
    assert len(found) == 3


def test_a_snapshot_knows_its_model() -> None:
    session, rows = Session(model()), table()
    session.push(rows.head(30))
    saved = session.snapshot()
    for other in (model(8), model(4, seed=1)):
        stream = Session(other)
        stream.push(rows.head(3))
        before = dict(stream.memories)
        with pytest.raises(BadInput, match="another model"):
            stream.restore(saved)
        assert stream.memories == before
    first = session.push(rows[30:])
    elsewhere = Session(model())
    elsewhere.restore(pickle.loads(pickle.dumps(saved)))
    pd.testing.assert_frame_equal(elsewhere.push(rows[30:]), first)


@pytest.mark.parametrize("bad", [3, None, {}, "state", model])
def test_what_is_no_snapshot_and_no_model_is_refused(bad: object) -> None:
    session = Session(model())
    with pytest.raises(BadInput, match="no snapshot") as caught:
        session.restore(bad)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="no fitted forecaster") as caught:
        Session(bad)
    assert "\n" not in str(caught.value)
    assert isinstance(session.snapshot(), Snapshot)


def test_polars_gets_polars_back() -> None:
    rows = table()
    wanted = Session(model()).push(rows)
    found = Session(model()).push(pl.from_pandas(rows))
    assert isinstance(found, pl.DataFrame)
    pd.testing.assert_frame_equal(found.to_pandas(), wanted, check_dtype=False)
    frames = push([Session(model()), Session(model())], [pl.from_pandas(rows.head(1)), rows.head(1)])
    assert [type(frame) for frame in frames] == [pl.DataFrame, pd.DataFrame]


def test_a_frame_without_rows_gives_no_forecasts() -> None:
    session, rows = Session(model()), table()
    wanted = Session(model()).push(rows)
    for part in (rows[:90], rows[90:]):
        before = session.snapshot()
        empty = session.push(rows.head(0))
        assert list(empty) == list(wanted)
        assert empty.dtypes.equals(wanted.dtypes)
        assert len(empty) == 0
        assert isinstance(session.push(pl.from_pandas(rows.head(0))), pl.DataFrame)
        assert session.push(rows.head(0).set_index("time")).equals(empty)
        assert session.snapshot() == before
        session.push(part)
    with pytest.raises(BadInput, match="no column 'load'"):
        session.push(rows.head(0).drop(columns="load"))
    frames = push([session, Session(model())], [rows.head(0), rows.head(1)])
    assert [len(frame) for frame in frames] == [0, 2]


def test_a_name_that_is_bytes_is_refused() -> None:
    session, row = Session(model()), table().iloc[0].to_dict()
    for name in (b"aa", bytearray(b"aa")):
        with pytest.raises(BadInput, match="column 'site': the name of the series is bytes"):
            session.push({**row, "site": name})
    assert len(session) == 0


def test_no_bit_of_a_file_can_change_unseen(tmp_path: Path) -> None:
    path, session = tmp_path / "state", Session(model())
    session.push(table().head(6))
    session.save(path)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    names = [place for name in SERIES for place in range(whole.index(name.encode()), whole.index(name.encode()) + 2)]
    flips = [(place, bit) for place in names for bit in range(8)] + [(place, place % 8) for place in range(end + 100)]
    for place, bit in flips:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        with pytest.raises(BadInput, match="state"):
            Session(model()).load(path)
    path.write_bytes(whole)
    session.load(path)


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    session, rows = Session(model()), table()
    session.push(rows.head(30))
    tensors = kept.packed(list(session.memories.values()))
    about = {"conca": "stream", "format": "1", "run": session.run, "series": json.dumps(list(session.memories))}
    (tmp_path / "old").write_bytes(save(tensors, metadata={**about, "digest": sealed.digest_of(tensors)}))
    other = Session(model())
    other.load(tmp_path / "old")
    pd.testing.assert_frame_equal(other.push(rows[30:]), session.push(rows[30:]), rtol=1e-6)


def test_links_are_followed_and_devices_are_left_alone(tmp_path: Path) -> None:
    session = Session(model())
    session.push(table().head(30))
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to("deep/state")
    for _ in range(2):
        session.save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert os.listdir(tmp_path / "deep") == ["state"]
    Session(model()).load(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    for act in (session.save, session.load):
        with pytest.raises(BadInput, match="pipe: is no regular file; name another"):
            act(tmp_path / "pipe")
        with pytest.raises(BadInput, match="deep: is a directory"):
            act(tmp_path / "deep")
    assert (tmp_path / "pipe").is_fifo()
