"""Files of runs, read with care: each fault is one line that names the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from conca.models.run import check_keys, read_config
from conca.types import BadInput

__all__ = ["damaged", "described", "located", "read_history", "read_scores", "understood"]

WANTED = {
    "forecast": "a forecaster",
    "classify": "a classifier",
    "energy": "an energy of images",
    "diffusion": "a diffusion of images",
}
"""What runs of each kind are."""


def described(folder: Path, kind: str, parts: tuple[str, ...]) -> dict[str, Any]:
    """The description of a run, which has these parts. Raises BadInput for what is no run, of a newer format or of another kind."""
    saved, path = read_config(folder), folder / "config.json"
    if saved["kind"] != kind:
        wanted = WANTED.get(kind, "a language model")
        raise BadInput(f"{path}: a run of kind '{saved['kind']}', not {wanted}")
    check_keys(path, saved, parts)
    return saved


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """What fails in the block fails for what a file says: it raises BadInput, with the file."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{path}: cannot be understood ({' '.join(str(error).split())})") from None


@contextmanager
def located(path: Path) -> Iterator[None]:
    """BadInput that is raised in the block names the file, if it does not yet."""
    try:
        yield
    except BadInput as error:
        raise BadInput(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def damaged(fine: bool, why: str) -> None:
    """Raise BadInput unless it is fine."""
    if not fine:
        raise BadInput(f"the run is damaged: {why}")


def read_history(path: Path) -> pd.DataFrame:
    """What was logged, one row for each epoch; empty where there is no such table, since nothing depends on it."""
    try:
        return pd.read_csv(path).groupby("epoch", as_index=False).first()
    except (OSError, ValueError, KeyError):
        return pd.DataFrame()


def read_scores(path: Path, index: Sequence[str], columns: Iterable[str], *, optional: bool = False) -> pd.DataFrame:
    """A table of scores, empty where it may lack and does. Raises BadInput if it is missing or damaged."""
    if not path.is_file():
        if optional:
            return pd.DataFrame()
        raise BadInput(f"{path}: is missing; the run is damaged")
    try:
        found = pd.read_csv(path, index_col=list(index) if len(index) > 1 else index[0]).astype(np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        found = pd.DataFrame()
    if list(found.columns) != list(columns):
        raise BadInput(f"{path}: not a table of scores; the run is damaged")
    return found
