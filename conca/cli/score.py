"""`conca score`: how well a run forecasts a table, beside the simple forecasts of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from conca.cli.screen import frame, notice

__all__ = ["score"]


def score(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit` wrote.")],
    data: Annotated[Path, Argument(metavar="DATA", help="Table with the columns of the one it was fitted on.")],
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Judge a run on rows that came later.

    The table that `conca fit` prints, on new data. Judged are the rows after those that the run learnt from; give these as
    well, they are read as the past. MAE, RMSE, MASE and pinball are errors: lower is better. Coverage is the share of values
    between the outermost quantiles: 0.8 is right for q0.1 and q0.9.
    """
    import conca

    forecaster = conca.load(run)
    scores = forecaster.score(data)
    if not quiet:
        for line in forecaster.notices_:
            notice(line)
    frame(scores)
