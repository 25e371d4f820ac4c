"""What the state of a network holds, and what a row costs: layer by layer, and as rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from conca.layers.states import size_in_bytes
from conca.models.classify import ClassifyNetwork
from conca.models.costs import costs
from conca.models.forecast import ForecastNetwork
from conca.models.language import LanguageNetwork
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, logarithmic, svg_of
from conca.report.page import Chapter, Picture, Table
from conca.report.words import size

__all__ = ["chapter", "grown"]

TITLE = "What the state holds"
READING = (
    "The state is all that the model keeps of a {what}: its size, not the length of the past, is what one more {what} costs while "
    "{parts} stream in. Multiply-adds are for one {part} of one {what}."
)
BOTH = (
    "These layers read whole sequences from both ends, so there is no state that one row after the other could go into. Multiply-adds "
    "are for one row of one series."
)
LENGTHS = (1, 4, 16, 64, 256, 1024)
Network: TypeAlias = ForecastNetwork | ClassifyNetwork | LanguageNetwork


def grown(network: Network, lengths: Sequence[int] = LENGTHS) -> NDArray[np.int64]:
    """Bytes of the state of one series, all members, after so many rows: read, and then measured."""
    if isinstance(network, LanguageNetwork):
        return after(network, lengths)
    if isinstance(network, ClassifyNetwork):
        return sizes(network.causal, lengths) + size_in_bytes(network.init_state(1)[1:])
    tower: Any = network.towers[0]
    if network.config.structure is not None:
        return np.full(len(lengths), size_in_bytes(tower.init_state(1)), dtype=np.int64)
    return sizes(tower.stack, lengths) * len(network.towers)


def after(network: LanguageNetwork, lengths: Sequence[int]) -> NDArray[np.int64]:
    """Bytes of the state of a text after so many tokens; one that does not grow is measured once."""
    found: list[int] = []
    for count in lengths:
        if not found or not network.bounded:
            with torch.inference_mode():
                ids = torch.zeros(1, count, dtype=torch.int64, device=network.norm.weight.device)
                found.append(size_in_bytes(network.read(ids)[1]))
    return np.resize(np.array(found, dtype=np.int64), len(lengths))


def sizes(stack: Any, lengths: Sequence[int]) -> NDArray[np.int64]:
    """Bytes of the state of a stack after so many rows."""
    like = next(stack.parameters())
    found = []
    for rows in lengths:
        with torch.inference_mode():
            zeros = torch.zeros(1, rows, stack.d_model, dtype=like.dtype, device=like.device)
            found.append(size_in_bytes(stack(zeros)[1]))
    return np.array(found, dtype=np.int64)


def chapter(network: Network, columns: int) -> Chapter:
    """A table of the layers, and the bytes as rows are read.

    columns  how many numbers a row of the table has; of a text, bytes of a token
    """
    rows = [
        [c.name, str(c.width), f"{c.parameters:,}", "grows" if c.grows else f"{c.state:,}", f"{c.multiply_adds:,}"]
        for c in costs(network)
    ]
    headings = ["part", "width", "parameters", "state bytes", "multiply-adds"]
    if isinstance(network, ClassifyNetwork) and network.encoder is not None:
        return Chapter(TITLE, (BOTH, Table(headings, rows)))
    what, parts = named(network)
    reading = READING.format(what=what, parts=parts, part=parts[:-1])
    return Chapter(TITLE, (reading, Table(headings, rows), picture(network, columns)))


def named(network: Network) -> tuple[str, str]:
    """What a network reads, and what that is made of."""
    return ("text", "tokens") if isinstance(network, LanguageNetwork) else ("series", "rows")


def picture(network: Network, columns: int) -> Picture:
    """Bytes against rows read, beside those of the rows themselves."""
    lengths, (what, parts) = np.array(LENGTHS), named(network)
    each = columns if isinstance(network, LanguageNetwork) else 4 * columns
    held, rows = grown(network), each * lengths
    figure, (axes,) = canvas(height=2.3)
    axes.semilogy(lengths, held, "o-", color=COLOURS[0], ms=3, lw=1.6, label="the state")
    axes.semilogy(lengths, rows, "--", color=SOFT, lw=1.2, label=f"the {parts} themselves")
    logarithmic(axes)
    label(axes, f"{parts} read", f"bytes of one {what}")
    key(axes)
    words = f"After {LENGTHS[-1]:,} {parts} the state of one {what} takes {size(held[-1])}"
    words += " and does not grow" if network.bounded else f", after one {parts[:-1]} {size(held[0])}: it grows"
    unit = (
        "byte" + "s" * (columns > 1)
        if isinstance(network, LanguageNetwork)
        else f"number{'s' * (columns > 1)} of 4 bytes"
    )
    words += f"; the {parts} themselves, {columns} {unit} each, would take {size(rows[-1])}."
    return Picture(svg_of(figure, "state"), f"Bytes of the state. {words}", words)
