"""`conca fit --task text`: a language model trained on text, or one that goes on, judged beside compressors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from conca.cli.report import with_report
from conca.cli.resuming import resumable
from conca.cli.screen import frame, notice
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.estimators.text_fitting import Start

__all__ = ["learn_text"]


def learn_text(data: Path, out: Path, options: dict[str, Any], *, resume: bool, force: bool, quiet: bool) -> None:
    """Train on text by checked options, write the run, and print how good it is.

    Raises:
        BadInput: for ill values, text that cannot be used, and a checkpoint that cannot go on.
    """
    from conca.estimators.text_config import TextConfig
    from conca.estimators.text_fitting import fit_text
    from conca.train.pages import keep_memory
    from conca.train.ranks import first

    made = dict(options)
    tokenizer, name = made.pop("tokenizer", None), made.pop("from", None)
    if "seed" in made:
        made["random_state"] = made.pop("seed")
    if name is not None:
        for option in ("layers", "d_model", "dropout"):
            if option in made:
                shown = option.replace("_", "-")
                raise BadInput(f"--{shown} belongs to a new network, and {name} goes on as it is; leave it out")
    config = TextConfig(**made)
    keep_memory()
    with resumable(out, resume, quiet):
        run = fit_text(
            data,
            config,
            out,
            tokenizer=tokenizer,
            start=None if name is None else start_of(name),
            progress=not quiet,
            force=force,
            resume=resume,
            say=lambda line: None if quiet or not first() else notice(line),
        )
    if not first():
        return
    for line in () if quiet else (*run.notices, *with_report(run, out), f"wrote {out}"):
        notice(line)
    frame(run.scores)


def start_of(name: str) -> Start:
    """What goes on: the language model of a run, a folder, or an ID. Raises BadInput if it is something else."""
    from conca.estimators.language import LanguageModel
    from conca.estimators.load import load
    from conca.estimators.text_fitting import Start

    model: Any = load(name)
    if not isinstance(model, LanguageModel):
        raise BadInput(f"--from {name}: is no language model; name one that was trained on text")
    return Start(model, model.tokenizer, name, model.family, model.generation)
