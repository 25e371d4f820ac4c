"""`conca check`: every law on every layer, energy and sampler, with the kernels of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Argument, Exit, Option

from conca.cli.bodies import bodies
from conca.cli.screen import listing, notice, progress_bar, table
from conca.types import BadInput, nearest

if TYPE_CHECKING:
    from conca.laws.outcome import Verdict
    from conca.layers.mixer import Mixer

__all__ = ["check"]

Judge: TypeAlias = "Callable[[], Iterator[Verdict]]"
"""Runs all laws on one thing."""

WORST_LAST = ("does not apply", "holds", "broken")
SHOWN = {"does not apply": "-", "holds": "ok", "broken": "NO"}


def check(
    layer: Annotated[
        str | None, Argument(metavar="[LAYER]", help="A layer of your own: mine.py:MyLayer, or package.module:Class.")
    ] = None,
    family: Annotated[
        str | None, Option(metavar="NAME", help="Only this layer, energy or sampler of the library.")
    ] = None,
    warm: Annotated[bool, Option("--warm", help="Compile all kernels first (once per machine and version).")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No progress; print only what is broken.")] = False,
) -> None:
    """Hold layers, energies and samplers to their laws.

    Every law is run on small instances, with the kernels that run on this machine: all forms of a layer compute the same,
    states go in and out, gradients too; slopes are slopes; chains stay in equilibrium. In the tables a law holds (ok), is
    broken (NO), or does not apply (-). The exit status is 1 when a law is broken.
    """
    kinds = chosen(layer, family)
    if warm:
        compile_all(quiet)
    groups = judged(kinds, quiet)
    broken = [verdict for group in groups for verdict in group if verdict.outcome == "broken"]
    if broken or not quiet:
        for group in groups:
            show(group)
        table(["operation", "body on this machine"], bodies(), words=2)
    for verdict in broken:
        notice(f"{verdict.family}, sample {verdict.sample}: '{verdict.law}' is broken: {verdict.message}")
    if broken:
        raise Exit(1)


def chosen(layer: str | None, family: str | None) -> list[dict[str, Judge]]:
    """What is to be judged, by kind and name."""
    from conca.laws import energies, run, samplers

    if layer is not None:
        if family is not None:
            raise BadInput("give either a layer of your own or --family, not both")
        return [judges(run.check, {layer: own(layer)})]
    found = [
        judges(run.check, run.mixers()),
        judges(energies.check_energy, energies.energies()),
        judges(samplers.check_kernel, samplers.kernels()),
    ]
    if family is None:
        return found
    kind = next((kind for kind in found if family.lower() in kind), None)
    if kind is None:
        raise BadInput(f"unknown family '{family}'; {nearest(family, [name for kind in found for name in kind])}")
    return [{family.lower(): kind[family.lower()]}]


def judges(judge: Callable[[Any], Iterator[Verdict]], things: Mapping[str, Any]) -> dict[str, Judge]:
    """What judges each of these things, by its name."""
    return {name: partial(judge, thing) for name, thing in things.items()}


def own(layer: str) -> type[Mixer[Any]]:
    """The user's class; whatever goes wrong while it is imported and built is the user's input."""
    from conca.models.stack import family

    try:
        found = family(layer)
        found.samples()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{layer}: {type(error).__name__}: {error}") from error
    return found


def judged(kinds: list[dict[str, Judge]], quiet: bool) -> list[list[Verdict]]:
    """All verdicts by kind, with a progress bar over the families."""
    with progress_bar(quiet) as progress:
        task = progress.add_task("", total=sum(map(len, kinds)))

        def verdicts(name: str, judge: Judge) -> list[Verdict]:
            progress.update(task, description=name)
            found = list(judge())
            progress.advance(task)
            return found

        return [[v for name, judge in kind.items() for v in verdicts(name, judge)] for kind in kinds]


def show(verdicts: list[Verdict]) -> None:
    """One row per family, one numbered column per law, the worst of its samples in the cell; then the names of the laws."""
    families = list(dict.fromkeys(verdict.family for verdict in verdicts))
    laws = list(dict.fromkeys(verdict.law for verdict in verdicts))
    cells = {(family, law): "does not apply" for family in families for law in laws}
    for verdict in verdicts:
        place = verdict.family, verdict.law
        cells[place] = max(cells[place], verdict.outcome, key=WORST_LAST.index)
    numbers = [str(number) for number in range(1, len(laws) + 1)]
    table(["family", *numbers], [[name, *(SHOWN[cells[name, law]] for law in laws)] for name in families])
    listing(f"{number:>2} {law}" for number, law in zip(numbers, laws))


def compile_all(quiet: bool) -> None:
    """Compile every kernel now, so that nothing waits for it later."""
    if find_spec("conca.kernels") is None:
        line = "there are no kernels here; the plain bodies run"
    else:
        names = import_module("conca.kernels").warm(processes=min(os.cpu_count() or 1, 4))
        line = f"compiled: {', '.join(names)}"
    if not quiet:
        notice(line)
