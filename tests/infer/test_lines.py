"""CSV byte by byte: the records are the same however the bytes come, and nothing bad swallows what is good."""

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conca.infer import lines as module
from conca.infer.lines import Header, Record, Splitter, read_header
from conca.types import BadInput

HEADER = Header(["a", "b", "c"], ",")


def split(data: bytes, cuts: list[int], header: Header = HEADER) -> list[Record]:
    splitter, found = Splitter(header), []
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for begin, end in pairwise(ends):
        found += splitter.feed(data[begin:end])
    return found + splitter.feed(b"", end=True)


CELLS = st.text(st.sampled_from('ab1 ,"\n;é€\t\x0b\u2028'), max_size=5).map(lambda text: text.lstrip(" "))


@given(
    rows=st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=6),
    cuts=st.lists(st.integers(0, 80), max_size=5),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_what_a_writer_writes_is_read_in_any_parts(rows: list[list[str]], cuts: list[int], quoting: int) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=quoting).writerows(rows)
    records = split(text.getvalue().encode(), cuts)
    assert [record.cells for record in records] == rows
    begins, line = [], 2
    for row in rows:
        begins.append(line)
        line += 1 + sum(cell.count("\n") for cell in row)
    assert [record.line for record in records] == begins


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_any_bytes_give_the_same_in_any_parts(data: bytes, cuts: list[int]) -> None:
    assert split(data, cuts) == split(data, [])


@given(data=st.text(st.sampled_from('a,"\n\r\0'), max_size=40), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_stray_quotes_give_the_same_in_any_parts(data: str, cuts: list[int]) -> None:
    assert split(data.encode(), cuts) == split(data.encode(), [])


def test_ends_of_lines_and_the_last_without_one() -> None:
    assert split(b"1,2,3\r\n4, 5,6\n\n \n7,8,9", []) == [
        Record(2, ["1", "2", "3"]),
        Record(3, ["4", "5", "6"]),
        Record(6, ["7", "8", "9"]),
    ]


def test_a_row_is_given_as_soon_as_its_line_ends() -> None:
    splitter = Splitter(HEADER)
    assert splitter.feed(b"1,2,") == []
    assert splitter.feed(b"3\n4") == [Record(2, ["1", "2", "3"])]
    assert splitter.feed(b',"x\n') == []
    assert splitter.feed(b'y",5\n') == [Record(3, ["4", "x\ny", "5"])]
    assert splitter.feed(b"6,7,8\n") == [Record(5, ["6", "7", "8"])]


def test_a_quote_that_is_never_closed_costs_its_own_line_alone() -> None:
    rows = [f"{n},{n},{n}" for n in range(200)]
    rows[10] = '10,"10,10'
    for end, last in (("\n", "\n"), ("\r\n", "\r\n"), ("\n", "")):
        records = split((end.join(rows) + last).encode(), [7, 300])
        assert [record.line for record in records if record.fault] == [12]
        assert "quoted cell" in records[10].fault
        assert [record.cells for record in records if not record.fault] == [r.split(",") for r in rows if '"' not in r]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"1,\xff\xfe,3", "UTF-8"),
        (b"1,\0,3", "NUL"),
        (b"1,x\ry,3", "carriage return"),
        (b"1," + b"x" * 200_000, "131,072 characters"),
    ],
)
def test_damage_costs_its_own_line_alone(bad: bytes, words: str) -> None:
    records = split(b"1,2,3\n" + bad + b'\n"4",5,6\n', [8])
    assert [record.line for record in records] == [2, 3, 4]
    assert words in records[1].fault
    assert [records[0].cells, records[2].cells] == [["1", "2", "3"], ["4", "5", "6"]]


def test_a_line_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 50)
    splitter = Splitter(HEADER)
    assert splitter.feed(b"1,2,3\n" + b"x" * 40) == [Record(2, ["1", "2", "3"])]
    (fault,) = splitter.feed(b"x" * 40)
    assert fault.line == 3
    assert "50 bytes" in fault.fault
    for _ in range(100):
        assert splitter.feed(b"x" * 49) == []
        assert len(splitter.rest) <= 50
    assert splitter.feed(b"x\n4,5,6\n") == [Record(4, ["4", "5", "6"])]


def test_one_column_may_be_blank() -> None:
    header = Header(["a"], ",")
    assert split(b"1\n\n2\n", [], header) == [Record(2, ["1"]), Record(3, [""]), Record(4, ["2"])]


def test_headers() -> None:
    assert read_header(b"\xef\xbb\xbfa; b ;c\r", "here") == Header(["a", "b", "c"], ";")
    assert read_header(b'"a,b"\tc\td', "here") == Header(["a,b", "c", "d"], "\t")
    for line, words in (
        (b" \r", "blank"),
        (b"a,,b", "column 2"),
        (b"a,b,a", "two columns are named 'a'"),
        (b"a\xff", "UTF-8"),
        (b"a\0", "NUL"),
        (b"a,b\r1,2\r3,4", "carriage return"),
        (b"a,b" + b"x" * 200_000, "131,072 characters"),
    ):
        with pytest.raises(BadInput, match="here") as caught:
            read_header(line, "here")
        assert words in str(caught.value)
        assert "universal" not in str(caught.value)
