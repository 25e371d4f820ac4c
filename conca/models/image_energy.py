"""A convolutional network that gives one number, or one for each class, of an image: what energies of images are made around.

    stem (stride 2 above 16 pixels), residual blocks that halve the sides down to 4 pixels, one more, the sum over places, a linear map

The sum (not the mean) over places and the residual paths keep slopes up under spectral norms: Du and Mordatch, Implicit Generation and
Modeling with Energy Based Models, 2019, whose networks are of this form. No norm looks at other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from conca.models.description import Description
from conca.types import BadInput, nearest

__all__ = ["ImageEnergyConfig", "ImageEnergyNetwork"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "leaky_relu": lambda x: F.leaky_relu(x, 0.2)}
LEAST = 4
"""Pixels of a side where halving ends."""
FINE = 16
"""Pixels of a side up to which the stem keeps all of them."""


@dataclass(frozen=True)
class ImageEnergyConfig(Description):
    """What a network is made of.

    channels      1 or 3
    height, width of an image, in pixels
    features      channels of the first block; later ones have up to four times as many
    outputs       1: an energy; K: logits of so many classes
    activation    silu (slopes that chains can follow) or leaky_relu (as in the paper)
    spectral      whether every layer has a spectral norm
    """

    channels: int
    height: int
    width: int
    features: int = 16
    outputs: int = 1
    activation: str = "silu"
    spectral: bool = False

    def __post_init__(self) -> None:
        for name in ("channels", "height", "width", "features", "outputs"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value < 2**16:
                raise BadInput(f"network.{name} must be a whole number from 1 to 65535, not {value!r}")
        if self.activation not in ACTIVATIONS:
            raise BadInput(
                f"network.activation {self.activation!r} is not known; {nearest(self.activation, ACTIVATIONS)}"
            )
        if not isinstance(self.spectral, bool):
            raise BadInput(f"network.spectral must be True or False, not {self.spectral!r}")


class Block(nn.Module):
    """x + f(x) with two convolutions; halved in the end, if asked."""

    def __init__(self, before: int, after: int, activation: str, halves: bool) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, after, 3, padding=1) for n in (before, after))
        self.past = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.act, self.halves = ACTIVATIONS[activation], halves

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) to (B, after, H or H/2, W or W/2)."""
        y = self.act(self.past(x) + self.second(self.act(self.first(x))))
        return F.avg_pool2d(y, 2, ceil_mode=True) if self.halves else y


class ImageEnergyNetwork(nn.Module):
    """x (B, C, H, W) to (B,), or to logits (B, K) where there are several outputs.

    >>> import torch
    >>> ImageEnergyNetwork(ImageEnergyConfig(1, 28, 28))(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5])

    Args:
        config: see `ImageEnergyConfig`.

    Raises:
        BadInput: for a size that cannot be (by the config).
    """

    def __init__(self, config: ImageEnergyConfig) -> None:
        super().__init__()
        self.config, n = config, config.features
        side = max(config.height, config.width)
        stride = 2 if side > FINE else 1
        self.stem = nn.Conv2d(config.channels, n, 3, stride=stride, padding=1)
        side, blocks, now = -(-side // stride), list[Block](), n
        while side > LEAST:
            after = min(now * 2, 4 * n) if blocks else n
            blocks.append(Block(now, after, config.activation, halves=True))
            side, now = -(-side // 2), after
        blocks.append(Block(now, 4 * n, config.activation, halves=False))
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(4 * n, config.outputs)
        self.act = ACTIVATIONS[config.activation]
        for module in list(self.modules()) if config.spectral else ():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                spectral_norm(module)
        self.to(torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B,) or (B, K)."""
        said = self.head(self.blocks(self.act(self.stem(x))).sum((2, 3)))
        return cast(Tensor, said[:, 0] if self.config.outputs == 1 else said)
