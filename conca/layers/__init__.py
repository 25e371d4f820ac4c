"""Mathematics with parameters: one paper, one file; every mixer here is a family."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

from conca.layers.mixer import Mixer

__all__ = ["families", "mixers", "walked"]


def walked(package: str) -> tuple[ModuleType, ...]:
    """The modules of a room, imported."""
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return tuple(importlib.import_module(f"{package}.{module.name}") for module in found)


def mixers(module: ModuleType) -> dict[str, type[Mixer[Any]]]:
    """The mixers that a module defines, by class name."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing)
        and issubclass(thing, Mixer)
        and thing is not Mixer
        and thing.__module__ == module.__name__
        and not name.startswith("_")
    }


def families() -> dict[str, type[Mixer[Any]]]:
    """Every family of this room by its name, the class's in small letters; found by walking, never listed by hand.

    >>> families()["s4d"].__name__
    'S4D'
    """
    found = {name.lower(): cls for module in walked(__name__) for name, cls in mixers(module).items()}
    return dict(sorted(found.items()))
