"""Tables with one row a step: what becomes a sequence, a label, a part and a channel, and what is refused."""

import gzip

import numpy as np
import pandas as pd
import pytest

from conca.data.long_table import is_long_table, read_long_table
from conca.types import BadInput

ROLES = {"series": "id", "time": "t", "label": "kind"}


def table():
    """Three sequences, shuffled: 007 of 3 steps, 8 of 2, 9 of 1."""
    return pd.DataFrame(
        {
            "id": ["007", "8", "007", "9", "8", "007"],
            "t": [2, 1, 0, 5, 0, 1],
            "a": [0.3, 1.2, 0.1, np.nan, 1.1, 0.2],
            "kind": ["walk", "run", "walk", "walk", "run", "walk"],
            "b": [3, 12, 1, 9, 11, 2],
        }
    )


def fails(source, match, **options):
    """Reading raises one line."""
    with pytest.raises(BadInput, match=match) as caught:
        read_long_table(source, **(ROLES | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "frame"])
def test_rows_become_sequences(tmp_path, ending):
    source = table()
    if ending != "frame":
        source = tmp_path / f"steps.{ending}"
        assert is_long_table(source)
        text = table().to_csv(index=False).encode()
        if ending == "parquet":
            table().to_parquet(source)
        else:
            source.write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
    data = read_long_table(source, **ROLES)
    assert data.ids == ("007", "8", "9") and data.labels.tolist() == ["walk", "run", "walk"]
    assert data.channels == ("a", "b") and data.lengths.tolist() == [3, 2, 1] and data.parts is None
    expected = [[0.1, 1], [0.2, 2], [0.3, 3], [1.1, 11], [1.2, 12], [np.nan, 9]]
    np.testing.assert_array_equal(data.values, expected)
    assert "3 sequences, 2 channels, 1 to 3 steps, 2 classes" in data.source and "passed over" not in data.source


def test_without_a_column_of_times_the_rows_keep_their_order():
    data = read_long_table(table().drop(columns="t"), **(ROLES | {"time": None}))
    np.testing.assert_array_equal(data.sequence(0)[:, 1], [3, 1, 2])


def test_times_may_have_fractions_or_be_dates():
    fractions = table().assign(t=table()["t"] / 50)
    dates = table().assign(t=pd.Timestamp("2020-02-01") + pd.to_timedelta(table()["t"], "h"))
    expected = read_long_table(table(), **ROLES).values
    for source in (fractions, dates, dates.assign(t=dates["t"].astype(str))):
        np.testing.assert_array_equal(read_long_table(source, **ROLES).values, expected)
    fractions.loc[1, "t"] = fractions.loc[4, "t"]
    fails(fractions, "row 4, column 't': series '8' has another row at the time 0")
    fractions.loc[1, "t"] = np.nan
    fails(fractions, "row 1, column 't': the time is missing")


def test_text_is_passed_over_and_named():
    data = read_long_table(table().assign(note="hello", flag=True), **ROLES)
    assert data.channels == ("a", "b", "flag") and data.source.endswith("passed over: note")
    fails(table().drop(columns=["a", "b"]), "no column of numbers is left")


def test_a_column_of_parts_is_the_official_split():
    parts = table()["id"].map({"007": "train", "8": "Test", "9": "val"})
    data = read_long_table(table().assign(Split=parts), **ROLES)
    assert data.parts.tolist() == ["train", "test", "validation"] and data.channels == ("a", "b")
    fails(table().assign(part=["train", "test"] * 3), "column 'part': series '007' has the parts")
    other = read_long_table(table().assign(part=["left", "right"] * 3), **ROLES)
    assert other.parts is None and other.source.endswith("passed over: part")
    numbers = read_long_table(table().assign(part=1.5), **ROLES)
    assert numbers.parts is None and numbers.channels == ("a", "b", "part")
    assert read_long_table(table().assign(part="train"), **ROLES).parts is None


def test_a_series_has_one_label():
    wrong = table()
    wrong.loc[0, "kind"] = "run"
    fails(wrong, "row 0, column 'kind': series '007' has the labels 'walk' and 'run'")
    some = table()
    some.loc[[0, 5], "kind"] = None
    assert read_long_table(some, **ROLES).labels.tolist() == ["walk", "run", "walk"]
    some.loc[3, "kind"] = None
    fails(some, "column 'kind': series '9' has no label")


def test_labels_that_are_whole_numbers(tmp_path):
    table().assign(kind=[1, 0, 1, 1, 0, 1]).to_csv(tmp_path / "steps.csv", index=False)
    assert read_long_table(tmp_path / "steps.csv", **ROLES).labels.tolist() == [1, 0, 1]


def test_labels_may_be_missing_where_they_are_not_needed():
    bare = table().drop(columns="kind")
    fails(bare, r"no column 'kind' \(label\)")
    fails(table(), "name the column that holds the labels", label=None)
    for label in ("kind", None):
        data = read_long_table(bare, series="id", time="t", label=label, labelled=False)
        assert data.labels is None and data.channels == ("a", "b")
    assert read_long_table(table(), **ROLES, labelled=False).labels.tolist() == ["walk", "run", "walk"]


def test_columns_that_are_not_there_or_taken():
    fails(table(), "no column 'idd' .series.; did you mean 'id'", series="idd")
    fails(table(), "name the column that tells sequences apart", series=None)
    fails(table(), "column 't' is named as time and as label", label="t")
    fails(
        table().assign(id=["007", None, "007", "9", "8", "007"]),
        "row 1, column 'id': the name of the series is missing",
    )


def test_cells_that_are_no_numbers_are_named():
    fails(table().assign(b=["3", "x", "1", "9", "11", "2"]), "row 1, column 'b': 'x' is not a number")
    fails(table().assign(b=[3, np.inf, 1, 9, 11, 2]), "row 1, column 'b': the value is infinite")


def test_two_rows_at_one_fraction_of_time_are_named_by_it():
    twice = pd.DataFrame({"id": ["p", "p", "q"], "t": [0.1, 0.1, 0.2], "a": [1, 2, 3], "kind": ["x", "x", "y"]})
    fails(twice, "series 'p' has another row at the time 0.1")


def test_channels_are_named_and_one_that_may_be_the_time():
    rows = table().sort_values("t")
    assert "; channels a, b" in read_long_table(rows, **ROLES).source
    assert "'t' only goes up: if it is the time" in read_long_table(rows, **ROLES | {"time": None}).source
    mixed = rows.assign(a=-rows["a"], b=0).drop(columns="t")
    assert "only goes up" not in read_long_table(mixed, **ROLES | {"time": None}).source
