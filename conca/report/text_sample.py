"""A text that the model writes, as it is: the same one at every run."""

from __future__ import annotations

import torch

from conca.data.tokenizer import ByteTokenizer, Tokenizer
from conca.estimators.text_runs import TextRun
from conca.infer.generating import generate
from conca.infer.sampling import Sampling
from conca.models.costs import parameters
from conca.report.page import Chapter, Quote
from conca.types import BadInput

__all__ = ["beginning", "chapter", "written"]

TITLE = "What it writes"
LENGTH, SEED, TEMPERATURE = 400, 0, 0.8
EACH = 4
"""Bytes that a token of a tokenizer stands for, about."""
WORK, LEAST = 2 * 10**10, 16
"""Multiply-adds of a text, at most, unless it would have fewer tokens than this."""
READING = "{count} {tokens} after {after}, drawn at a temperature of {temperature} with the seed {seed}; conca generate writes more."
ENDED = "Here the model ended the text by itself."
MARKS = "Bytes that are no text, and characters that cannot be seen, stand as marks."
NOTHING = "The model has no tokenizer, so what it writes is no text."


def chapter(run: TextRun) -> Chapter:
    """A text from a beginning that says nothing."""
    if run.tokenizer is None:
        return Chapter(TITLE, (NOTHING,))
    try:
        text, count, ended = written(run)
    except BadInput as error:  # weights that give no finite numbers
        return Chapter(TITLE, (f"It writes nothing: {error}.",))
    unit = ("byte" if isinstance(run.tokenizer, ByteTokenizer) else "token") + "s" * (count != 1)
    after = "a line's end" if beginning(run.tokenizer)[1] else "the begin of a text"
    said = READING.format(count=count, tokens=unit, after=after, temperature=TEMPERATURE, seed=SEED)
    quote = Quote(text)
    odd = "\ufffd" in text or quote.shown != text
    return Chapter(TITLE, [said, quote, *([MARKS] if odd else []), *([ENDED] if ended else [])])


def written(run: TextRun) -> tuple[str, int, bool]:
    """A text, of how many tokens it is, and whether the model ended it by itself. Raises BadInput if the network is broken."""
    assert run.tokenizer is not None
    ids, _ = beginning(run.tokenizer)
    most = LENGTH if isinstance(run.tokenizer, ByteTokenizer) else LENGTH // EACH
    most = max(min(most, WORK // max(parameters(run.network), 1)), LEAST)
    eos = () if run.tokenizer.eos is None else (run.tokenizer.eos,)
    sampling = Sampling(max_new_tokens=most, do_sample=True, temperature=TEMPERATURE, seed=SEED, eos=eos)
    prompt = torch.tensor([ids], dtype=torch.int64, device=run.network.norm.weight.device)
    (row,) = generate(run.network, prompt, sampling, tokenizer=run.tokenizer).rows
    return row.text or "", len(row.ids), row.reason == "eos"


def beginning(tokenizer: Tokenizer) -> tuple[list[int], bool]:
    """The tokens that a text follows that follows nothing: the begin of a text, else a line's end; and whether it is the latter."""
    if tokenizer.opening:
        return list(tokenizer.opening), False
    if ids := tokenizer.encode("\n").tolist():
        return ids, True
    return [0 if tokenizer.bos is None else tokenizer.bos], False
