"""`conca generate`: a language model writes on, token by token."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from conca.cli.language import (
    ID,
    MaxNewTokens,
    MinP,
    Penalty,
    Quantize,
    Quiet,
    Revision,
    Save,
    Seed,
    Stop,
    Temperature,
    Tokenizer,
    TopK,
    TopP,
    check_save,
    opened,
    saved,
)  # fmt: skip
from conca.cli.screen import notice
from conca.cli.signals import Signals
from conca.types import BadInput, path_of

if TYPE_CHECKING:
    from conca.estimators.language import LanguageModel
    from conca.infer.generating import Generation, Writer
    from conca.infer.past import Past
    from conca.infer.sampling import Sampling

__all__ = ["generate"]


def generate(
    run: ID,
    prompt: Annotated[
        list[str] | None,
        Option(
            "-p", "--prompt", metavar="TEXT", help="What to go on from; - reads it from stdin; again: several at once."
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = None,
    seed: Seed = None,
    stop: Stop = None,
    samples: Annotated[int, Option(metavar="N", help="Texts for each prompt, written in one batch.")] = 1,
    beams: Annotated[
        int | None, Option(metavar="N", help="Beam search: the likeliest text among N that are followed at once.")
    ] = None,
    state: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Go on from what this file holds, if it is there, and keep in it where the text ends."
        ),
    ] = None,
    echo: Annotated[bool, Option("--echo", help="Print the prompt, too.")] = False,
    as_json: Annotated[
        bool, Option("--json", help="One line of JSON for each text: prompt, text, why it ended.")
    ] = False,
    quantize: Quantize = None,
    save: Save = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    quiet: Quiet = False,
) -> None:
    """Write on from a prompt; text goes to stdout as it comes.

    A model writes tokens: bytes, or words and their parts, as its tokenizer has them. What is not said here is as the model's
    generation_config.json says; without one the likeliest token is taken each time (--temperature 0.8 draws). Several texts come one
    after the other, with a line --- between them. The rate goes to stderr.

    With --state a text is gone on with later, and nothing is read twice: the file holds the state of the layers. It is kept on
    Ctrl-C and SIGTERM, too, and where the reader of stdout leaves, as it is after what was written until then.
    """
    if samples < 1:
        raise BadInput(f"--samples must be at least 1, not {samples}")
    if sys.stdin is None and "-" in (prompt or []):
        raise BadInput("stdin is closed; send the prompt to it, or give it after -p")
    state = None if state is None else path_of(state)
    prompts = [sys.stdin.read() if text == "-" else text for text in prompt or []]
    if (prompt or []).count("-") > 1:
        raise BadInput("-p -: stdin can be read once; name the other prompts")
    check_prompts(prompts, state)
    check_save(save, quantize)
    model = opened(run, quantize=quantize, tokenizer=tokenizer, revision=revision, quiet=quiet)
    saved(model, save, quantize, quiet)
    how = model.sampling(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, stop=stop, num_beams=beams,
    )  # fmt: skip
    past = loaded(state, model)
    shown = ["" for _ in range(len(past))] if past is not None and not prompts else prompts
    writer = writer_of(model, shown, how, past, samples)

    def keep() -> None:
        if state is not None:
            writer.result().past.save(state, model)

    with Signals() as signals:
        found = written(writer, shown, signals, keep, echo=echo, as_json=as_json)
        keep()
        if not quiet:
            notice(found.rate.line())
    signals.obey()


def check_prompts(prompts: list[str], state: Path | None) -> None:
    """Raise BadInput where there is nothing to go on from."""
    begun = state is not None and state.exists()
    if not prompts and not begun:
        raise BadInput('-p is missing: give a prompt, such as -p "Once upon a time", or - to read it from stdin')
    if not begun and not all(prompts):
        raise BadInput("-p: the prompt is empty; give at least one character to go on from")
    if state is not None and (state.is_dir() or not os.access(state.parent, os.W_OK)):
        raise BadInput(f"{state}: cannot be written; name a file in a folder that is there")


def loaded(state: Path | None, model: LanguageModel) -> Past | None:
    """What a file holds of a text; None if there is no such file. Raises BadInput if it is damaged, or of another model."""
    from conca.infer.past import Past

    return Past.load(state, model) if state is not None and state.exists() else None


def writer_of(model: LanguageModel, prompts: list[str], how: Sampling, past: Past | None, samples: int) -> Writer:
    """What writes; it has read nothing yet."""
    from conca.infer.generating import Writer

    tokens: list[Any] = [model.encoded(text, opening=past is None) if text else [] for text in prompts]
    return Writer(model, tokens, how, past=past, samples=samples, tokenizer=model.tokenizer)


def written(
    writer: Writer, prompts: list[str], signals: Signals, keep: Callable[[], None], *, echo: bool, as_json: bool
) -> Generation:
    """Write until the end or a signal, and print: one text as it comes, several, and lines of JSON, one after the other.

    Nothing is lost by a signal before the first piece is there, so it is obeyed at once. Where stdout takes no more (its reader has
    left, the disk is full), what was written is kept if some of it was printed.
    """
    alone = len(writer.texts) == 1 and writer.sampling.num_beams == 1 and not as_json
    printed = 0
    signals.waiting = True
    try:
        if alone and echo:
            say(prompts[0])
        for piece in writer:
            signals.waiting = False
            if alone:
                say(piece.text)
                printed += len(piece.text)
            if signals.signal:
                break
        signals.waiting = False
        found = writer.result()
        say(shown_as(found, prompts, printed, alone=alone, echo=echo, as_json=as_json) + "\n")
    except OSError:
        if printed:
            keep()
        raise
    return found


def shown_as(found: Generation, prompts: list[str], printed: int, *, alone: bool, echo: bool, as_json: bool) -> str:
    """What is still to be printed: of a text that was broken off, what might have become a stop string; of several, all."""
    if alone:
        return (found.rows[0].text or "")[printed:]
    texts = [(prompts[place * len(prompts) // len(found.rows)], row) for place, row in enumerate(found.rows)]
    if as_json:
        lines = ({"prompt": prompt, "text": row.text, "ended": row.reason} for prompt, row in texts)
        return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    return "\n---\n".join(prompt * echo + str(row.text) for prompt, row in texts)


def say(text: str) -> None:
    """To stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
