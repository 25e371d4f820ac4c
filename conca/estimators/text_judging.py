"""What a language model is worth on text that was held out: bits for each byte, beside those of compressors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from conca.data.corpus import Corpus
from conca.data.jsonl import Rows
from conca.estimators.text_runs import COLUMNS
from conca.infer.scoring import Scored, Tally, score
from conca.metrics.compressors import compressed
from conca.models.language import LanguageNetwork

__all__ = ["MODEL", "judge"]

MODEL = "model"


def judge(network: LanguageNetwork, text: Corpus | Rows, test: range, length: int) -> tuple[pd.DataFrame, list[str]]:
    """Bits for each byte of the text held out, of the model and of compressors, and what to tell the user of them.

    The state goes on over the whole text. A network whose state would grow reads windows of `length` words, each of which begins half
    a window earlier than what is counted of it.
    """
    if not len(test):
        return pd.DataFrame(), ["no text is held out, so there are no scores"]
    tally = Tally()
    begin = test.start if isinstance(text, Rows) else test.start - 1
    found = (
        score(network, text, begin=begin, end=test.stop) if network.bounded else windows(network, text, test, length)
    )
    for scored in found:
        tally.add(scored, text.sizes(scored.begin, scored.begin + len(scored.ids)))
    rows = {MODEL: (tally.bits_per_byte, float(tally.bytes))}
    notices = []
    if isinstance(text, Rows) and text.completions:
        notices.append(
            "judged: the completions alone; what compressors make of them, without their prompts, says little"
        )
    else:
        packed, notices = compressed(text.blocks(test.start, test.stop), text.bytes_between(test.start, test.stop))
        rows |= {each.name: (each.bits_per_byte, float(each.n_bytes)) for each in packed}
    scores = pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("answer")
    best = str(scores["bits per byte"].idxmin())
    if best != MODEL:
        notices.append(f"'{best}' needs fewer bits than the model, which wants a longer training, or more text")
    return scores, notices


def windows(network: LanguageNetwork, text: Corpus | Rows, test: range, length: int) -> Iterator[Scored]:
    """Log-likelihoods of the words in `test`, each with half a window before it."""
    half = max(length // 2, 1)
    for at in range(test.start, test.stop, half):
        begin, end = max(at - half, 0), min(at + half, test.stop)
        for scored in score(network, text, begin=begin, end=end, block=end - begin):
            loglik = scored.loglik.copy()
            loglik[: at - begin] = np.nan
            yield Scored(begin, scored.ids, loglik)
