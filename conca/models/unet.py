"""A U-Net that tells the noise in an image: patches, residual blocks at falling and rising size, attention at the smallest.

    x (B, C, H, W), log ratio (B,) [, y (B,)]  ->  noise, like x

The form of Ho, Jain and Abbeel, Denoising Diffusion Probabilistic Models, 2020, made small: pixels are gathered in patches first
(Hoogeboom, Heek and Salimans, Simple Diffusion, 2023), which makes it affordable without a GPU. It is told the logarithm of noise over
signal, not the number of a level, so that it can walk any schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.models.description import Description
from conca.ops.attention import attend
from conca.types import BadInput

__all__ = ["UNet", "UNetConfig"]

GROUP = 8
"""Channels of a group of its norms."""
WAVES = 16
"""Frequencies by which a noise level is told."""


@dataclass(frozen=True)
class UNetConfig(Description):
    """What a network is made of.

    channels      1 or 3
    height, width of an image, in pixels
    features      channels at the largest size, a multiple of 8; twice as many at each smaller one
    halvings      how often the sides are halved
    blocks        residual blocks at each size, on the way down
    patch         side of the patches in which pixels are gathered
    classes       how many it may be told; 0: none
    dropout       in each block
    """

    channels: int
    height: int
    width: int
    features: int = 32
    halvings: int = 1
    blocks: int = 2
    patch: int = 2
    classes: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("channels", "height", "width", "features", "blocks", "patch"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value < 2**16:
                raise BadInput(f"network.{name} must be a whole number from 1 to 65535, not {value!r}")
        for name in ("halvings", "classes"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < 2**16:
                raise BadInput(f"network.{name} must be a whole number from 0 to 65535, not {value!r}")
        if self.features % GROUP:
            raise BadInput(f"network.features must be a multiple of {GROUP}, not {self.features}")
        if not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise BadInput(f"network.dropout must be at least 0 and less than 1, not {self.dropout!r}")


class Block(nn.Module):
    """A residual block that is told the noise level; it begins as what leads past it."""

    def __init__(self, before: int, after: int, told: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(n // GROUP, n) for n in (before, after))
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.told, self.dropout = nn.Linear(told, after), nn.Dropout(dropout)
        self.past = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """(B, before, H, W) and (B, told) to (B, after, H, W)."""
        h = self.conv1(F.silu(self.norm1(x))) + self.told(told)[:, :, None, None]
        return cast(Tensor, self.past(x) + self.conv2(self.dropout(F.silu(self.norm2(h)))))


class Look(nn.Module):
    """Every place looks at every other, added to what it says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(width // GROUP, width), max(1, width // 32)
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        nn.init.zeros_(self.leave.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) in and out."""
        places = self.norm(x).flatten(2).mT
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.enter(places).chunk(3, 2))
        said: Tensor = self.leave(attend(q, k, v).transpose(1, 2).flatten(2))
        return x + said.mT.reshape(x.shape)


class UNet(nn.Module):
    """Tells the noise in x (B, C, H, W), scaled to variance 1, at the logarithms of noise over signal (B,).

    >>> import torch
    >>> UNet(UNetConfig(1, 28, 28))(torch.zeros(5, 1, 28, 28), torch.zeros(5)).shape
    torch.Size([5, 1, 28, 28])

    It says 0 before it has learnt. y (B,) are classes, from 0; their number itself stands for none.

    Args:
        config: see `UNetConfig`.

    Raises:
        BadInput: where it is told classes that it does not know.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config, n = config, config.features
        told = 4 * n
        self.register_buffer("waves", torch.logspace(-1, 1.5, WAVES, base=math.e), persistent=False)
        self.level = nn.Sequential(nn.Linear(2 * WAVES, told), nn.SiLU(), nn.Linear(told, told), nn.SiLU())
        self.classes = nn.Embedding(config.classes + 1, told) if config.classes else None
        self.enter = nn.Conv2d(config.channels * config.patch**2, n, 3, padding=1)
        self.leave = nn.Conv2d(n, config.channels * config.patch**2, 3, padding=1)
        self.norm = nn.GroupNorm(n // GROUP, n)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(cast(Tensor, self.leave.bias))
        widths, kept = [n * 2**k for k in range(config.halvings + 1)], list[int]()
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        now = n
        for width in widths:
            row = nn.ModuleList()
            for _ in range(config.blocks):
                row.append(Block(now, width, told, config.dropout))
                kept.append(width)
                now = width
            self.down.append(row)
        self.middle = nn.ModuleList(
            [Block(now, now, told, config.dropout), Look(now), Block(now, now, told, config.dropout)]
        )
        for width in reversed(widths):
            row = nn.ModuleList()
            for _ in range(config.blocks):
                row.append(Block(now + kept.pop(), width, told, config.dropout))
                now = width
            self.up.append(row)
        self.to(torch.float32)

    waves: Tensor

    def forward(self, x: Tensor, level: Tensor, y: Tensor | None = None) -> Tensor:
        """(B, C, H, W) and (B,) to what is shaped like x."""
        told = self._told(level.to(x.dtype), y)
        patch, (height, width) = self.config.patch, x.shape[2:]
        more = (-width % patch, -height % patch)
        h = F.pixel_unshuffle(F.pad(x, (0, more[0], 0, more[1])) if any(more) else x, patch)
        h, kept = self.enter(h), []
        for depth, row in enumerate(self.down):
            h = F.avg_pool2d(h, 2, ceil_mode=True) if depth else h
            for block in cast(nn.ModuleList, row):
                h = block(h, told)
                kept.append(h)
        first, look, second = self.middle
        h = second(look(first(h, told)), told)
        for row in self.up:
            if h.shape[2:] != kept[-1].shape[2:]:
                h = F.interpolate(h, size=kept[-1].shape[2:], mode="nearest")
            for block in cast(nn.ModuleList, row):
                h = block(torch.cat([h, kept.pop()], 1), told)
        found = F.pixel_shuffle(self.leave(F.silu(self.norm(h))), patch)
        return found[..., :height, :width]

    def _told(self, level: Tensor, y: Tensor | None) -> Tensor:
        turns = level[:, None] * self.waves.to(level.dtype)
        told = cast(Tensor, self.level(torch.cat([turns.sin(), turns.cos()], 1)))
        if self.classes is None:
            if y is not None:
                raise BadInput("this network was trained without classes; leave y out")
            return told
        none = torch.full((len(level),), self.config.classes, device=level.device)
        y = none if y is None else torch.as_tensor(y, device=level.device).expand(len(level))
        if y.is_floating_point() or not bool(((y >= 0) & (y <= self.config.classes)).all()):
            raise BadInput(f"classes are whole numbers from 0 to {self.config.classes - 1}, not {y.tolist()[:5]}")
        return told + F.silu(self.classes(y))
