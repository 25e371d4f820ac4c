"""A run folder becomes the estimator that wrote it."""

from __future__ import annotations

from pathlib import Path

from conca.estimators.forecaster import Forecaster
from conca.models.run import read_config
from conca.types import BadInput, nearest

__all__ = ["load"]

KINDS = {"forecast": Forecaster}


def load(folder: str | Path) -> Forecaster:
    """The fitted estimator in a run folder, whatever its kind.

    Raises:
        BadInput: one line, for a folder that is no run, of a newer format or an unknown kind, or not whole.
    """
    folder = Path(folder)
    kind = read_config(folder)["kind"]
    if kind not in KINDS:
        raise BadInput(f"{folder / 'config.json'}: unknown kind of run '{kind}'; {nearest(kind, KINDS)}")
    return KINDS[kind].load(folder)
