"""Whether sequences that were read are what a run was fitted on: its channels, its symbols, its way of reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from conca.data.archive import ENDINGS as ARCHIVES
from conca.data.labelled import Labelled, counted, numbered, origin
from conca.data.long_table import is_long_table
from conca.estimators.sequences import ROLES, swapped
from conca.types import BadInput, nearest, path_of

__all__ = ["check_channels", "check_reading", "in_order", "settled"]


def check_channels(data: Labelled, channels: tuple[str, ...], axes: str) -> None:
    """Raise BadInput unless sequences have as many channels as were fitted."""
    found, needed = len(data.channels), len(channels)
    if found == needed:
        return
    lengths = set(data.lengths.tolist())
    hint = f"their axes may be swapped ({swapped(axes)})" if lengths == {needed} else "give the same"
    raise BadInput(f"{origin(data.source)}sequences of {counted(found, 'channel')}, and the fit had {needed}; {hint}")


def check_reading(path: Any, data: Labelled, reading: Mapping[str, Any]) -> None:
    """Raise BadInput for what was asked for and says nothing about what was read: columns where there are none, a rate of no sound."""
    if "rate" in reading and data.rate is None:
        raise BadInput(f"{origin(data.source)}rate belongs to sound, and this is none; leave it out")
    name = next((name for name in ROLES if name in reading), None)
    alone = isinstance(path, str | PathLike) and path_of(path).is_file()
    if name and alone and not is_long_table(path) and not str(path).lower().endswith(ARCHIVES):
        raise BadInput(f"{path}: {name} names a column of a table, and this is none; leave it out")


def settled(data: Labelled, symbols: tuple[str, ...]) -> Labelled:
    """Symbols numbered as those that were fitted. Raises BadInput for one that was not."""
    if data.symbols == symbols:
        return data
    if not data.symbols or not symbols:
        kinds = ("symbols", "numbers") if symbols else ("numbers", "symbols")
        raise BadInput(f"{kinds[0]} were fitted, and these are {kinds[1]}; give {kinds[0]}")
    place = np.array([symbols.index(s) if s in symbols else -1 for s in data.symbols])
    values = place[data.values]
    if (values < 0).any():
        strange = data.symbols[int(data.values[values < 0][0])]
        raise BadInput(f"the symbol {strange!r} was not fitted; there are {len(symbols)}, such as {symbols[0]!r}")
    return replace(data, values=values, symbols=symbols)


def in_order(data: Labelled, channels: tuple[str, ...]) -> Labelled:
    """Channels that have names in the order in which they were fitted, without others. Raises BadInput if one lacks."""
    width = len(data.channels)
    nameless = channels == numbered(len(channels)) or data.channels == numbered(width)
    named = set(channels) <= set(data.channels)
    if data.symbols or data.channels == channels or (nameless and not named):
        return data
    for name in channels:
        if name not in data.channels:
            other = [found for found in data.channels if found not in channels]
            hint = nearest(name, other) if other else f"the run reads {', '.join(map(repr, channels))}"
            raise BadInput(f"{origin(data.source)}there is no channel '{name}'; {hint}")
    places = [data.channels.index(name) for name in channels]
    return replace(data, values=data.values[:, places], channels=channels)
