"""What is checked of arguments before any work is done."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

from conca.types import BadInput, path_of

__all__ = ["check_switches", "folder_of"]


def check_switches(**switches: Any) -> None:
    """Raise BadInput for a switch that is neither True nor False."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise BadInput(f"{name} must be True or False, not {value!r}")


def folder_of(out: Any) -> Path:
    """The path of a run folder that a user names. Raises BadInput if there can be none of this name."""
    if not isinstance(out, (str, PathLike)):
        raise BadInput(f"the run folder must be a path, not {out!r}")
    path = path_of(out)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        line = " ".join(str(error).split())
        raise BadInput(f"{str(out)[:80]!r}: cannot be the name of a run folder ({line}); name another one") from None
    return path
