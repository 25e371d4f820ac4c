"""Where a file is written: where symbolic links point, and never in the place of a device."""

from __future__ import annotations

import os
from pathlib import Path

from conca.types import BadInput

__all__ = ["check_regular", "followed"]


def followed(path: Path) -> Path:
    """The file that is written under this name: where symbolic links point, if there are any."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_regular(path: Path) -> None:
    """Raise BadInput if something that is no file has this name: a folder, a device, a pipe."""
    if path.is_dir():
        raise BadInput(f"{path}: is a directory; name a file")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is no regular file; name another")
