"""What is shown: tables that stay readable in a pipe, and one-line notices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from typing import TextIO

    import pandas as pd

__all__ = ["frame", "listing", "notice", "progress_bar", "table", "watched"]

PIPED = 160
"""Width of what is not shown on a terminal, in characters, where COLUMNS does not say another: no row is folded."""


def console(stream: TextIO) -> Console:
    """Colours and the width of the terminal on a terminal; plain text elsewhere."""
    columns = os.environ.get("COLUMNS", "")
    piped = int(columns) if columns.isdigit() and int(columns) > 0 else PIPED
    return Console(file=stream, width=None if stream.isatty() else piped, highlight=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> None:
    """Print a table to stdout: the first columns, as many as hold `words`, to the left, the others to the right."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if place < words else "right", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    console(sys.stdout).print(shown)


def listing(lines: Iterable[str]) -> None:
    """Print short lines to stdout, side by side where there is room."""
    console(sys.stdout).print(Columns(map(Text, lines), padding=(0, 3), column_first=True), end="\n\n")


def frame(data: pd.DataFrame) -> None:
    """Print a data frame of numbers, with its index before them; nothing where it is empty."""
    if len(data):
        from conca.report.words import aligned

        columns = [aligned(values.tolist()) for values in data.to_numpy().T]
        table([str(data.index.name or ""), *data.columns], zip(map(str, data.index), *columns))


def progress_bar(quiet: bool) -> Progress:
    """A bar on stderr that disappears when it is done; nothing where nobody looks."""
    stream = console(sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stream,
        transient=True,
        disable=quiet or not stream.is_terminal,
    )


@contextmanager
def watched(what: str, quiet: bool) -> Iterator[Callable[[float], None]]:
    """A bar for what tells which share of it is done."""
    with progress_bar(quiet) as bar:
        task = bar.add_task(what, total=100)

        def told(share: float) -> None:
            bar.update(task, completed=round(100 * share))

        yield told


def notice(line: str) -> None:
    """One line on stderr that is no error."""
    print(f"conca: {line}", file=sys.stderr)
