"""How networks learn images: as energies, by chains that walk against the data, and as what tells the noise of a diffusion."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Adam

from conca.energy.classifier import ClassifierEnergy
from conca.energy.diffusion import noise_loss
from conca.energy.draws import norm
from conca.energy.energy import Score
from conca.energy.images import energy_of, noise_of, to_bytes, to_floats
from conca.energy.losses import contrastive_divergence, jem
from conca.energy.recipes import Recipe
from conca.energy.reverse import ddim, reverse_diffusion
from conca.energy.schedule import Schedule
from conca.models.image_energy import ImageEnergyNetwork
from conca.models.unet import UNet
from conca.train.course import Course
from conca.train.image_batches import ImageBatch
from conca.train.learner import Learner
from conca.train.ranks import rank, summed
from conca.train.rates import falling

__all__ = ["EnergyLearner", "NoiseLearner"]

WARM, LEAST = 100, 0.05
"""Steps in which the rate rises, at most; what is left of it in the end."""
SHOWN, MOMENTS = 16, 12
"""Images in a picture of where chains are, and how many such pictures are kept of a training, at most."""
DRAWN_BY = 20
"""Levels that are visited for a picture of what a diffusion draws."""
FORGOTTEN = 0.1
"""Share of images whose class is not told, so that the network also knows them without."""


class ImageLearner(Learner):
    """What both share: Adam, whose rate rises over a few steps and falls along a cosine, by steps or, if earlier, by time."""

    def __init__(self, network: torch.nn.Module, course: Course, betas: tuple[float, float]) -> None:
        super().__init__(network, course)
        self.betas = betas
        self.counted: list[Tensor] = []
        self.moments: list[tuple[int, Tensor]] = []

    def transfer_batch_to_device(self, batch: ImageBatch, device: torch.device, dataloader_idx: int) -> ImageBatch:
        """The whole batch."""
        return batch.to(device)

    def drawn(self, number: int) -> torch.Generator:
        """Random numbers of a step of this process, on its device."""
        seed = hash((self.recipe.seed, number, rank())) % 2**63
        return torch.Generator(self.device).manual_seed(seed)

    @property
    def numbers(self) -> torch.dtype:
        """The precision in which the network learns."""
        return next(self.network.parameters()).dtype

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.counted = []

    def means(self, width: int) -> list[float]:
        """Means of what validation counted: sums, then how many; nothing where there was none."""
        none = torch.zeros(width, dtype=torch.float64, device=self.device)
        *sums, count = summed(torch.stack(self.counted or [none]).sum(0)).tolist()
        self.counted = []
        return [total / count for total in sums] if count else []

    def moment(self, x: Tensor, low: float, high: float) -> None:
        """Keep a picture of some of x; of too many pictures the one that lies closest between its neighbours is dropped."""
        self.moments.append((self.course.step, to_bytes(x[:SHOWN], low, high)))
        if len(self.moments) > MOMENTS:
            at = [step for step, _ in self.moments]
            self.moments.pop(min(range(1, len(at) - 1), key=lambda k: at[k + 1] - at[k - 1]))

    def kept(self) -> dict[str, Any]:
        """The pictures, and after how many updates."""
        return {"at": [step for step, _ in self.moments], "moments": [shown for _, shown in self.moments]}

    def take_up(self, saved: dict[str, Any]) -> None:
        """The inverse of `kept`."""
        self.moments = list(zip(saved["at"], saved["moments"]))

    def configure_optimizers(self) -> Any:
        """Adam."""
        optimizer = Adam(self.network.parameters(), lr=self.recipe.lr, betas=self.betas)
        return falling(optimizer, self.course, warm=WARM, least=LEAST, by_time=True)


class EnergyLearner(ImageLearner):
    """An energy goes down at the data and up where its own chains are; where there are classes it is a classifier as well.

    how   the recipe of the chains, the data and the loss
    """

    network: ImageEnergyNetwork

    def __init__(self, network: ImageEnergyNetwork, course: Course, how: Recipe) -> None:
        super().__init__(network, course, how.betas)
        self.how, self.landscape = how, [energy_of(network)]  # in a list, it is no part of this module
        shape = self.landscape[0].shape or ()
        self.draw = torch.Generator().manual_seed(self.recipe.seed)
        self.buffer = how.buffer(shape, generator=self.draw)
        self.last: tuple[Tensor, Tensor] | None = None

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Contrastive divergence over the batch, and cross entropy where there are classes."""
        how, energy, draw = self.how, self.landscape[0], self.drawn(batch.number)
        self.draw.manual_seed(hash((self.recipe.seed, batch.number, 1, 1)) % 2**63)
        clean = to_floats(batch.x, how.low, how.high, self.numbers)
        x = how.noised(clean, draw)
        found = how.negatives(energy, len(x), self.buffer, generator=draw)
        if isinstance(energy, ClassifierEnergy) and batch.y is not None:
            loss = jem(energy, x, batch.y, found, l2=how.l2, limit=how.limit, x_clean=clean)
        else:
            loss = contrastive_divergence(energy, x, found, l2=how.l2, limit=how.limit)
        self.loss, self.last = loss.detach(), (x, found)
        return loss

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Count the energies that the averaged weights give to a batch, and the classes that they tell."""
        network = cast(ImageEnergyNetwork, self.averaged[0].module)
        said = network(to_floats(batch.x, self.how.low, self.how.high, self.numbers))
        logits = said if said.dim() == 2 else None
        energy = said if logits is None else -logits.logsumexp(1)
        right = (
            (logits.argmax(1) == batch.y).sum() if logits is not None and batch.y is not None else energy.new_zeros(())
        )
        self.counted.append(torch.stack([energy.sum(), right, energy.new_tensor(len(energy))]).double())

    def measured(self) -> dict[str, float]:
        """energy/data, energy/samples, slope/data, slope/samples: of the last batch, and where its chains ended.

        Also energy/validation, and val/accuracy where there are classes, if something validates.
        """
        row: dict[str, float] = {}
        if self.last is not None:
            energy, mode = self.landscape[0], self.network.training
            self.network.eval()
            with torch.no_grad():
                for name, x in zip(("data", "samples"), self.last):
                    value, score = energy.evaluate(x)
                    row |= {f"energy/{name}": float(value.mean()), f"slope/{name}": float(norm(score).mean())}
            self.network.train(mode)
            self.moment(self.last[1], self.how.low, self.how.high)
        if found := self.means(3):
            row["energy/validation"] = found[0]
            if self.network.config.outputs > 1:
                row["val/accuracy"] = found[1]
        return row

    def kept(self) -> dict[str, Any]:
        """The buffer and the pictures."""
        places = {} if self.buffer is None else {"places": self.buffer.places}
        return super().kept() | places

    def take_up(self, saved: dict[str, Any]) -> None:
        """The inverse of `kept`."""
        super().take_up(saved)
        if self.buffer is not None:
            self.buffer.load_state_dict({"places": saved["places"], "generator": self.draw.get_state()})


class NoiseLearner(ImageLearner):
    """The mean square of the noise that is told amiss, at a level drawn for each image.

    schedule, scalar, spread   of the landscapes, see `noise_of`
    """

    network: UNet

    def __init__(self, network: UNet, course: Course, schedule: Schedule, scalar: bool, spread: float) -> None:
        super().__init__(network, course, (0.9, 0.999))
        self.schedule, self.scalar, self.spread = schedule, scalar, spread

    def lost(self, network: UNet, batch: ImageBatch, draw: torch.Generator) -> Tensor:
        """The loss of each image of a batch, (B,)."""
        landscape: Score = noise_of(network, self.schedule, self.scalar, self.spread)
        if batch.y is not None:
            forgotten = torch.rand(len(batch.x), generator=draw, device=self.device) < FORGOTTEN
            landscape = landscape.on(y=batch.y.masked_fill(forgotten, network.config.classes))
        x = to_floats(batch.x, -1, 1, self.numbers)
        return noise_loss(landscape, self.schedule, x, generator=draw, reduction="none")

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """The mean over the batch; where several processes train, this one's part of it."""
        loss = self.lost(self.network, batch, self.drawn(batch.number)).sum() / batch.whole
        self.loss = loss.detach()
        return loss

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Count what the averaged weights tell amiss, under noise that is the same each time."""
        draw = torch.Generator(self.device).manual_seed(batch.number)
        lost = self.lost(cast(UNet, self.averaged[0].module), batch, draw).detach()
        self.counted.append(torch.stack([lost.sum(), lost.new_tensor(len(lost))]).double())

    def measured(self) -> dict[str, float]:
        """val/loss, if something validates; also keeps a picture of what the averaged weights draw, always from one noise."""
        score = noise_of(cast(UNet, self.averaged[0].module), self.schedule, self.scalar, self.spread)
        draw = torch.Generator(self.device).manual_seed(self.recipe.seed)
        shape, highest = (SHOWN, *(score.shape or ())), self.schedule.level(len(self.schedule))[1]
        x = highest * torch.randn(shape, generator=draw, device=self.device, dtype=self.numbers)
        steps = min(DRAWN_BY, len(self.schedule))
        self.moment(reverse_diffusion(score, self.schedule, ddim(bounds=(-1.0, 1.0)), x, steps=steps), -1, 1)
        found = self.means(2)
        return {"val/loss": found[0]} if found else {}
