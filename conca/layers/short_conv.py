"""Short causal convolution: each channel sees its last few values, and remembers exactly one fewer than it sees.

    y_t = bias + sum_{k < W} w_k x_{t - k}        optionally followed by SiLU

The depthwise convolution of H3 (Fu et al., 2022) and Mamba (Gu and Dao, 2023); the state holds W - 1 columns.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.mixer import Mixer, Work
from conca.ops.convolution import causal_convolution_step, short_conv
from conca.ops.doors import raised

__all__ = ["ShortConv", "ShortConvState"]


class ShortConvState(NamedTuple):
    """The last W - 1 inputs, oldest first."""

    tail_BWD: Tensor


class ShortConv(Mixer[ShortConvState]):
    """Depthwise causal convolution of width `d_conv`; weight and bias start as those of `torch.nn.Conv1d`, uniform within 1 / sqrt(W) of 0.

    Args:
        d_model: number of channels.
        d_conv: width W, at least 1.
        activation: apply SiLU.
        bias: add a bias.
        device, dtype: of the parameters.

    Raises:
        ValueError: if `d_conv` is less than 1, or `activation` is neither True nor False.
    """

    ragged = resets = True

    def __init__(
        self,
        d_model: int,
        *,
        d_conv: int = 4,
        activation: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(activation, bool):
            raise ValueError(f"ShortConv: activation must be True (SiLU) or False, got {activation!r}")
        self.d_model, self.d_conv, self.activation = d_model, d_conv, activation
        bound = 1 / math.sqrt(d_conv)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(d_model, d_conv, **to).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(d_model, **to).uniform_(-bound, bound)) if bias else None

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """The usual width; a bare one; a width of one, which remembers nothing."""
        return cls(5), cls(3, d_conv=3, activation=False, bias=False), cls(2, d_conv=1)

    def init_state(self, batch: int) -> ShortConvState:
        """Zeros (B, W - 1, D)."""
        return ShortConvState(self.zeros(batch, self.d_conv - 1, self.d_model, half=True))

    def step(self, x: Tensor, state: ShortConvState, *, elapsed: Tensor | None = None) -> tuple[Tensor, ShortConvState]:
        """One token: x (B, D)."""
        dtype = raised(torch.promote_types(x.dtype, self.weight.dtype))
        weight, bias = self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)
        y, new = causal_convolution_step(x.to(dtype), weight, bias, state.tail_BWD)
        y = F.silu(y) if self.activation else y
        return y.to(x.dtype), ShortConvState(new.to(state.tail_BWD.dtype))

    def parallel(
        self, x: Tensor, state: ShortConvState, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, ShortConvState]:
        """All windows at once."""
        args = x, self.weight, self.bias, state.tail_BWD
        y, new = short_conv(*args, activation=self.activation, lengths=lengths, starts=starts)
        return y, ShortConvState(new)

    def work(self) -> Work:
        """W multiply-adds per channel."""
        return Work(self.weight.numel(), super().work().bytes)
