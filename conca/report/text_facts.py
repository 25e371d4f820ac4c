"""What a language model is: the verdict on it first, beside compressors, then what it read, its layers, and how it learnt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from conca.data.tokenizer import ByteTokenizer
from conca.estimators.text_config import TextConfig
from conca.estimators.text_runs import TextRun
from conca.layers.quantised import kind_of
from conca.models.costs import bytes_of, parameters
from conca.report.drawing import COLOURS, INK, SOFT, TEXT, canvas, label, svg_of
from conca.report.page import Chapter, Picture, Table, short
from conca.report.words import aligned, number, percent, size

__all__ = ["bars", "chapter", "facts", "verdict"]

TITLE = "How good it is, and what it is"
MODEL, BITS, BYTES = "model", "bits per byte", "bytes"
READING = (
    "Bits for each byte of the text that was held out, of which nothing was learnt: lower is better; text as it lies takes 8. A "
    "compressor begins with the first byte that it is judged on, and learns as it goes; the model has learnt before."
)
NOTHING = (
    "No text was held out, so there is nothing to judge: hold some of it out (--test-fraction) to see bits per byte."
)
ELSEWHERE = (
    "These weights were learnt elsewhere: conca knows of no text that was held out. conca score judges them on one."
)
ALONE = "Judged on completions alone, each after its prompt; there is no compressor beside it, since none of them can be told a prompt."
PART = "{names}: judged on the first {size} of it alone."
ALIKE = 0.005
"""Numbers of bits that differ by a smaller share are about the same."""
ADVICE = "A longer training (--epochs, --max-minutes), a wider network (--d-model) or more text may help."
NARROW = {None: "", "int8": ", products in int8", "bfloat16": ", products in bfloat16"}


def verdict(scores: pd.DataFrame) -> str:
    """The model's bits for each byte beside those of the best compressor, in a sentence; "" if it was not judged.

    scores  as `TextRun` has them
    """
    if MODEL not in scores.index or not np.isfinite(own := float(scores[BITS][MODEL])):
        return ""
    others = scores[BITS].drop(MODEL).dropna()
    if not len(others):
        return f"The model needs {number(own)} bits for each byte."
    name, best = str(others.idxmin()), float(others.min())
    own_said, said = aligned([own, best])
    if abs(own - best) <= ALIKE * best:
        return f"About as good as a compressor: the model needs {own_said} bits for each byte, {name} {said}. {ADVICE}"
    if own < best:
        lower = percent(1 - own / best)
        return (
            f"The model needs {own_said} bits for each byte, {lower} fewer than the best compressor, {name} ({said})."
        )
    higher = percent(own / best - 1)
    return (
        f"A compressor is better: {name} needs {said} bits for each byte, the model {own_said}, {higher} more. {ADVICE}"
    )


def opening(run: TextRun) -> Iterator[str | Table | Picture]:
    """The verdict, the bits, and what they mean."""
    scores = run.scores
    if not (said := verdict(scores)):
        yield ELSEWHERE if run.config is None else NOTHING
        return
    yield said
    order = scores.sort_values(BITS, kind="stable")
    bits, length = aligned(order[BITS].tolist()), float(scores[BYTES][MODEL])
    rows = [[short(name), each, size(each_of)] for name, each, each_of in zip(order.index, bits, order[BYTES])]
    yield Table(["answer of", BITS, "judged on"], rows)
    if len(scores) == 1:
        yield ALONE
        return
    if part := [str(name) for name in scores.index if scores[BYTES][name] < length]:
        first = size(float(scores[BYTES][part[0]]))
        yield PART.format(names=" and ".join(part), size=first)
    yield bars(order)
    yield READING


def bars(scores: pd.DataFrame) -> Picture:
    """Bits for each byte as bars, one below the other in the order given, the model's in its colour."""
    names, values = [str(name) for name in scores.index], scores[BITS].to_numpy(np.float64)
    said, places = aligned(values.tolist()), np.arange(len(names))
    figure, (axes,) = canvas(height=0.55 + 0.38 * len(names))
    axes.barh(places, values, height=0.6, color=[COLOURS[0] if name == MODEL else SOFT for name in names])
    for place, value, text in zip(places, values, said):
        axes.text(value, float(place), f" {text}", va="center", fontsize=TEXT, color=INK, parse_math=False)
    axes.set_yticks(places, names, fontsize=TEXT, color=INK, parse_math=False)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlim(0, 1.18 * float(values.max()) or 1.0)
    label(axes, BITS, "")
    words = ", ".join(f"{name} {text}" for name, text in zip(names, said))
    return Picture(svg_of(figure, "bits"), f"Bits for each byte: {words}.", f"Bits for each byte held out: {words}.")


def facts(run: TextRun) -> list[tuple[str, str]]:
    """What was read, what the network is, where it started from and how it learnt, in words."""
    form, network = run.network.config, run.network
    tied = "the embedding is also the head" if form.tied else "embedding and head apart"
    kind = kind_of(network)
    rows = [
        ("text", short(run.source, 400)),
        ("tokens", tokens(run)),
        ("layers", f"{short(form.layers, 300)}"),
        ("width", f"{form.d_model:,}; {tied}"),
        ("parameters", f"{parameters(network):,}, {size(bytes_of(network))}{NARROW.get(kind, '')}"),
        ("family", run.family or ""),
        ("started from", short(run.start, 300) or fresh(run.config)),
        ("learnt", "" if run.config is None else course(run.config, run.history, bool(run.start))),
    ]
    return [(name, said) for name, said in rows if said]


def tokens(run: TextRun) -> str:
    """What the text is made of."""
    form = run.network.config
    if isinstance(run.tokenizer, ByteTokenizer):
        return "bytes, without a tokenizer"
    padded = f", in a table of {form.vocab_size:,} rows" if form.n_tokens < form.vocab_size else ""
    named = "of no tokenizer that is known" if run.tokenizer is None else f"of {short(run.tokenizer.name, 80)}"
    return f"{form.n_tokens:,} {named}{padded}"


def fresh(config: TextConfig | None) -> str:
    """Where a network started that went on from nothing."""
    return "" if config is None else f"nothing: first weights by the seed {config.random_state}"


def course(config: TextConfig, history: pd.DataFrame, goes_on: bool) -> str:
    """How the training went: steps, passages, rate."""
    last = int(history["step"].max()) if "step" in history and history["step"].notna().any() else None
    steps = "" if last is None else f"{last:,} steps of "
    said = f"{steps}{config.batch_size:,} passages of {config.length:,} tokens; AdamW, rate up to {config.rate(goes_on):g}, "
    said += f"weight decay {config.weight_decay:g}, dropout {config.dropout:g}"
    if config.max_minutes is not None:
        said += f"; {config.max_minutes:g} minutes at most"
    if config.lora is not None:
        said += f"; an adapter of rank {config.lora} learnt, and was taken into the weights"
    return said


def chapter(run: TextRun) -> Chapter:
    """Verdict and scores, facts; of weights from elsewhere also what was said when they were read."""
    said = [str(line) for line in run.notices] if run.config is None else []
    return Chapter(TITLE, [*opening(run), Table(["", ""], facts(run), words=2), *said])
