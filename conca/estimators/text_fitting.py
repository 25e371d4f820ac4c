"""A training on text as a whole: what is learnt, stopped by and judged, and what comes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from conca.data.corpus import Corpus, open_text
from conca.data.jsonl import Rows
from conca.data.tokenizer import ByteTokenizer, Tokenizer, check_vocab, read_tokenizer
from conca.estimators import adapters
from conca.estimators.arguments import check_switches, folder_of
from conca.estimators.encoding_bar import encoding_bar
from conca.estimators.text_config import TextConfig
from conca.estimators.text_judging import judge
from conca.estimators.text_memory import estimated, free, size
from conca.estimators.text_positions import by_position
from conca.estimators.text_runs import TextRun, write_text_run
from conca.estimators.training import trainer
from conca.estimators.workplace import workplace
from conca.layers.quantised import kind_of
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.run import check_free
from conca.train.passages import Passages
from conca.train.ranks import first
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

__all__ = ["Start", "TextPlan", "fit_text", "plan"]

VALIDATION, MOST = 20, 2**16
"""What is learnt by validates: one part of so many of the text to learn from, and no more tokens than this."""
LARGE = 2**25
"""From so many parameters on no average of the weights is kept: it takes their memory once more."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """What goes on learning.

    network     it is trained in place, in float32
    tokenizer   whose tokens it knows; None: that of the user, or bytes
    name        what the user called it
    generation  how it wants to be sampled, as a generation_config.json says it
    family      that of a published checkpoint, which names the parts of an adapter: "mamba", "mamba2", "falcon_mamba", "mamba3"
    """

    network: LanguageNetwork
    tokenizer: Tokenizer | None
    name: str
    family: str | None = None
    generation: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextPlan:
    """Which tokens are learnt, stopped by (maybe none) and held out (maybe none).

    offsets   where rows begin, if the text is made of rows
    """

    train: range
    validation: range
    test: range
    offsets: NDArray[np.int64] | None


def plan(text: Corpus | Rows, config: TextConfig) -> TextPlan:
    """The end is held out; of the rest, the end validates, unless that is less than a passage or a row."""
    train, test = text.split(config.held_out(text.n_bytes))
    count = min(len(train) // VALIDATION, MOST)
    offsets = np.asarray(text.offsets) if isinstance(text, Rows) else None
    cut = train.stop - (count if count > config.length or offsets is not None else 0)
    if offsets is not None:
        cut = int(offsets[max(int(np.searchsorted(offsets, cut)), 1)])
    return TextPlan(range(cut), range(cut, train.stop), test, offsets)


def fit_text(
    source: Any,
    config: TextConfig,
    out: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    start: Start | None = None,
    progress: bool = False,
    force: bool = False,
    resume: bool = False,
    say: Say = lambda line: None,
) -> TextRun:
    """Train a language model on text, and judge it on the end of it, beside compressors.

    Args:
        source: the path of a file or a folder of text, or of `.jsonl` with `text`, or `prompt` and `completion`; or several.
        config: how.
        out: run folder to write; None: keep the model in memory alone.
        tokenizer: a tokenizer.json, or a folder with one; None: that of `start`, or bytes.
        start: what goes on learning; None: a new network.
        progress: show bars on stderr, of the encoding and of the training.
        force: replace the run folder if it exists.
        resume: go on with a training for `out` that was killed or interrupted; it ends as if it had not been.
        say: is told, before the training, what it reads, and what memory and how many steps it will take.

    Raises:
        BadInput: one line, for text that cannot be read or used, tokens that are not those of the network, a folder that exists.
    """
    check_switches(progress=progress, force=force, resume=resume)
    if config.lora is not None and start is None:
        raise BadInput(
            "an adapter (lora, --lora) goes beside a network that was trained; say which one goes on (--from)"
        )
    if start is not None and kind_of(start.network) is not None:
        raise BadInput(
            f"{start.name}: its weights were narrowed to {kind_of(start.network)} (--quantize), and these cannot learn; "
            "name the one it was made of"
        )
    if out is not None and first():
        check_free(folder_of(out), force, resume)
    with encoding_bar(progress and first()) as told:
        text = open_text(source, tokenizer_of(tokenizer, start), cache_of(), progress=told)
    network = new_network(config, text.tokenizer) if start is None else start.network.to(torch.float32)
    if start is not None:
        check_vocab(text.tokenizer, network.config.vocab_size)
    with torch.inference_mode(False), torch.enable_grad():
        if config.lora is not None:
            adapters.lora(network, config.lora, seed=config.random_state, family=start.family if start else None)
        said = stamped(config, text, start, str(tokenizer or ""))
        with workplace(out, force, resume, said) as folder:
            run = learn(config, text, network, start, folder, progress=progress, resume=resume, say=say)
            if out is not None and first():
                write_text_run(folder, run)
    return run


def learn(
    config: TextConfig,
    text: Corpus | Rows,
    network: LanguageNetwork,
    start: Start | None,
    folder: Path,
    *,
    progress: bool,
    resume: bool,
    say: Say,
) -> TextRun:
    """Train a network, take the adapter into it if there is one, and judge it. Raises BadInput if nothing is left to learn."""
    parts = plan(text, config)
    try:
        passages = Passages(
            text,
            parts.train.start,
            parts.train.stop,
            parts.offsets,
            length=config.length,
            batch_size=config.batch_size,
            seed=config.random_state,
        )
    except ValueError:
        raise BadInput(f"{text.source}: there are no two tokens to learn from; give more text") from None
    recipe = recipe_of(config, passages, network, goes_on=start is not None)
    for line in before(config, text, parts, network, passages, recipe):
        say(line)
    checks = (parts.validation.start, parts.validation.stop) if len(parts.validation) else None
    trained = trainer("text")(
        network.train(), text, passages, checks, parts.offsets, recipe, folder, progress=progress, resume=resume
    )
    family = start.family if start else None
    if config.lora is not None:
        if first():
            adapters.save_adapter(network, folder / "adapter", family=family, base=start.name if start else "")
        adapters.merge(network)
    scores, notices = judge(network, text, parts.test, config.length)
    return TextRun(
        config,
        network.eval(),
        text.tokenizer,
        source=text.source,
        start=start.name if start else "",
        family=family,
        generation=start.generation if start else {},
        scores=scores,
        positions=by_position(network, text, parts.test),
        history=pd.DataFrame(trained.history),
        notices=notices,
    )


def tokenizer_of(tokenizer: str | Path | None, start: Start | None) -> Tokenizer:
    """Whose tokens are learnt. Raises BadInput if there are two of them."""
    if start is not None and start.tokenizer is not None:
        if tokenizer is not None:
            raise BadInput(f"{start.name} has a tokenizer of its own; leave the other (--tokenizer) out")
        return start.tokenizer
    return ByteTokenizer() if tokenizer is None else read_tokenizer(tokenizer)


def cache_of() -> Path:
    """Where the tokens of large texts are kept between one training and the next."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "conca" / "text"
    root.mkdir(parents=True, exist_ok=True)
    return root


def new_network(config: TextConfig, tokenizer: Tokenizer) -> LanguageNetwork:
    """A network for the tokens of this, its first weights by the seed."""
    described = LanguageConfig(
        vocab_size=tokenizer.size,
        n_tokens=tokenizer.size,
        layers=config.layers,
        d_model=config.d_model,
        dropout=config.dropout,
    )
    with seeded(config.random_state):
        return LanguageNetwork(described).to(torch.float32)


def recipe_of(config: TextConfig, passages: Passages, network: LanguageNetwork, *, goes_on: bool) -> Recipe:
    """How to train by these options."""
    epochs, steps = config.course(passages.each)
    return Recipe(
        lr=config.rate(goes_on),
        weight_decay=config.weight_decay,
        epochs=epochs,
        steps=steps,
        patience=config.patience,
        max_minutes=config.max_minutes,
        seed=config.random_state,
        devices=config.devices,
        precision=config.precision,
        average=not goes_on and sum(p.numel() for p in network.parameters()) < LARGE,
    )


def before(
    config: TextConfig,
    text: Corpus | Rows,
    parts: TextPlan,
    network: LanguageNetwork,
    passages: Passages,
    recipe: Recipe,
) -> list[str]:
    """What the user should know before it begins: what is read, what memory it takes, how many steps there are."""
    learnt = sum(p.numel() for p in network.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in network.parameters())
    lines = [
        f"{text.source}; learnt: {len(parts.train):,} tokens, {len(parts.validation):,} more decide when to stop, "
        f"{text.bytes_between(parts.test.start, parts.test.stop):,} bytes are held out"
    ]
    copies = int(recipe.average) + int(len(parts.validation) > 0)
    one = passages.batch(0, 0, passages.batch_size)  # a passage of it
    memory = estimated(network, one, passages.batch_size, copies=copies)
    lines.append(f"{memory.line()}; {learnt:,} of {whole:,} parameters are learnt")
    left = free()
    if left is not None and memory.total - memory.weights > left:
        mend = "a smaller batch (--batch-size), shorter passages (--length)"
        mend += "" if config.lora is not None or recipe.average else " or an adapter (--lora 8)"
        lines.append(f"this machine has {size(left)} left, which is less: {mend} will help")
    tokens = passages.batch_size * passages.length
    until = f"for {config.max_minutes:g} minutes" if config.max_minutes else f"at most {recipe.last:,} of them"
    lines.append(f"steps: {tokens:,} tokens each, {passages.each:,} read the whole text once; {until}")
    return lines


def stamped(config: TextConfig, text: Corpus | Rows, start: Start | None, tokenizer: str) -> dict[str, Any]:
    """What a training may only be taken up again with."""
    options = config.as_dict() | {"from": start.name if start else "", "tokenizer": tokenizer}
    plain: dict[str, Any] = json.loads(json.dumps({"options": options}))
    return plain | {"data": text.stamp()}
