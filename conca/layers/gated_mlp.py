"""Gated feed-forward: a position-wise network with a multiplicative gate, and no memory at all.

    y_t = W_out (silu(W_gate x_t) * W_in x_t)

Shazeer, GLU Variants Improve Transformer, 2020 (SwiGLU).
"""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.mixer import Mixer

__all__ = ["GatedMLP"]


class GatedMLP(Mixer[tuple[()]]):
    """SwiGLU of inner width `expand * d_model`; its state is empty.

    Args:
        d_model: width of input and output.
        expand: inner width as a multiple of `d_model`, rounded.
        dropout: on the inner activations.
        bias: of the three linear maps.
        device, dtype: of the parameters.
    """

    ragged = resets = True

    def __init__(
        self,
        d_model: int,
        *,
        expand: float = 2.0,
        dropout: float = 0.0,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        inner = max(1, round(expand * d_model))
        self.gate = nn.Linear(d_model, inner, bias=bias, device=device, dtype=dtype)
        self.inner = nn.Linear(d_model, inner, bias=bias, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(inner, d_model, bias=bias, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """With and without bias."""
        return cls(5, expand=1.5), cls(4, bias=True)

    def init_state(self, batch: int) -> tuple[()]:
        """Nothing is remembered."""
        return ()

    def step(self, x: Tensor, state: tuple[()], *, elapsed: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        """One token: x (B, D)."""
        return self._mapped(x), state

    def parallel(
        self, x: Tensor, state: tuple[()], *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, tuple[()]]:
        """Every position for itself."""
        return self._mapped(x), state

    def _mapped(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.dropout(F.silu(self.gate(x)) * self.inner(x)))
        return y
