"""Depthwise causal convolution: y_t = bias + sum_{k < W} w_k x_{t-k}, per channel; exactly W - 1 columns are remembered.

w[:, 0] weighs the present, w[:, k] what was k steps ago (PyTorch's Conv1d and published checkpoints store them the other way
round). Three bodies: `causal_convolution` sums W shifted copies, `causal_convolution_fft` is for kernels as long as the
sequence, `causal_convolution_step` is one step. The tail (B, W - 1, D) holds the last inputs, oldest first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conca.ops.doors import raised
from conca.types import BadInput

__all__ = ["causal_convolution", "causal_convolution_fft", "causal_convolution_step"]


def causal_convolution(x_BTD: Tensor, w_DW: Tensor, bias_D: Tensor | None, tail_BWD: Tensor) -> tuple[Tensor, Tensor]:
    """y (B, T, D) and the new tail (B, W - 1, D), by W products and sums. Raises BadInput where the shapes do not fit."""
    line = _line(x_BTD, w_DW, tail_BWD)
    steps, width = x_BTD.shape[1], w_DW.shape[1]
    y = line[:, width - 1 :] * w_DW[:, 0]
    for k in range(1, width):
        y = y + line[:, width - 1 - k : width - 1 - k + steps] * w_DW[:, k]
    return (y if bias_D is None else y + bias_D), line[:, steps:].clone()


def causal_convolution_fft(
    x_BTD: Tensor, w_DW: Tensor, bias_D: Tensor | None, tail_BWD: Tensor
) -> tuple[Tensor, Tensor]:
    """The same through the Fourier transform: T log T work whatever W; half precisions are computed in float32."""
    line = _line(x_BTD, w_DW, tail_BWD)
    steps, width = x_BTD.shape[1], w_DW.shape[1]
    if x_BTD.numel() == 0:
        return causal_convolution(x_BTD, w_DW, bias_D, tail_BWD)
    dtype = raised(torch.promote_types(line.dtype, w_DW.dtype))
    # a circle of the length of the line suffices: what wraps around falls on the columns of the tail, which are dropped
    size = line.shape[1]
    spectrum = torch.fft.rfft(line.to(dtype), size, dim=1) * torch.fft.rfft(w_DW.T.to(dtype), size, dim=0)
    y = torch.fft.irfft(spectrum, size, dim=1)[:, width - 1 :].to(line.dtype)
    return (y if bias_D is None else y + bias_D), line[:, steps:].clone()


def causal_convolution_step(
    x_BD: Tensor, w_DW: Tensor, bias_D: Tensor | None, tail_BWD: Tensor
) -> tuple[Tensor, Tensor]:
    """One step: y (B, D) and the new tail."""
    line = _line(x_BD[:, None], w_DW, tail_BWD)
    y = (line * w_DW.flip(1).T).sum(1)
    return (y if bias_D is None else y + bias_D), line[:, 1:].clone()


def _line(x_BTD: Tensor, w_DW: Tensor, tail_BWD: Tensor) -> Tensor:
    """The remembered columns and the new ones."""
    if x_BTD.ndim != 3 or w_DW.ndim != 2 or w_DW.shape[0] != x_BTD.shape[2] or w_DW.shape[1] < 1:
        raise BadInput(
            f"causal convolution: x {tuple(x_BTD.shape)} must be (B, T, D), w {tuple(w_DW.shape)} (D, W), W > 0"
        )
    want = (x_BTD.shape[0], w_DW.shape[1] - 1, x_BTD.shape[2])
    if tail_BWD.shape != want:
        raise BadInput(f"causal convolution: the tail has shape {tuple(tail_BWD.shape)}, not (B, W - 1, D) = {want}")
    return torch.cat([tail_BWD.to(x_BTD.dtype), x_BTD], 1)
