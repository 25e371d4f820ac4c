"""A fitted classifier as a whole, and to its run folder and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import conca
from conca.estimators.classify_config import ClassifyConfig
from conca.estimators.label_scores import COLUMNS
from conca.estimators.labels import Labels
from conca.estimators.run_files import damaged, described, located, read_history, read_scores, understood
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig
from conca.models.run import load_tensors, read_tensors, write_config, write_tensors
from conca.train.seeds import seeded

__all__ = ["Features", "LabelRun", "read_label_run", "write_label_run"]

Features: TypeAlias = "int | tuple[str, ...] | None"
PARTS = (
    "conca",
    "classify",
    "network",
    "classes",
    "counts",
    "channels",
    "symbols",
    "rate",
    "reading",
    "source",
    "features",
)


@dataclass(frozen=True)
class LabelRun:
    """What a fit ends with.

    classes     (K,) sorted, text or numbers
    counts      (K,) sequences of each that were learnt from
    channels    names
    symbols     the vocabulary; empty where steps are numbers
    rate        samples a second, of audio
    reading     how a file was read: the options of `conca.data.labelled_source.read_labelled` that were given
    source      what was read, a line
    features    columns of a two-dimensional array that was fitted: how many, or their names; None for other input
    """

    config: ClassifyConfig
    network: ClassifyNetwork
    classes: NDArray[Any]
    counts: NDArray[np.int64]
    channels: tuple[str, ...]
    symbols: tuple[str, ...]
    rate: float | None
    reading: dict[str, Any]
    source: str
    features: Features
    scores: pd.DataFrame
    evaluation: Labels | None
    history: pd.DataFrame = field(default_factory=pd.DataFrame)


def write_label_run(folder: Path, run: LabelRun) -> None:
    """Write all files of a run into a folder."""
    run.history.to_csv(folder / "metrics.csv", index=False)
    if len(run.scores):
        run.scores.to_csv(folder / "scores.csv")
    write_tensors(folder / "model.safetensors", run.network.state_dict())
    if run.evaluation is not None:
        write_tensors(folder / "evaluation.safetensors", run.evaluation.tensors())
    parts = {
        "conca": conca.__version__,
        "classify": run.config.as_dict(),
        "network": run.network.config.as_dict(),
        "classes": run.classes.tolist(),
        "counts": run.counts.tolist(),
        "channels": list(run.channels),
        "symbols": list(run.symbols),
        "rate": run.rate,
        "reading": run.reading,
        "source": run.source,
        "features": list(run.features) if isinstance(run.features, tuple) else run.features,
    }
    write_config(folder, "classify", parts)


def read_label_run(folder: Path) -> LabelRun:
    """Read a run folder. Raises BadInput, one line, for what is no run, of a newer format or another kind, or not whole."""
    saved = described(folder, "classify", PARTS)
    with understood(folder / "config.json"):
        config = ClassifyConfig.from_dict(saved["classify"])
        form = ClassifyNetworkConfig.from_dict(saved["network"])
        check_parts(config, form, saved)
        with torch.inference_mode(False), seeded(0):
            network = ClassifyNetwork(form)
    load_tensors(network, folder / "model.safetensors")
    classes = [str(name) for name in saved["classes"]]
    return LabelRun(
        config,
        network.eval(),
        classes=np.array(saved["classes"]),
        counts=np.array(saved["counts"], dtype=np.int64),
        channels=tuple(saved["channels"]),
        symbols=tuple(saved["symbols"]),
        rate=saved["rate"],
        reading=dict(saved["reading"]),
        source=saved["source"],
        features=tuple(saved["features"]) if isinstance(saved["features"], list) else saved["features"],
        scores=read_scores(folder / "scores.csv", ["answer"], COLUMNS, optional=True),
        evaluation=read_labels(folder / "evaluation.safetensors", classes),
        history=read_history(folder / "metrics.csv"),
    )


def check_parts(config: ClassifyConfig, network: ClassifyNetworkConfig, saved: dict[str, Any]) -> None:
    """Raise BadInput unless the parts of a saved classifier fit each other."""
    classes, counts, rate = saved["classes"], saved["counts"], saved["rate"]
    for name in ("layers", "d_model", "dropout", "bidirectional"):
        damaged(getattr(config, name) == getattr(network, name), f"network.{name} is {getattr(network, name)!r}")
    plain = len({type(c) for c in classes}) == 1 and isinstance(classes[0], (str, int, float))
    damaged(plain and len(set(classes)) == len(classes) == network.classes, "classes must be different names")
    whole = all(type(count) is int and 0 < count < 2**53 for count in counts)
    damaged(whole and len(counts) == len(classes), "counts must be a whole number for each class")
    damaged(all(isinstance(c, str) for c in (*saved["channels"], *saved["symbols"])), "channels and symbols are texts")
    damaged(len(saved["channels"]) == network.channels, "channels and network.channels differ")
    damaged(len(saved["symbols"]) == network.symbols, "symbols and network.symbols differ")
    damaged(rate is None or (isinstance(rate, (int, float)) and 0 < rate < 1e12), f"rate is {rate!r}")
    damaged(isinstance(saved["reading"], dict), "reading is no table of options")
    damaged(isinstance(saved["source"], str), "source is no text")
    features = saved["features"]
    named = isinstance(features, list) and features != [] and all(isinstance(name, str) for name in features)
    damaged(features is None or type(features) is int or named, f"features is {features!r}")


def read_labels(path: Path, classes: list[str]) -> Labels | None:
    """What was said of the sequences held out; None if there were none. Raises BadInput if it is damaged."""
    if not path.exists():
        return None
    with located(path):
        return Labels.from_tensors(read_tensors(path), classes)
