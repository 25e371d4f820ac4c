"""What models of images are asked to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from conca.energy.recipes import Recipe, generative_convnet, igebm, improved_cd, jem_recipe, short_run
from conca.energy.schedule import Schedule
from conca.estimators.options import PRECISIONS, Options

__all__ = ["RECIPES", "SCHEDULES", "DiffusionConfig", "EnergyConfig", "ImageConfig"]

RECIPES: dict[str, Callable[[], Recipe]] = {
    "igebm": igebm,
    "improved_cd": improved_cd,
    "short_run": short_run,
    "generative_convnet": generative_convnet,
    "jem": jem_recipe,
}
SCHEDULES = "linear", "cosine", "geometric"
COLOURS = None, "grey", "rgb"
SIDE = 64
"""Pixels of a side, at most."""
EPOCH = 100, 500
"""Updates of an epoch: so many of an energy; of a diffusion as many as read all images once, but no more than the second number."""
ENERGY_STEPS, DIFFUSION_STEPS = 3000, 20_000
"""Updates where nothing else is asked for; where the time decides, ten times as many at most."""


@dataclass(frozen=True)
class ImageConfig(Options):
    """Options of any model of images, kept in its run.

    size          pixels that the sides are brought to; None: as they are
    colour        grey or rgb, where images are to be made so; None: as they are
    labels        whether classes are learnt, too
    features      channels of the network's first layers
    epochs        at most so many: of 100 updates of an energy, of a diffusion of as many as read all images once, but 100 to 500; None:
                  3,000 updates of an energy, 20,000 of a diffusion, or what fits in `max_minutes`
    max_minutes   of training at most, about; the rate falls so that it ends well then
    batch_size    images of a step
    lr            highest rate of Adam
    test_fraction share of the images that is held out where there is no official test part
    random_state  not negative; same seed, same machine, same run
    devices       auto (a GPU if there is one), cpu, cuda, or one of several as cuda:1; of a diffusion also several: 2, cpu:2, cuda:0,1
    precision     32-true, bf16-mixed, 64-true, and on a GPU 16-mixed
    """

    size: int | None = None
    colour: str | None = None
    labels: bool = False
    features: int = 16
    epochs: int | None = None
    max_minutes: float | None = None
    batch_size: int = 64
    lr: float | None = None
    test_fraction: float = 0.1
    random_state: int = 0
    devices: str = "auto"
    precision: str = "32-true"

    updates: ClassVar[int]
    epoch: ClassVar[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", str(self.devices))
        if self.size is not None:
            self.whole("size", 1, SIDE)
        self.check("colour", self.colour in COLOURS, "'grey' or 'rgb'")
        self.check("labels", isinstance(self.labels, bool), "True or False")
        self.whole("features", 1, 2**12)
        if self.epochs is not None:
            self.whole("epochs", 1, 10**6)
        if self.max_minutes is not None:
            self.number("max_minutes", "a positive number up to 1,000,000", lambda x: 0 < x <= 1_000_000)
        self.whole("batch_size", 1, 2**16)
        if self.lr is not None:
            self.number("lr", "a positive number up to 1000", lambda x: 0 < x <= 1000)
        self.number("test_fraction", "at least 0 and less than 1", lambda x: 0 <= x < 1)
        self.whole("random_state", 0, 2**63 - 1)
        self.check("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")

    def course(self, batches: int) -> tuple[int, int]:
        """Epochs at most, and updates of each, where so many batches are all images."""
        steps = min(max(batches, EPOCH[0]), self.epoch)
        most = self.updates if self.max_minutes is None else 10 * self.updates
        return self.epochs or -(-most // steps), steps


@dataclass(frozen=True)
class EnergyConfig(ImageConfig):
    """Options of an energy of images.

    recipe        of its training: igebm, improved_cd, short_run, generative_convnet, jem; see `conca.energy.recipes`
    activation    silu or leaky_relu
    chain_steps   of the chains of an update; None: those of the recipe
    l2            weight of the squared energies; None: that of the recipe
    spectral      whether every layer has a spectral norm; None: as the recipe says
    """

    kind: ClassVar[str] = "energy"
    updates: ClassVar[int] = ENERGY_STEPS
    epoch: ClassVar[int] = EPOCH[0]

    recipe: str = "igebm"
    activation: str = "silu"
    chain_steps: int | None = None
    l2: float | None = None
    spectral: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("recipe", self.recipe in RECIPES, f"one of {', '.join(RECIPES)}")
        self.check("activation", self.activation in ("silu", "leaky_relu"), "silu or leaky_relu")
        if self.chain_steps is not None:
            self.whole("chain_steps", 1, 10**6)
        if self.l2 is not None:
            self.number("l2", "from 0 to 1,000,000", lambda x: 0 <= x <= 1e6)
        self.check("spectral", self.spectral in (None, True, False), "True, False or None")

    def how(self) -> Recipe:
        """The recipe, with what was asked otherwise."""
        changed = {"steps": self.chain_steps, "l2": self.l2, "spectral": self.spectral, "lr": self.lr}
        known: dict[str, Any] = {name: value for name, value in changed.items() if value is not None}
        return replace(RECIPES[self.recipe](), batch=self.batch_size, **known)


@dataclass(frozen=True)
class DiffusionConfig(ImageConfig):
    """Options of a diffusion of images.

    schedule      of the noise: linear, cosine or geometric
    levels        of the schedule
    scalar        whether the network is an energy, whose slope tells the noise, at two to three times the price
    halvings      how often the U-Net halves the sides
    blocks        its residual blocks at each size
    patch         side of the patches in which pixels are gathered; None: so that about 16 are left
    dropout       in each block
    decay         of the running average of the weights
    """

    kind: ClassVar[str] = "diffusion"
    updates: ClassVar[int] = DIFFUSION_STEPS
    epoch: ClassVar[int] = EPOCH[1]

    features: int = 32
    schedule: str = "linear"
    levels: int = 1000
    scalar: bool = False
    halvings: int = 1
    blocks: int = 1
    patch: int | None = None
    dropout: float = 0.0
    decay: float = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("features", self.features % 8 == 0, "a multiple of 8")
        self.check("schedule", self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}")
        self.whole("levels", 2, 10**6)
        self.check("scalar", isinstance(self.scalar, bool), "True or False")
        self.whole("halvings", 0, 6)
        self.whole("blocks", 1, 64)
        if self.patch is not None:
            self.whole("patch", 1, SIDE)
        self.number("dropout", "at least 0 and less than 1", lambda x: 0 <= x < 1)
        self.number("decay", "at least 0 and less than 1", lambda x: 0 <= x < 1)

    def noise(self, levels: int | None = None, name: str | None = None, high: float = 50.0) -> Schedule:
        """The schedule, or one of as many levels, or of another name; `high` is the highest noise of a geometric one."""
        name, levels = name or self.schedule, levels or self.levels
        if name == "geometric":
            return Schedule.geometric(levels, high=high)
        return Schedule.linear(levels) if name == "linear" else Schedule.cosine(levels)
