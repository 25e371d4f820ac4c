"""`conca check`: every law on every layer, with the kernels of this machine."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

__all__ = ["check"]


def check(
    layer: Annotated[
        str | None, Argument(metavar="[LAYER]", help="A layer of your own: mine.py:MyLayer, or package.module:Class.")
    ] = None,
    family: Annotated[str | None, Option(metavar="NAME", help="Only this family of the library.")] = None,
    warm: Annotated[bool, Option("--warm", help="Compile all kernels first (once per machine and version).")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="Print only what fails.")] = False,
) -> None:
    """Hold layers to the laws: all forms agree, states go in and out, gradients too.

    The exit status is 1 when a law fails.
    """
