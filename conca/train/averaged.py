"""The weights that a training shows: their running average, or, where memory is short, the weights themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

__all__ = ["Averaged", "Plain", "averaged_of", "moving", "taken"]


class Plain:
    """In place of an average: the network as it is."""

    def __init__(self, network: nn.Module) -> None:
        self.module = network

    def update_parameters(self, network: nn.Module) -> None:
        """There is nothing to do."""

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to keep."""
        return {}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """There is nothing to take up."""


Averaged = AveragedModel | Plain


def averaged_of(network: nn.Module, average: bool, decay: float = 0.99) -> Averaged:
    """What is validated and kept of a network that learns."""
    if not average:
        return Plain(network)
    return AveragedModel(network, multi_avg_fn=partial(forgetting, decay)).requires_grad_(False).eval()


def forgetting(decay: float, kept: Sequence[Tensor], new: Sequence[Tensor], count: Tensor | int) -> None:
    """A running mean that forgets: the first steps weigh less and less."""
    decay = min(decay, (int(count) + 1) / (int(count) + 10))
    torch._foreach_lerp_(list(kept), list(new), 1 - decay)


def moving(network: nn.Module, of: nn.Module | None = None) -> dict[str, Tensor]:
    """The state of a network, or that of a copy of it (`of`), without the parameters that it does not learn."""
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in (of or network).state_dict().items() if name not in frozen}


def taken(network: nn.Module, state: dict[str, Tensor]) -> None:
    """The inverse of `moving`. Raises RuntimeError if the state is of another network."""
    network.load_state_dict(network.state_dict() | state)
