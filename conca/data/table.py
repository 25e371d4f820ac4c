"""A file or a data frame becomes a pandas table, or one clear line that says why not."""

from __future__ import annotations

import csv
import gzip
import lzma
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pandas as pd
import pyarrow as pa

from conca.types import BadInput

__all__ = ["Origin", "Source", "read_table"]

Source: TypeAlias = "str | Path | pd.DataFrame"

ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".parquet")
OPENERS = {".csv": open, ".gz": gzip.open, ".xz": lzma.open}
BROKEN = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)


@dataclass(frozen=True)
class Origin:
    """Where a table came from, for error lines: its name, and the number that its first row has for the user.

    Rows of a CSV file are counted as an editor shows them, the header being row 1; rows of a Parquet file from 1; rows
    of a data frame from 0, as `iloc` does.
    """

    name: str
    first: int

    @classmethod
    def of(cls, source: Source) -> Origin:
        """The origin of what `read_table` reads from `source`."""
        if isinstance(source, pd.DataFrame):
            return cls("table", 0)
        return cls(str(source), 1 if str(source).lower().endswith(".parquet") else 2)

    def row(self, position: int) -> str:
        """The user's name of the row at `position` (from 0) of the table as read."""
        return f"row {position + self.first}"

    def cell(self, position: int, column: str) -> str:
        """The user's name of a cell."""
        return f"{self.name}, {self.row(position)}, column '{column}'"


def read_table(source: Source, *, text: Sequence[str] = ()) -> pd.DataFrame:
    """The table in `source`, one row of the file each, the index counting rows from 0.

    source  path of a CSV file (also .csv.gz, .csv.xz; commas, semicolons or tabs; UTF-8) or of a Parquet file, or a
            data frame, which is copied and not changed
    text    columns of a CSV file that are kept as the text they are (names of series: "007" stays "007")

    Empty cells and the usual words (NA, n/a, NaN, null) are missing. Raises BadInput, one line, on a file that is
    missing, a directory, empty, truncated, undecodable or of another kind, without rows, or with a column named twice.
    """
    if isinstance(source, pd.DataFrame):
        table = source.copy()
        table.columns = [str(name) for name in table.columns]
        refuse_twins(list(table.columns), "table")
    else:
        path = Path(source)
        check_file(path)
        table = read_parquet(path) if path.name.lower().endswith(".parquet") else read_csv(path, text)
    if not len(table):
        raise BadInput(f"{Origin.of(source).name}: the table has a header but no rows; give it at least one row")
    return table.reset_index(drop=True)


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


def refuse_twins(names: list[str], where: str) -> None:
    """Raise BadInput if a column name stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadInput(f"{where}: two columns are named '{name}'; rename one of them")
        seen.add(name)


def read_parquet(path: Path) -> pd.DataFrame:
    """The table of a Parquet file; an index that was saved with it becomes columns."""
    try:
        table = pd.read_parquet(path, engine="pyarrow")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"{path}: not a readable Parquet file ({first_line(error)}); write it again") from None
    if any(name is not None for name in table.index.names):
        table = table.reset_index()
    refuse_twins([str(name) for name in table.columns], str(path))
    return table


def read_csv(path: Path, text: Sequence[str]) -> pd.DataFrame:
    """The table of a CSV file, compressed or not."""
    try:
        names, delimiter = read_header(path)
        kept = [name for name in text if name in names]
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                path,
                sep=delimiter,
                encoding="utf-8-sig",
                index_col=False,
                skipinitialspace=True,
                skip_blank_lines=False,
                low_memory=False,
                dtype=dict.fromkeys(kept, str),
            )
    except BROKEN:
        raise BadInput(f"{path}: the compressed file is damaged or cut short; fetch or write it again") from None
    except UnicodeError as error:
        raise BadInput(f"{path}: not UTF-8 text ({first_line(error)}); save the file as UTF-8") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        raise BadInput(f"{path}: not a readable CSV file ({first_line(error)}); mend the row") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({first_line(error)})") from None


def read_header(path: Path) -> tuple[list[str], str]:
    """The column names of a CSV file and the delimiter between them."""
    with OPENERS[path.suffix.lower()](path, "rt", encoding="utf-8-sig", newline="") as lines:
        line = lines.readline()
    if not line.strip():
        raise BadInput(f"{path}: the first row is blank; it must name the columns")
    delimiter = max(",;\t", key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    for place, name in enumerate(names, start=1):
        if not name:
            raise BadInput(f"{path}, row 1: column {place} has no name; name every column")
    refuse_twins(names, f"{path}, row 1")
    return names, delimiter


def first_line(error: Exception) -> str:
    """The message of an error as one line without its last stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
