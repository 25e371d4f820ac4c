"""Files with a sequence a line: `.ts` and the older text of the UCR archive."""

import numpy as np
import pytest

from conca.data.labelled_source import read_labelled
from conca.data.ts_file import read_ts
from conca.data.ucr_file import read_ucr
from conca.types import BadInput

HEADER = "#about\n%about\n\n@problemName Toy\n@timeStamps false\n@novel tag\n@univariate false\n@classLabel true a b\n@data\n"
CASES = "1,2,3:4,5,-6e1:a\n?,1:NaN,.5:b\n\n#between\n7 : +8:a\n"


@pytest.fixture
def write(tmp_path):
    def one(text, name="toy.ts"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return one


def test_cases_of_several_lengths_are_read(write):
    data = read_ts(write(HEADER + CASES))
    assert data.lengths.tolist() == [3, 2, 1] and data.labels.tolist() == ["a", "b", "a"] and data.parts is None
    wanted = [[1, 4], [2, 5], [3, -60], [np.nan, np.nan], [1, 0.5], [7, 8]]
    assert np.array_equal(data.values, wanted, equal_nan=True) and data.values.dtype == np.float64
    assert data.source == "toy.ts: 3 sequences, 2 channels, 1 to 3 steps, 2 classes"
    dos = read_ts(write(b"\xef\xbb\xbf" + (HEADER + CASES).replace("\n", "\r\n").encode()))
    assert np.array_equal(data.values, dos.values, equal_nan=True)


BROKEN = {
    "a.ts, line 8: the file ends without @data": "".join(HEADER.splitlines(True)[:-1]),
    "a.ts, line 8: no @classLabel true stands": HEADER.replace("@classLabel true a b\n", "") + CASES,
    "a.ts, line 8: @classLabel true names no class": HEADER.replace("true a b", "true") + CASES,
    "a.ts, line 5: @timeStamps true: values with time stamps": HEADER.replace("timeStamps false", "timeStamps true"),
    "a.ts, line 8: @targetLabel true: the targets are numbers": HEADER.replace(
        "classLabel true a b", "targetLabel true"
    ),
    "a.ts, line 10: the label 'c' is not one": HEADER + "1:2:c\n",
    "a.ts, line 11: the dimensions have from 2 to 3 values": HEADER + "1:2:a\n1,2,3:1,2:a\n",
    "a.ts, line 11: 1 dimension where the first case has 2": HEADER + "1:2:a\n1,2,3:a\n",
    "a.ts, line 10: a dimension has no values": HEADER + "1:2::a\n",
    "a.ts, line 10: the case has no ':' and so no label": HEADER + "1,2\n",
    "a.ts, line 11: the case has no label": HEADER + "1:2:a\n1:2:?\n",
    "a.ts, line 11: 'x' is not a number": HEADER + "1:2:a\n1,x:2,3:a\n",
    "a.ts, line 10: '' is not a number": HEADER + "1,,2:1,2,3:a\n",
    "a.ts, line 12: '' is not a number": HEADER + "1:2:a\n1:2:a\n1,2:1,:a\n",
    "a.ts, line 10: '1 2' is not a number": HEADER + "1 2:1:a\n",
    "a.ts, line 10: a tag stands below @data": HEADER + "@missing true\n",
    "a.ts, line 2: a line of data stands above": "#\n1,2:a\n" + HEADER,
    "a.ts: @dimensions is 'two'": "@dimensions two\n" + HEADER + CASES,
    "a.ts, line 11: 2 dimensions where the header says 3": "@dimensions 3\n" + HEADER + CASES,
    "a.ts, line 12: 2 values where the first case has 3 and @equal": "@equalLength true\n" + HEADER + CASES,
    "a.ts: there is no case": HEADER,
    "a.ts, line 8: not UTF-8 text": HEADER.encode().replace(b"a b", b"\xff b"),
    "a.ts: holds NUL bytes": HEADER.encode("utf-16"),
    "a.ts: the file is empty": " \n",
    "a.ts: sequence '0', channel '1', step 0: inf is infinite": HEADER + "inf:1:a\n",
}


@pytest.mark.parametrize("told", BROKEN)
def test_what_is_broken_is_one_line_with_file_and_line(write, told):
    with pytest.raises(BadInput) as caught:
        read_ts(write(BROKEN[told], "a.ts"))
    assert told in str(caught.value) and "\n" not in str(caught.value) and "; " in str(caught.value)


def test_cases_without_labels_are_read_where_they_may_be(write):
    nameless = HEADER.replace("@classLabel true a b\n", "")
    data = read_ts(write(nameless + "1,2:3,4\n"), labelled=False)
    assert data.labels is None and data.values.tolist() == [[1, 3], [2, 4]]
    assert read_ts(write(HEADER + "1:2:a\n1:2:?\n"), labelled=False).labels is None
    assert read_ts(write(HEADER + CASES), labelled=False).labels.tolist() == ["a", "b", "a"]


def test_a_training_file_comes_with_its_test_file(write):
    train = write(HEADER + CASES, "Toy_TRAIN.ts")
    test = write(HEADER + "1:1:b\n", "Toy_TEST.ts")
    both = read_labelled(train)
    assert both.parts.tolist() == ["train"] * 3 + ["test"] and both.labels.tolist() == ["a", "b", "a", "b"]
    assert both.source.startswith("Toy_TRAIN.ts, Toy_TEST.ts: 4 sequences (3 train, 1 test), 2 channels")
    assert read_labelled(test).parts is None and len(read_labelled(train, labelled=False)) == 3
    assert read_labelled(train.parent).ids == ("0", "1", "2", "3")


def test_lines_of_the_older_archive_lose_their_padding_alone(write):
    text = "1.0000000e+00\t1\tNaN\t3\tNaN\tNaN\n-1\t4\t5\tNaN\tNaN\tNaN\n"
    for data in (read_ucr(write(text, "a.tsv")), read_ucr(write(text.replace("\t", "   "), "a.txt"))):
        assert data.lengths.tolist() == [3, 2] and data.labels.tolist() == [1, -1]
        assert np.array_equal(data.values[:, 0], [1, np.nan, 3, 4, 5], equal_nan=True)
    assert read_ucr(write("walk,1,2\nrun,3\n", "a.txt")).labels.tolist() == ["walk", "run"]
    assert read_ucr(write("? 1 2\n1 3 4\n", "a.txt"), labelled=False).labels is None
    broken = {
        "line 2: the sequence has no values after its label": "1 2\n1 NaN\n",
        "line 1: the sequence has no values after its label": "1\n",
        "line 2: 'x' is not a number": "1 2\n1 2 x\n",
        "line 2: the label is missing": "1 2\nNaN 2\n",
        "line 1: the label '0.5' is no class": "0.5 2\n",
    }
    for told, text in broken.items():
        with pytest.raises(BadInput, match=f"a.tsv, {told}"):
            read_ucr(write(text, "a.tsv"))


def test_large_files_are_read_in_blocks(write, monkeypatch):
    monkeypatch.setattr("conca.data.number_text.BLOCK", 50)
    rows = np.arange(400.0).reshape(100, 4)
    lines = [",".join(map(str, row)) + ":a" for row in rows]
    header = HEADER.replace("@univariate false", "@univariate true")
    assert (read_ts(write(header + "\n".join(lines))).values == rows.reshape(-1, 1)).all()
    lines[70] = lines[70].replace(",", ",x", 1)
    with pytest.raises(BadInput, match=r"line 80: 'x281\.0' is not a number"):
        read_ts(write(header + "\n".join(lines)))


def test_labels_of_the_older_archive_stay_apart(write):
    assert read_ucr(write("1_0\t1\n10\t2\n", "a.tsv")).labels.tolist() == ["1_0", "10"]
    assert read_ucr(write("01\t1\n1.0\t2\nup\t3\n", "a.tsv")).labels.tolist() == ["01", "1.0", "up"]
    large = [9007199254740993, 9007199254740992]
    assert read_ucr(write("".join(f"{label}\t1\n" for label in large), "a.tsv")).labels.tolist() == large
    with pytest.raises(BadInput, match=r"line 1: the label .* is not text in UTF-8"):
        read_ucr(write(b"\xe9\t1\n\xe8\t2\n", "a.tsv"))
