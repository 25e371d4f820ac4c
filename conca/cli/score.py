"""`conca score`: how well a run forecasts a table, labels sequences or explains a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from conca.cli.kind import Label, Rate, Series, Time, check_options, forecaster, kind_of
from conca.cli.language import Quantize, Revision, Save, Tokenizer
from conca.cli.novelty import Alarm, write_rows
from conca.cli.predict_labels import scores_of
from conca.cli.score_images import score_images
from conca.cli.score_text import score_text
from conca.cli.screen import frame, notice
from conca.types import BadInput

__all__ = ["score"]


def score(
    run: Annotated[
        Path,
        Argument(
            metavar="RUN_OR_ID",
            help="Folder that `conca fit` wrote; for text also an ID of the Hugging Face hub, a folder of such weights, a .gguf file.",
        ),
    ],
    data: Annotated[
        Path,
        Argument(
            metavar="DATA",
            help="Table with the columns of the one it was fitted on; or sequences with labels; or text, a file, a folder or .jsonl.",
        ),
    ],
    series: Series = None,
    time: Time = None,
    label: Label = None,
    rate: Rate = None,
    against: Annotated[
        Path | None, Option(metavar="DATA", help="Images: others, from which those of DATA are to be told.")
    ] = None,
    skip_broken: Annotated[bool, Option("--skip-broken", help="Images: pass over files that cannot be read.")] = False,
    tokens: Annotated[
        Path | None, Option(metavar="FILE", help="Text: write the log-likelihood of every token to this CSV.")
    ] = None,
    rows: Annotated[
        bool,
        Option("--rows", help="Forecasts, labels: how strange each row or sequence is, one line for each, as CSV."),
    ] = False,
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="CSV file that --rows writes; default: stdout. Of images: what to write."),
    ] = None,
    quantile: Alarm = None,
    quantize: Quantize = None,
    save: Save = None,
    tokenizer: Tokenizer = None,
    revision: Revision = None,
    force: Annotated[bool, Option("--force", help="Replace the file of --tokens or --out if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Judge a run on data that it did not learn from.

    Of a forecaster, the table that `conca fit` prints, on rows that came later. Judged are the rows after those that the run
    learnt from; give these as well, they are read as the past. MAE, RMSE, MASE and pinball are errors: lower is better. Coverage is
    the share of values between the outermost quantiles: 0.8 is right for q0.1 and q0.9.

    Of a classifier, accuracy and macro F1 (the mean over the classes), higher is better, and log loss, lower is better, beside
    the most frequent class. Data with an official test part are judged on that part, others as a whole.

    --rows says of each row how strange it is, higher is stranger: novelty is minus the log-likelihood (nats) of its targets under the
    forecast from the row before, or, of sequences, the energy of the classifier; rank is the share of what was held out at the fit
    that scored lower, and alarm is 1 from --quantile on. Of a table without a row held out nothing can be said.

    Of images, --out says of each how strange it is: novelty is its energy (of a diffusion, the noise that is told amiss), higher is
    stranger; rank and alarm as above. The table says how DATA compare with what was held out at the fit, and with --against how
    well the others are told from DATA: AUROC and AUPR, higher is better, FPR95, lower is better. Of a run with --labels, also accuracy.

    Of a language model, bits per byte and perplexity of a text of any length, lower is better. --quantize int8 judges the
    narrowed weights beside those that are stored, one after the other (with --save, the narrowed ones alone).
    """
    reading = {"series": series, "time": time, "label": label, "rate": rate}
    own: dict[str, Any] = {
        "tokens": tokens,
        "quantize": quantize,
        "save": save,
        "tokenizer": tokenizer,
        "revision": revision,
    }
    kind = kind_of(run)
    if kind in ("energy", "diffusion"):
        check_options(run, of="text", **own)
        check_options(run, of="classify", **reading)
        check_options(run, of="rows", rows=rows)
        score_images(run, data, against, out, quantile, skip_broken=skip_broken, force=force, quiet=quiet)
        return
    check_options(run, of="energy", against=against, skip_broken=skip_broken)
    if kind == "text":
        check_options(run, of="classify", **reading)
        check_options(run, of="rows", rows=rows, out=out, quantile=quantile)
        frame(score_text(str(run), data, force=force, quiet=quiet, **own))
        return
    check_options(run, of="text", **own)
    if rows:
        write_rows(run, data, kind, out, quantile, force=force, quiet=quiet, **reading)
        return
    if out is not None or quantile is not None:
        raise BadInput("--out and --quantile belong to --rows; give it, too, or leave them out")
    if kind == "classify":
        scores, notices = scores_of(run, data, **reading)
    else:
        check_options(run, of="classify", **reading)
        model = forecaster(run)
        scores, notices = model.score(data), model.notices_
    if not quiet:
        for line in notices:
            notice(line)
    frame(scores)
