"""How strange the rows of a table, or sequences, are to a fitted run, measured by what was held out when it was fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from conca.data.encoding import Encoded, named
from conca.data.panel import Panel
from conca.data.times import restore
from conca.estimators.label_runs import LabelRun
from conca.estimators.runs import Run
from conca.infer.novelty import Calibration, joint, series_novelty, told
from conca.types import BadInput

__all__ = ["held_out_rows", "held_out_sequences", "novelty_frame"]

Floats = NDArray[np.float64]
NONE = "nothing was held out when this run was fitted, so nothing is known that its scores could be measured by; fit it with a test part"


def held_out_rows(run: Run) -> Calibration:
    """Scores of the rows held out, by the network of the run: after a refit, by one that has learnt from them, too.

    Those of another network would say little: it may be surer of itself, or less.

    Raises BadInput where nothing was held out.
    """
    kept = run.evaluation
    if kept is None:
        raise BadInput(NONE)
    encoding = run.fitted.encoding
    scalers = [encoding.own[encoding.places[named(k)]] if encoding.knows(k) else encoding.pooled for k in kept.keys]
    unit = np.array([scaler.scale for scaler in scalers])[kept.series]
    quantiles = kept.quantiles[:, 0] if kept.refitted is None else kept.refitted
    found = Calibration.of(joint(kept.y[:, 0], quantiles, run.config.quantiles, unit))
    if not len(found.scores):
        raise BadInput(NONE)
    return found


def held_out_sequences(run: LabelRun) -> Calibration:
    """Energies of the sequences held out. Raises BadInput where nothing was held out, or the run does not tell them."""
    if run.evaluation is None:
        raise BadInput(NONE)
    if run.evaluation.energy is None:
        raise BadInput(
            "this run was fitted by an older program, which kept no energies of what was held out; fit it again"
        )
    return Calibration.of(run.evaluation.energy, "sequences")


def novelty_frame(run: Run, panel: Panel, encoded: Sequence[Encoded], quantile: float | None) -> pd.DataFrame:
    """One line for each given row: columns of series and time (`row`, from 0, where there is none), novelty, rank, alarm.

    Raises BadInput for a quantile that cannot be reached, and where nothing was held out.
    """
    fitted, schema = run.fitted, panel.schema
    calibration = held_out_rows(run)
    quantile = calibration.checked(quantile)
    found = series_novelty(fitted.network, panel.series, encoded, context=fitted.context)
    frames = []
    for one, scores in zip(panel.series, found):
        rows = np.flatnonzero(one.given)
        columns: dict[str, Any] = {name: [part] * len(rows) for name, part in zip(schema.series, one.key)}
        columns["row" if schema.time is None else schema.time] = (
            rows if schema.time is None else restore(one.times[rows], schema.grid)
        )
        columns |= told(scores, calibration, quantile)
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)
