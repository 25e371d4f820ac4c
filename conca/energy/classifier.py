"""A classifier read as an energy: its logits hold a density of x beside the probabilities of the classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from conca.energy.draws import positive
from conca.energy.energy import Energy
from conca.energy.network import Learnt
from conca.types import BadInput

__all__ = ["ClassifierEnergy"]


class ClassifierEnergy(Learnt):
    """E(x) = -T logsumexp_k(f(x)_k / T), and under a class E(x, y) = -f(x)_y, of the logits f(x) of a classifier.

    Logits that differ by a constant give the same probabilities and another energy: cross entropy alone leaves it free,
    so the energy is as good as training made it. It is a density only where exp(-E) can be integrated.

    >>> import torch
    >>> from torch import nn
    >>> energy = ClassifierEnergy(nn.Identity(), (3,))
    >>> logits = torch.tensor([[8.0, 2.0, 1.0], [9.0, 3.0, 2.0], [8.0, 7.0, 7.0]])
    >>> energy(logits)
    tensor([-8.0034, -9.0034, -8.5514])
    >>> energy.on(y=torch.tensor([0, 1, 2]))(logits)
    tensor([-8., -3., -7.])

    Args:
        net: reads x, (B, *shape), and gives logits (B, K), alone, first in a tuple, or as `.logits`; such as a classifier
            of images, or the network of a `conca.Classifier`, whose x is (B, T, C): `ClassifierEnergy(model.network_, (T, C))`.
        shape: of one x.
        temperature: T, positive; far above 1 the energy nears the mean of the logits.
        frozen: keep the network in eval mode, so that its batch norms are those of its training.

    Raises:
        BadInput: where rows of the network interact, or x, the logits or the labels are of another shape.

    Source: Grathwohl et al. 2020, "Your Classifier is Secretly an Energy Based Model and You Should Treat It Like One"; Liu
    et al. 2020, "Energy-based Out-of-distribution Detection", for the temperature.
    """

    def __init__(
        self, net: nn.Module, shape: tuple[int, ...], *, temperature: float = 1.0, frozen: bool = False
    ) -> None:
        super().__init__(net, shape, frozen=frozen)
        self.temperature = positive(temperature, "the temperature of a classifier")

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """Three classes of a plane; two, at another temperature, of a tiny image."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            plane = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 3))
            image = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        return cls(plane, (2,)), cls(image, (1, 2, 2), temperature=2.0)

    def logits(self, x: Tensor) -> Tensor:
        """(B, K)."""
        found = self.asked(x)
        if found.dim() != 2 or len(found) != len(x):
            raise BadInput(f"a classifier must give logits of shape ({len(x)}, K), not {tuple(found.shape)}")
        return found

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = self.logits(x)
        if y is None:
            return -self.temperature * torch.logsumexp(logits / self.temperature, 1)
        return -logits.gather(1, labels_of(y, logits)[:, None])[:, 0]

    def extra_repr(self) -> str:
        return f"temperature={self.temperature:g}"


def labels_of(y: object, logits: Tensor) -> Tensor:
    """Labels, (B,), or one for all. Raises BadInput unless they are whole numbers of classes that there are."""
    found = torch.as_tensor(y, device=logits.device)
    if found.dim() == 0:
        found = found.expand(len(logits))
    if found.shape != logits.shape[:1] or found.is_floating_point() or found.dtype == torch.bool:
        kind = f"{found.dtype} of shape {tuple(found.shape)}"
        raise BadInput(f"labels must be whole numbers, one per row, shape ({len(logits)},), not {kind}")
    if found.numel() and not bool(((found >= 0) & (found < logits.shape[1])).all()):
        raise BadInput(
            f"labels must lie between 0 and {logits.shape[1] - 1}, not {int(found.min())} to {int(found.max())}"
        )
    return found.long()
