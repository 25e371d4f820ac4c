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
from conca.estimators.text_positions import BY_POSITION
from conca.layers.quantised import KINDS as NARROW
from conca.layers.quantised import kind_of
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.language_file import load_network, save_network
from conca.models.run import CONFIG, MODEL, write_config
from conca.train.seeds import seeded

__all__ = ["COLUMNS", "TextRun", "read_text_run", "write_text_run"]

PARTS = "conca", "text", "network", "tokenizer", "generation", "quantized", "source", "start", "family"
COLUMNS = "bits per byte", "bytes"
"""Of the scores: of the text held out, and how long it is."""


@dataclass(frozen=True)
class TextRun:
    """What a training on text ends with, or a language model that is kept.

    config      how it was trained; None: elsewhere
    tokenizer   whose tokens the network knows; None: nobody's
    source      what was read, a line
    start       the checkpoint or run that went on learning; empty: the network was new
    family      that of the published checkpoint, if it was one
    generation  how it wants to be sampled, as a generation_config.json says it
    scores      of the text held out, beside compressors; empty if none was
    positions   of the text held out, by how many tokens of it were read before; empty where that was not looked at
    history     what was logged after each epoch
    notices     lines for the user
    """

    config: TextConfig | None
    network: LanguageNetwork
    tokenizer: Tokenizer | None
    source: str
    start: str = ""
    family: str | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)
    positions: pd.DataFrame = field(default_factory=pd.DataFrame)
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    notices: list[str] = field(default_factory=list)


def write_text_run(folder: Path, run: TextRun) -> None:
    """Write all files of a run into a folder; the network is one without adapters."""
    if len(run.history):
        run.history.to_csv(folder / "metrics.csv", index=False)
    if len(run.scores):
        run.scores.to_csv(folder / "scores.csv")
    if len(run.positions):
        run.positions.to_csv(folder / "positions.csv", index=False)
    save_network(run.network, folder / MODEL)
    if run.tokenizer is not None:
        run.tokenizer.write(folder)
    parts: dict[str, Any] = {
        "conca": conca.__version__,
        "text": None if run.config is None else run.config.as_dict(),
        "network": run.network.config.as_dict(),
        "tokenizer": None if run.tokenizer is None else run.tokenizer.name,
        "generation": run.generation,
        "quantized": kind_of(run.network),
        "source": run.source,
        "start": run.start,
        "family": run.family,
    }
    write_config(folder, "text", parts)


def read_text_run(folder: Path, *, quantize: str | None = None) -> TextRun:
    """Read a run folder; `quantize` narrows the weights of products while they are read, to "int8" or "bfloat16".

    Raises:
        BadInput: one line, for what is no run, of a newer format or another kind, or not whole.
    """
    saved = described(folder, "text", PARTS)
    with understood(folder / CONFIG):
        config = None if saved["text"] is None else TextConfig.from_dict(saved["text"])
        form = LanguageConfig.from_dict(saved["network"])
        for name in ("source", "start"):
            damaged(isinstance(saved[name], str), f"{name} is no text")
        damaged(saved["family"] is None or isinstance(saved["family"], str), "family is no text")
        damaged(saved["quantized"] in (None, *NARROW), f"quantized is {saved['quantized']!r}")
        damaged(isinstance(saved["generation"], dict), "generation is no table of options")
    with torch.inference_mode(False), seeded(0):
        network = load_network(form, folder / MODEL, quantized=saved["quantized"], quantize=quantize)
    tokenizer = None
    if saved["tokenizer"] is not None:
        with located(folder):
            tokenizer = read_tokenizer(folder)
            check_vocab(tokenizer, form.vocab_size)
    return TextRun(
        config,
        network,
        tokenizer,
        source=saved["source"],
        start=saved["start"],
        family=saved["family"],
        generation=saved["generation"],
        scores=read_scores(folder / "scores.csv", ["answer"], COLUMNS, optional=True),
        positions=read_scores(folder / "positions.csv", BY_POSITION[:1], BY_POSITION[1:], optional=True).reset_index(),
        history=read_history(folder / "metrics.csv") if (folder / "metrics.csv").exists() else pd.DataFrame(),
    )
