"""While a tokenizer encodes a large text, a bar on a terminal says how far it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from conca.data.cutting import Progress as Told

__all__ = ["encoding_bar"]


@contextmanager
def encoding_bar(wanted: bool) -> Iterator[Told | None]:
    """What `conca.data.corpus.open_text` tells its progress, to be shown on stderr; None where nobody looks.

    The bar appears when the first bytes are encoded, and is gone at the end of the block: ids that lie in the cache show none.
    """
    console = Console(file=sys.stderr)
    if not (wanted and console.is_interactive):
        yield None
        return
    columns = TextColumn("encoding"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=None)

    def told(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield told
    finally:
        bar.stop()
