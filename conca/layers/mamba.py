"""Mamba: a state space in every channel whose step, input and reading depend on the token, so that it chooses what to remember.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t,   y_t = sum_n C_t h_t + D x_t         N states per channel, A = -exp(A_log)
    dt_t = softplus(W_dt r_t + dt_bias),  (r_t, B_t, C_t) = W_x x_t                  r has few numbers
    out = W_out (y_t * silu(z_t))

x and z are read from the token by one linear map, of twice the inner width E; x goes through a short convolution and SiLU. With
hold="zoh" the input is weighed by (exp(dt A) - 1) / A in place of dt: zero-order hold, as the paper writes; its published weights
were trained with dt. With select_norm r, B and C are each divided by their root mean square first (Zuo et al., Falcon Mamba, 2024).

Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.mixer import Mixer, Role, Work
from conca.layers.options import made, positive, whole
from conca.layers.precision import without_autocast
from conca.layers.quantised import linear_row
from conca.layers.short_conv import ShortConv, ShortConvState
from conca.layers.time_scales import possible, step_biases
from conca.ops.selective_scan import HOLDS, selective_scan, selective_step
from conca.types import nearest

__all__ = ["Mamba", "MambaState", "Steps"]


class MambaState(NamedTuple):
    """What Mamba remembers: the last inputs of the convolution, oldest first, and N states of every channel."""

    tail_BWE: Tensor
    h_BEN: Tensor


@dataclass(frozen=True)
class Steps:
    """Where the lengths of the steps, dt, start.

    Raises:
        ValueError: for bounds that are not positive and in order, an unknown `init`, a scale or floor that is not positive.
    """

    dt: tuple[float, float] = (1e-3, 1e-1)
    """Bounds between which softplus(dt_bias) is drawn, log-uniform."""
    floor: float = 1e-4
    """It is at least this."""
    scale: float = 1.0
    """Multiplies the weights of `dt_proj`, whose size is 1 / sqrt(dt_rank)."""
    init: str = "random"
    """These weights are drawn uniformly ("random") or all alike ("constant")."""

    def __post_init__(self) -> None:
        possible(self.dt)
        if self.init not in ("random", "constant"):
            raise ValueError(f"steps: unknown init {self.init!r}; {nearest(str(self.init), ('random', 'constant'))}")
        positive("steps", floor=self.floor, scale=self.scale)


class Mamba(Mixer[MambaState]):
    """A Mamba layer, with its convolution, gate and maps.

    Parameters have the names and shapes of the published checkpoints, but for `dt_bias`, there `dt_proj.bias`, and the convolution:
    `conv.weight` (E, W) has the present first, `conv1d.weight[:, 0].flip(1)`; `conv.bias` is `conv1d.bias`.

    Args:
        d_model: width of input and output.
        d_state: states of a channel, N.
        d_conv: width of the convolution.
        expand: the inner width as a multiple of `d_model`, whole or not, as long as the inner width is.
        dt_rank: numbers that dt is read from; None: a sixteenth of `d_model`, rounded up.
        hold: "euler" weighs the input by dt, as published weights want it; "zoh" is zero-order hold.
        steps: where dt starts, as `conca.layers.mamba.Steps` or a dict of it, {"dt": (1e-3, 1e-1), "floor": 1e-4, "scale": 1.0,
            "init": "random" or "constant"}.
        select_norm: what the norm of r, B and C adds to the mean of their squares (it has no weights); None: there is no norm.
        bias: of `in_proj` and `out_proj`.
        device, dtype: of the parameters; those of the recurrence stay float32 in half precision.

    Raises:
        ValueError: for an unknown `hold`, an inner width that is not whole, a `select_norm` that is not positive, and for options of
            `steps` that it refuses.
    """

    resets = ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        d_conv: int = 4,
        expand: float = 2,
        dt_rank: int | None = None,
        hold: str = "euler",
        steps: Steps | Mapping[str, Any] = Steps(),
        select_norm: float | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        E = round(expand * d_model) if isinstance(expand, int | float) and math.isfinite(expand) else 0
        if E < 1 or expand * d_model != E:
            raise ValueError(f"Mamba: expand * d_model must be a whole number from 1 on, got {expand!r} * {d_model}")
        if hold not in HOLDS:
            raise ValueError(f"Mamba: unknown hold {hold!r}; {nearest(str(hold), HOLDS)}")
        rank = -(-d_model // 16) if dt_rank is None else dt_rank
        if not whole(rank):
            raise ValueError(f"Mamba: dt_rank must be a whole number from 1 on, got {dt_rank!r}")
        self.d_model, self.d_inner, self.d_state, self.dt_rank, self.hold = d_model, E, d_state, rank, hold
        self.steps, self.select_norm = made(Steps, steps, "steps"), select_norm
        if select_norm is not None:
            positive("Mamba", select_norm=select_norm)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, 2 * E, bias=bias, **to)
        self.conv = ShortConv(E, d_conv=d_conv, **to)
        self.x_proj = nn.Linear(E, rank + 2 * d_state, bias=False, **to)
        self.dt_proj = nn.Linear(rank, E, bias=False, **to)
        wide = to | {"dtype": torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)}
        self.dt_bias = nn.Parameter(step_biases(E, self.steps.dt, self.steps.floor, **wide))
        self.A_log = nn.Parameter(torch.arange(1, d_state + 1, **wide).log().expand(E, -1).clone())
        self.D = nn.Parameter(torch.ones(E, **wide))
        self.out_proj = nn.Linear(E, d_model, bias=bias, **to)
        size = self.steps.scale / math.sqrt(rank)
        with torch.no_grad():
            if self.steps.init == "random":
                self.dt_proj.weight.uniform_(-size, size)
            else:
                self.dt_proj.weight.fill_(size)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """The usual layer; zero-order hold with a wider rank; odd sizes, one state, a convolution that remembers nothing, a norm."""
        return (
            cls(4, d_state=3),
            cls(3, d_state=2, hold="zoh", dt_rank=2, expand=3, bias=True, steps=Steps(dt=(1e-2, 1.0))),
            cls(5, d_state=1, d_conv=1, expand=1, dt_rank=2, select_norm=1e-6, steps=Steps(init="constant")),
        )

    def init_state(self, batch: int) -> MambaState:
        """Zeros (B, W - 1, E) and (B, E, N)."""
        tail = self.conv.init_state(batch).tail_BWD
        return MambaState(tail, self.zeros(batch, self.d_inner, self.d_state))

    def step(self, x: Tensor, state: MambaState, *, elapsed: Tensor | None = None) -> tuple[Tensor, MambaState]:
        """One token: x (B, D)."""
        self._check(state)
        u_BE, z_BE = linear_row(self.in_proj, x).chunk(2, -1)
        u_BE, conv = self.conv.step(u_BE, ShortConvState(state.tail_BWE))
        dt_BE, B_BN, C_BN = self._selected(u_BE)
        with without_autocast(x):
            args = u_BE, dt_BE, -self.A_log.exp(), B_BN, C_BN, state.h_BEN
            y_BE, h = selective_step(*args, D_E=self.D, z_BE=z_BE, bias_E=self.dt_bias, softplus=True, hold=self.hold)
        y: Tensor = linear_row(self.out_proj, y_BE)
        return y, MambaState(conv.tail_BWD, h)

    def parallel(
        self, x: Tensor, state: MambaState, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, MambaState]:
        """All tokens: linear maps over all of them, and the fused scan between."""
        self._check(state)
        u_BTE, z_BTE = self.in_proj(x).chunk(2, -1)
        u_BTE, conv = self.conv(u_BTE, ShortConvState(state.tail_BWE), lengths=lengths, starts=starts)
        dt_BTE, B_BTN, C_BTN = self._selected(u_BTE)
        with without_autocast(x):
            y_BTE, h = selective_scan(
                u_BTE, dt_BTE, -self.A_log.exp(), B_BTN, C_BTN, state.h_BEN, D_E=self.D, z_BTE=z_BTE,
                bias_E=self.dt_bias, softplus=True, hold=self.hold, lengths=lengths, starts=starts,
            )  # fmt: skip
        y: Tensor = self.out_proj(y_BTE)
        return y, MambaState(conv.tail_BWD, h)

    def _selected(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dt before its bias and softplus, B and C of what the convolution gave."""
        rank, B, C = torch.split(self.x_proj(u), [self.dt_rank, self.d_state, self.d_state], -1)
        if self.select_norm is not None:
            rank, B, C = (F.rms_norm(t, t.shape[-1:], eps=self.select_norm) for t in (rank, B, C))
        return self.dt_proj(rank), B, C

    def _check(self, state: MambaState) -> None:
        want = (self.conv.d_conv - 1, self.d_inner), (self.d_inner, self.d_state)
        got = tuple(tuple(t.shape[1:]) for t in state)
        if got != want:
            raise ValueError(
                f"Mamba: expected a state of shapes (batch, *) with * {want[0]} and {want[1]}, got {got[0]}, {got[1]}"
            )

    def roles(self) -> dict[str, Role]:
        """The recurrence stays float32 and is not decayed."""
        return dict.fromkeys(("dt_bias", "A_log", "D"), Role(decay=False, float32=True))

    def work(self) -> Work:
        """Every parameter once, and per state one more product for the input and one for the reading."""
        common, states = super().work(), self.d_inner * self.d_state
        return Work(common.multiply_adds + 2 * states, common.bytes + states * self.A_log.element_size())
