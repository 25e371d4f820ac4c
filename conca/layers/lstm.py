"""LSTM: a cell that is added to under gates, run by PyTorch's fused sequence code.

    i, f, o = sigmoid(W x_t + U h_{t-1} + b),  g = tanh(W x_t + U h_{t-1} + b)
    c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t)

Hochreiter and Schmidhuber, Long Short-Term Memory, 1997; forget gate of Gers, Schmidhuber and Cummins, 2000.
The parameters are those of `torch.nn.LSTM` (one layer), under `core`.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from conca.layers.mixer import Mixer, Role, Work
from conca.layers.precision import without_autocast
from conca.layers.states import where

__all__ = ["LSTM", "LSTMState"]


class LSTMState(NamedTuple):
    """What an LSTM remembers."""

    h_BD: Tensor
    """The last output."""
    c_BD: Tensor
    """The cell."""


class LSTM(Mixer[LSTMState]):
    """One layer of `torch.nn.LSTM` whose hidden size is `d_model`; its weights stay float32 in half precision.

    Args:
        d_model: width of input and output.
        bias: as in `torch.nn.LSTM`.
        device, dtype: of the parameters, which are float32 or better.
    """

    ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        self.core = nn.LSTM(d_model, d_model, bias=bias, batch_first=True, device=device, dtype=wide)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """With and without bias."""
        return cls(5), cls(4, bias=False)

    def init_state(self, batch: int) -> LSTMState:
        """Zeros: output and cell, each (B, D)."""
        return LSTMState(self.zeros(batch, self.d_model), self.zeros(batch, self.d_model))

    def step(self, x: Tensor, state: LSTMState, *, elapsed: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """One token: x (B, D)."""
        y, state = self.parallel(x[:, None], state, lengths=None, starts=None, elapsed=None)
        return y[:, 0], state

    def parallel(
        self, x: Tensor, state: LSTMState, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, LSTMState]:
        """The fused code over a sequence; rows of unequal length are packed."""
        dtype = x.dtype
        warm = state.h_BD[None].contiguous(), state.c_BD[None].contiguous()
        with without_autocast(x):
            x = x.to(state.h_BD.dtype)
            if lengths is None:
                y, (h, c) = self.core(x, warm)
                return y.to(dtype), LSTMState(h[0], c[0])
            packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
            rows, (h, c) = self.core(packed, warm)
            y, _ = pad_packed_sequence(rows, batch_first=True, total_length=x.shape[1])
        return y.to(dtype), where(lengths > 0, LSTMState(h[0], c[0]), state)

    def roles(self) -> dict[str, Role]:
        """Everything stays float32; biases are not decayed."""
        return {
            f"core.{name}": Role(decay="bias" not in name, float32=True) for name, _ in self.core.named_parameters()
        }

    def work(self) -> Work:
        """Two products with four gates each."""
        common = super().work()
        return Work(8 * self.d_model**2, common.bytes + 8 * self.d_model)
