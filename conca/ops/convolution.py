"""Depthwise causal convolution: y_t = bias + sum_{k < W} w_k x_{t-k}, per channel; exactly W - 1 columns are remembered.

w[:, 0] weighs the present, w[:, k] what was k steps ago (PyTorch's Conv1d and published checkpoints store them the other way
round). Three bodies: `causal_convolution` sums W shifted copies, `causal_convolution_fft` is for kernels as long as the
sequence, `causal_convolution_step` is one step. The tail (B, W - 1, D) holds the last inputs, oldest first.

The door `short_conv` is for windows of a few steps: rows that end early and begin anew, and SiLU (H3, Fu et al., 2022; Mamba, Gu and
Dao, 2023), one pass over memory each way; `short_conv_plain` is its readable body.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.doors import has_kernel, raised, rows_fit
from conca.ops.operation import Operation
from conca.types import BadInput

__all__ = [
    "causal_convolution",
    "causal_convolution_fft",
    "causal_convolution_step",
    "short_conv",
    "short_conv_plain",
]

Maybe = Tensor | None
Pair = tuple[Tensor, Tensor]


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
    _fits(x_BTD, w_DW, tail_BWD, "causal convolution")
    return torch.cat([tail_BWD.to(x_BTD.dtype), x_BTD], 1)


def _fits(x_BTD: Tensor, w_DW: Tensor, tail_BWD: Tensor, name: str) -> None:
    if x_BTD.ndim != 3 or w_DW.ndim != 2 or w_DW.shape[0] != x_BTD.shape[2] or w_DW.shape[1] < 1:
        raise BadInput(f"{name}: x {tuple(x_BTD.shape)} must be (B, T, D), w {tuple(w_DW.shape)} (D, W), W > 0")
    want = (x_BTD.shape[0], w_DW.shape[1] - 1, x_BTD.shape[2])
    if tail_BWD.shape != want:
        raise BadInput(f"{name}: the tail has shape {tuple(tail_BWD.shape)}, not (B, W - 1, D) = {want}")


def short_conv(
    x_BTE: Tensor,
    w_EW: Tensor,
    bias_E: Maybe,
    tail_BWE: Tensor,
    *,
    activation: bool = True,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> Pair:
    """y (B, T, E) in the type of x, of the causal convolution and then, with `activation`, SiLU; and the new tail in that of the tail.

    x may be cut out of a wider tensor and is not copied; half precisions are computed in float32. lengths (B,) integers: past the
    length of a row y is 0 and the tail holds the inputs before it; x there may be anything, NaN too, and gets gradient 0. starts (B,
    T) bool: what was before such a step counts as 0, in the tail too. Raises BadInput where the shapes do not fit.
    """
    _check(x_BTE, w_EW, bias_E, tail_BWE, lengths, starts)
    dtype = raised(torch.promote_types(x_BTE.dtype, w_EW.dtype))
    bias = None if bias_E is None else bias_E.to(dtype)
    ends, fresh = (None if t is None else t.to(kind) for t, kind in ((lengths, torch.int64), (starts, torch.bool)))
    fast = x_BTE.numel() > 0 and has_kernel("short_conv", x_BTE.device.type)
    body = _short_conv if fast else short_conv_plain
    y, new = cast(Pair, body(x_BTE.to(dtype), w_EW.to(dtype), bias, tail_BWE.to(dtype), ends, fresh, activation))
    return y.to(x_BTE.dtype), new.to(tail_BWE.dtype)


def short_conv_plain(
    x_BTE: Tensor, w_EW: Tensor, bias_E: Maybe, tail_BWE: Tensor, lengths: Maybe, starts: Maybe, activation: bool
) -> Pair:
    """`short_conv` as it is written: the sequences of a row are numbered, and a window ends where the number changes."""
    (B, T, E), back = x_BTE.shape, w_EW.shape[1] - 1
    ends = torch.full((B,), T, device=x_BTE.device) if lengths is None else lengths.clamp(0, T)
    past = torch.arange(T, device=x_BTE.device) >= ends[:, None]
    line = torch.cat([tail_BWE, x_BTE.masked_fill(past[..., None], 0)], 1)
    fresh = torch.zeros_like(past) if starts is None else starts
    before = F.pad(fresh.cumsum(1), (back + 1, 0))
    number = before[:, 1:]
    y = torch.zeros_like(x_BTE) if bias_E is None else bias_E.expand_as(x_BTE)
    for k in range(back + 1):
        there = slice(back - k, back - k + T)
        other = number[:, there] != number[:, back:]
        y = y + line[:, there].masked_fill(other[..., None], 0) * w_EW[:, k]
    y = F.silu(y) if activation else y
    at = ends[:, None] + torch.arange(back, device=x_BTE.device)
    other = number.gather(1, at) != before.gather(1, ends[:, None] + back)
    new = line.gather(1, at[..., None].expand(-1, -1, E)).masked_fill(other[..., None], 0)
    return y.masked_fill(past[..., None], 0), new


def _check(x: Tensor, w: Tensor, bias: Maybe, tail: Tensor, lengths: Maybe, starts: Maybe) -> None:
    _fits(x, w, tail, "short_conv")
    if bias is not None and bias.shape != w.shape[:1]:
        raise BadInput(f"short_conv: bias has shape {tuple(bias.shape)}, not {tuple(w.shape[:1])}")
    rows_fit("short_conv", x.shape, lengths, starts)


_short_conv = Operation(
    "short_conv",
    short_conv_plain,
    inputs="Tensor x, Tensor w, Tensor? bias, Tensor tail",
    options="Tensor? lengths, Tensor? starts, bool activation",
    shared=("w", "bias"),
    outputs=("x", "tail"),
)
