"""`conca fit`: a forecaster, a classifier or a language model, trained, compared with simple ones, and kept in a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from conca.cli.kind import given
from conca.cli.learn_text import learn_text
from conca.cli.report import with_report
from conca.cli.resuming import resumable
from conca.cli.screen import frame, notice
from conca.cli.task import check_task, default, estimator
from conca.estimators.classify_config import ClassifyConfig as C
from conca.estimators.config import ForecastConfig as D
from conca.types import BadInput

if TYPE_CHECKING:
    from conca import Classifier, Forecaster
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy

__all__ = ["fit"]


def fit(
    data: Annotated[
        Path,
        Argument(
            metavar="DATA",
            help="Table: .csv, .csv.gz, .csv.xz or .parquet; to classify, also .ts, .tsv, .txt, .npz, IDX, a folder of these or "
            "of WAV by class, .zip, .tar, .tgz; to learn text, any file or folder of it, or .jsonl; "
            "images: IDX, .npz, a folder of pictures.",
        ),
    ],
    out: Annotated[Path, Option(metavar="RUN", help="Run folder to write.")],
    task: Annotated[
        str,
        Option(
            metavar="WORD",
            help="forecast; classify: a label for each sequence; text: a language model; energy, diffusion: of images.",
        ),
    ] = "forecast",
    horizon: Annotated[int | None, Option(metavar="N", help="Steps ahead; needed to forecast.")] = None,
    target: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN",
            help="Column to forecast, may be given again; default: 'y' beside 'ds', 'target' beside 'timestamp', else the "
            "only column of numbers.",
        ),
    ] = None,
    time: Annotated[
        str | None, Option(metavar="COLUMN", help="Column of times; without it the order of the rows is time.")
    ] = None,
    series: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="Column that tells series apart; may be given again, to forecast."),
    ] = None,
    label: Annotated[
        str | None, Option(metavar="COLUMN", help="Of a table to classify: column of the label, one for each series.")
    ] = None,
    axes: Annotated[
        str | None,
        Option(metavar="WORD", help="Order of arrays to classify: ntc (number, time, channel) or nct [ntc]."),
    ] = None,
    rate: Annotated[
        int | None, Option(metavar="N", help="Samples a second that sound is brought to; default: that of most files.")
    ] = None,
    order: Annotated[
        str | None,
        Option(metavar="WORD", help="In which steps are read: permuted or bits (reversed); default: as they are."),
    ] = None,
    bidirectional: Annotated[
        bool, Option("--bidirectional", help="A classifier that reads both ways; such a run has no stream.")
    ] = False,
    covariates: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="Other column to use, may be given again; default: all that fit."),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="One of them that is a category, though it looks like a number."),
    ] = None,
    known: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="One of them that is known in advance, such as a holiday; may be given again."),
    ] = None,
    tz: Annotated[
        str | None, Option(metavar="ZONE", help="Zone of the times, where they are local, such as Europe/Rome.")
    ] = None,
    layers: Annotated[
        str | None,
        Option(
            metavar="PATTERN",
            help=f"Of the network, such as 's4d*2 attention(window=64)' {default('layers')}; or, to forecast, 'kalman': no network but one "
            "structural state space (level, trend, seasons), also 'kalman(harmonics=4)'.",
        ),
    ] = None,
    d_model: Annotated[int | None, Option(metavar="N", help=f"Width of the layers {default('d_model')}.")] = None,
    members: Annotated[
        int | None, Option(metavar="N", help=f"Networks that are trained side by side and averaged [{D.members}].")
    ] = None,
    length: Annotated[
        int | None,
        Option(
            metavar="N",
            help=f"Rows of a piece, or tokens (bytes) of text, that are read in training {default('length')}.",
        ),
    ] = None,
    truncate: Annotated[
        int | None, Option(metavar="N", help="Rows that gradients go back through; the state is carried on.")
    ] = None,
    quantiles: Annotated[
        str | None, Option(metavar="Q,Q,...", help="Quantiles to forecast, such as 0.05,0.5,0.95; default 0.1,0.5,0.9.")
    ] = None,
    epochs: Annotated[
        int | None,
        Option(
            metavar="N",
            help=f"At most so many epochs [{D.epochs}; to classify 40, or as many as make 1,000 steps; of text 10 times all of it].",
        ),
    ] = None,
    max_minutes: Annotated[float | None, Option(metavar="X", help="Of training, at most.")] = None,
    batch_size: Annotated[
        int | None, Option(metavar="N", help=f"Pieces of series, or of text, in a step {default('batch_size')}.")
    ] = None,
    lr: Annotated[
        float | None,
        Option(
            metavar="X",
            help=f"Highest learning rate {default('lr')[:-1]}; of text 0.003, --from 0.0002, --lora 0.001].",
        ),
    ] = None,
    weight_decay: Annotated[
        float | None, Option(metavar="X", help=f"Of the parameters that it suits {default('weight_decay')}.")
    ] = None,
    dropout: Annotated[float | None, Option(metavar="X", help=f"On what each layer adds {default('dropout')}.")] = None,
    smoothing: Annotated[
        float | None,
        Option(metavar="X", help=f"To classify: share of the truth that is spread over all classes [{C.smoothing}]."),
    ] = None,
    patience: Annotated[
        int | None, Option(metavar="N", help=f"Epochs without a better one before it stops {default('patience')}.")
    ] = None,
    seed: Annotated[int | None, Option(metavar="N", help=f"Same seed, same machine, same run [{D.seed}].")] = None,
    devices: Annotated[
        str | None,
        Option(metavar="WORD", help="Where to train: auto, cpu, cuda, cuda:1; more than one: 2, cpu:2, cuda:0,1."),
    ] = None,
    precision: Annotated[
        str | None,
        Option(metavar="WORD", help=f"32-true, bf16-mixed, 64-true; on a GPU 16-mixed too {default('precision')}."),
    ] = None,
    test_fraction: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Share of the rows, the last ones, that is held out; 0: none [0.2; of text 0.1, at most 1 MiB].",
        ),
    ] = None,
    windows: Annotated[
        int | None, Option(metavar="N", help="Hold out so many windows of HORIZON rows instead of a share.")
    ] = None,
    step: Annotated[
        int | None, Option(metavar="N", help="Rows from one of these to the next; default: HORIZON.")
    ] = None,
    refit: Annotated[
        bool, Option("--refit/--no-refit", help="Learn from all rows in the end, for as many steps as were best.")
    ] = True,
    tokenizer: Annotated[
        Path | None, Option(metavar="FILE", help="Of text: a tokenizer.json or a folder with one; default: bytes.")
    ] = None,
    start: Annotated[
        str | None, Option("--from", metavar="ID_OR_RUN", help="Of text: go on training this checkpoint or run.")
    ] = None,
    lora: Annotated[
        int | None, Option(metavar="N", help="With --from: train an adapter of this rank (LoRA), not the weights.")
    ] = None,
    size: Annotated[
        int | None, Option(metavar="N", help="Images: bring all to so many pixels a side, at most 64.")
    ] = None,
    colour: Annotated[str | None, Option(metavar="WORD", help="Images: make all grey or rgb.")] = None,
    labels: Annotated[
        bool, Option("--labels", help="Images: learn classes, too (a joint model; of a diffusion, a conditional one).")
    ] = False,
    features: Annotated[
        int | None, Option(metavar="N", help="Images: channels of the network's first layers [16; diffusion 32].")
    ] = None,
    recipe: Annotated[
        str | None,
        Option(metavar="WORD", help="Energy: igebm, short_run, generative_convnet, improved_cd or jem [igebm]."),
    ] = None,
    activation: Annotated[str | None, Option(metavar="WORD", help="Energy: silu or leaky_relu [silu].")] = None,
    chain_steps: Annotated[
        int | None, Option(metavar="N", help="Energy: steps of the chains of an update; default: the recipe's.")
    ] = None,
    l2: Annotated[
        float | None, Option("--l2", metavar="X", help="Energy: weight of squared energies; default: the recipe's.")
    ] = None,
    spectral: Annotated[
        bool | None,
        Option("--spectral/--no-spectral", help="Energy: spectral norm of every layer; default: as the recipe says."),
    ] = None,
    schedule: Annotated[
        str | None, Option(metavar="WORD", help="Diffusion: linear, cosine or geometric [linear].")
    ] = None,
    levels: Annotated[int | None, Option(metavar="N", help="Diffusion: levels of noise [1000].")] = None,
    scalar: Annotated[
        bool,
        Option("--scalar", help="Diffusion: the network is an energy whose slope tells the noise; it takes longer."),
    ] = False,
    blocks: Annotated[int | None, Option(metavar="N", help="Diffusion: residual blocks at each size [1].")] = None,
    skip_broken: Annotated[
        bool, Option("--skip-broken", help="Images: pass over picture files that cannot be read.")
    ] = False,
    resume: Annotated[bool, Option("--resume", help="Go on with a training of this run that was stopped.")] = False,
    strict: Annotated[bool, Option("--strict", help="Refuse a table with series that must be left out.")] = False,
    force: Annotated[bool, Option("--force", help="Replace the run if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No progress bar, no notices.")] = False,
) -> None:
    """Fit a forecaster on a table, a classifier on sequences (--task classify), a language model on text (--task text),
    or a model of images (--task energy, --task diffusion).

    To forecast: the last rows of every series are held out at first; the table printed at the end compares the forecasts there
    with simple ones (last value, same time a season ago, ridge regression), missing values not counted. Then a new network
    learns from all rows.

    To classify: the official test part is held out, or a share of every class where there is none; the table compares the
    labels given there with the most frequent one and with that of the nearest neighbour.

    Text: its end is held out; the table compares bits for each byte there with those of xz and zstd. In rows of .jsonl with
    prompt and completion, the completion alone is learnt.

    Images (--task energy or diffusion): MNIST's IDX files, .npz, a folder of pictures or of folders of them by class, grey or
    colour, up to 64 pixels a side. The official test part is held out, or a share; the table says how well images held out are told
    from noise, constants and shuffled ones.

    The defaults of options stand in brackets. A training that was stopped or killed is taken up again by the same command with
    --resume, and ends as if nothing had been.
    """
    options = given(
        horizon=horizon,
        target=target,
        time=time,
        series=series,
        covariates=covariates,
        categorical=categorical,
        known=known,
        tz=tz,
        label=label,
        axes=axes,
        rate=rate,
        order=order,
        bidirectional=bidirectional or None,
        layers=layers,
        d_model=d_model,
        members=members,
        length=length,
        truncate=truncate,
        quantiles=None if quantiles is None else numbers(quantiles),
        epochs=epochs,
        max_minutes=max_minutes,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        dropout=dropout,
        smoothing=smoothing,
        patience=patience,
        seed=seed,
        devices=devices,
        precision=precision,
        test_fraction=test_fraction,
        windows=windows,
        step=step,
        refit=None if refit else False,
        strict=strict or None,
        tokenizer=tokenizer,
        lora=lora,
        size=size,
        colour=colour,
        labels=labels or None,
        features=features,
        recipe=recipe,
        activation=activation,
        chain_steps=chain_steps,
        l2=l2,
        spectral=spectral,
        schedule=schedule,
        levels=levels,
        scalar=scalar or None,
        blocks=blocks,
        skip_broken=skip_broken or None,
    ) | ({} if start is None else {"from": start})
    check_task(task, options)
    if task == "text":
        learn_text(data, out, options, resume=resume, force=force, quiet=quiet)
        return
    learn(data, out, estimator(task, options), resume=resume, force=force, quiet=quiet)


def learn(
    data: Path,
    out: Path,
    made: tuple[Forecaster | Classifier | ImageEnergy | ImageDiffusion, dict[str, Any]],
    *,
    resume: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Fit an estimator, write its run with a report, and print how good it is."""
    from conca.train.pages import keep_memory
    from conca.train.ranks import first

    model, reading = made
    keep_memory()
    with resumable(out, resume, quiet):
        model.fit(data, out=out, force=force, resume=resume, progress=not quiet, **reading)
    if not first():
        return
    lines = [*model.notices_, *with_report(model, out), f"wrote {out}"]
    for line in () if quiet else lines:
        notice(line)
    frame(model.scores_)


def numbers(text: str) -> tuple[float, ...]:
    """Numbers between commas. Raises BadInput where there is something else."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"--quantiles: cannot read {text!r} as numbers; write 0.1,0.5,0.9") from None
