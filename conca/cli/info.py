"""`conca info`: what a fitted model is made of, what it costs, and which bodies run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument

from conca.cli.bodies import bodies
from conca.cli.screen import frame, table

if TYPE_CHECKING:
    from conca import Classifier, Forecaster
    from conca.estimators.image_model import ImageModel
    from conca.estimators.language import LanguageModel

__all__ = ["info"]


def info(
    run: Annotated[
        str,
        Argument(
            metavar="RUN_OR_ID",
            help="Folder that `conca fit` wrote; an ID of the Hugging Face hub, a folder of such weights, a .gguf file.",
        ),
    ],
) -> None:
    """Say what a run or a published model is: what it reads, layers, what they cost, how good it was, and which bodies run here.

    State bytes are those of one sequence; multiply-adds and the bytes of parameters and state read are for one row of it, or token.
    """
    import conca
    from conca.estimators.image_model import ImageModel
    from conca.models.costs import costs
    from conca.models.language import LanguageNetwork

    loaded = conca.load(run)
    if isinstance(loaded, ImageModel):
        table(["run", run], image_facts(loaded), words=2)
        frame(loaded.scores_)
        return
    model = cast("Forecaster | Classifier | LanguageModel", loaded)
    table(["run", run], facts_of(model), words=2)
    table(
        ["layer", "width", "parameters", "state bytes", "multiply-adds a row", "bytes read a row"],
        [
            [
                c.name,
                str(c.width),
                f"{c.parameters:,}",
                "grows" if c.grows else f"{c.state:,}",
                f"{c.multiply_adds:,}",
                f"{c.read:,}",
            ]
            for c in costs(model if isinstance(model, LanguageNetwork) else model.network_)
        ],
    )
    if not isinstance(model, LanguageNetwork):
        frame(model.scores_)
    elif model.run is not None:
        frame(model.run.scores)
    table(["operation", "body on this machine"], bodies(), words=2)


def facts_of(model: Forecaster | Classifier | LanguageModel) -> list[tuple[str, str]]:
    """What a run does, from what, and by what."""
    from conca.estimators.forecaster import Forecaster
    from conca.models.language import LanguageNetwork

    if isinstance(model, LanguageNetwork):
        return text_facts(model)
    return facts(model) if isinstance(model, Forecaster) else label_facts(model)


def text_facts(model: LanguageModel) -> list[tuple[str, str]]:
    """What it writes in, by what, and in which precision."""
    config, tokenizer = model.config, model.tokenizer
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in model.state_dict().values()})
    return [
        ("writes", f"tokens of {config.n_tokens:,}, by {'no tokenizer' if tokenizer is None else tokenizer.name}"),
        ("layers", config.layers),
        ("width", str(config.d_model)),
        ("head", "the embedding" if config.tied else "a map of its own"),
        ("numbers in", ", ".join(kinds)),
        ("state", "of one size" if model.bounded else "grows with the text"),
    ]


def label_facts(model: Classifier) -> list[tuple[str, str]]:
    """What it tells apart, in what, and by what."""
    classes = [str(name) for name in model.classes_]
    reads = f"{len(model.symbols_)} symbols" if model.symbols_ else f"channels {short(model.channels_)}"
    return [
        ("classifies", short(classes)),
        ("reads", reads if model.rate_ is None else f"{reads}, {model.rate_:g} samples a second"),
        ("layers", model.config.layers),
        ("width", str(model.config.d_model)),
        ("direction", "both, so there is no stream" if model.config.bidirectional else "forward"),
    ]


def short(names: Sequence[str], most: int = 12) -> str:
    """Names, the first of them where there are many."""
    more = f", ... ({len(names):,})" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def facts(forecaster: Forecaster) -> list[tuple[str, str]]:
    """What it forecasts, from what, and by what."""
    config, schema = forecaster.config, forecaster.schema_
    return [
        ("forecasts", ", ".join(schema.target)),
        ("steps ahead", str(config.horizon)),
        ("time, series", ", ".join([schema.time or "the order of rows", *schema.series])),
        ("covariates", ", ".join([*schema.numeric, *schema.categorical]) or "none"),
        ("known in advance", ", ".join(schema.known) or "none"),
        ("layers", config.layers),
        ("members", str(config.members)),
        ("quantiles", ", ".join(f"{level:g}" for level in config.quantiles)),
    ]


def image_facts(model: ImageModel) -> list[tuple[str, str]]:
    """What it has learnt, by what, and how."""
    run = model.run_
    channels, height, width = run.shape
    options = run.config.as_dict()
    how = ("recipe", "activation") if run.kind == "energy" else ("schedule", "levels", "scalar")
    return [
        ("models", f"images of {height} x {width} pixels, {'grey' if channels == 1 else 'colour'}"),
        ("learnt", run.source),
        ("classes", short(run.classes) if run.classes else "none learnt"),
        *((name, str(options[name])) for name in how),
        ("parameters", f"{sum(p.numel() for p in run.network.parameters()):,}"),
    ]
