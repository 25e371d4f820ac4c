"""Annealing: one walk over a path of landscapes, from where barriers are low to where there is detail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from conca.energy.chain import Kernel, sample
from conca.energy.draws import whole
from conca.energy.energy import Score
from conca.types import BadInput

__all__ = ["anneal"]

Kernels: TypeAlias = "Kernel[Any, Any] | Sequence[Kernel[Any, Any]] | Callable[[int], Kernel[Any, Any]]"


def anneal(
    path: Sequence[Score],
    kernel: Kernels,
    x: Tensor,
    steps: int,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Walk `steps` steps on each landscape of a path, each from where the one before ended.

    Args:
        path: landscapes in order, such as `[score.at(s) for s in sigmas]`, `[energy / t for t in (8, 4, 2, 1)]`, or
            `[start * (1 - b) + end * b for b in ...]`.
        kernel: one for all, one for each, or a function of the level (0, 1, ...): annealed Langevin takes steps in
            proportion to sigma^2.
        x: the start, (B, ...).
        steps: on each landscape, 1 or more.
        generator: as in `sample`.

    Returns:
        Where each level ended, (levels, B, ...), so that `[-1]` is the result; and what was reported there, (levels, B),
        as by `sample`, of what all levels report.

    Raises:
        BadInput: for an empty path, as many kernels as there are no levels, and as `sample` does.
        Divergence: as `sample` does, with the level in a note.

    Source: Kirkpatrick et al. 1983; Neal 2001; Song & Ermon 2019, "Generative Modeling by Estimating Gradients of the
    Data Distribution", for noise levels.
    """
    levels = list(path)
    if not levels:
        raise BadInput("a path needs at least one landscape, such as [energy / t for t in (4, 2, 1)]")
    if isinstance(kernel, Sequence):
        if len(kernel) != len(levels):
            raise BadInput(f"{len(kernel)} kernels for {len(levels)} levels; give one for all, or one for each")
        kernels = list(kernel)
    elif callable(kernel):
        kernels = [kernel(level) for level in range(len(levels))]
    else:
        kernels = [kernel] * len(levels)
    whole(steps, "steps on each level")
    ends, infos = [], []
    for number, (landscape, step) in enumerate(zip(levels, kernels)):
        try:
            chain, info = sample(landscape, step, x, steps, steps, generator=generator)
        except ArithmeticError as error:
            error.add_note(f"on level {number} of {len(levels)}")
            raise
        x = chain[-1]
        ends.append(x)
        infos.append(info)
    names = [name for name in infos[0] if all(name in info for info in infos)]
    return torch.stack(ends), {name: torch.cat([info[name] for info in infos]) for name in names}
