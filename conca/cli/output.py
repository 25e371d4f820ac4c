"""Files that commands write: whether they may, and whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conca.types import BadInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["check_free", "write_csv"]


def check_free(path: Path, force: bool, *inputs: Path) -> None:
    """Refuse a place that cannot take the file, before any work is done; also, whatever is forced, that of an input."""
    for given in inputs:
        if path.exists() and given.exists() and path.samefile(given):
            raise BadInput(f"{path}: is read by this command, so it is not replaced; name another file")
    if path.is_dir():
        raise BadInput(f"{path}: is a directory; name a file")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is no regular file, so it is not replaced; name another one")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent}: there is no such folder; make it first")
    if (path.exists() or path.is_symlink()) and not force:
        raise BadInput(f"{path}: exists; --force replaces it")


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV. Raises BadInput where that cannot be done."""
    from conca.models.run import write_whole

    try:
        write_whole(path, table.to_csv(index=False).encode(), shared=True)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; nothing was written") from error
