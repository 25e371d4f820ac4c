"""`conca predict`: a forecast of a table, or labels of sequences, by a fitted run, as CSV."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from conca.cli.kind import check_options, forecaster, is_classifier
from conca.cli.predict_labels import labels_of
from conca.cli.screen import notice
from conca.types import BadInput

if TYPE_CHECKING:
    import pandas as pd

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
    series: Annotated[
        str | None, Option(metavar="COLUMN", help="Labels: column that tells sequences apart, if not that of the fit.")
    ] = None,
    time: Annotated[
        str | None, Option(metavar="COLUMN", help="Labels: column of times, if not that of the fit.")
    ] = None,
    label: Annotated[
        str | None, Option(metavar="COLUMN", help="Labels: column of what is right, if not that of the fit.")
    ] = None,
    rate: Annotated[
        int | None,
        Option(metavar="N", help="Labels: read sound at so many samples a second; the layers' steps change as much."),
    ] = None,
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
        write_whole(wanted, path)


def check_free(path: Path, force: bool) -> None:
    """Refuse a place that cannot take the file, before any work is done."""
    if path.is_dir():
        raise BadInput(f"{path}: is a directory; name a file")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is no regular file, so it is not replaced; name another one")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent}: there is no such folder; make it first")
    if (path.exists() or path.is_symlink()) and not force:
        raise BadInput(f"{path}: exists; --force replaces it")


def write_whole(forecast: pd.DataFrame, path: Path) -> None:
    """Write CSV to `path`, whole or not at all."""
    from conca.models.run import umask

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            forecast.to_csv(file, index=False)
        Path(temporary).chmod(0o666 & ~umask())
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise BadInput(f"{path}: {error.strerror or error}; nothing was written") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
