"""A run folder becomes the estimator that wrote it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from conca.models.run import read_config
from conca.types import BadInput, nearest

if TYPE_CHECKING:
    from conca.estimators.classifier import Classifier
    from conca.estimators.forecaster import Forecaster

__all__ = ["kind_of", "load"]

KINDS = {
    "forecast": ("conca.estimators.forecaster", "Forecaster"),
    "classify": ("conca.estimators.classifier", "Classifier"),
}
"""Where the estimator of each kind of run is; it is imported when it is needed."""


def load(folder: str | Path) -> Forecaster | Classifier:
    """The fitted estimator in a run folder, whatever its kind.

    Raises:
        BadInput: one line, for a folder that is no run, of a newer format or an unknown kind, or not whole.
    """
    module, name = KINDS[kind_of(folder)]
    estimator: type[Forecaster | Classifier] = getattr(import_module(module), name)
    return estimator.load(folder)


def kind_of(folder: str | Path) -> str:
    """What a run folder is a run of: "forecast" or "classify". Raises BadInput for what is no run, or of an unknown kind."""
    folder = Path(folder)
    kind: str = read_config(folder)["kind"]
    if kind not in KINDS:
        raise BadInput(f"{folder / 'config.json'}: unknown kind of run '{kind}'; {nearest(kind, KINDS)}")
    return kind
