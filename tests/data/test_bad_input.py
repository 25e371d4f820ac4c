"""Each fault of a table is one line that says what is wrong, where, and what to do."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conca.data.panel import read_panel
from conca.data.schema import Schema
from conca.data.table import read_table
from conca.types import BadInput

GOOD = "time,y,x,k\n2020-01-01,1,2,a\n2020-01-02,2,3,b\n2020-01-03,3,4,a\n"


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refuse(source, *words: str, **roles) -> str:
    """The line of the error, which names every word."""
    with pytest.raises(BadInput) as caught:
        read_panel(source, **({"target": "y"} | roles))
    line = str(caught.value)
    assert "\n" not in line
    assert line.split() == line.replace("  ", " ").split()
    for word in words:
        assert word in line, line
    return line


def test_a_missing_file_and_a_directory(tmp_path):
    refuse(tmp_path / "nothing.csv", "nothing.csv", "no such file")
    refuse(tmp_path, "is a directory")
    (tmp_path / "d.csv").mkdir()
    refuse(tmp_path / "d.csv", "is a directory")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.xz", "t.parquet"])
def test_an_empty_file(tmp_path, name):
    refuse(write(tmp_path, "", name), name, "empty")


def test_an_empty_file_inside_a_compressed_one(tmp_path):
    refuse(write(tmp_path, gzip.compress(b""), "t.csv.gz"), "first row is blank")


def test_a_header_without_rows(tmp_path):
    refuse(write(tmp_path, "time,y\n"), "no rows")
    refuse(write(tmp_path, "y"), "no rows")
    refuse(write(tmp_path, "y\n\n\n"), "no rows")
    refuse(pd.DataFrame({"y": []}), "table", "no rows")
    pd.DataFrame({"y": []}).to_parquet(tmp_path / "t.parquet")
    refuse(tmp_path / "t.parquet", "no rows")


@pytest.mark.parametrize("name", ["t.xlsx", "t.txt", "t", "t.csv.zip", "t.gz", "csv"])
def test_an_ending_that_is_not_read(tmp_path, name):
    refuse(write(tmp_path, GOOD, name), "this kind of file is not read", ".csv.xz", ".parquet")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
@pytest.mark.parametrize(("name", "squeeze"), [("t.csv.gz", gzip.compress), ("t.csv.xz", lzma.compress)])
def test_a_compressed_file_cut_short(tmp_path, name, squeeze, share):
    text = GOOD + "".join(f"2020-01-03,{i * 7919 % 10007},{i * 104729 % 9973},a\n" for i in range(5000))
    whole = squeeze(text.encode())
    refuse(write(tmp_path, whole[: int(len(whole) * share)], name), name, "damaged or cut short")


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv.xz"])
def test_a_file_that_is_not_what_its_ending_says(tmp_path, name):
    refuse(write(tmp_path, GOOD, name), name, "damaged")


def test_a_compressed_file_with_one_broken_byte(tmp_path):
    whole = bytearray(gzip.compress(GOOD.encode() * 100))
    whole[-6] ^= 0xFF  # the check sum
    refuse(write(tmp_path, bytes(whole), "t.csv.gz"), "damaged")


def test_a_broken_parquet_file(tmp_path):
    pd.DataFrame({"y": np.arange(1000.0)}).to_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    for part in (whole[: len(whole) // 2], GOOD.encode(), whole[:3]):
        refuse(write(tmp_path, part, "t.parquet"), "t.parquet", "not a readable Parquet file")


def test_a_file_that_is_not_utf8(tmp_path):
    refuse(write(tmp_path, "time,y,k\n2020-01-01,1,caffè\n".encode("latin-1")), "not UTF-8")
    refuse(write(tmp_path, "tèmpo,y\n1,2\n".encode("latin-1")), "not UTF-8")
    refuse(write(tmp_path, GOOD.encode("utf-16")), "not UTF-8")


def test_a_first_row_that_is_blank_or_lacks_a_name(tmp_path):
    refuse(write(tmp_path, "\n" + GOOD), "first row is blank")
    refuse(write(tmp_path, "time,,y\n1,2,3\n"), "row 1", "column 2 has no name")


def test_rows_with_too_many_fields(tmp_path):
    refuse(write(tmp_path, "time,y\n1,2\n2,3,4\n"), "line 3", "saw 3")
    refuse(write(tmp_path, "time,y\n1,2,3\n2,3,4\n"), "more fields than the header")


def test_an_open_quote(tmp_path):
    refuse(write(tmp_path, 'time,y\n1,2\n"2,3\n3,4\n'), "not a readable CSV file", "row")


def test_a_column_named_twice(tmp_path):
    refuse(write(tmp_path, "time,y,y\n1,2,3\n"), "row 1", "two columns are named 'y'")
    refuse(pd.DataFrame([[1, 2]], columns=["y", "y"]), "two columns are named 'y'")
    refuse(pd.DataFrame([[1, 2]], columns=[1, "1"]), "two columns are named '1'")
    refuse(pd.DataFrame({"y": [1]}, index=pd.Index([3], name="y")), "two columns are named 'y'")


def test_a_column_that_is_not_there(tmp_path):
    path = write(tmp_path, GOOD.replace("y", "pm2.5", 1))
    refuse(path, "no column 'pm25'", "did you mean 'pm2.5'?", target="pm25")
    refuse(path, "no column 'Time'", "did you mean 'time'?", target="pm2.5", time="Time")
    refuse(path, "no column 'zzzz'", "known: ", target="pm2.5", series="zzzz")
    refuse(path, "no column 'xx'", target="pm2.5", covariates=["xx"])
    refuse(path, "no column 'kk'", target="pm2.5", categorical=["kk"])


def test_no_target(tmp_path):
    refuse(write(tmp_path, GOOD), "no target is named", target=None)
    refuse(write(tmp_path, GOOD), "no target is named", target=())


def test_a_column_with_two_roles(tmp_path):
    path = write(tmp_path, GOOD)
    refuse(path, "'time'", "as target and as time", target="time", time="time")
    refuse(path, "'time'", "as time and as series", time="time", series="time")
    refuse(path, "'y'", "twice as target", target=["y", "y"])
    refuse(path, "'y'", "as target and as covariates", covariates=["y"])
    refuse(path, "'k'", "as series and as categorical", series="k", categorical=["k"])


def test_text_in_the_target_names_row_and_column(tmp_path):
    path = write(tmp_path, GOOD.replace("2020-01-02,2", "2020-01-02,two"))
    refuse(path, "t.csv, row 3, column 'y'", "'two' is not a number", "leave the cell empty", time="time")
    refuse(pd.read_csv(path), "table, row 1, column 'y'", "'two'", time="time")


def test_rows_are_counted_as_an_editor_counts_lines(tmp_path):
    refuse(write(tmp_path, "y,k\n1,a\n\n\n2,b\nx,c\n"), "row 6, column 'y'")
    refuse(write(tmp_path, 'y,k\n1,"a\nb\nc"\n2,b\nx,c\n'), "row 6, column 'y'")
    refuse(write(tmp_path, "y\n1\n\nx\n"), "row 4, column 'y'")
    refuse(write(tmp_path, "y,k\r\n1,a\r\nx,b\r\n"), "row 3, column 'y'")
    refuse(write(tmp_path, lzma.compress(b"y;k\n1;a\nx;b\n"), "t.csv.xz"), "row 3, column 'y'")


def test_rows_of_parquet_are_counted_from_one(tmp_path):
    pd.DataFrame({"y": ["1", "x"]}).to_parquet(tmp_path / "t.parquet")
    refuse(tmp_path / "t.parquet", "t.parquet, row 2, column 'y'")


@pytest.mark.parametrize("cell", ["?", "-", "missing", "1,5", "12 ug", "1_000", "0x1f", "--1"])
def test_a_few_text_cells_do_not_turn_numbers_into_categories(tmp_path, cell):
    rows = "".join(f'{i},{i},"{cell if i == 7 else i}"\n' for i in range(20))
    line = refuse(write(tmp_path, "time,y,x\n" + rows), "row 9, column 'x'", f"'{cell}' is not a number", time="time")
    assert "name the column as categorical" in line
    assert read_panel(tmp_path / "t.csv", target="y", time="time", categorical=["x"]).schema.categorical == ("x",)


def test_half_numbers_are_numbers_and_fewer_are_categories():
    table = pd.DataFrame({"y": [1, 2, 3, 4, 5], "x": ["1", "2", None, "a", "b"]})
    refuse(table, "row 3, column 'x'", "'a'")
    table["x"] = ["1", "c", None, "a", "b"]
    assert read_panel(table, target="y").schema.categorical == ("x",)


def test_text_in_a_column_that_the_model_knows_as_numbers():
    schema = read_panel(pd.DataFrame({"y": [1, 2], "x": [3, 4]}), target="y").schema
    line = refuse(pd.DataFrame({"y": [1, 2], "x": ["a", "b"]}), "row 0, column 'x'", target=None, schema=schema)
    assert "'a' is not a number" in line


@pytest.mark.parametrize("cell", ["inf", "-inf", "Infinity", "1e999"])
def test_infinite_values(tmp_path, cell):
    refuse(write(tmp_path, f"y,x\n1,2\n{cell},3\n"), "row 3, column 'y'", "infinite")
    refuse(write(tmp_path, f"y,x\n1,2\n2,{cell}\n"), "row 3, column 'x'", "infinite")
    refuse(pd.DataFrame({"y": [1.0, np.inf]}), "row 1, column 'y'", "infinite")


def test_a_complex_target():
    refuse(pd.DataFrame({"y": [1 + 2j]}), "column 'y'", "complex")


def test_duplicate_times_name_series_time_and_rows(tmp_path):
    refuse(write(tmp_path, GOOD + "2020-01-02,5,5,b\n"), "row 3 and row 5", "2020-01-02", "1 such pair", time="time")
    line = refuse(write(tmp_path, GOOD + "2020-01-02,5,5,b\n"), "of series b", time="time", series="k")
    assert "name the column that tells series apart" not in line
    read_panel(write(tmp_path, GOOD + "2020-01-02,5,5,c\n"), target="y", time="time", series="k")
    refuse(pd.DataFrame({"y": [1, 2], "t": [5, 5]}), "row 0 and row 1", "time 5", time="t")


@pytest.mark.parametrize(
    "cell", ["someday", "now", "today", "2020-13-01", "2020-02-30", "2020-01-01 25:00", "12", "2020-01-02 10:00 am pm"]
)
def test_a_time_that_cannot_be_read(tmp_path, cell):
    path = write(tmp_path, GOOD.replace("2020-01-02", cell))
    refuse(path, "row 3, column 'time'", f"'{cell}' is not a time", time="time")


def test_the_first_time_cannot_be_read(tmp_path):
    refuse(write(tmp_path, GOOD.replace("2020-01-01", "start")), "row 2, column 'time'", "'start'", time="time")


def test_text_in_a_column_of_whole_numbers_as_times(tmp_path):
    refuse(write(tmp_path, "t,y\n1,1\n2,2\nx,3\n4,4\n"), "row 4, column 't'", "'x'", time="t")


def test_a_time_that_is_missing(tmp_path):
    refuse(write(tmp_path, GOOD.replace("2020-01-02", "")), "row 3, column 'time'", "time is missing", time="time")
    refuse(write(tmp_path, "t,y\n1,1\n,2\n"), "row 3, column 't'", "time is missing", time="t")
    dates = pd.to_datetime(["2020-01-01", None])
    refuse(pd.DataFrame({"t": dates, "y": [1, 2]}), "row 1, column 't'", "time is missing", time="t")


@pytest.mark.parametrize(("cell", "words"), [(1.5, "not a whole number"), (1e19, "too large"), (np.inf, "infinite")])
def test_times_that_are_not_whole_numbers(cell, words):
    refuse(pd.DataFrame({"t": [1, cell], "y": [1, 2]}), "row 1, column 't'", words, time="t")


def test_durations_are_not_times():
    refuse(pd.DataFrame({"t": pd.to_timedelta([1, 2], unit="h"), "y": [1, 2]}), "durations", time="t")


def test_mixed_time_zones(tmp_path):
    rows = "time,y\n2020-01-01T00:00:00+01:00,1\n2020-01-01T01:00:00+01:00,2\n2020-01-01T02:00:00{},3\n"
    refuse(write(tmp_path, rows.format("+02:00")), "row 4", "+01:00 in row 2, +02:00 here", time="time")
    refuse(write(tmp_path, rows.format("")), "row 4", "+01:00 in row 2, no zone here", time="time")
    refuse(write(tmp_path, rows.format("Z")), "time zones are mixed", time="time")


def test_dates_that_may_be_day_or_month_first(tmp_path):
    rows = "time,y\n" + "".join(f"0{i}/02/2020,{i}\n" for i in range(1, 9))
    refuse(write(tmp_path, rows), "'01/02/2020' can be day first or month first", "2010-01-31", time="time")


@pytest.mark.parametrize("year", ["1500", "2400"])
def test_dates_beyond_what_nanoseconds_count(tmp_path, year):
    refuse(write(tmp_path, f"time,y\n2020-01-01,1\n{year}-01-01,2\n"), "column 'time'", time="time")


def test_a_gap_that_would_fill_the_memory(tmp_path):
    rows = "".join(f"2020-01-01 00:00:{i:02d},{i}\n" for i in range(60))
    line = refuse(write(tmp_path, "time,y\n" + rows + "2920-01-01,1\n".replace("2920", "2120")), "row 62", time="time")
    assert "between 2020-01-01 00:00:59 and 2120-01-01 00:00:00" in line
    assert "rows are missing" in line


def test_a_series_without_a_name(tmp_path):
    refuse(write(tmp_path, "s,y\na,1\n,2\n"), "row 3, column 's'", "missing", series="s")


def test_every_series_is_too_short(tmp_path):
    path = write(tmp_path, GOOD)
    refuse(path, "the series: 3 rows, 4 needed", "at least 4 rows", time="time", minimum=4)
    refuse(path, "series a: 2 rows, 9 needed; series b: 1 rows", time="time", series="k", minimum=9)


def test_a_target_that_is_missing_throughout(tmp_path):
    refuse(write(tmp_path, "t,y,z\n1,,1\n2,NA,2\n"), "column 'y'", "missing in every row", time="t")
    refuse(write(tmp_path, "t,y,z\n1,,1\n2,NA,2\n"), "column 'y'", "missing in every row", target=["z", "y"])


def test_strict_refuses_what_would_be_left_out():
    table = pd.DataFrame({"s": ["a", "a", "b", "c", "c"], "y": [1, 2, 3, None, None]})
    line = refuse(table, "2 of 3 series left out", series="s", minimum=2, strict=True)
    assert "series b: 1 rows, 2 needed; series c: target missing throughout" in line


def test_a_covariate_that_cannot_be_one():
    table = pd.DataFrame({"y": [1, 2], "d": pd.to_datetime(["2020-01-01", "2020-01-02"]), "e": [None, None]})
    refuse(table, "column 'd'", "dates are not covariates", covariates=["d"])
    refuse(table, "column 'e'", "no values", covariates=["e"])
    assert read_panel(table, target="y").schema.numeric == ()


def test_a_new_table_that_does_not_fit_the_schema():
    def table(times, **more):
        return pd.DataFrame({"t": times, "y": range(len(times))} | more)

    hours = pd.date_range("2020-01-01", periods=10, freq="h")
    schema = read_panel(table(hours, x=1), target="y", time="t").schema
    fit = {"target": None, "schema": schema}
    refuse(table(hours), "no column 'x'", **fit)
    refuse(table(hours, x=1).drop(columns="y"), "no column 'y'", **fit)
    refuse(table(range(10), x=1), "whole numbers", "fitted on dates", **fit)
    refuse(table(hours.tz_localize("UTC"), x=1), "without a time zone", **fit)
    refuse(table(pd.date_range("2020-01-01", periods=10), x=1), "1 d apart", "fitted on 1 h", **fit)
    refuse(table(pd.date_range("2020-01-01", periods=10, freq="30min"), x=1), "30 min apart", "1 h", **fit)
    stray = hours.to_series().reset_index(drop=True)
    stray[4] += pd.Timedelta("17min")
    refuse(table(stray, x=1), "row 4, column 't'", "2020-01-01 04:17:00", "whole number of steps of 1 h", **fit)
    with pytest.raises(BadInput, match="either the schema or the columns"):
        read_panel(table(hours, x=1), target="y", schema=schema)
    zoned = read_panel(table(hours.tz_localize("UTC"), x=1), target="y", time="t").schema
    refuse(table(hours, x=1), "in the zone UTC", target=None, schema=zoned)


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"target": ["y"], "tiem": "t"}, "did you mean 'time'?"),
        ({"time": "t"}, "'target' is missing"),
        ({"target": ["y"], "categorical": ["k"]}, "'levels'"),
        ({"target": ["y"], "grid": {"kind": "datetime", "stepp": 1}}, "did you mean 'step'?"),
        ({"target": ["y"], "grid": {"kind": "date"}}, "did you mean 'datetime'?"),
        ({"target": ["y"], "grid": {"step": 0}}, "whole numbers"),
        ({"target": ["y"], "grid": {"step": "1 h"}}, "whole numbers"),
    ],
)
def test_a_saved_schema_that_is_foreign(saved, words):
    with pytest.raises(BadInput, match=words.replace("?", r"\?")):
        Schema.from_dict(saved)


def test_reading_never_changes_the_users_table():
    table = pd.DataFrame({"t": [3, 1, 2], "y": ["1", "2", "3"], "k": ["a", None, "b"]}, index=[7, 8, 9])
    before = table.copy(deep=True)
    read_panel(table, target="y", time="t")
    copy = read_table(table)
    copy["y"] = 0
    pd.testing.assert_frame_equal(table, before)
