"""`conca info`: what a fitted model is made of, what it costs, and which bodies run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

__all__ = ["info"]


def info(run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit` wrote.")]) -> None:
    """Say what a run is: layers, parameters, state and work per token, kernel or plain bodies."""
