"""Time scales of state spaces: how long a step lasts for each memory, drawn when a layer is built."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["drawn", "possible", "step_biases"]


def drawn(size: int, dt: tuple[float, float], step_rescale: float, **to: Any) -> Tensor:
    """log dt (size,), uniform between the logarithms of two bounds; `to` has device and dtype. Raises ValueError as `possible` does."""
    possible(dt, step_rescale)
    return torch.empty(size, **to).uniform_(math.log(dt[0]), math.log(dt[1]))


def step_biases(size: int, dt: tuple[float, float], floor: float, **to: Any) -> Tensor:
    """Numbers (size,) whose softplus is a time scale: log-uniform between two bounds, and at least `floor`. Raises as `drawn`."""
    steps = drawn(size, dt, 1.0, **to).exp().clamp(min=floor)
    return steps + torch.log(-torch.expm1(-steps))


def possible(dt: tuple[float, float], step_rescale: float = 1.0) -> None:
    """Look at what time scales are drawn by, without drawing.

    Raises:
        ValueError: for bounds that are not two positive numbers in order, and a `step_rescale` that is not positive.
    """
    fine = isinstance(dt, tuple | list) and len(dt) == 2 and all(isinstance(bound, float | int) for bound in dt)
    if not (fine and 0 < dt[0] <= dt[1] < math.inf):
        raise ValueError(f"dt must be two positive bounds in order, got {dt}")
    if not (isinstance(step_rescale, float | int) and 0 < step_rescale < math.inf):
        raise ValueError(f"step_rescale must be positive, got {step_rescale}")
