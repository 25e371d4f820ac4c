"""`conca info`: what a fitted model is made of, what it costs, and which bodies run here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from conca.cli.bodies import bodies
from conca.cli.screen import frame, table

if TYPE_CHECKING:
    from conca import Forecaster
    from conca.layers.mixer import Mixer

__all__ = ["info"]


def info(run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit` wrote.")]) -> None:
    """Say what a run is: columns, layers, what they cost, how good it was, and which bodies run here.

    State bytes are those of one sequence; multiply-adds and the bytes of parameters and state read are for one row of it.
    """
    import conca

    forecaster = conca.load(run)
    table(["run", str(run)], facts(forecaster), words=2)
    table(
        ["layer", "width", "parameters", "state bytes", "multiply-adds a row", "bytes read a row"],
        costs(forecaster.network_),
    )
    frame(forecaster.scores_)
    table(["operation", "body on this machine"], bodies(), words=2)


def facts(forecaster: Forecaster) -> list[tuple[str, str]]:
    """What it forecasts, from what, and by what."""
    config, schema = forecaster.config, forecaster.schema_
    return [
        ("forecasts", ", ".join(schema.target)),
        ("steps ahead", str(config.horizon)),
        ("time, series", ", ".join([schema.time or "the order of rows", *schema.series])),
        ("covariates", ", ".join([*schema.numeric, *schema.categorical]) or "none"),
        ("layers", config.layers),
        ("members", str(config.members)),
        ("quantiles", ", ".join(f"{level:g}" for level in config.quantiles)),
    ]


def costs(network: Any) -> Iterator[list[str]]:
    """One row for each layer of one member, one for what stands around them, and one for all members together."""
    members, tower = len(network.towers), network.towers[0]
    for part in tower.stack.parts:
        yield cost(type(part.inner).__name__, part, parameters(part))
    around = parameters(tower) - parameters(tower.stack)
    used = around - parameters(tower.embeddings) + len(tower.embeddings) * tower.stack.d_model
    yield ["entry and head", str(tower.stack.d_model), f"{around:,}", "0", f"{used:,}", f"{4 * used:,}"]
    yield cost(f"all, {members} members", tower.stack, around + parameters(tower.stack), used, members)


def cost(name: str, mixer: Mixer[Any], count: int, more: int = 0, times: int = 1) -> list[str]:
    """A row: name, width, parameters, state bytes of one sequence, work and memory of one step, with `more` numbers read."""
    from conca.layers.states import size_in_bytes

    work = mixer.work()
    state = f"{times * size_in_bytes(mixer.init_state(1)):,}" if mixer.bounded else "grows"
    numbers = f"{times * (work.multiply_adds + more):,}", f"{times * (work.bytes + 4 * more):,}"
    return [name, str(mixer.d_model), f"{times * count:,}", state, *numbers]


def parameters(module: Any) -> int:
    """How many numbers are learnt."""
    return sum(p.numel() for p in module.parameters())
