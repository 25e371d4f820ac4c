"""A file or a data frame becomes a pandas table, or one clear line that says why not."""

from __future__ import annotations

import csv
import gzip
import lzma
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from conca.types import BadInput, path_of

__all__ = ["MISSING", "Origin", "Source", "columns_of", "read_table", "settled"]


class ArrowStream(Protocol):
    """A table that hands its columns on in Arrow's form: a frame of polars, a table of pyarrow, a result of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The columns, as the Arrow stream interface says."""
        ...


Source: TypeAlias = "str | Path | pd.DataFrame | ArrowStream"

ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".parquet")
OPENERS: dict[str, Callable[..., IO[Any]]] = {".csv": open, ".gz": gzip.open, ".xz": lzma.open}
BROKEN = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)
MISSING = (
    *("", "NA", "N/A", "n/a", "#N/A", "#NA", "#N/A N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"),
    *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
"""Cells of a CSV file that are missing values, those of `pandas.read_csv`. In names of series, only the empty cell is."""


ANOTHER = "give a pandas data frame or a path"
NUL = "{}: holds NUL bytes, as text in UTF-16 or a damaged file does; save the file as UTF-8"


@dataclass(frozen=True)
class Origin:
    """Where a table came from, for error lines.

    Rows of a CSV file are counted as an editor counts lines, the header being row 1; rows of a Parquet file from 1;
    rows of a data frame from 0, as `iloc` does.
    """

    name: str
    path: Path | None = None

    @classmethod
    def of(cls, source: Source, name: str = "table") -> Origin:
        """The origin of what `read_table` reads from `source`; `name` is what a frame is called."""
        return cls(str(source), path_of(source)) if isinstance(source, (str, PathLike)) else cls(name)

    def row(self, position: int) -> str:
        """The user's name of the row at `position` (from 0) of the table as read."""
        if self.path is None:
            return f"row {position}"
        return f"row {position + 1}" if is_parquet(self.path) else f"row {line_of(self.path, position)}"

    def cell(self, position: int, column: str) -> str:
        """The user's name of a cell."""
        return f"{self.name}, {self.row(position)}, column '{column}'"


def is_parquet(path: Path) -> bool:
    """Whether the name says Parquet."""
    return path.name.lower().endswith(".parquet")


def read_table(source: Source, *, text: Sequence[str] = ()) -> pd.DataFrame:
    """The table in `source`, its rows numbered from 0.

    source  path of a CSV file (also .csv.gz, .csv.xz; commas, semicolons or tabs; decimal points; UTF-8) or of a
            Parquet file, or a data frame, which is copied and not changed; an index that has a name, or holds dates,
            becomes a column (named "time", if it has no name); or what has the Arrow stream interface, such as a frame
            of polars
    text    columns of a CSV file that are kept as the text they are (names of series: "007" stays "007")

    Empty cells and the words in `MISSING` are missing values. Blank lines are no rows, except in a file of one column,
    where they are missing values. Raises BadInput, one line, on a file that is missing, a directory, empty, truncated,
    undecodable or of another kind, without rows, or with a column named twice.
    """
    source = settled(source)
    if isinstance(source, pd.DataFrame):
        table = with_index(source)
        check_names(list(table.columns), "table")
    else:
        path = path_of(source)
        check_file(path)
        table = read_parquet(path) if is_parquet(path) else read_csv(path, text)
    if not len(table):
        raise BadInput(f"{Origin.of(source).name}: the table has no rows; give it at least one")
    return table


def settled(source: Source) -> str | Path | pd.DataFrame:
    """The same source, to be read more than once: an Arrow stream, which may be read only once, as a data frame.

    Raises BadInput if it is none of what `read_table` reads.
    """
    if isinstance(source, (str, PathLike, pd.DataFrame)):
        return source
    one_column = type(source).__name__ in ("Series", "ChunkedArray", "Array")
    if one_column or not hasattr(source, "__arrow_c_stream__"):
        raise BadInput(f"{kind_of(source)} is not read as a table; {ANOTHER}{advice(source)}")
    try:
        frame: pd.DataFrame = pa.table(source).to_pandas(date_as_object=False)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{kind_of(source)} cannot be read as a table ({first_line(error)}); {ANOTHER}") from None
    return frame


def columns_of(source: str | Path | pd.DataFrame) -> list[str]:
    """The names of the columns that `read_table` would give, without reading the rows of a file. Raises as it does."""
    if isinstance(source, pd.DataFrame):
        names, where = list(with_index(source.iloc[:0]).columns), "table"
    else:
        path, where = path_of(source), str(source)
        check_file(path)
        if not is_parquet(path):
            with explained(path):
                return read_header(path)[0]
        with readable_parquet(path):
            names = list(with_index(pq.read_schema(path).empty_table().to_pandas()).columns)
    check_names(names, where)
    return names


def kind_of(source: object) -> str:
    """The type of an object with the package that it comes from, such as "polars.DataFrame"."""
    kind = type(source)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def advice(source: object) -> str:
    """How a table of another kind becomes a data frame, for error lines."""
    for method in ("collect", "to_frame", "to_pandas"):
        if hasattr(source, method):
            return f" (.{method}() makes one)"
    return (
        " (pandas.DataFrame(...) makes one)" if isinstance(source, (Mapping, list)) or hasattr(source, "shape") else ""
    )


def check_file(path: Path) -> None:
    """Raise BadInput unless `path` is a file that is not empty, with an ending that is known."""
    if path.is_dir():
        raise BadInput(f"{path} is a directory; name a file ending in {', '.join(ENDINGS)}")
    if not path.exists():
        raise BadInput(f"{path}: there is no such file; check the path")
    if not path.name.lower().endswith(ENDINGS):
        raise BadInput(f"{path}: this kind of file is not read; name a file ending in {', '.join(ENDINGS)}")
    if not path.stat().st_size:
        raise BadInput(f"{path}: the file is empty; it needs a header and at least one row")


def check_names(names: list[str], where: str) -> None:
    """Raise BadInput if a column has no name or one with a line break, or if a name stands twice."""
    seen: set[str] = set()
    for place, name in enumerate(names, start=1):
        if not name.strip() or len(name.splitlines()) > 1:
            raise BadInput(f"{where}: column {place} has no name, or one of several lines; name it in one line")
        if name in seen:
            raise BadInput(f"{where}: two columns are named '{name}'; rename one of them")
        seen.add(name)


def with_index(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy with columns named by text, plain pandas types, and an index that says something turned into columns."""
    table = frame.copy()
    if not isinstance(table.index, pd.RangeIndex):
        names = list(table.index.names)
        if names == [None] and isinstance(table.index, (pd.DatetimeIndex, pd.PeriodIndex)):
            names = ["time"]
        kept = [level for level, name in enumerate(names) if name is not None]
        parts = {str(names[level]): table.index.get_level_values(level) for level in kept}
        table = table.reset_index(drop=True)
        for place, (name, values) in enumerate(parts.items()):
            table.insert(place, name, pd.Series(values), allow_duplicates=True)
    table = table.reset_index(drop=True)
    table.columns = pd.Index([str(name) for name in table.columns], dtype=object)
    arrow = [place for place, dtype in enumerate(table.dtypes) if isinstance(dtype, pd.ArrowDtype)]
    plain = {place: plain_column(table.iloc[:, place]) for place in arrow}
    if not plain:
        return table
    columns = [plain.get(place, table.iloc[:, place]) for place in range(table.shape[1])]
    return pd.concat(columns, axis=1)


def plain_column(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column backed by Arrow, with a type of NumPy or pandas."""
    values = pd.array(pa.array(column.array).to_pandas())
    return pd.Series(values, name=column.name)


def read_parquet(path: Path) -> pd.DataFrame:
    """The table of a Parquet file; a named index that was saved with it becomes columns."""
    with readable_parquet(path):
        table = with_index(pd.read_parquet(path, engine="pyarrow"))
    check_names(list(table.columns), str(path))
    return table


@contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Turns what goes wrong with a Parquet file into BadInput."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"{path}: not a readable Parquet file ({first_line(error)}); write it again") from None


def read_csv(path: Path, text: Sequence[str]) -> pd.DataFrame:
    """The table of a CSV file, compressed or not."""
    with explained(path):
        names, delimiter = read_header(path)
        refuse_nul(path)
        missing = {name: [""] if name in text else list(MISSING) for name in names}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                path,
                sep=delimiter,
                header=0,
                names=names,
                encoding="utf-8-sig",
                index_col=False,
                skipinitialspace=True,
                skip_blank_lines=len(names) > 1,
                keep_default_na=False,
                na_values=missing,
                low_memory=False,
                dtype={name: str for name in text if name in names},
            )
    if len(names) == 1:
        known = table[names[0]].notna().to_numpy().nonzero()[0]
        table = table.iloc[: known[-1] + 1 if len(known) else 0]
    return table


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what goes wrong with a CSV file into BadInput."""
    try:
        yield
    except BROKEN:
        raise BadInput(f"{path}: the compressed file is damaged or cut short; fetch or write it again") from None
    except UnicodeError as error:
        raise BadInput(f"{path}: not UTF-8 text ({first_line(error)}); save the file as UTF-8") from None
    except pd.errors.ParserWarning:
        raise BadInput(f"{path}: rows have more fields than the header has names; name every column") from None
    except (pd.errors.ParserError, csv.Error) as error:
        raise BadInput(f"{path}: not a readable CSV file ({first_line(error)}); mend the row") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({first_line(error)})") from None


def refuse_nul(path: Path) -> None:
    """Raise BadInput if there is a NUL byte anywhere in a CSV file."""
    with OPENERS[path.suffix.lower()](path, "rb") as blocks:
        while block := blocks.read(1 << 20):
            if b"\0" in block:
                raise BadInput(NUL.format(path))


def read_header(path: Path) -> tuple[list[str], str]:
    """The column names of a CSV file and the delimiter between them."""
    with open_text(path) as lines:
        line = lines.readline()
        if "\0" in line:
            raise BadInput(NUL.format(path))
        if not line.strip():
            raise BadInput(f"{path}: the first row is blank; it must name the columns")
        delimiter = max(",;\t", key=line.count)
        lines.seek(0)
        names = [name.strip() for name in next(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))]
    check_names(names, f"{path}, row 1")
    return names, delimiter


def line_of(path: Path, position: int) -> int:
    """The line of a CSV file on which the record at `position` begins, the first line being 1."""
    names, delimiter = read_header(path)
    with open_text(path) as lines:
        records = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        begin, left = 1, position + 1
        for record in records:
            blank = len(record) < 2 and not "".join(record).strip() and len(names) > 1
            if not blank:
                if not left:
                    break
                left -= 1
            begin = records.line_num + 1
    return begin


def open_text(path: Path) -> IO[str]:
    """A CSV file opened to read text."""
    return OPENERS[path.suffix.lower()](path, "rt", encoding="utf-8-sig", newline="")


def first_line(error: Exception) -> str:
    """The message of an error as one line without its last stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
