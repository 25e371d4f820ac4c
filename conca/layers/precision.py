"""Where autocast must not reach: recurrences stay float32 or better."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["without_autocast"]


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context for work on the device of `x` in which autocast is off; tensors without memory ("meta") know none."""
    kind = x.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
