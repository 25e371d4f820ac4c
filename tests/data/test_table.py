"""Files and data frames read as tables."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from conca.data.panel import read_panel
from conca.data.table import MISSING, read_table

ROWS = "name,when,y,k\n007,2020-01-01,1.5,red\nNA,2020-01-02,NA,\n-,2020-01-03, 3,blue \n"


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_all_forms_of_a_csv_file_read_alike(tmp_path):
    plain = read_table(write(tmp_path, ROWS), text=["name"])
    assert plain["name"].tolist() == ["007", "NA", "-"]
    assert plain["y"].isna().tolist() == [False, True, False]
    assert plain["k"].isna().tolist() == [False, True, False]
    forms = {
        "a.csv.gz": gzip.compress(ROWS.encode()),
        "a.csv.xz": lzma.compress(ROWS.encode()),
        "bom.csv": b"\xef\xbb\xbf" + ROWS.encode(),
        "semicolon.csv": ROWS.replace(",", ";").encode(),
        "tab.CSV": ROWS.replace(",", "\t").encode(),
        "dos.csv": ROWS.replace("\n", "\r\n").encode(),
        "blank.csv": ROWS.replace("\n", "\n\n  \n").replace("\n\n  \n", "\n", 1).encode(),
        "open.csv": ROWS.rstrip("\n").encode(),
        "twice.CSV.GZ": gzip.compress(ROWS[:30].encode()) + gzip.compress(ROWS[30:].encode()),
    }
    for name, content in forms.items():
        pd.testing.assert_frame_equal(read_table(write(tmp_path, content, name), text=["name"]), plain)


def test_parquet_reads_as_the_frame_it_was(tmp_path):
    table = pd.DataFrame(
        {"when": pd.date_range("2020-01-01", periods=3), "y": [1.0, np.nan, 3.0], "k": ["a", None, "b"]}
    )
    table.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet"), read_table(table), check_dtype=False)
    table.set_index("when").to_parquet(tmp_path / "i.parquet")
    panel = read_panel(tmp_path / "i.parquet", target="y", time="when")
    np.testing.assert_array_equal(panel.series[0].times, table["when"].to_numpy())


@pytest.mark.parametrize("word", MISSING)
def test_words_that_mean_missing(tmp_path, word):
    panel = read_panel(write(tmp_path, f"t,y,k\n1,{word},{word}\n2,2,b\n"), target="y", time="t", categorical=["k"])
    assert np.isnan(panel.series[0].target[0, 0])
    assert panel.series[0].categorical[:, 0].tolist() == [0, 1]


def test_a_blank_line_is_a_missing_value_only_in_a_file_of_one_column(tmp_path):
    one = read_panel(write(tmp_path, "y\n1\n\n3\n\n\n"), target="y")
    np.testing.assert_array_equal(one.series[0].target[:, 0], [1, np.nan, 3])
    two = read_panel(write(tmp_path, "y,z\n1,1\n\n3,3\n,\n\n"), target="y")
    np.testing.assert_array_equal(two.series[0].target[:, 0], [1, 3, np.nan])


def test_an_index_that_says_something_becomes_columns():
    frame = pd.DataFrame({"y": [1.0, 2.0]})
    days = pd.date_range("2020-01-01", periods=2)
    assert list(read_table(frame.set_index(days))) == ["time", "y"]
    assert list(read_table(frame.set_index(days.rename("when")))) == ["when", "y"]
    assert list(read_table(frame.set_index(pd.Index([5, 7])))) == ["y"]
    both = pd.MultiIndex.from_tuples([("a", 1), ("a", 2)], names=["s", "t"])
    assert list(read_table(frame.set_index(both))) == ["s", "t", "y"]
    for index in (days, days.rename("when"), pd.period_range("2020-01-01", periods=2, freq="D")):
        panel = read_panel(frame.set_index(index), target="y")
        assert panel.series[0].times[0] == np.datetime64("2020-01-01")
        assert len(read_panel(frame.set_index(index), schema=panel.schema)) == 1
    panel = read_panel(frame.set_index(both), target="y", time="t", series="s")
    assert panel.series[0].key == ("a",)


def test_columns_backed_by_arrow_read_like_any():
    plain = pd.DataFrame(
        {
            "t": pd.date_range("2020-01-01", periods=3, freq="h"),
            "y": [1.0, np.nan, 3.0],
            "k": ["a", None, "b"],
            "b": [True, False, True],
        }
    )
    arrow = pd.DataFrame(
        {
            "t": plain["t"].astype(pd.ArrowDtype(pa.timestamp("us"))),
            "y": pd.Series([1, None, 3], dtype=pd.ArrowDtype(pa.int64())),
            "k": pd.Series(["a", None, "b"], dtype=pd.ArrowDtype(pa.string())),
            "b": pd.Series([True, False, True], dtype=pd.ArrowDtype(pa.bool_())),
        }
    )
    one, other = (read_panel(table, target="y", time="t") for table in (plain, arrow))
    assert one.schema == other.schema
    for name in ("times", "target", "numeric", "categorical"):
        np.testing.assert_array_equal(getattr(one.series[0], name), getattr(other.series[0], name))


def test_a_file_means_what_the_frame_that_pandas_reads_from_it_means(tmp_path):
    path = tmp_path / "promotions.csv"
    cells = [*MISSING, "none", "Null", "flyer", "tv"]
    path.write_text("y,promo\n" + "".join(f'{i},"{cell}"\n' for i, cell in enumerate(cells)))
    pd.testing.assert_frame_equal(read_table(path), pd.read_csv(path))
    assert read_table(path)["promo"].dropna().tolist() == ["none", "Null", "flyer", "tv"]
