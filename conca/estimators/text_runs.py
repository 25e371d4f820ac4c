"""A language model that was trained on text, and to its run folder and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import conca
from conca.data.tokenizer import Tokenizer, check_vocab, read_tokenizer
from conca.estimators.run_files import damaged, described, located, read_history, read_scores, understood
from conca.estimators.text_config import TextConfig
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.run import load_tensors, write_config, write_tensors
from conca.train.seeds import seeded

__all__ = ["COLUMNS", "TextRun", "read_text_run", "write_text_run"]

PARTS = "conca", "text", "network", "source", "start", "family"
COLUMNS = "bits per byte", "bytes"
"""Of the scores: of the text held out, and how long it is."""


@dataclass(frozen=True)
class TextRun:
    """What a training on text ends with.

    tokenizer   whose words the network knows
    source      what was read, a line
    start       the checkpoint or run that went on learning; empty: the network was new
    family      that of the published checkpoint, if it was one
    scores      of the text held out, beside compressors; empty if none was
    history     what was logged after each epoch
    notices     lines for the user
    """

    config: TextConfig
    network: LanguageNetwork
    tokenizer: Tokenizer
    source: str
    start: str = ""
    family: str | None = None
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    notices: list[str] = field(default_factory=list)


def write_text_run(folder: Path, run: TextRun) -> None:
    """Write all files of a run into a folder; the network is one without adapters."""
    run.history.to_csv(folder / "metrics.csv", index=False)
    if len(run.scores):
        run.scores.to_csv(folder / "scores.csv")
    write_tensors(folder / "model.safetensors", run.network.state_dict())
    run.tokenizer.write(folder)
    parts: dict[str, Any] = {
        "conca": conca.__version__,
        "text": run.config.as_dict(),
        "network": run.network.config.as_dict(),
        "source": run.source,
        "start": run.start,
        "family": run.family,
    }
    write_config(folder, "text", parts)


def read_text_run(folder: Path) -> TextRun:
    """Read a run folder. Raises BadInput, one line, for what is no run, of a newer format or another kind, or not whole."""
    saved = described(folder, "text", PARTS)
    with understood(folder / "config.json"):
        config = TextConfig.from_dict(saved["text"])
        form = LanguageConfig.from_dict(saved["network"])
        for name in ("source", "start"):
            damaged(isinstance(saved[name], str), f"{name} is no text")
        damaged(saved["family"] is None or isinstance(saved["family"], str), "family is no text")
        with torch.inference_mode(False), seeded(0):
            network = LanguageNetwork(form).to(torch.float32)
    load_tensors(network, folder / "model.safetensors")
    with located(folder):
        tokenizer = read_tokenizer(folder)
        check_vocab(tokenizer, form.n_words)
    return TextRun(
        config,
        network.eval(),
        tokenizer,
        source=saved["source"],
        start=saved["start"],
        family=saved["family"],
        scores=read_scores(folder / "scores.csv", ["answer"], COLUMNS, optional=True),
        history=read_history(folder / "metrics.csv"),
    )
