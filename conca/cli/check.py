"""`conca check`: every law on every layer, with the kernels of this machine."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from conca.cli.bodies import bodies
from conca.cli.screen import notice, progress_bar, table
from conca.types import BadInput, nearest

if TYPE_CHECKING:
    from conca.laws.run import Verdict
    from conca.layers.mixer import Mixer

__all__ = ["check"]

WORST_LAST = ("does not apply", "holds", "broken")
SHOWN = {"does not apply": "-", "holds": "holds", "broken": "BROKEN"}


def check(
    layer: Annotated[
        str | None, Argument(metavar="[LAYER]", help="A layer of your own: mine.py:MyLayer, or package.module:Class.")
    ] = None,
    family: Annotated[str | None, Option(metavar="NAME", help="Only this family of the library.")] = None,
    warm: Annotated[bool, Option("--warm", help="Compile all kernels first (once per machine and version).")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No progress; print only what is broken.")] = False,
) -> None:
    """Hold layers to the laws: all forms agree, states go in and out, gradients too.

    Every law is run on small instances of each layer, with the kernels that run on this machine. The exit status is 1
    when a law is broken.
    """
    targets = chosen(layer, family)
    if warm:
        compile_all()
    verdicts = judged(targets, quiet)
    broken = [verdict for verdict in verdicts if verdict.outcome == "broken"]
    if broken or not quiet:
        show(verdicts)
    for verdict in broken:
        notice(f"{verdict.family}, sample {verdict.sample}: '{verdict.law}' is broken: {verdict.message}")
    if broken:
        raise Exit(1)


def chosen(layer: str | None, family: str | None) -> dict[str, type[Mixer[Any]]]:
    """The classes to judge, by name."""
    if layer is None:
        from conca.laws.run import mixers

        known = mixers()
        if family is not None and family.lower() not in known:
            raise BadInput(f"unknown family '{family}'; {nearest(family, known)}")
        return known if family is None else {family.lower(): known[family.lower()]}
    if family is not None:
        raise BadInput("give either a layer of your own or --family, not both")
    return {layer: own(layer)}


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


def judged(targets: dict[str, type[Mixer[Any]]], quiet: bool) -> list[Verdict]:
    """All verdicts, with a progress bar over the families."""
    from conca.laws import run

    found: list[Verdict] = []
    with progress_bar(quiet) as progress:
        task = progress.add_task("", total=len(targets))
        for name, target in targets.items():
            progress.update(task, description=name)
            found += run.check(target)
            progress.advance(task)
    return found


def show(verdicts: list[Verdict]) -> None:
    """One row per law, one column per family, the worst of its samples in the cell."""
    families = list(dict.fromkeys(verdict.family for verdict in verdicts))
    laws = list(dict.fromkeys(verdict.law for verdict in verdicts))
    cells = {(law, family): "does not apply" for law in laws for family in families}
    for verdict in verdicts:
        place = verdict.law, verdict.family
        cells[place] = max(cells[place], verdict.outcome, key=WORST_LAST.index)
    table(["law", *families], [[law, *(SHOWN[cells[law, family]] for family in families)] for law in laws])
    table(["operation", "body on this machine"], bodies())


def compile_all() -> None:
    """Compile every kernel now, so that nothing waits for it later."""
    if find_spec("conca.kernels") is None:
        notice("there are no kernels here; the plain bodies run")
    else:
        notice(f"compiled: {', '.join(import_module('conca.kernels').warm())}")
