"""The continuous Hopfield memory: stored patterns are valleys, retrieval rolls into one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conca.energy.compose import hold
from conca.energy.energy import Energy, fits
from conca.ops.hopfield import hopfield_update
from conca.types import BadInput

__all__ = ["Hopfield"]


class Hopfield(Energy):
    """E(x) = -logsumexp_m(beta x . memory_m) / beta + |x|^2 / 2 + log(M) / beta + max_m |memory_m|^2 / 2.

    Its update never raises E, and is a descent of step exactly 1; E >= 0. A small beta has one valley at the mean of
    all memories, a large one a valley at each, and between them lie averages of memories that resemble each other.

    Args:
        memories: shape (M, ...), M points of the shape that the memory reads, kept as they are (no projection, no
            norm); a `nn.Parameter` is trained.
        beta: inverse temperature, positive.

    Raises:
        BadInput: where there are no memories, they are not floating point, or beta is not positive and finite.

    Source: Ramsauer et al. 2021, "Hopfield Networks is All You Need"; Demircigil et al. 2017 for the binary
    exponential memory.
    """

    memories: Tensor

    def __init__(self, memories: Tensor, beta: float) -> None:
        super().__init__()
        if memories.dim() == 0 or len(memories) == 0:
            raise BadInput(
                f"a Hopfield memory needs at least one memory on its first axis, not shape {tuple(memories.shape)}"
            )
        if not memories.is_floating_point():
            raise BadInput(
                f"the memories of a Hopfield memory must be floating point, not {memories.dtype}; use .float()"
            )
        if not (beta > 0 and math.isfinite(beta)):
            raise BadInput(f"beta of a Hopfield memory must be positive and finite, not {beta}")
        self.beta = float(beta)
        self.shape = tuple(memories.shape[1:])
        hold(self, "memories", memories)

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """Five memories in space, three tiny images, a single memory."""
        draw = torch.Generator().manual_seed(0)
        space, images = torch.randn(5, 3, generator=draw), torch.randn(3, 1, 2, 2, generator=draw)
        return cls(space, 2.0), cls(torch.nn.Parameter(images), 0.5), cls(torch.ones(1, 2), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        x_BD, memories_MD = self._flat(x), self._flat(self.memories)
        pull_B = torch.logsumexp(self.beta * (x_BD @ memories_MD.mT), dim=-1) / self.beta
        highest = 0.5 * memories_MD.square().sum(-1).amax()
        return 0.5 * x_BD.square().sum(-1) - pull_B + math.log(len(memories_MD)) / self.beta + highest

    def step(self, x: Tensor) -> Tensor:
        """One update: shape (B, ...) in and out."""
        return hopfield_update(self._flat(x), self._flat(self.memories), self.beta).reshape(x.shape)

    def retrieve(self, probe: Tensor, steps: int = 100, tol: float = 1e-6) -> Tensor:
        """Update `probe`, shape (B, ...), until no coordinate of a row moves by more than `tol`, at most `steps`
        times.

        A row that has settled is left alone, so that its answer does not depend on the others.
        """
        x, moving = probe, torch.ones(len(probe), dtype=torch.bool, device=probe.device)
        for _ in range(steps):
            if not bool(moving.any()):
                break
            new = self.step(x)
            x, moving = (
                torch.where(moving.reshape(-1, *[1] * (x.dim() - 1)), new, x),
                moving & (self._flat((new - x).detach()).abs().amax(-1) > tol),
            )
        return x

    def _flat(self, x: Tensor) -> Tensor:
        fits(self, x, self.memories[0])
        return x.unsqueeze(-1).flatten(1)

    def extra_repr(self) -> str:
        return f"{len(self.memories)} memories of shape {self.shape}, beta={self.beta:g}"
