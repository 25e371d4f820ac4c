"""Settings that train energies of images stably, each named after the paper that it is from; nothing hidden, all of it frozen.

igebm           Du & Mordatch 2019: steep steps, little noise, a buffer that restarts, squares, spectral norm
improved_cd     Du et al. 2021: longer steps, rarer restarts, a limit on |E|
short_run       Nijkamp et al. 2019: a hundred steps from noise, each time
generative_convnet  Xie et al. 2016: Langevin, step and noise tied, chains that go on
anatomy         Nijkamp et al. 2020: persistent chains at temperature 1, for densities that can be looked at
jem_recipe      Grathwohl et al. 2020: a classifier that is a density as well
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from conca.energy.buffer import ReplayBuffer, Start
from conca.energy.chain import sample
from conca.energy.energy import Energy
from conca.energy.sgld import SGLD, sgld
from conca.types import BadInput

__all__ = ["Recipe", "anatomy", "generative_convnet", "igebm", "improved_cd", "jem_recipe", "short_run"]


@dataclass(frozen=True)
class Recipe:
    """How an energy is trained; `dataclasses.replace(recipe, lr=...)` changes one thing.

    >>> import torch
    >>> from conca.energy import NetworkEnergy, contrastive_divergence
    >>> draw = torch.Generator().manual_seed(0)
    >>> recipe = short_run()
    >>> energy = NetworkEnergy(torch.nn.Linear(4, 1), (4,))
    >>> optimizer = recipe.optimizer(energy.parameters())
    >>> x = recipe.noised(torch.rand(8, 4), draw)
    >>> loss = contrastive_divergence(energy, x, recipe.negatives(energy, 8, generator=draw), l2=recipe.l2)
    >>> loss.backward(); optimizer.step()

    Attributes:
        source: the paper.
        kernel, steps: of the chains.
        size, restart: of the buffer; size 0: none, chains begin at noise.
        low, high: noise that chains begin at is uniform between these; data lie there, too.
        noise: standard deviation of what is added to data.
        l2: weight of the squared energies.
        limit: of |E|, beyond which training is given up as diverged.
        lr, betas: of Adam.
        batch: of data, and of chains.
        spectral: whether every layer wants a spectral norm.
        differs: what is not as in the paper, and why; empty where nothing is.
    """

    source: str
    kernel: SGLD
    steps: int
    size: int = 10_000
    restart: float = 0.05
    low: float = -1.0
    high: float = 1.0
    noise: float = 0.0
    l2: float = 0.0
    limit: float = 1e8
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    batch: int = 64
    spectral: bool = False
    differs: str = ""

    def start(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Start:
        """Uniform noise of points of this shape: what a `ReplayBuffer` begins with."""

        def fresh(n: int, generator: torch.Generator) -> Tensor:
            return self.low + (self.high - self.low) * torch.rand(
                n, *shape, generator=generator, device=generator.device, dtype=dtype
            )

        return fresh

    def buffer(self, shape: tuple[int, ...], *, n_classes: int = 0, generator: torch.Generator) -> ReplayBuffer | None:
        """A buffer of this size for points of this shape; None where the recipe has none."""
        if not self.size:
            return None
        return ReplayBuffer(
            self.size, self.start(shape), restart=self.restart, n_classes=n_classes, generator=generator
        )

    def noised(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Data with noise, (B, ...)."""
        if not self.noise:
            return x
        return x + self.noise * torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    def negatives(
        self,
        energy: Energy,
        n: int,
        buffer: ReplayBuffer | None = None,
        *,
        y: Tensor | None = None,
        generator: torch.Generator,
    ) -> Tensor:
        """Where `n` chains end, (n, *energy.shape): begun in the buffer and written back, or begun at noise.

        Args:
            energy: under conditions, if it has any.
            n: how many.
            buffer: `recipe.buffer(...)`; needed where the recipe has one.
            y: classes, for a buffer with parts.
            generator: of the noise of the chains, on the device of the energy.

        Raises:
            Divergence: where a chain leaves the finite numbers; nothing is written back then.
            BadInput: without a buffer where the recipe has one, or where the energy does not say its shape.
        """
        if buffer is None:
            if self.size:
                raise BadInput(
                    "this recipe goes on from a buffer: pass buffer=recipe.buffer(energy.shape, generator=...)"
                )
            if energy.shape is None:
                raise BadInput("the energy does not say the shape of a point; set energy.shape")
            x = self.start(energy.shape)(n, generator)
            return self._walked(energy, x, generator)
        x, index = buffer.draw(n, y)
        there = self._walked(energy, x, generator)
        buffer.put(index, there)
        return there

    def _walked(self, energy: Energy, x: Tensor, generator: torch.Generator) -> Tensor:
        """Where chains from x end, on the device and in the precision of the energy."""
        like = next((p for p in energy.parameters()), torch.empty(0))
        return sample(energy, self.kernel, x.to(like), self.steps, self.steps, generator=generator)[0][-1]

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
        """Adam as the recipe has it."""
        return torch.optim.Adam(parameters, lr=self.lr, betas=self.betas)

    def normed(self, net: nn.Module) -> nn.Module:
        """The network with a spectral norm on every linear map and convolution, where the recipe wants it; changed in place."""
        for module in list(net.modules()) if self.spectral else ():
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                spectral_norm(module)
        return net


def igebm() -> Recipe:
    """Du & Mordatch 2019, "Implicit Generation and Modeling with Energy Based Models" (as for CIFAR-10)."""
    return Recipe(
        kernel=sgld(10.0, 0.005, clip=0.01, bounds=(0.0, 1.0), noise_first=True),
        steps=60,
        low=0.0,
        l2=1.0,
        lr=3e-4,
        betas=(0.0, 0.999),
        batch=128,
        spectral=True,
        source="Du & Mordatch 2019",
        differs="places are drawn without repeats, go back where they were drawn and are kept as real numbers (the paper appends them, "
        "as bytes); gradients of weights are not clipped, which small networks under a spectral norm did not need",
    )


def improved_cd() -> Recipe:
    """Du et al. 2021, "Improved Contrastive Divergence Training of Energy Based Models", without its two further terms."""
    return Recipe(
        kernel=sgld(100.0, 0.001, clip=0.01, bounds=(0.0, 1.0)),
        steps=40,
        restart=0.001,
        low=0.0,
        l2=1.0,
        limit=10.0,
        lr=2e-4,
        betas=(0.0, 0.999),
        batch=128,
        spectral=True,
        source="Du et al. 2021",
        differs="slopes are clipped and a spectral norm is taken, as by Du & Mordatch 2019; its terms "
        "for the last step and the entropy of the chains, its augmentation and the average of its weights are left out",
    )


def short_run() -> Recipe:
    """Nijkamp et al. 2019, "Learning Non-Convergent Non-Persistent Short-Run MCMC Toward Energy-Based Model"."""
    return Recipe(
        kernel=sgld(1.0, 0.01),
        steps=100,
        size=0,
        restart=1.0,
        noise=0.03,
        source="Nijkamp et al. 2019",
    )


def generative_convnet(noise: float = 0.01) -> Recipe:
    """Xie et al. 2016, "A Theory of Generative ConvNet": Langevin with noise sqrt(eps) and step eps / 2, temperature 1.

    The two are tied, so exp(-E) itself is walked: slopes must be steep before a step does anything.
    """
    return Recipe(
        kernel=sgld(noise**2 / 2, noise, bounds=(0.0, 1.0)),
        steps=60,
        restart=0.0,
        low=0.0,
        lr=1e-3,
        source="Xie et al. 2016",
        differs="the paper takes pixels from 0 to 255, a Gaussian reference density and plain gradient ascent; here pixels lie between "
        "0 and 1, chains stay there, and Adam learns",
    )


def anatomy(spread: float = 0.125) -> Recipe:
    """Nijkamp et al. 2020, "On the Anatomy of MCMC-Based Maximum Likelihood Learning", convergent learning in the plane.

    The paper steps by spread^2 / 2 on its energy U = f / (spread^2 / 2) with noise of deviation spread: Langevin at
    temperature 1. Here the network is U itself, so that exp(-E) is the density that is learnt.
    """
    return Recipe(
        kernel=sgld(spread**2 / 2, spread),
        steps=100,
        restart=0.0,
        low=-4.0,
        high=4.0,
        lr=1e-3,
        batch=100,
        source="Nijkamp et al. 2020",
        differs="100 steps an update in place of 500, which chains that go on make up for; Adam at 1e-3 in place of SGD at "
        "0.1, whose rate belongs to f = spread^2 / 2 U",
    )


def jem_recipe() -> Recipe:
    """Grathwohl et al. 2020, "Your Classifier is Secretly an Energy Based Model": use it with `jem`."""
    return Recipe(
        kernel=sgld(1.0, 0.01),
        steps=20,
        noise=0.03,
        source="Grathwohl et al. 2020",
        differs="the rate neither warms up nor falls: schedules are left to whoever trains; on small digits ten times the rate was "
        "as stable and learnt more (bench/jem_digits.py)",
    )
