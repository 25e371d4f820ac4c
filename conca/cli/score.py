"""`conca score`: how well a run forecasts a table or labels sequences, beside the simple answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from conca.cli.kind import Label, Rate, Series, Time, check_options, forecaster, is_classifier
from conca.cli.predict_labels import scores_of
from conca.cli.screen import frame, notice

__all__ = ["score"]


def score(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit` wrote.")],
    data: Annotated[
        Path,
        Argument(metavar="DATA", help="Table with the columns of the one it was fitted on; or sequences with labels."),
    ],
    series: Series = None,
    time: Time = None,
    label: Label = None,
    rate: Rate = None,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Judge a run on data that it did not learn from.

    Of a forecaster, the table that `conca fit` prints, on rows that came later. Judged are the rows after those that the run
    learnt from; give these as well, they are read as the past. MAE, RMSE, MASE and pinball are errors: lower is better. Coverage is
    the share of values between the outermost quantiles: 0.8 is right for q0.1 and q0.9.

    Of a classifier, accuracy and macro F1 (the mean over the classes), higher is better, and log loss, lower is better, beside
    the most frequent class. Data with an official test part are judged on that part, others as a whole.
    """
    reading = {"series": series, "time": time, "label": label, "rate": rate}
    if is_classifier(run):
        scores, notices = scores_of(run, data, **reading)
    else:
        check_options(run, of="classify", **reading)
        model = forecaster(run)
        scores, notices = model.score(data), model.notices_
    if not quiet:
        for line in notices:
            notice(line)
    frame(scores)
