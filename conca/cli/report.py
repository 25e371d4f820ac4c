"""`conca report`: a page with pictures of what a run learned, how well, and what it remembers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from conca.cli.screen import notice
from conca.types import BadInput

if TYPE_CHECKING:
    from conca import Classifier, Forecaster
    from conca.estimators.image_model import ImageModel
    from conca.estimators.text_runs import TextRun

__all__ = ["report", "with_report"]


def report(
    run: Annotated[
        str,
        Argument(
            metavar="RUN_OR_ID",
            help="Folder that `conca fit` wrote; with --out also an ID of the Hugging Face hub, or a .gguf file.",
        ),
    ],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="HTML file to write; report.html in the run where none is named.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the named file if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Write a page about a run: one HTML file that needs no network, for a phone as for a desk.

    Of a forecaster: training curves, forecasts with intervals beside what came, error by step, residuals, calibration of the
    quantiles, what the layers remember and what the state holds. Of a classifier: training curves, the confusion of the classes,
    accuracy by length and by how much was read, calibration of the probabilities. Of a language model: bits per byte beside
    compressors, how surprise falls with what was read, a text that it writes, what the layers remember and what the state holds.
    Of a model of images: samples, where its chains were along the training, energies of data and of samples, slopes, the buffer, and what
    went wrong, in words. An older report.html in the run is replaced.
    """
    folder = Path(run)
    if out is not None:
        from conca.cli.output import check_free
        from conca.models.run import CONTENTS

        check_free(out, force)
        if out.resolve().parent == folder.resolve() and out.name in CONTENTS - {"report.html"}:
            raise BadInput(f"{out}: is a part of the run; name another file")
    elif folder.is_dir() and (folder / "report.html").is_dir():
        raise BadInput(f"{folder / 'report.html'}: is a directory; name another file (--out)")

    import conca
    from conca.report.write import write_report

    model = conca.load(run)
    if out is None and not folder.is_dir():
        raise BadInput(f"{run}: is no folder to put report.html into; name a file (--out)")
    path = folder / "report.html" if out is None else out
    write_report(model, path)
    if not quiet:
        notice(f"wrote {path}")


def with_report(model: Forecaster | Classifier | TextRun | ImageModel, run: Path) -> list[str]:
    """Draw the report of a run into it; a line where that cannot be done here."""
    try:
        from conca.report.write import write_report
    except ModuleNotFoundError as error:
        return [f"no report.html, since {error.name} is not installed; `conca report {run}` makes it later"]
    try:
        write_report(model, run / "report.html")
    except OSError as error:
        return [f"no report.html ({error.strerror or error}); `conca report {run}` makes it later"]
    return []
