"""How a classifier learns: cross-entropy, and what is measured on the way."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.models.classify import ClassifyNetwork
from conca.train.course import Course
from conca.train.examples import LabelBatch
from conca.train.learner import Learner
from conca.train.ranks import summed

__all__ = ["LabelLearner"]


class LabelLearner(Learner):
    """The mean cross-entropy of whole sequences.

    smoothing   share of the truth that is spread over all classes
    """

    network: ClassifyNetwork

    def __init__(self, network: ClassifyNetwork, course: Course, smoothing: float) -> None:
        super().__init__(network, course)
        self.smoothing = smoothing
        self.counted: list[Tensor] = []

    def transfer_batch_to_device(self, batch: LabelBatch, device: torch.device, dataloader_idx: int) -> LabelBatch:
        """The whole batch; the network brings its numbers to the precision of the parameters."""
        return batch.to(device)

    def training_step(self, batch: LabelBatch, batch_idx: int) -> Tensor:
        """Cross-entropy over the batch; where several processes train, this one's part of it."""
        logits = self.network(batch.x, lengths=batch.lengths)
        total = F.cross_entropy(logits, batch.y, reduction="sum", label_smoothing=self.smoothing)
        loss = total / batch.whole
        self.loss = loss.detach()
        return loss

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.counted = []

    def validation_step(self, batch: LabelBatch, batch_idx: int) -> None:
        """Count what the averaged weights say of a batch."""
        logits = cast(ClassifyNetwork, self.averaged[0].module)(batch.x, lengths=batch.lengths)
        total = F.cross_entropy(logits, batch.y, reduction="sum")
        right = (logits.argmax(-1) == batch.y).sum()
        self.counted.append(torch.stack([total, right, total.new_tensor(len(batch.y))]).double())

    def measured(self) -> dict[str, float]:
        """val/loss (cross-entropy) and val/accuracy over all sequences that validate; nothing if there are none."""
        none = torch.zeros(3, dtype=torch.float64, device=self.device)
        total, right, count = summed(torch.stack(self.counted or [none]).sum(0)).tolist()
        self.counted = []
        return {"val/loss": total / count, "val/accuracy": right / count} if count else {}
