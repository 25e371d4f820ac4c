"""How the learning rate goes over a training."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from conca.train.course import Course

__all__ = ["falling"]


def falling(optimizer: Optimizer, course: Course, *, warm: int, least: float, by_time: bool = False) -> dict[str, Any]:
    """What Lightning wants of an optimizer whose rate rises over a few steps and falls along a cosine.

    Args:
        optimizer: with its highest rates.
        course: of the training.
        warm: steps in which it rises; a twentieth of all, if that is less.
        least: what is left of it in the end.
        by_time: whether it also falls with the time that the training has, where that ends earlier than the steps.
    """
    recipe = course.recipe
    steps = recipe.epochs * recipe.steps
    first = min(max(steps // 20, 1), warm)
    minutes = recipe.max_minutes if by_time else None

    def rate(step: int) -> float:
        done = step / steps if minutes is None else max(step / steps, course.seconds / (60 * minutes))
        fall = 0.5 * (1 + math.cos(math.pi * min(done, 1)))
        return min(1.0, (step + 1) / first) * (least + (1 - least) * fall)

    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, rate), "interval": "step"}}
