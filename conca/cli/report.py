"""`conca report`: a page with pictures of what a run learned, how well, and what it remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from conca.cli.screen import notice
from conca.types import BadInput

__all__ = ["report"]


def report(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit` wrote.")],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="HTML file to write; report.html in the run where none is named.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the named file if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Write a page about a run: one HTML file that needs no network, for a phone as for a desk.

    Of a forecaster: training curves, forecasts with intervals beside what came, error by step, residuals, calibration of the
    quantiles, what the layers remember and what the state holds. Of a classifier: training curves, the confusion of the classes,
    accuracy by length and by how much was read, calibration of the probabilities. An older report.html in the run is replaced.
    """
    if out is not None:
        from conca.cli.output import check_free
        from conca.models.run import CONTENTS

        check_free(out, force)
        if out.resolve().parent == run.resolve() and out.name in CONTENTS - {"report.html"}:
            raise BadInput(f"{out}: is a part of the run; name another file")
    elif run.is_dir() and (run / "report.html").is_dir():
        raise BadInput(f"{run / 'report.html'}: is a directory; name another file (--out)")

    import conca
    from conca.report.write import write_report

    path = run / "report.html" if out is None else out
    write_report(conca.load(run), path)
    if not quiet:
        notice(f"wrote {path}")
