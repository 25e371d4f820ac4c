"""The entry point: one line for every error, and exit status 2 for what the user gave."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from conca import __version__
from conca.cli import chat, check, complete, data, fit, generate, info, predict, report, sample, score, stream, tour
from conca.types import BadInput

__all__ = ["app", "main"]

FOREIGN = {
    "-n": "--n-predict --predict --num-predict --max-tokens --max-length",
    "--samples": "--num-return-sequences --num-samples",
    "--beams": "--num-beams",
    "--temperature": "--temp -t --do-sample",
    "--repetition-penalty": "--repeat-penalty",
    "--stop": "--stop-strings --reverse-prompt -r",
    "-p - < FILE": "--prompt-file --file -f",
    "--system": "--system-prompt -sys",
    "--template": "--chat-template --chat-template-file",
    "--lr": "--learning-rate",
    "--batch-size": "--per-device-train-batch-size",
    "--length": "--block-size --context-length --seq-len --max-seq-length --ctx-size -c",
    "--from": "--pretrained --base-model --model -m",
    "--lora": "--lora-r --rank",
    "--out": "-o --output --output-dir",
    "--d-model": "--hidden-size --n-embd --dim",
    "--devices": "--device",
    "--precision": "--bf16 --fp16",
    "--quantize int8": "--load-in-8bit",
    "RUN_OR_ID without an option": "--model -m --hf-repo -hf",
    "conca fit": "train finetune",
    "conca generate": "run",
    "--number": "--n-samples --num-images",
    "conca complete": "inpaint",
    "conca score": "eval evaluate perplexity",
    "conca score --quantize int8 --save": "quantize",
    "conca info": "show",
}
"""What is said here, and what others call it."""
FAULT, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Forecast tables, label sequences, both of files and of streams row by row; train language models and those that were "
    "published, write and talk with them; learn images, draw, complete and judge them; and hold every layer to its laws.",
)
for command in (
    fit.fit,
    predict.predict,
    stream.stream,
    generate.generate,
    chat.chat,
    sample.sample,
    complete.complete,
    score.score,
    report.report,
    info.info,
    check.check,
    tour.tour,
):
    app.command(epilog="With --debug, an error also shows where in the program it arose.")(command)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Take what may stand before a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 a law failed, 2 bad input, 130 interrupted, 141 a
    reader that has left.

    Data goes to stdout, everything else to stderr. Whatever goes wrong is one line there; a traceback appears with
    `--debug` only.
    """
    open_streams()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # text is cut into pieces for threads of our own
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]
    try:
        status = _run(words or ["--help"])
    except Exception as error:
        if len(words) < len(given):
            raise
        line, status = _told(error)
        print(f"conca: {line}", file=sys.stderr)
    return status


def open_streams() -> None:
    """Where the caller closed stdout or stderr, what goes there is lost, and no file takes its number."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _run(words: list[str]) -> int:
    try:
        status = typer.main.get_command(app).main(words, prog_name="conca", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except SystemExit as stop:  # how a training loop and a closed pipe end
        cause = stop.__context__
        status = INTERRUPTED if isinstance(cause, KeyboardInterrupt) else stop.code
        if isinstance(cause, BrokenPipeError):
            status = _broken_pipe()
    except BrokenPipeError:
        status = _broken_pipe()
    if status == INTERRUPTED:
        print("conca: interrupted", file=sys.stderr)
    return int(status or 0)


def _broken_pipe() -> int:
    """Whoever read has gone; the interpreter flushes once more on its way out, to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _told(error: Exception) -> tuple[str, int]:
    """One line about `error`, and the exit status it deserves."""
    match error:
        case typer.TyperException():
            line, status = error.format_message(), BAD_INPUT
            line = _ours(error) or line
        case BadInput():
            line, status = str(error), BAD_INPUT
        case ModuleNotFoundError() if not (error.name or "conca").startswith("conca"):
            line, status = str(error), BAD_INPUT
            if "pip install" not in line:
                line = f'this needs {error.name}, which is not installed: pip install "conca[all]"'
        case MemoryError() | RuntimeError() if isinstance(error, MemoryError) or "memory" in str(error):
            line, status = "not enough memory; give a smaller batch_size, length, d_model or window", BAD_INPUT
        case ArithmeticError() if _diverged(error):
            line, status = str(error), BAD_INPUT
        case OSError():
            line, status = f"{error.filename or 'output'}: {error.strerror or error}", BAD_INPUT
        case _:
            line, status = f"{type(error).__name__}: {error} (--debug shows where)", FAULT
    return " ".join(line.split()), status


def _diverged(error: ArithmeticError) -> bool:
    """Whether chains, or a training, left the finite numbers: no fault of the program."""
    from conca.energy.chain import Divergence

    return isinstance(error, Divergence)


def _ours(error: typer.TyperException) -> str | None:
    """What to say of an option or a command that has another name here; None: of it nothing is known."""
    line, context = error.format_message(), getattr(error, "ctx", None)
    if context is None or not line.startswith("No such "):
        return None
    word = line.split()[3].strip("'.")
    known = {name for option in context.command.params for name in (*option.opts, option.metavar)}
    for ours, theirs in FOREIGN.items():
        if word in theirs.split() and ours.split()[0] in known | {"conca"}:
            return f"{' '.join(line.split()[:4]).rstrip('.')}; here it is {ours}"
    return None
