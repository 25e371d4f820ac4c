"""LSTM: a cell that is added to under gates, run by PyTorch's fused sequence code.

    i, f, o = sigmoid(W x_t + U h_{t-1} + b),  g = tanh(W x_t + U h_{t-1} + b)
    c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t)

Hochreiter and Schmidhuber, Long Short-Term Memory, 1997; forget gate of Gers, Schmidhuber and Cummins, 2000.
The parameters are those of `torch.nn.LSTM` (one layer), under `core`.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.mixer import Mixer, Role, Work
from conca.layers.precision import without_autocast

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
        """The fused code over a sequence; with `lengths` it runs from each end of a row to the next one."""
        dtype = x.dtype
        with without_autocast(x):
            x = x.to(state.h_BD.dtype)
            y, state = self._run(x, state) if lengths is None else self._downstairs(x, state, lengths)
        return y.to(dtype), state

    def _run(self, x_BTD: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        y, (h, c) = self.core(x_BTD, (state.h_BD[None].contiguous(), state.c_BD[None].contiguous()))
        return y, LSTMState(h[0], c[0])

    def _downstairs(self, x_BTD: Tensor, state: LSTMState, lengths_B: Tensor) -> tuple[Tensor, LSTMState]:
        """The longest rows first, so that those still running are a slice; each distinct length is one call of `core`.

        PyTorch's packed sequences give the same numbers, but on a CPU they take every step as a call of its own.
        """
        B, T = x_BTD.shape[:2]
        order = lengths_B.argsort(descending=True)
        ends = sorted({0, T, *lengths_B.tolist()})
        widths = [end - begin for begin, end in itertools.pairwise(ends)]
        state, done, outputs = LSTMState(*(z[order] for z in state)), [], []
        for end, piece in zip(ends[1:], x_BTD[order].split_with_sizes(widths, 1)):
            n = int((lengths_B >= end).sum())
            done.append(LSTMState(*(z[n:] for z in state)))
            state = LSTMState(*(z[:n] for z in state))
            if n == 0:  # only padding is left
                outputs.append(torch.zeros_like(piece))
                break
            y, state = self._run(piece[:n], state)
            outputs.append(F.pad(y, (0, 0, 0, 0, 0, B - n)))
        back = order.argsort()
        last = (torch.cat(parts)[back] for parts in zip(state, *reversed(done)))
        return torch.cat(outputs, 1)[back], LSTMState(*last)

    def roles(self) -> dict[str, Role]:
        """Everything stays float32; biases are not decayed."""
        return {
            f"core.{name}": Role(decay="bias" not in name, float32=True) for name, _ in self.core.named_parameters()
        }

    def work(self) -> Work:
        """Two products with four gates each."""
        common = super().work()
        return Work(8 * self.d_model**2, common.bytes + 8 * self.d_model)
