"""`conca generate`: a language model writes on, token by token."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from conca.cli.kind import given
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
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.estimators.language import LanguageModel
    from conca.infer.generating import Generation
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

    With --state a text is gone on with later, and nothing is read twice: the file holds the state of the layers.
    """
    if samples < 1:
        raise BadInput(f"--samples must be at least 1, not {samples}")
    prompts = [sys.stdin.read() if text == "-" else text for text in prompt or []]
    if (prompt or []).count("-") > 1:
        raise BadInput("-p -: stdin can be read once; name the other prompts")
    check_prompts(prompts, state)
    check_save(save, quantize)
    options = given(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, num_beams=beams,
        repetition_penalty=repetition_penalty, seed=seed, stop=None if stop is None else tuple(stop),
    )  # fmt: skip
    model = opened(run, quantize=quantize, tokenizer=tokenizer, revision=revision, quiet=quiet)
    saved(model, save, quantize, quiet)
    how = model.sampling(**options)
    past = loaded(state, model)
    shown = ["" for _ in range(len(past))] if past is not None and not prompts else prompts
    found = written(model, shown, how, past, samples, streamed=not as_json, echo=echo)
    if state is not None:
        found.past.save(state, model)
    if as_json:
        for place, row in enumerate(found.rows):
            line = {"prompt": shown[place * len(shown) // len(found.rows)], "text": row.text, "ended": row.reason}
            print(json.dumps(line, ensure_ascii=False))
    if not quiet:
        notice(found.rate.line())


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


def written(
    model: LanguageModel,
    prompts: list[str],
    how: Sampling,
    past: Past | None,
    samples: int,
    *,
    streamed: bool,
    echo: bool,
) -> Generation:
    """Write, and print: one text as it comes, several one after the other."""
    from conca.infer.generating import Writer

    tokens: list[Any] = [model.encoded(text, opening=past is None) if text else [] for text in prompts]
    writer = Writer(model, tokens, how, past=past, samples=samples, tokenizer=model.tokenizer)
    alone = len(tokens) * samples == 1 and how.num_beams == 1
    try:
        if streamed and alone and echo:
            say(prompts[0])
        for piece in writer:
            if streamed and alone:
                say(piece.text)
    except KeyboardInterrupt:
        pass
    found = writer.result()
    if streamed and alone:
        say("\n")
    elif streamed:
        texts = [str(row.text) for row in found.rows]
        heads = [prompts[place * len(prompts) // len(texts)] if echo else "" for place in range(len(texts))]
        say("\n---\n".join(head + text for head, text in zip(heads, texts)) + "\n")
    return found


def say(text: str) -> None:
    """To stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
