"""What the state of a network holds, and what a row costs: layer by layer, and as rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from conca.layers.states import size_in_bytes
from conca.models.forecast import ForecastNetwork
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, logarithmic, svg_of
from conca.report.page import Chapter, Picture, Table
from conca.report.words import size

__all__ = ["Holding", "chapter", "grown", "holdings"]

TITLE = "What the state holds"
READING = (
    "The state is all that the network keeps of a series: its size, not the length of the past, is what one more series costs while "
    "rows stream in. Multiply-adds are for one row of one series."
)
LENGTHS = (1, 4, 16, 64, 256, 1024)


@dataclass(frozen=True)
class Holding:
    """One layer of one member, or all members together.

    name, width    of the layer
    parameters     how many numbers are learnt
    bytes          of the state of one series of which nothing has been read
    grows          whether that grows with what is read
    multiply_adds  for a row
    """

    name: str
    width: int
    parameters: int
    bytes: int
    grows: bool
    multiply_adds: int


def parameters(module: Any) -> int:
    """How many numbers are learnt."""
    return sum(p.numel() for p in module.parameters())


def holdings(network: ForecastNetwork) -> list[Holding]:
    """Every layer of a member, what stands around them, and all members together."""
    tower: Any = network.towers[0]
    stack, members = tower.stack, len(network.towers)
    found = [
        Holding(
            f"layer {place}: {type(part.inner).__name__}",
            part.d_model,
            parameters(part),
            size_in_bytes(part.init_state(1)),
            not part.bounded,
            part.work().multiply_adds,
        )
        for place, part in enumerate(stack.parts, 1)
    ]
    around = parameters(tower) - parameters(stack)
    used = around - parameters(tower.embeddings) + len(tower.embeddings) * stack.d_model
    found.append(Holding("entry and head", stack.d_model, around, 0, False, used))
    held, grows = sum(h.bytes for h in found), any(h.grows for h in found)
    work = stack.work().multiply_adds + used
    name = f"all, {members} member{'s' * (members > 1)}"
    found.append(Holding(name, stack.d_model, members * parameters(tower), members * held, grows, members * work))
    return found


def grown(network: ForecastNetwork, lengths: Sequence[int] = LENGTHS) -> NDArray[np.int64]:
    """Bytes of the state of one series, all members, after so many rows: read, and then measured."""
    tower: Any = network.towers[0]
    like = next(tower.parameters())
    sizes = []
    for rows in lengths:
        with torch.inference_mode():
            zeros = torch.zeros(1, rows, tower.stack.d_model, dtype=like.dtype, device=like.device)
            sizes.append(size_in_bytes(tower.stack(zeros)[1]) * len(network.towers))
    return np.array(sizes, dtype=np.int64)


def chapter(network: ForecastNetwork, columns: int) -> Chapter:
    """A table of the layers, and the bytes as rows are read; `columns` is how many numbers a row of the table has."""
    found = holdings(network)
    rows = [
        [
            h.name,
            str(h.width),
            f"{h.parameters:,}",
            f"{h.bytes:,}",
            "yes" if h.grows else "no",
            f"{h.multiply_adds:,}",
        ]
        for h in found
    ]
    headings = ["part", "width", "parameters", "state bytes", "grows", "multiply-adds a row"]
    return Chapter(TITLE, (READING, Table(headings, rows), picture(network, columns)))


def picture(network: ForecastNetwork, columns: int) -> Picture:
    """Bytes against rows read, beside those of the rows themselves."""
    lengths = np.array(LENGTHS)
    held, rows = grown(network), 4 * columns * lengths
    figure, (axes,) = canvas(height=2.3)
    axes.semilogy(lengths, held, "o-", color=COLOURS[0], ms=3, lw=1.6, label="the state")
    axes.semilogy(lengths, rows, "--", color=SOFT, lw=1.2, label="the rows themselves")
    logarithmic(axes)
    label(axes, "rows read", "bytes of one series")
    key(axes)
    words = f"After {LENGTHS[-1]:,} rows the state of one series takes {size(held[-1])}"
    words += " and does not grow" if network.bounded else f", after one row {size(held[0])}: it grows"
    words += (
        f"; the rows themselves, {columns} number{'s' * (columns > 1)} of 4 bytes each, would take {size(rows[-1])}."
    )
    return Picture(svg_of(figure, "state"), f"Bytes of the state. {words}", words)
