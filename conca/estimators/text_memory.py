"""What memory a training will take, said before it begins."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from conca.models.language import LanguageNetwork
from conca.train.passages import TextBatch

__all__ = ["Memory", "estimated", "kept_by"]


@dataclass(frozen=True)
class Memory:
    """Bytes that a training takes, at least.

    weights      of the network
    gradients    of what is learnt
    moments      the two that AdamW keeps of each gradient
    copies       of what is learnt: its average, and the best so far
    activations  what a step keeps for its gradients
    """

    weights: int
    gradients: int
    moments: int
    copies: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.moments + self.copies + self.activations

    def line(self) -> str:
        """The parts, largest unit that suits each."""
        parts = ", ".join(f"{name} {size(count)}" for name, count in vars(self).items() if count)
        return f"memory: at least {size(self.total)} ({parts})"


def estimated(network: LanguageNetwork, batch: TextBatch, passages: int, *, copies: int) -> Memory:
    """The memory of training on so many passages a step; what one of them keeps is measured.

    batch    a passage
    copies   of what is learnt
    """
    weights = sum(tensor.nbytes for tensor in network.state_dict().values())
    learnt = sum(p.nbytes for p in network.parameters() if p.requires_grad)
    return Memory(weights, learnt, 2 * learnt, copies * learnt, passages * kept_by(network, batch))


def kept_by(network: LanguageNetwork, batch: TextBatch) -> int:
    """Bytes that a forward pass keeps for its gradients, beside the parameters."""
    known = {tensor.untyped_storage().data_ptr() for tensor in network.state_dict().values()}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.random.fork_rng(), saved_tensors_hooks(keep, lambda tensor: tensor):
        h, _ = network.read(batch.ids, starts=batch.starts)
        loss = network.loss(h, batch.target, reduction="sum")
        del loss
    return sum(found.values())


def free() -> int | None:
    """Bytes of this machine's memory that nobody uses; None where that is not told."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
