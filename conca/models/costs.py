"""What the network of an estimator costs: parameters, bytes of state, and the work of one row, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from conca.layers.bidirectional import BidirectionalBlock
from conca.layers.states import size_in_bytes
from conca.models.classify import ClassifyNetwork
from conca.models.forecast import Ahead, ForecastNetwork, Tower
from conca.models.language import LanguageNetwork
from conca.models.stack import Block
from conca.models.structural import Structural

__all__ = ["Cost", "bytes_of", "costs", "parameters"]


@dataclass(frozen=True)
class Cost:
    """One layer of one member, what stands around the layers, or all members, or all of a classifier, together.

    name, width    of the layer
    parameters     how many numbers are learnt
    state          bytes of the state of one series of which nothing has been read; 0 where both directions are read
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


def bytes_of(module: nn.Module) -> int:
    """Bytes that the tensors of a module take; one that has two names counts once."""
    found = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return sum(t.numel() * t.element_size() for t in found.values())


def costs(network: ForecastNetwork | ClassifyNetwork | LanguageNetwork) -> list[Cost]:
    """Every layer of a member, entry and head, and all members together; of a network without members, all of it."""
    if isinstance(network, LanguageNetwork):
        found = [*speaking(network)]
        return [*found, total("all", found, 1)]
    if isinstance(network, ClassifyNetwork):
        found = [*classifying(network)]
        return [*found, total("all", found, 1)]
    found = [*layers(cast("Tower | Structural", network.towers[0]))]
    members = len(network.towers)
    return [*found, total(f"all, {members} member{'s' * (members > 1)}", found, members)]


def total(name: str, found: Sequence[Cost], members: int) -> Cost:
    """All of these, as often as there are members."""
    parameters, state, multiply_adds, read = (
        members * sum(getattr(cost, name) for cost in found)
        for name in ("parameters", "state", "multiply_adds", "read")
    )
    grows = any(cost.grows for cost in found)
    return Cost(name, found[0].width, parameters, state, grows, multiply_adds, read)


def layers(tower: Tower | Structural) -> Iterator[Cost]:
    """Every layer of one member, then what stands around them."""
    if isinstance(tower, Structural):
        yield structural(tower)
        return
    for place, part in enumerate(cast("list[Block[Any]]", tower.stack.parts), 1):
        yield block(part, place)
    around = parameters(tower) - parameters(tower.stack)
    embedded = parameters(tower.embeddings)
    weights = around - embedded + len(tower.embeddings) * tower.stack.d_model
    work_of_head = weights + repeated(tower.ahead, tower.config.horizon)
    yield Cost("entry and head", tower.stack.d_model, around, 0, False, work_of_head, 4 * weights)


def classifying(network: ClassifyNetwork) -> Iterator[Cost]:
    """Every layer of a classifier, then what stands around them, with the sum and the count of the mean."""
    if network.encoder is None:
        for place, part in enumerate(cast("list[Block[Any]]", network.causal.parts), 1):
            yield block(part, place)
    else:
        for place, both in enumerate(network.encoder.blocks, 1):
            yield both_ways(both, place)
    width, inner = network.config.d_model, network.causal if network.encoder is None else network.encoder
    around = parameters(network) - parameters(inner)
    weights = around - parameters(network.enter) + width if network.config.symbols else around
    state = 0 if network.encoder is not None else size_in_bytes(network.init_state(1)[1:])
    yield Cost("entry and head", width, around, state, False, weights + width, 4 * weights + state)


def speaking(network: LanguageNetwork) -> Iterator[Cost]:
    """Every layer of a language model, then the tokens, the last norm and the head."""
    for place, part in enumerate(cast("list[Block[Any]]", network.stack.parts), 1):
        yield block(part, place)
    width, head = network.config.d_model, network.config.vocab_size * network.config.d_model
    around = parameters(network) - parameters(network.stack)
    read = bytes_of(network.embedding if network.head is None else network.head)
    yield Cost("tokens and head", width, around, 0, False, head + width, read)


def block(part: Block[Any], place: int) -> Cost:
    """One layer with its norm."""
    work, state = part.work(), size_in_bytes(part.init_state(1))
    name = f"{place}: {type(part.inner).__name__}"
    return Cost(name, part.d_model, parameters(part), state, not part.bounded, work.multiply_adds, work.bytes)


def both_ways(part: BidirectionalBlock, place: int) -> Cost:
    """A layer that reads forward and one that reads backward, with their norm."""
    ahead, back, norm = part.inner.ahead.work(), part.inner.back.work(), parameters(part.norm)
    name = f"{place}: {type(part.inner.ahead).__name__}, both ways"
    work = ahead.multiply_adds + back.multiply_adds + 2 * norm
    return Cost(name, part.d_model, parameters(part), 0, False, work, ahead.bytes + back.bytes + 4 * norm)


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
