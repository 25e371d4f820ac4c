"""`conca score --rows` and `conca stream --novelty`: how strange rows and sequences are to a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Option

from conca.cli.kind import check_options, check_rate, classifier, forecaster, given
from conca.cli.output import check_free, write_csv
from conca.cli.screen import notice
from conca.types import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from conca import Forecaster

__all__ = ["Alarm", "about_refit", "write_rows"]

Alarm: TypeAlias = Annotated[
    float | None,
    Option(
        metavar="SHARE",
        help="Novelty: alarm from this share of what was held out on; default: 0.99, or the most that there is.",
    ),
]


def write_rows(
    run: Path,
    data: Path,
    kind: str,
    out: Path | None,
    quantile: float | None,
    *,
    force: bool,
    quiet: bool,
    **reading: Any,
) -> None:
    """The command. Raises BadInput for what cannot be read, measured or written."""
    from conca.infer.novelty import number_of

    if out is not None:
        check_free(out, force)
    elif sys.__stdout__ is None:
        raise BadInput("stdout is closed; name a file (--out)")
    if kind == "classify":
        table, notices = of_sequences(run, data, quantile, **reading)
    else:
        check_options(run, of="classify", **reading)
        table, notices = of_rows(run, data, quantile)
    for line in () if quiet else notices:
        notice(line)
    for name in ("novelty", "rank"):  # as a stream writes them
        table[name] = [number_of(value) for value in table[name]]
    if out is None:
        table.to_csv(sys.stdout, index=False)
    else:
        write_csv(table, out)


def of_rows(run: Path, data: Path, quantile: float | None) -> tuple[pd.DataFrame, list[str]]:
    """Each row of a table, and what the user should know."""
    model = forecaster(run)
    table = model.novelty(data, quantile=quantile)
    return table, [*model.notices_, *about_refit(model), alarms(table)]


def about_refit(model: Forecaster) -> list[str]:
    """A line where the network has learnt from what its scores are measured by."""
    if not len(model.refit_scores_):
        return []
    line = "measured by rows that were held out first and then learnt from, too (refit)"
    return [f"{line}, so new ones score a little higher; fit --no-refit measures without that"]


def of_sequences(run: Path, data: Path, quantile: float | None, **reading: Any) -> tuple[pd.DataFrame, list[str]]:
    """Each sequence, and what the user should know."""
    import pandas as pd

    from conca.estimators.novelty import held_out_sequences
    from conca.infer.novelty import told

    model = classifier(run)
    check_rate(run, model, reading.get("rate"))
    calibration = held_out_sequences(model.run_)
    share = calibration.checked(quantile)
    sequences = model.read(data, **given(**reading))
    notices = list(model.notices_)
    found = told(model.novelty(sequences), calibration, share)
    table = pd.DataFrame({"sequence": sequences.ids, "label": model.predict(sequences), **found})
    if sequences.labels is not None:
        table["truth"] = sequences.labels
    return table, [*notices, alarms(table)]


def alarms(table: pd.DataFrame) -> str:
    """How many there were, in words."""
    count = int(table["alarm"].sum())
    return f"{count:,} alarm{'s' * (count != 1)} in {len(table):,} lines"
