"""Energies whose slope is written beside them, so that a chain needs no autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.energy.energy import Energy, point

__all__ = ["ClosedForm"]


class ClosedForm(Energy):
    """An energy that gives its slope along with its value: write `both`, and neither `forward` nor `score`.

    A subclass that writes a `forward` of its own is differentiated by autograd again.
    """

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energy (B,) and score -dE/dx (B, ...), of operations that autograd can follow."""
        raise NotImplementedError(f"{type(self).__name__} must define both(x)")

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x)[0]

    def _derive(self, x: Tensor, **conditions: Any) -> tuple[Tensor, Tensor]:
        if type(self).forward is not ClosedForm.forward:
            return super()._derive(x, **conditions)
        x = point(self, x)
        return self.both(x.clone() if x.is_inference() and torch.is_grad_enabled() else x)
