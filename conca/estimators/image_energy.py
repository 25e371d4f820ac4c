"""An energy of images: one landscape that generates, completes, tells what is strange, and adds to others."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from conca.data.image_file import Pixels
from conca.energy.classifier import ClassifierEnergy
from conca.energy.draws import whole
from conca.energy.energy import Energy
from conca.energy.images import energy_of
from conca.energy.network import NetworkEnergy
from conca.energy.recipes import Recipe
from conca.estimators.image_config import EnergyConfig
from conca.estimators.image_fitting import LONGER
from conca.estimators.image_model import ImageModel
from conca.estimators.image_runs import ImageRun
from conca.infer.images import Watch, bytes_of, classes_of, energies, walked_images
from conca.types import BadInput

__all__ = ["ImageEnergy"]


class ImageEnergy(ImageModel):
    """An energy of images, trained by chains that walk against the data.

    >>> import numpy as np
    >>> bars = np.zeros((40, 8, 8), np.uint8); bars[:, :, 3] = 255
    >>> model = ImageEnergy(features=8, epochs=1, chain_steps=2, batch_size=8).fit(bars)
    >>> model.sample(3).shape, list(model.novelty(bars[:2]).columns)
    ((3, 1, 8, 8), ['novelty', 'rank', 'alarm'])

    Args:
        recipe: igebm (2019: steep steps, little noise, a buffer), short_run (always from noise), generative_convnet (2016: step and noise
            tied), improved_cd, jem; see `conca.energy.recipes`.
        labels: learn classes, too: a classifier read as an energy (JEM).
        features, activation: of the network.
        chain_steps, l2, spectral: what is to be otherwise than in the recipe.
        size, colour: what images are brought to.
        epochs, max_minutes, batch_size, lr, test_fraction, random_state, devices, precision: of the training, see
            `conca.estimators.image_config`.

    After `fit`: `energy_` (an `Energy` over images between `recipe_.low` and `recipe_.high`), `recipe_`, `network_`, `shape_`, `history_`,
    `scores_` (how well images held out are told from noise, constants and shuffled ones), and `classes_` with labels.
    """

    options: ClassVar[type[EnergyConfig]] = EnergyConfig

    def __init__(
        self,
        *,
        recipe: str = EnergyConfig.recipe,
        labels: bool = False,
        features: int = EnergyConfig.features,
        activation: str = EnergyConfig.activation,
        chain_steps: int | None = None,
        l2: float | None = None,
        spectral: bool | None = None,
        size: int | None = None,
        colour: str | None = None,
        epochs: int | None = None,
        max_minutes: float | None = None,
        batch_size: int = EnergyConfig.batch_size,
        lr: float | None = None,
        test_fraction: float = EnergyConfig.test_fraction,
        random_state: int | None = 0,
        devices: str = EnergyConfig.devices,
        precision: str = EnergyConfig.precision,
    ) -> None:
        self.recipe, self.labels, self.features, self.activation = recipe, labels, features, activation
        self.chain_steps, self.l2, self.spectral = chain_steps, l2, spectral
        self.size, self.colour, self.epochs, self.max_minutes = size, colour, epochs, max_minutes
        self.batch_size, self.lr, self.test_fraction = batch_size, lr, test_fraction
        self.random_state, self.devices, self.precision = random_state, devices, precision

    @property
    def recipe_(self) -> Recipe:
        """How it was trained. Raises NotFittedError before `fit`."""
        config = self.run_.config
        assert isinstance(config, EnergyConfig)
        return config.how()

    @property
    def energy_(self) -> NetworkEnergy | ClassifierEnergy:
        """The landscape. Raises NotFittedError before `fit`."""
        check_is_fitted(self)
        return self._energy

    def _take(self, run: ImageRun) -> None:
        super()._take(run)
        self._energy = energy_of(run.network)  # type: ignore[arg-type]  # made once: it tries whether rows of the network are apart
        self._energy.eval()

    def _heights(self, pixels: Pixels) -> NDArray[np.float64]:
        how = self.recipe_
        return energies(self.energy_, pixels, how.low, how.high)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (n, K) of the classes, in the order of `classes_`; X as in `fit`.

        Raises BadInput as `read` does, and where no classes were learnt (`labels`).
        """
        how, energy = self.recipe_, self.energy_
        if not isinstance(energy, ClassifierEnergy):
            raise BadInput("no classes were learnt; fit with labels (--labels)")
        pixels = self.read(X).pixels
        return classes_of(energy, pixels, how.low, how.high)

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each image, (n,). Raises as `predict_proba` does."""
        places = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[places]
        return found

    def landscape(self, label: Any = None) -> Energy:
        """The energy, or that of one class. Raises BadInput for a class that was not learnt."""
        energy: Energy = self.energy_
        return energy if label is None else energy.on(y=place_of(label, self.run_.classes))

    def sample(
        self,
        n: int = 1,
        *,
        steps: int | None = None,
        label: Any = None,
        random_state: int = 0,
        energy: Energy | None = None,
        watch: Watch | None = None,
    ) -> Pixels:
        """n images, bytes (n, C, H, W): where chains from noise end.

        Args:
            n: how many.
            steps: of each chain; None: sixteen times those of the training, or as many where it always began at noise.
            label: a class, where classes were learnt.
            random_state: the same one, and the same n, give the same images.
            energy: another landscape over such images, such as a sum with others (composition).
            watch: is told which share of the work is done.

        Raises:
            BadInput: for no image, or a class that was not learnt.
            Divergence: where a chain leaves the finite numbers.
        """
        how, landscape = self.recipe_, energy or self.landscape(label)
        x = walked_images(landscape, how, n, steps=self._steps(steps), seed=random_state, watch=watch)
        return bytes_of(x, how.low, how.high)

    def complete(
        self,
        image: Any,
        mask: Any,
        n: int = 1,
        *,
        steps: int | None = None,
        label: Any = None,
        random_state: int = 0,
        watch: Watch | None = None,
    ) -> Pixels:
        """n ways to fill in what is damaged, bytes (n, C, H, W); what is known does not move.

        Args:
            image: bytes (C, H, W) or (H, W).
            mask: bool (H, W), True where the image is to be filled in.
            n, steps, label, random_state, watch: as in `sample`.

        Raises:
            BadInput: for another shape, or a class that was not learnt.
        """
        how = self.recipe_
        known = self._known(image, mask, how.low, how.high)
        x = walked_images(
            self.landscape(label), how, n, steps=self._steps(steps), seed=random_state, known=known, watch=watch
        )
        return bytes_of(x, how.low, how.high)

    def _steps(self, steps: int | None) -> int:
        how = self.recipe_
        return how.steps * (LONGER if how.size else 1) if steps is None else whole(steps, "the number of steps")


def place_of(label: Any, classes: tuple[str, ...]) -> int:
    """Which of the classes is meant. Raises BadInput if none is."""
    if str(label) not in classes:
        known = ", ".join(classes) if classes else "none: it was fitted without labels"
        raise BadInput(f"unknown class {str(label)!r}; known: {known}")
    return classes.index(str(label))
