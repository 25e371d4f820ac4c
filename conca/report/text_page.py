"""The report of a language model: every chapter from what its run keeps, and a text that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import conca
from conca.data.grid import Grid
from conca.data.tokenizer import ByteTokenizer
from conca.estimators.text_runs import TextRun
from conca.report import holds, memory, surprise, text_facts, text_sample, text_training
from conca.report.page import Chapter, Page, short

if TYPE_CHECKING:
    from conca.estimators.language import LanguageModel

__all__ = ["page", "run_of"]

READING = (
    "This is read from the weights of the layers; a row is one {token} of the text. Layers whose memory fades at a rate of its own keep "
    "what they read for some of their time scales. Attention without a window keeps everything."
)


def page(run: TextRun) -> Page:
    """All chapters; of weights that were learnt elsewhere, those that can be known."""
    bytewise = isinstance(run.tokenizer, ByteTokenizer)
    width = 1 if bytewise else 4 if run.tokenizer is None else run.tokenizer.dtype.itemsize
    training = [] if run.config is None else [text_training.chapter(run.history, bytewise, run.config.dropout)]
    chapters = [
        text_facts.chapter(run),
        *training,
        *([surprise.chapter(run.positions, best(run))] if len(run.positions) else []),
        text_sample.chapter(run),
        remembered(run, "byte" if bytewise else "token"),
        holds.chapter(run.network, width),
    ]
    form = run.network.config
    line = f"{short(form.layers, 200)}, width {form.d_model}; conca {conca.__version__}"
    return Page(title(run), line, chapters)


def run_of(model: LanguageModel) -> TextRun:
    """The run that a model was read from; of published weights, what is known of them."""
    if model.run is not None:
        return model.run
    return TextRun(
        None,
        model,
        model.tokenizer,
        source="",
        family=model.family,
        generation=model.generation,
        notices=model.notices,
    )


def title(run: TextRun) -> str:
    """What the model knows of: the text, by the beginning of its line, or the family of published weights."""
    if run.source:
        return f"A language model of {short(run.source.split(':')[0], 60)}"
    return f"A language model: {short(run.family or run.network.config.layers, 60)}"


def best(run: TextRun) -> tuple[str, float] | None:
    """Name and bits for each byte of the best compressor."""
    if not len(run.scores):
        return None
    others = run.scores["bits per byte"].drop("model", errors="ignore").dropna()
    return (str(others.idxmin()), float(others.min())) if len(others) else None


def remembered(run: TextRun, token: str) -> Chapter:
    """What the weights say of memory."""
    return Chapter(memory.TITLE, [READING.format(token=token), *memory.weights(run.network.stack, Grid())])
