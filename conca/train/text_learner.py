"""How a language model learns: cross entropy of the next token, and what is measured on the way."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import AdamW

from conca.models.language import LanguageNetwork
from conca.train.course import Course
from conca.train.groups import param_groups
from conca.train.learner import Learner
from conca.train.passages import TextBatch
from conca.train.ranks import summed
from conca.train.rates import falling

__all__ = ["TextLearner"]

BETAS = 0.9, 0.95
"""Of AdamW: gradients of text change fast."""
WARM = 100
"""Steps in which the rate rises, at most."""
LEAST = 0.02
"""What is left of the rate in the end."""


class TextLearner(Learner):
    """The mean cross entropy of all tokens that count, in nats; it is validated in bits for each byte of text."""

    network: LanguageNetwork

    def __init__(self, network: LanguageNetwork, course: Course) -> None:
        super().__init__(network, course)
        self.counted: list[Tensor] = []

    def transfer_batch_to_device(self, batch: TextBatch, device: torch.device, dataloader_idx: int) -> TextBatch:
        """The whole batch."""
        return batch.to(device)

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Cross entropy over the batch; where several processes train, this one's part of it."""
        loss = lost(self.network, batch) / max(batch.whole, 1)
        self.loss = loss.detach()
        return loss

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.counted = []

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        """Count what the averaged weights say of a batch."""
        total = lost(cast(LanguageNetwork, self.averaged[0].module), batch).double()
        self.counted.append(torch.stack([total, total.new_tensor(batch.bytes)]))

    def measured(self) -> dict[str, float]:
        """val/loss, bits for each byte of the text that validates; nothing if there is none."""
        none = torch.zeros(2, dtype=torch.float64, device=self.device)
        total, stands = summed(torch.stack(self.counted or [none]).sum(0)).tolist()
        self.counted = []
        return {"val/loss": total / math.log(2) / stands} if stands else {}

    def configure_optimizers(self) -> Any:
        """AdamW; the rate rises over a few steps and falls along a cosine, by steps or, where it ends earlier, by time."""
        groups = param_groups(self.network, lr=self.recipe.lr, weight_decay=self.recipe.weight_decay)
        return falling(AdamW(groups, betas=BETAS), self.course, warm=WARM, least=LEAST, by_time=True)


def lost(network: LanguageNetwork, batch: TextBatch) -> Tensor:
    """The sum of the cross entropies of what counts in a batch; logits of it are never all kept."""
    h, _ = network.read(batch.ids, starts=batch.starts)
    return network.loss(h, batch.target, reduction="sum")
