"""A diffusion of images: a network that tells the noise at every level, read as slopes or as energies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from conca.data.image_file import Pixels
from conca.energy.chain import Kernel
from conca.energy.diffusion import NoiseEnergy, NoiseScore
from conca.energy.energy import Score
from conca.energy.images import noise_of
from conca.energy.reverse import DDIM, DDPM, ddim
from conca.energy.schedule import Schedule
from conca.estimators.image_config import DiffusionConfig
from conca.estimators.image_energy import place_of
from conca.estimators.image_fitting import DRAWN_BY
from conca.estimators.image_model import ImageModel
from conca.infer.images import Watch, bytes_of, noise_errors, reversed_images

__all__ = ["ImageDiffusion"]

Move: TypeAlias = DDPM | DDIM | Literal["langevin"] | None
Corrector = Callable[[float], Kernel[Any, Any]]


class ImageDiffusion(ImageModel):
    """A diffusion of images.

    >>> import numpy as np
    >>> bars = np.zeros((40, 8, 8), np.uint8); bars[:, :, 3] = 255
    >>> model = ImageDiffusion(features=8, epochs=1, batch_size=8).fit(bars)
    >>> model.sample(3, steps=5).shape
    (3, 1, 8, 8)

    Args:
        schedule, levels: of the noise: linear, cosine or geometric.
        scalar: the network is an energy at each level, whose slope tells the noise.
        labels: learn classes, too.
        features, halvings, blocks, patch, dropout: of the U-Net.
        decay: of the running average of its weights.
        size, colour: what images are brought to.
        epochs, max_minutes, batch_size, lr, test_fraction, random_state, devices, precision: of the training, see
            `conca.estimators.image_config`.

    After `fit`: `score_` (a `NoiseScore`, or with scalar a `NoiseEnergy`, over images between -1 and 1), `schedule_`, `network_`, `shape_`,
    `history_`, `scores_` (how well images held out are told from noise, constants and shuffled ones), and `classes_` with labels.
    """

    options: ClassVar[type[DiffusionConfig]] = DiffusionConfig

    def __init__(
        self,
        *,
        schedule: str = DiffusionConfig.schedule,
        levels: int = DiffusionConfig.levels,
        scalar: bool = False,
        labels: bool = False,
        features: int = DiffusionConfig.features,
        halvings: int = DiffusionConfig.halvings,
        blocks: int = DiffusionConfig.blocks,
        patch: int | None = None,
        dropout: float = 0.0,
        decay: float = DiffusionConfig.decay,
        size: int | None = None,
        colour: str | None = None,
        epochs: int | None = None,
        max_minutes: float | None = None,
        batch_size: int = DiffusionConfig.batch_size,
        lr: float | None = None,
        test_fraction: float = DiffusionConfig.test_fraction,
        random_state: int | None = 0,
        devices: str = DiffusionConfig.devices,
        precision: str = DiffusionConfig.precision,
    ) -> None:
        self.schedule, self.levels, self.scalar, self.labels = schedule, levels, scalar, labels
        self.features, self.halvings, self.blocks, self.patch = features, halvings, blocks, patch
        self.dropout, self.decay, self.size, self.colour = dropout, decay, size, colour
        self.epochs, self.max_minutes, self.batch_size, self.lr = epochs, max_minutes, batch_size, lr
        self.test_fraction, self.random_state, self.devices, self.precision = (
            test_fraction,
            random_state,
            devices,
            precision,
        )

    def _config(self) -> DiffusionConfig:
        config = self.run_.config
        assert isinstance(config, DiffusionConfig)
        return config

    @property
    def schedule_(self) -> Schedule:
        """That of the training. Raises NotFittedError before `fit`."""
        return self.schedule_of()

    def schedule_of(self, name: str | None = None, levels: int | None = None) -> Schedule:
        """A schedule of another name, or of as many levels, over the same images: the network walks it as well."""
        return self._config().noise(levels, name, self.run_.highest)

    @property
    def score_(self) -> NoiseScore | NoiseEnergy:
        """The landscapes, over the levels of `schedule_`. Raises NotFittedError before `fit`."""
        return self.score_on(self.schedule_)

    def score_on(self, schedule: Schedule) -> NoiseScore | NoiseEnergy:
        """The landscapes over the levels of another schedule."""
        found = noise_of(self.run_.network, schedule, self._config().scalar, self.run_.spread)  # type: ignore[arg-type]
        found.eval()
        return found

    def landscape(self, label: Any = None, schedule: Schedule | None = None) -> Score:
        """The landscapes, or those of one class. Raises BadInput for a class that was not learnt."""
        score: Score = self.score_on(schedule or self.schedule_)
        return score if label is None else score.on(y=torch.tensor(place_of(label, self.run_.classes)))

    def _heights(self, pixels: Pixels) -> NDArray[np.float64]:
        return noise_errors(self.score_, self.schedule_, pixels)

    def sample(
        self,
        n: int = 1,
        *,
        kernel: Move = None,
        steps: int | None = DRAWN_BY,
        schedule: Schedule | None = None,
        corrector: Corrector | None = None,
        corrections: int = 1,
        label: Any = None,
        random_state: int = 0,
        score: Score | None = None,
        watch: Watch | None = None,
    ) -> Pixels:
        """n images, bytes (n, C, H, W): from noise, level by level.

        Args:
            n: how many.
            kernel: `ddpm(...)` or `ddim(...)`; None: ddim without noise, kept between -1 and 1; "langevin": none but the corrector.
            steps: how many of the levels are visited (50, or all where there are fewer); None: all.
            schedule: None: that of the training; another one is walked as well (`schedule_of`).
            corrector, corrections: further steps at each level, see `conca.energy.reverse_diffusion`.
            label: a class, where classes were learnt.
            random_state: the same one, and the same n, give the same images; without noise on the way the first do not depend on n.
            score: other landscapes over such images, such as a sum with others (composition).
            watch: is told which share of the work is done.

        Raises:
            BadInput: for steps that cannot be, or a class that was not learnt.
            Divergence: where a place stops being finite.
        """
        return self._drawn(
            n,
            None,
            kernel,
            steps,
            schedule,
            corrector,
            corrections,
            random_state,
            score or self.landscape(label, schedule),
            watch,
        )

    def complete(
        self,
        image: Any,
        mask: Any,
        n: int = 1,
        *,
        kernel: Move = None,
        steps: int | None = DRAWN_BY,
        corrector: Corrector | None = None,
        corrections: int = 1,
        label: Any = None,
        random_state: int = 0,
        watch: Watch | None = None,
    ) -> Pixels:
        """n ways to fill in what is damaged, bytes (n, C, H, W); what is known does not move.

        Args:
            image: bytes (C, H, W) or (H, W).
            mask: bool (H, W), True where the image is to be filled in.
            n, kernel, steps, corrector, corrections, label, random_state, watch: as in `sample`.

        Raises:
            BadInput: for another shape, or a class that was not learnt.
        """
        known = self._known(image, mask, -1, 1)
        return self._drawn(
            n, known, kernel, steps, None, corrector, corrections, random_state, self.landscape(label), watch
        )

    def _drawn(
        self,
        n: int,
        known: Any,
        kernel: Move,
        steps: int | None,
        schedule: Schedule | None,
        corrector: Corrector | None,
        corrections: int,
        seed: int,
        score: Score,
        watch: Watch | None,
    ) -> Pixels:
        schedule = schedule or self.schedule_
        x = reversed_images(
            score,
            schedule,
            self.run_.shape,
            n,
            kernel=None if kernel == "langevin" else kernel or ddim(bounds=(-1.0, 1.0)),
            seed=seed,
            steps=min(steps, len(schedule)) if steps == DRAWN_BY else steps,
            corrector=corrector,
            corrections=corrections,
            known=known,
            watch=watch,
        )
        return bytes_of(x, -1, 1)
