"""`conca fit`: a forecaster of a table, trained, compared with simple forecasts, and kept in a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from conca.cli.screen import notice, table
from conca.types import BadInput

__all__ = ["fit"]


def fit(
    data: Annotated[Path, Argument(metavar="DATA", help="Table: .csv, .csv.gz, .csv.xz or .parquet.")],
    target: Annotated[list[str], Option(metavar="COLUMN", help="Column to forecast; give it again for more than one.")],
    horizon: Annotated[int, Option(metavar="N", min=1, help="Steps ahead.")],
    out: Annotated[Path, Option(metavar="RUN", help="Run folder to write.")],
    time: Annotated[
        str | None, Option(metavar="COLUMN", help="Column of times; without it the order of the rows is time.")
    ] = None,
    series: Annotated[
        list[str] | None, Option(metavar="COLUMN", help="Column that names the series; may be given again.")
    ] = None,
    covariates: Annotated[
        list[str] | None, Option(help="Other columns to read, may be given again; without it: all that fit.")
    ] = None,
    layers: Annotated[
        str | None, Option(metavar="PATTERN", help="Pattern of layers, such as 's4d*2 attention(window=64)'.")
    ] = None,
    d_model: Annotated[int | None, Option(metavar="N", min=1, help="Width of the layers.")] = None,
    epochs: Annotated[int | None, Option(metavar="N", min=1, help="At most so many passes over the data.")] = None,
    max_minutes: Annotated[
        float | None, Option(metavar="X", min=0, help="Stop training after so many minutes.")
    ] = None,
    batch_size: Annotated[int | None, Option(metavar="N", min=1, help="Windows per step.")] = None,
    lr: Annotated[float | None, Option(metavar="X", min=0, help="Highest learning rate.")] = None,
    weight_decay: Annotated[float | None, Option(metavar="X", min=0, help="Of the parameters that it suits.")] = None,
    dropout: Annotated[float | None, Option(metavar="X", min=0, max=1, help="On what each layer adds.")] = None,
    patience: Annotated[
        int | None, Option(metavar="N", min=1, help="Stop after so many epochs without a better one.")
    ] = None,
    test_fraction: Annotated[
        float | None, Option(metavar="X", min=0, max=1, help="Last part of the time, held out.")
    ] = None,
    seed: Annotated[int | None, Option(metavar="N", help="Same seed, same run.")] = None,
    devices: Annotated[
        str | None, Option(metavar="WORD", help="What to train on: auto, or a number of devices.")
    ] = None,
    precision: Annotated[
        str | None, Option(metavar="WORD", help="As Lightning spells it: 32-true, bf16-mixed, 64-true.")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="Refuse a table with series that are too short.")] = False,
    force: Annotated[bool, Option("--force", help="Replace the run folder if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No progress bar and no notices.")] = False,
) -> None:
    """Fit a forecaster on a table.

    The last part of the time is held out; the table printed at the end compares the forecast there with the last value,
    the same time a season ago, and a ridge regression. The run folder holds config.json, model.safetensors, metrics.csv
    and the logs.
    """
