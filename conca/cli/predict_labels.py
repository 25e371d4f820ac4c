"""`conca predict` and `conca score` on a run that classifies: a label for every sequence, and how good labels are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from conca.cli.kind import check_rate, classifier, given

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["labels_of", "scores_of"]


def labels_of(run: Path, data: Path, *, probabilities: bool, **reading: Any) -> tuple[pd.DataFrame, list[str]]:
    """One row for each sequence, and what the user should know.

    Columns: sequence (its name in the data), label (the likeliest), probability (of this), `p_` and the name of each class if
    `probabilities`, truth if the data hold labels, and part if they hold an official split.
    """
    import pandas as pd

    model = classifier(run)
    check_rate(run, model, reading.get("rate"))
    sequences = model.read(data, **given(**reading))
    found = model.predict_proba(sequences)
    best = found.argmax(1)
    table = pd.DataFrame(
        {"sequence": sequences.ids, "label": model.classes_[best], "probability": found.max(1).round(6)}
    )
    if probabilities:
        each = pd.DataFrame(found.round(6), columns=[f"p_{name}" for name in model.classes_])
        table = pd.concat([table, each], axis=1)
    if sequences.labels is not None:
        table["truth"] = sequences.labels
    if sequences.parts is not None:
        table["part"] = sequences.parts
    return table, model.notices_


def scores_of(run: Path, data: Path, **reading: Any) -> tuple[pd.DataFrame, list[str]]:
    """How well a run classifies sequences that have labels, and what the user should know."""
    model = classifier(run)
    check_rate(run, model, reading.get("rate"))
    return model.evaluate(data, **given(**reading)), model.notices_
