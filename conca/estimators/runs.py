"""A fitted forecaster as a whole, and to its run folder and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch

import conca
from conca.data.encoding import Encoding
from conca.data.panel import Schema
from conca.estimators.config import ForecastConfig
from conca.estimators.evaluation import Evaluation
from conca.estimators.run_files import described, located, read_history, read_scores, understood
from conca.estimators.saved import check_parts, check_schema, network_config
from conca.estimators.scores import COLUMNS, MODEL
from conca.estimators.simple import SimpleForecasts
from conca.infer.fitted import Fitted
from conca.infer.frame import Ends
from conca.models.forecast import ForecastNetwork, NetworkConfig
from conca.models.run import load_tensors, read_tensors, write_config, write_tensors
from conca.train.seeds import seeded

__all__ = ["Run", "read_run", "write_run"]

PARTS = ("conca", "forecast", "network", "schema", "encoding", "latest")


@dataclass(frozen=True)
class Run:
    """What a fit ends with.

    simple         the simple forecasts, fitted on the rows that the model learnt from
    scores         on the rows held out, of a model that did not learn from them
    target_scores  the same for each of several targets
    refit_scores   on the same rows, of the model that learnt from them, too
    evaluation     forecasts of the rows held out
    history        what was logged after each epoch
    """

    config: ForecastConfig
    fitted: Fitted
    simple: SimpleForecasts
    scores: pd.DataFrame
    target_scores: pd.DataFrame
    refit_scores: pd.DataFrame
    evaluation: Evaluation | None
    history: pd.DataFrame = field(default_factory=pd.DataFrame)


def write_run(folder: Path, run: Run) -> None:
    """Write all files of a run into a folder."""
    fitted = run.fitted
    run.history.to_csv(folder / "metrics.csv", index=False)
    run.scores.to_csv(folder / "scores.csv")
    for name, frame in (("refit_scores", run.refit_scores), ("target_scores", run.target_scores)):
        if len(frame):
            frame.to_csv(folder / f"{name}.csv")
    write_tensors(folder / "model.safetensors", fitted.network.state_dict())
    write_tensors(folder / "latest.safetensors", {"quantiles": torch.from_numpy(fitted.ends.quantiles)})
    write_tensors(folder / "simple.safetensors", run.simple.tensors())
    if run.evaluation is not None:
        write_tensors(folder / "evaluation.safetensors", run.evaluation.tensors())
    parts = {
        "conca": conca.__version__,
        "forecast": run.config.as_dict(),
        "network": fitted.network.config.as_dict(),
        "schema": fitted.schema.as_dict(),
        "encoding": fitted.encoding.as_dict(),
        "latest": fitted.ends.as_dict(),
    }
    write_config(folder, "forecast", parts)


def read_run(folder: Path) -> Run:
    """Read a run folder. Raises BadInput, one line, for what is no run, of a newer format or another kind, or not whole."""
    saved = described(folder, "forecast", PARTS)
    with understood(folder / "config.json"):
        config = ForecastConfig.from_dict(saved["forecast"])
        quantiles = read_tensors(folder / "latest.safetensors").get("quantiles", torch.empty(0))
        ends = Ends.from_dict(saved["latest"], quantiles.numpy())
        schema, encoding = Schema.from_dict(saved["schema"]), Encoding.from_dict(saved["encoding"])
        check_schema(schema, saved["schema"])
        check_parts(config, schema, encoding, NetworkConfig.from_dict(saved["network"]), ends)
        with torch.inference_mode(False), seeded(0):
            network = ForecastNetwork(network_config(config, schema, encoding))
    load_tensors(network, folder / "model.safetensors")
    simple = read_simple(folder / "simple.safetensors", config, schema, encoding)
    return Run(
        config,
        Fitted(schema, encoding, network.eval(), ends, config.length),
        simple,
        scores=read_scores(folder / "scores.csv", ["forecast"], COLUMNS.values()),
        target_scores=read_scores(
            folder / "target_scores.csv", ["target", "forecast"], COLUMNS.values(), optional=True
        ),
        refit_scores=read_scores(folder / "refit_scores.csv", ["forecast"], COLUMNS.values(), optional=True),
        evaluation=read_evaluation(folder / "evaluation.safetensors", ends, simple),
        history=read_history(folder / "metrics.csv"),
    )


def read_simple(path: Path, config: ForecastConfig, schema: Schema, encoding: Encoding) -> SimpleForecasts:
    """The simple forecasts of a run. Raises BadInput if they are missing or damaged."""
    with located(path):
        return SimpleForecasts(schema, config.horizon, config.quantiles).take(read_tensors(path), encoding.keys)


def read_evaluation(path: Path, ends: Ends, simple: SimpleForecasts) -> Evaluation | None:
    """The evaluation in a run; None if nothing was held out. Raises BadInput if it is damaged."""
    if not path.exists():
        return None
    with located(path):
        return Evaluation.from_tensors(read_tensors(path), ends.keys, [MODEL, *simple.baselines])
