"""Runs of either kind at the prompt: the estimator of one, once the options are known to be for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Option

from conca.types import BadInput

if TYPE_CHECKING:
    from conca import Classifier, Forecaster

__all__ = [
    "Label",
    "Rate",
    "Series",
    "Time",
    "check_options",
    "check_rate",
    "classifier",
    "forecaster",
    "given",
    "is_classifier",
    "kind_of",
]

Series: TypeAlias = Annotated[
    str | None, Option(metavar="COLUMN", help="Labels: column that tells sequences apart, if not that of the fit.")
]
Time: TypeAlias = Annotated[
    str | None, Option(metavar="COLUMN", help="Labels: column of times, if not that of the fit.")
]
Label: TypeAlias = Annotated[
    str | None, Option(metavar="COLUMN", help="Labels: column of what is right, if not that of the fit.")
]
Rate: TypeAlias = Annotated[
    int | None,
    Option(metavar="N", help="Labels: read sound at so many samples a second; the layers' steps change as much."),
]

WORDS = {
    "forecast": ("forecasts", "forecasts"),
    "classify": ("classifiers", "classifies"),
    "text": ("language models", "writes text"),
    "energy": ("runs on images", "models images"),
    "diffusion": ("runs on images", "models images"),
    "rows": ("forecasts and classifiers", "writes text"),
}


def given(**options: Any) -> dict[str, Any]:
    """The options that the user gave."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def is_classifier(run: Path) -> bool:
    """Whether a run classifies; else it forecasts. Raises BadInput for what is no run, and for a language model."""
    kind = kind_of(run)
    if kind == "text":
        raise BadInput(f"{run}: is a language model; conca generate, chat and score are for it")
    if kind in ("energy", "diffusion"):
        raise BadInput(f"{run}: is a model of images; conca sample, complete and score are for it")
    return kind == "classify"


def kind_of(run: Path | str) -> str:
    """What a run is for: "forecast", "classify", "text", "energy" or "diffusion". Raises BadInput for what is no run."""
    from conca.estimators import kinds

    return kinds.kind_of(run)


def check_options(run: Path, *, of: str, **options: Any) -> None:
    """Raise BadInput if an option was given that belongs to the other kind of run (`of`)."""
    for name, value in options.items():
        if value not in (None, False):
            kind = kind_of(run)
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} belongs to {WORDS[of][0]}, and {run} {WORDS[kind][1]}; leave it out")


def check_rate(run: Path, model: Classifier, rate: int | None) -> None:
    """Raise BadInput for a rate that is none, or one for a run that knows of no rate."""
    if rate is not None and rate < 1:
        raise BadInput(f"--rate must be at least 1 sample a second, not {rate}")
    if rate is not None and model.rate_ is None:
        raise BadInput(f"--rate belongs to sound, and {run} was fitted on something else; leave it out")


def classifier(run: Path) -> Classifier:
    """The classifier of a run. Raises BadInput for a run that is none, or damaged."""
    from conca.estimators.classifier import Classifier

    return Classifier.load(run)


def forecaster(run: Path) -> Forecaster:
    """The forecaster of a run. Raises BadInput for a run that is none, or damaged."""
    from conca.estimators.forecaster import Forecaster

    return Forecaster.load(run)
