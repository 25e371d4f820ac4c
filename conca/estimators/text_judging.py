"""What a language model is worth on text that was held out: bits for each byte, beside those of compressors."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from conca.data.corpus import Corpus
from conca.data.jsonl import Rows
from conca.estimators.text_runs import COLUMNS
from conca.infer.scoring import Scored, Tally, score
from conca.metrics.compressors import compressed
from conca.models.language import LanguageNetwork

__all__ = ["MODEL", "judge", "losses", "scored"]

MODEL = "model"
LOOKED_AT = 4096
"""Words by which a tokenizer that loses text is known."""


def judge(network: LanguageNetwork, text: Corpus | Rows, test: range, length: int) -> tuple[pd.DataFrame, list[str]]:
    """Bits for each byte of the text held out, of the model and of compressors, and what to tell the user of them.

    The state goes on over the whole text. A network whose state would grow reads windows of `length` tokens, each of which begins half
    a window earlier than what is counted of it.
    """
    if not len(test):
        return pd.DataFrame(), ["no text is held out, so there are no scores"]
    tally = Tally()
    for block in scored(network, text, test, length):
        tally.add(block, text.sizes(block.begin, block.begin + len(block.ids)))
    rows = {MODEL: (tally.bits_per_byte, float(tally.bytes))}
    lost = losses(text, test)
    if isinstance(text, Rows) and text.completions:
        notices = ["judged: the completions alone; what compressors make of them, without their prompts, says little"]
    else:
        packed, notices = compressed(text.blocks(test.start, test.stop), text.bytes_between(test.start, test.stop))
        rows |= {each.name: (each.bits_per_byte, float(each.n_bytes)) for each in packed}
    scores = pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("answer")
    best = str(scores["bits per byte"].idxmin())
    if best != MODEL:
        notices.append(f"'{best}' needs fewer bits than the model, which wants a longer training, or more text")
    return scores, [*lost, *notices]


def losses(text: Corpus | Rows, part: range) -> list[str]:
    """A line where a tokenizer does not give back what it was given, by the beginning of a part of the text."""
    ids = text.read(part.start, min(part.start + LOOKED_AT, part.stop))
    raw = text.raw(part.start, part.start + len(ids)).decode("utf-8", "replace")
    before, after = ("".join(some.replace("\ufffd", "").split()) for some in (raw, text.tokenizer.decode(ids)))
    if before == after or text.tokenizer.name == "bytes":
        return []
    return [
        f"the tokenizer {text.tokenizer.name} loses a part of the text (unknown or changed characters), which bits per byte do not pay for"
    ]


def scored(
    network: LanguageNetwork, text: Corpus | Rows, part: range, length: int, bos: int | None = None
) -> Iterator[Scored]:
    """Log-likelihoods of the tokens of a part of a text, in memory that does not grow with it; see `judge`."""
    begin = part.start if isinstance(text, Rows) or part.start == 0 else part.start - 1
    if network.bounded:
        return score(network, text, begin=begin, end=part.stop, bos=bos if part.start == 0 else None)
    return windows(network, text, part, length)


def windows(network: LanguageNetwork, text: Corpus | Rows, test: range, length: int) -> Iterator[Scored]:
    """Log-likelihoods of the tokens in `test`, each with half a window before it."""
    half = max(length // 2, 1)
    for at in range(test.start, test.stop, half):
        begin, end = max(at - half, 0), min(at + half, test.stop)
        for block in score(network, text, begin=begin, end=end, block=end - begin):
            yield Scored(at, block.ids[at - begin :], block.loglik[at - begin :])
