"""How a forecaster learns: the loss, the rates, and what is measured on the way."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from conca.models.forecast import ForecastNetwork, Tower, pinball
from conca.train.groups import param_groups
from conca.train.pieces import Batch
from conca.train.recipe import Recipe

__all__ = ["ForecastLearner"]


class ForecastLearner(LightningModule):
    """The pinball loss of every member at every row of the pieces; AdamW with warm-up and cosine.

    Logs train/loss for every epoch; val/loss (pinball) and val/mae (of the middle quantile, in the unit of the targets).
    """

    levels: Tensor

    def __init__(self, network: ForecastNetwork, recipe: Recipe) -> None:
        super().__init__()
        self.network, self.recipe = network, recipe
        self.register_buffer("levels", torch.tensor(network.config.levels, dtype=torch.float32), persistent=False)
        self.counted: list[Tensor] = []

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Dropout is a function of the seed and the step."""
        torch.manual_seed(hash((self.recipe.seed, self.global_step)) % 2**63)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """The whole batch, its numbers in the precision of the parameters."""
        return batch.to(device, next(self.network.parameters()).dtype)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean pinball loss over rows, steps, targets and quantiles; each member has pieces of its own."""
        network = self.network
        members = len(network.towers)
        shares = [batch.share(member, members) for member in range(members)]
        totals, counts = zip(*(self.share(cast(Tower, tower), own) for tower, own in zip(network.towers, shares)))
        loss = torch.stack(totals).sum() / torch.stack(counts).sum().clamp(min=1)
        rate = max(group["lr"] for group in self.trainer.optimizers[0].param_groups)
        self.log("lr", rate, on_step=False, on_epoch=True, batch_size=1)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.inputs))
        return loss

    def share(self, tower: Tower, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sum and number of the losses of one member on its own pieces."""
        h, _ = tower(batch.inputs, batch.codes, lengths=batch.lengths, elapsed=batch.elapsed)
        quantiles = tower.quantiles(h[:, batch.rows], batch.anchor)
        return pinball(batch.future, self.network.straighten(quantiles), self.levels)

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.counted = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the errors of a batch of windows."""
        network = self.network
        h, _ = network.read(batch.inputs, batch.codes, lengths=batch.lengths, elapsed=batch.elapsed)
        quantiles = network(h[:, :, batch.rows], batch.anchor)
        total, count = pinball(batch.future, quantiles, self.levels)
        error = (batch.future - quantiles[..., network.middle]).abs() * batch.unit[:, None, None]
        self.counted.append(torch.stack([total, count, error.nansum()]).double())

    def on_validation_epoch_end(self) -> None:
        """Log the means over all windows."""
        total, count, error = torch.stack(self.counted).sum(0)
        self.log("val/loss", (total / count).float())
        self.log("val/mae", (error * self.levels.numel() / count).float())

    def configure_optimizers(self) -> Any:
        """AdamW; the rate rises over the first twentieth of the steps and falls along a cosine to a twentieth."""
        recipe = self.recipe
        optimizer = AdamW(param_groups(self.network, lr=recipe.lr, weight_decay=recipe.weight_decay))
        steps = recipe.epochs * recipe.steps
        warm = min(max(steps // 20, 1), 200)

        def rate(step: int) -> float:
            fall = 0.5 * (1 + math.cos(math.pi * min(step / steps, 1)))
            return min(1.0, (step + 1) / warm) * (0.05 + 0.95 * fall)

        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, rate), "interval": "step"}}
