"""The report of a run: every chapter from what the run keeps, put on one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import conca
from conca.estimators.evaluation import Evaluation
from conca.estimators.forecaster import Forecaster
from conca.report import calibration, errors, facts, history, holds, memory, residuals, windows
from conca.report.page import Chapter, Page, short, write_page

__all__ = ["report", "write_report"]

ABSENT = (
    "This run keeps no forecasts of rows held out: none were held out (test_fraction 0), or it was fitted by an earlier conca. "
    "Fit it again to see this chapter."
)


def write_report(forecaster: Forecaster, path: str | Path) -> None:
    """Write the report of a fitted forecaster as one HTML file, whole or not at all.

    Raises:
        OSError: where the file cannot be written.
        RuntimeError: before `fit`.
    """
    write_page(report(forecaster), Path(path))


def report(forecaster: Forecaster) -> Page:
    """All chapters. Raises RuntimeError before `fit`."""
    fitted, schema, levels = forecaster.fitted, forecaster.schema_, forecaster.config.quantiles
    found = forecaster.evaluation_

    def of(title: str, draw: Callable[[Evaluation], Chapter]) -> Chapter:
        return Chapter(title, (ABSENT,)) if found is None else draw(found)

    chapters = [
        facts.chapter(forecaster),
        history.chapter(forecaster.history_),
        of(windows.TITLE, lambda e: windows.chapter(e, schema, levels)),
        of(errors.TITLE, lambda e: errors.chapter(e, schema)),
        of(residuals.TITLE, lambda e: residuals.chapter(e, schema, levels)),
        of(calibration.TITLE, lambda e: calibration.chapter(e, schema, levels)),
        memory.chapter(fitted),
        holds.chapter(fitted.network, len(schema.target) + len(schema.numeric) + len(schema.categorical)),
    ]
    names = ", ".join(short(name, 40) for name in schema.target[:3]) + (", ..." if len(schema.target) > 3 else "")
    horizon = forecaster.config.horizon
    line = f"{horizon} step{'s' * (horizon > 1)} ahead, {forecaster.config.layers}; conca {conca.__version__}"
    return Page(f"Forecasts of {names}", line, chapters)
