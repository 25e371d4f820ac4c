"""How a forecaster learns: the loss, and what is measured on the way."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from conca.layers.states import tree_map
from conca.models.forecast import ForecastNetwork, Tower, pinball
from conca.train.course import Course
from conca.train.learner import Learner
from conca.train.pieces import Batch
from conca.train.ranks import summed
from conca.train.shares import Share, slices
from conca.types import State

__all__ = ["ForecastLearner"]


class ForecastLearner(Learner):
    """The pinball loss of every member at every row of the pieces."""

    levels: Tensor
    network: ForecastNetwork

    def __init__(self, network: ForecastNetwork, course: Course) -> None:
        super().__init__(network, course)
        self.register_buffer("levels", torch.tensor(network.config.levels, dtype=torch.float32), persistent=False)
        self.counted: list[Tensor] = []

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The whole batch, its numbers in the precision of the parameters."""
        dtype = next(self.network.parameters()).dtype
        if isinstance(batch, Share):
            return batch._replace(parts=tuple(part.to(device, dtype) for part in batch.parts))
        return batch.to(device, dtype)

    def training_step(self, batch: Share, batch_idx: int) -> Tensor:
        """Mean pinball loss over rows, steps, targets and quantiles; each member has pieces of its own.

        Where gradients are truncated, those of all slices but the last are made here, so that one slice alone is in memory.
        """
        states: list[Any] = [None] * len(batch.parts)
        cuts = list(slices(batch.parts, self.recipe.truncate))
        count: Tensor | int | None = batch.values
        if count is None and len(cuts) > 1:
            count = sum(int((~torch.isnan(part.future)).sum()) for part in batch.parts) * self.levels.numel()
        whole = torch.zeros((), device=self.device)
        for place, parts in enumerate(cuts):
            totals, counts, states = self.run_slice(parts, states)
            divisor = torch.stack(counts).sum().clamp(min=1) if count is None else max(int(count), 1)
            loss = torch.stack(totals).sum() / divisor
            whole = whole + loss.detach()
            if place + 1 < len(cuts):
                self.cut = True
                with torch.autocast(self.device.type, enabled=False):
                    self.trainer.strategy.backward(loss, None)
                self.cut = False
        self.loss = whole
        return loss

    def run_slice(self, parts: tuple[Batch, ...], states: list[Any]) -> tuple[list[Tensor], list[Tensor], list[Any]]:
        """Sums and numbers of the losses of all members on a slice of their own pieces, and the states after it."""
        totals, counts, after = [], [], []
        for tower, own, state in zip(self.network.towers, parts, states):
            h, state = cast(Tower, tower)(
                own.inputs, own.codes, state, lengths=own.lengths, elapsed=own.elapsed, rows=own.rows
            )
            quantiles = cast(Tower, tower).quantiles(h, own.anchor, own.known)
            total, count = pinball(own.future, self.network.straighten(quantiles), self.levels)
            totals.append(total)
            counts.append(count)
            after.append(tree_map(Tensor.detach, cast(State, state)) if self.recipe.truncate else None)
        return totals, counts, after

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.counted = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the errors of the averaged weights on a batch of windows."""
        network = cast(ForecastNetwork, self.averaged[0].module)
        h, _ = network.read(batch.inputs, batch.codes, lengths=batch.lengths, elapsed=batch.elapsed, rows=batch.rows)
        quantiles = network(h, batch.anchor, batch.known)
        total, count = pinball(batch.future, quantiles, self.levels)
        error = (batch.future - quantiles[..., network.middle]).abs() * batch.unit[:, None, None]
        self.counted.append(torch.stack([total, count, error.nansum()]).double())

    def measured(self) -> dict[str, float]:
        """val/loss (pinball) and val/mae (of the middle quantile, in the unit of the targets) over all windows.

        Those that other processes counted are among them; nothing if there are none.
        """
        none = torch.zeros(3, dtype=torch.float64, device=self.device)
        total, count, error = summed(torch.stack(self.counted or [none]).sum(0)).tolist()
        self.counted = []
        return {"val/loss": total / count, "val/mae": error * self.levels.numel() / count} if count else {}
