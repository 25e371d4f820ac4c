"""How a network learns, whatever its lesson: the rates, the randomness of a step, and what several processes add up."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import AdamW, Optimizer

from conca.train.averaged import Averaged
from conca.train.course import Course
from conca.train.groups import param_groups
from conca.train.ranks import add_up, rank, world
from conca.train.rates import falling

__all__ = ["Learner"]


class Learner(LightningModule):
    """AdamW with warm-up and cosine; what is learnt and measured is said by its children.

    loss       of the last step
    rate       learning rate of the last step
    stops      whether the time is over, as all processes know it
    averaged   the network with the averaged weights
    """

    def __init__(self, network: nn.Module, course: Course) -> None:
        super().__init__()
        self.network, self.recipe, self.course = network, course.recipe, course
        self.averaged: list[Averaged] = []  # in a list, it is no part of this module
        self.loss, self.rate, self.stops, self.cut = torch.zeros(()), 0.0, False, False

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Dropout is a function of the seed, the step and the process."""
        key = (self.recipe.seed, self.course.step)
        seed = hash(key if rank() == 0 else (*key, rank())) % 2**63
        torch.default_generator.manual_seed(seed)  # torch.manual_seed, a millisecond slower, seeds what is not in use
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        self.rate = max(group["lr"] for group in self.trainer.optimizers[0].param_groups)

    def on_after_backward(self) -> None:
        """Where several processes train: gradients and loss are added up."""
        if world() > 1 and not self.cut:
            gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
            self.loss, self.stops = add_up(gradients, self.loss, self.course.late)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Nothing: gradients are cleared after the step, since a step may have made some before this comes."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Forget the gradients."""
        self.network.zero_grad(set_to_none=True)

    def measured(self) -> dict[str, float]:
        """What validation has found since it was last asked, over all processes: val/loss and more; nothing without any."""
        raise NotImplementedError

    def kept(self) -> dict[str, Any]:
        """What else a checkpoint holds: tensors, numbers and lists of them."""
        return {}

    def take_up(self, saved: dict[str, Any]) -> None:
        """The inverse of `kept`. Raises KeyError, TypeError or ValueError for what is of another training."""

    def configure_optimizers(self) -> Any:
        """AdamW; the rate rises over the first twentieth of the steps and falls along a cosine to a twentieth."""
        recipe = self.recipe
        optimizer = AdamW(param_groups(self.network, lr=recipe.lr, weight_decay=recipe.weight_decay))
        return falling(optimizer, self.course, warm=200, least=0.05)
