"""`conca score` on a language model: bits per byte and perplexity of a text, and the log-likelihood of every token of it."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from conca.cli.language import check_save, opened, saved
from conca.cli.screen import notice, progress_bar
from conca.types import BadInput, path_of

if TYPE_CHECKING:
    import pandas as pd

    from conca.data.corpus import Corpus
    from conca.data.jsonl import Rows
    from conca.estimators.language import LanguageModel

__all__ = ["score_text"]

WINDOW = 1024
"""Tokens of a window, where a model does not say."""
COLUMNS = "position", "id", "text", "log_likelihood"


def score_text(
    place: str,
    data: Path,
    *,
    tokens: Path | None,
    force: bool,
    quantize: str | None,
    save: Path | None,
    tokenizer: Path | None,
    revision: str | None,
    quiet: bool,
) -> pd.DataFrame:
    """How well a language model explains a text, a row for it; with `quantize`, one for the model as it is stored, too.

    Columns: bits per byte, perplexity (of a token), tokens (that were judged), bytes, tokens a second, MiB (of the model).
    """
    import pandas as pd

    from conca.cli.output import check_free

    check_save(save, quantize)
    if tokens is not None:
        tokens = path_of(tokens)
        check_free(tokens, force)
        if tokens.exists() and data.exists() and tokens.samefile(data):
            raise BadInput(f"{tokens}: is the text that is scored; name another file for the table")
    rows: dict[str, dict[str, float]] = {}
    kinds: list[str | None] = [quantize] if quantize is None or save is not None else [None, quantize]
    with tempfile.TemporaryDirectory(prefix="conca-") as folder:
        for kind in kinds:
            model = opened(
                place, quantize=kind, tokenizer=tokenizer, revision=revision, quiet=quiet or kind != quantize
            )
            saved(model, save, kind, quiet)
            text = read(data, model, Path(folder), quiet)
            with table_at(tokens if kind == quantize else None) as table:
                rows[kind or "as stored"] = judged(model, text, table, quiet)
            if kind == quantize and not quiet:
                told(model, text)
            del model
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index.name = "weights"
    if len(rows) == 2 and not quiet:
        before, after = (row["bits per byte"] for row in rows.values())
        loss = after - before
        notice(f"{quantize} loses {loss:+.5f} bits per byte")
    if tokens is not None and not quiet:
        notice(f"wrote {tokens}")
    return found


def read(data: Path, model: LanguageModel, folder: Path, quiet: bool) -> Corpus | Rows:
    """The text, in tokens of the model. Raises BadInput where it cannot be read, or the model has no tokenizer."""
    from conca.data.corpus import open_text
    from conca.estimators.encoding_bar import encoding_bar

    if model.tokenizer is None:
        raise BadInput("the model has no tokenizer, so text is nothing to it; name one with --tokenizer")
    with encoding_bar(not quiet) as told:
        return open_text(data, model.tokenizer, folder, progress=told)


@contextmanager
def table_at(path: Path | None) -> Iterator[Any]:
    """Where rows of a CSV go, a file that has its name when the block ends well; None where nothing is written."""
    from conca.models.run import new_file

    if path is None:
        yield None
        return
    part = new_file(path)
    try:
        with part.open("w", newline="", encoding="utf-8") as file:
            yield begun(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def begun(file: TextIO) -> Any:
    """A table with its header."""
    table = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # a text may be a carriage return
    table.writerow(COLUMNS)
    return table


def judged(model: LanguageModel, text: Corpus | Rows, table: Any, quiet: bool) -> dict[str, float]:
    """What a text costs, block by block, in memory that does not grow with it. Raises BadInput where nothing of it can be judged."""
    from conca.estimators.text_judging import scored
    from conca.infer.scoring import Tally
    from conca.models.costs import bytes_of

    tokenizer, tally = model.tokenizer, Tally()
    assert tokenizer is not None
    start = perf_counter()
    with progress_bar(quiet) as bar:
        task = bar.add_task("tokens", total=len(text))
        for part in scored(model, text, range(len(text)), window(model), model.opening):
            end = part.begin + len(part.ids)
            tally.add(part, text.sizes(part.begin, end))
            bar.update(task, completed=end)
            if table is not None:
                each = zip(part.ids.tolist(), part.loglik.tolist())
                table.writerows(
                    (
                        part.begin + place,
                        token,
                        tokenizer.decode([token]),
                        "" if value != value else float(f"{value:.6g}"),
                    )
                    for place, (token, value) in enumerate(each)
                )
    if not tally.bytes:
        raise BadInput(
            f"{text.source}: nothing to score; a token is judged after another, so give at least two of them"
        )
    return {
        "bits per byte": tally.bits_per_byte,
        "perplexity": tally.perplexity,
        "tokens": tally.tokens,
        "bytes": tally.bytes,
        "tokens a second": tally.tokens / (perf_counter() - start),
        "MiB": bytes_of(model) / 2**20,
    }


def window(model: LanguageModel) -> int:
    """Tokens of the windows in which a model is judged whose state grows: those of its training, where they are known."""
    config = None if model.run is None else model.run.config
    return WINDOW if config is None else config.length


def told(model: LanguageModel, text: Corpus | Rows) -> None:
    """Say what figures do not say."""
    from conca.estimators.text_judging import losses

    for line in losses(text, range(len(text))):
        notice(line)
    if not model.bounded:
        notice(
            f"the state of this model grows, so it reads windows of {window(model)} tokens, each half a window after the last"
        )
