"""`conca chat`: a talk with a model that was trained for it; one state holds all that was said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from conca.cli.generate import say
from conca.cli.language import (
    ID,
    MaxNewTokens,
    MinP,
    Penalty,
    Quantize,
    Quiet,
    Revision,
    Seed,
    Stop,
    Temperature,
    Tokenizer,
    TopK,
    TopP,
    opened,
)  # fmt: skip
from conca.cli.screen import notice
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.estimators.language import LanguageModel
    from conca.infer.talk import Talk

__all__ = ["chat"]

COMMANDS = "/undo takes the last turn back, /save FILE and /load FILE keep a talk, /exit ends it"


def chat(
    run: ID,
    system: Annotated[str | None, Option(metavar="TEXT", help="What the model is told first.")] = None,
    template: Annotated[
        Path | None, Option(metavar="FILE", help="Chat template (Jinja); default: that of the tokenizer.")
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = None,
    seed: Seed = None,
    stop: Stop = None,
    quantize: Quantize = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    quiet: Quiet = False,
) -> None:
    """Talk with a model, line by line; each line that is read from stdin is answered on stdout.

    The model's chat template says how turns are written. All that was said is held by one state: nothing is read twice. Ctrl-C
    ends an answer, /undo takes the last turn back, /save FILE and /load FILE keep the talk, /exit or the end of stdin ends it.
    """
    from conca.infer.talk import Talk

    model = opened(run, quantize=quantize, tokenizer=tokenizer, revision=revision, quiet=quiet)
    own = model.tokenizer
    if own is None:
        raise BadInput(f"{run}: has no tokenizer; name one with --tokenizer")
    how = model.sampling(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, stop=stop,
    )  # fmt: skip
    talk = Talk(model, own, template_of(run, model, template), how, system=system)
    if not quiet:
        notice(COMMANDS)
    for line in lines():
        if line.startswith("/"):
            if not obeyed(talk, line):
                break
        else:
            answer(talk, line, quiet)


def template_of(run: str, model: LanguageModel, file: Path | None) -> str:
    """The template to use. Raises BadInput where there is none."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{file}: cannot be read as a template ({' '.join(str(error).split())})") from None
    found = None if model.tokenizer is None else model.tokenizer.chat_template
    if not found:
        raise BadInput(
            f"{run}: has no chat template, so it was not trained to talk; use conca generate, or --template FILE"
        )
    return found


def lines() -> Iterator[str]:
    """What is typed, without empty lines; at a terminal a sign asks for it."""
    if sys.stdin is None:
        raise BadInput("stdin is closed; send what you say to it, line by line")
    asked = sys.stdin.isatty()
    while True:
        if asked:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def obeyed(talk: Talk, line: str) -> bool:
    """Do what a line that begins with / says; whether the talk goes on. What goes wrong is told, and loses nothing."""
    word, _, rest = line.partition(" ")
    try:
        if word == "/exit":
            return False
        if word == "/undo":
            notice("the last turn is taken back" if talk.undo() else "there is no turn to take back")
        elif word in ("/save", "/load") and rest.strip():
            path = Path(rest.strip())
            (talk.save if word == "/save" else talk.load)(path)
            notice(f"{'wrote' if word == '/save' else 'read'} {path}: {len(talk.messages)} messages")
        else:
            notice(f"{line}: unknown; {COMMANDS}")
    except (BadInput, OSError) as error:
        notice(str(error))
    return True


def answer(talk: Talk, line: str, quiet: bool) -> None:
    """One turn; Ctrl-C ends the answer, and what was said is kept. A turn that the template refuses is told, and forgotten."""
    try:
        for piece in talk.reply(line):
            say(piece.text)
    except KeyboardInterrupt:
        talk.settle()
    except BadInput as error:
        notice(str(error))
        return
    say("\n")
    for told in () if quiet else (talk.notice, talk.rate.line() if talk.rate else None):
        if told:
            notice(told)
