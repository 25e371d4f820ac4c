"""What a forecaster's network costs: parameters, bytes of state, and the work of one row, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from conca.layers.states import size_in_bytes
from conca.models.forecast import Ahead, ForecastNetwork, Tower
from conca.models.stack import Block
from conca.models.structural import Structural

__all__ = ["Cost", "costs", "parameters"]


@dataclass(frozen=True)
class Cost:
    """One layer of one member, what stands around the layers, or all members together.

    name, width    of the layer
    parameters     how many numbers are learnt
    state          bytes of the state of one series of which nothing has been read
    grows          whether that grows with what is read
    multiply_adds  for a row
    read           bytes of parameters and state read for a row
    """

    name: str
    width: int
    parameters: int
    state: int
    grows: bool
    multiply_adds: int
    read: int


def parameters(module: nn.Module) -> int:
    """How many numbers are learnt."""
    return sum(p.numel() for p in module.parameters())


def costs(network: ForecastNetwork) -> list[Cost]:
    """Every layer of a member, entry and head, and all members together."""
    found = [*layers(cast("Tower | Structural", network.towers[0]))]
    members, width = len(network.towers), found[0].width
    numbers = [
        members * sum(getattr(cost, name) for cost in found)
        for name in ("parameters", "state", "multiply_adds", "read")
    ]
    name = f"all, {members} member{'s' * (members > 1)}"
    grows = any(cost.grows for cost in found)
    return [*found, Cost(name, width, numbers[0], numbers[1], grows, numbers[2], numbers[3])]


def layers(tower: Tower | Structural) -> Iterator[Cost]:
    """Every layer of one member, then what stands around them."""
    if isinstance(tower, Structural):
        yield structural(tower)
        return
    for place, part in enumerate(cast("list[Block[Any]]", tower.stack.parts), 1):
        work, state = part.work(), size_in_bytes(part.init_state(1))
        name = f"{place}: {type(part.inner).__name__}"
        yield Cost(name, part.d_model, parameters(part), state, not part.bounded, work.multiply_adds, work.bytes)
    around = parameters(tower) - parameters(tower.stack)
    embedded = parameters(tower.embeddings)
    weights = around - embedded + len(tower.embeddings) * tower.stack.d_model
    work_of_head = weights + repeated(tower.ahead, tower.config.horizon)
    yield Cost("entry and head", tower.stack.d_model, around, 0, False, work_of_head, 4 * weights)


def structural(tower: Structural) -> Cost:
    """The whole of a structural forecaster: the filter, and the forecasts from a row."""
    size, state, count = tower.size, size_in_bytes(tower.init_state(1)), parameters(tower)
    work = tower.targets * (size + 1) * (4 * size + tower.horizon * size)
    return Cost("1: Structural", size, count, state, False, work, state + 4 * count)


def repeated(ahead: nn.Module | None, horizon: int) -> int:
    """Multiply-adds of what is done once for every step ahead, beyond the first."""
    if ahead is None:
        return 0
    each = cast(Ahead, ahead)
    return (horizon - 1) * (parameters(each.step) + parameters(each.out))
