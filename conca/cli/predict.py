"""`conca predict`: a forecast of a table, or labels of sequences, by a fitted run, as CSV."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from conca.cli.kind import Label, Rate, Series, Time, check_options, forecaster, is_classifier
from conca.cli.output import check_free, write_csv
from conca.cli.predict_labels import labels_of
from conca.cli.screen import notice
from conca.types import BadInput

__all__ = ["predict"]


def predict(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit` wrote.")],
    data: Annotated[
        Path,
        Argument(
            metavar="DATA",
            help="Table with the columns of the one it was fitted on (.csv, .gz, .xz, .parquet); or sequences, in any form that "
            "`conca fit --task classify` reads, labels or none.",
        ),
    ],
    out: Annotated[str, Option(metavar="FILE", help="CSV file to write; '-' is stdout.")] = "-",
    rolling: Annotated[bool, Option("--rolling", help="Forecast from every row, not only from the end.")] = False,
    future: Annotated[
        Path | None,
        Option(metavar="FILE", help="Table of what is known in advance of the steps ahead, if the run wants it."),
    ] = None,
    make_future: Annotated[
        bool,
        Option("--make-future", help="Write the table that --future reads, to be filled in, instead of forecasts."),
    ] = False,
    probabilities: Annotated[
        bool, Option("--probabilities", help="Labels: a column p_CLASS for each class, too.")
    ] = False,
    series: Series = None,
    time: Time = None,
    label: Label = None,
    rate: Rate = None,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Forecast a table with a fitted run, or label sequences.

    Of a forecast, one row for each step ahead and target: the series and time columns of the table, cutoff (the time of the last
    row that was known), step, target_name, the quantiles q0.1, q0.5 and q0.9, and y where it is known.

    Of labels, one row for each sequence: sequence (its name), label, probability, and truth where the data hold labels.
    """
    path = None if out == "-" else Path(out)
    if path is not None:
        check_free(path, force)
    elif sys.__stdout__ is None:
        raise BadInput("stdout is closed; name a file (--out)")

    if is_classifier(run):
        check_options(run, of="forecast", rolling=rolling, future=future, make_future=make_future)
        wanted, notices = labels_of(
            run, data, probabilities=probabilities, series=series, time=time, label=label, rate=rate
        )
    else:
        own = {"series": series, "time": time, "label": label, "rate": rate}
        check_options(run, of="classify", probabilities=probabilities, **own)
        model = forecaster(run)
        wanted = model.make_future(data) if make_future else model.predict(data, rolling=rolling, future=future)
        notices = model.notices_
    if not quiet:
        for line in notices:
            notice(line)
    if path is None:
        wanted.to_csv(sys.stdout, index=False)
    else:
        write_csv(wanted, path)
