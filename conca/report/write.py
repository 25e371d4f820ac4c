"""The report of a run: every chapter from what the run keeps, put on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import conca
from conca.estimators.forecaster import Forecaster
from conca.estimators.image_model import ImageModel
from conca.estimators.text_runs import TextRun
from conca.models.language import LanguageNetwork
from conca.report import calibration, errors, facts, history, holds, image_page, memory, residuals, text_page, windows
from conca.report.page import Chapter, Page, short, write_page

if TYPE_CHECKING:
    from conca.estimators.classifier import Classifier
    from conca.estimators.language import LanguageModel

__all__ = ["report", "write_report"]


def write_report(estimator: Forecaster | Classifier | LanguageModel | TextRun | ImageModel, path: str | Path) -> None:
    """Write the report of a fitted estimator, or of a language model, as one HTML file, whole or not at all.

    Raises:
        OSError: where the file cannot be written.
        RuntimeError, NotFittedError: of a forecaster, of a classifier, before `fit`.
    """
    write_page(report(estimator), Path(path))


def report(estimator: Forecaster | Classifier | LanguageModel | TextRun | ImageModel) -> Page:
    """All chapters; those about what was held out, if there is any. Raises RuntimeError or NotFittedError before `fit`."""
    if isinstance(estimator, Forecaster):
        return forecasts(estimator)
    if isinstance(estimator, TextRun):
        return text_page.page(estimator)
    if isinstance(estimator, LanguageNetwork):
        return text_page.page(text_page.run_of(cast("LanguageModel", estimator)))
    if isinstance(estimator, ImageModel):
        return image_page.page(estimator)
    from conca.report import classify_page  # it needs scikit-learn, which takes a second to import

    return classify_page.page(estimator)


def forecasts(forecaster: Forecaster) -> Page:
    """All chapters about a forecaster."""
    fitted, schema, levels = forecaster.fitted, forecaster.schema_, forecaster.config.quantiles
    found = forecaster.evaluation_

    judging: list[Chapter] = []
    if found is not None:
        judging = [
            windows.chapter(found, schema, levels),
            errors.chapter(found, schema),
            residuals.chapter(found, schema, levels),
            calibration.chapter(found, schema, levels),
        ]
    chapters = [
        facts.chapter(forecaster),
        history.chapter(forecaster.history_),
        *judging,
        memory.chapter(fitted),
        holds.chapter(fitted.network, len(schema.target) + len(schema.numeric) + len(schema.categorical)),
    ]
    names = ", ".join(short(name, 40) for name in schema.target[:3]) + (", ..." if len(schema.target) > 3 else "")
    horizon = forecaster.config.horizon
    line = f"{horizon} step{'s' * (horizon > 1)} ahead, {forecaster.config.layers}; conca {conca.__version__}"
    return Page(f"Forecasts of {names}", line, chapters)
