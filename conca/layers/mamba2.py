"""Mamba-2: a memory of matrices that forgets by what it reads, one number per head, so that it is also attention under a mask.

    S_t = a_t S_{t-1} + B_t (dt_t x_t)^T,   y_t = S_t^T C_t + D x_t        one N x P matrix per head
    a_t = exp(dt_t A),  dt_t = clamp(softplus(. + dt_bias)),  A = -exp(A_log)
    out = W norm(y_t * silu(z_t))

z, x, B, C and dt are read from the token by one linear map; x, B and C go through a short convolution. Heads of a group share B and
C; the norm takes the channels of each group by themselves.

Dao and Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality, 2024.
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
from conca.layers.norm import GatedNorm
from conca.layers.options import heads, made, ordered, positive, whole
from conca.layers.precision import without_autocast
from conca.layers.quantised import linear_row
from conca.layers.short_conv import ShortConv, ShortConvState
from conca.layers.time_scales import possible, step_biases
from conca.ops.duality import duality

__all__ = ["Decay", "Gate", "Mamba2", "Mamba2State"]

Read = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Mamba2State(NamedTuple):
    """What Mamba-2 remembers: the last inputs of the convolution, and a matrix per head."""

    tail_BWC: Tensor
    S_BHNP: Tensor


@dataclass(frozen=True)
class Decay:
    """How fast the memory forgets: the dt and the A that the layer starts with, and between which limits dt stays.

    Raises:
        ValueError: for bounds that are not in order, or not positive where they have to be.
    """

    dt: tuple[float, float] = (1e-3, 1e-1)
    """Bounds between which dt is drawn at the start, log-uniform."""
    dt_floor: float = 1e-4
    """At the start dt is at least this."""
    a: tuple[float, float] = (1.0, 16.0)
    """Bounds between which -A is drawn at the start, uniform."""
    limit: tuple[float, float] = (0.0, math.inf)
    """dt is clamped between these, always."""

    def __post_init__(self) -> None:
        possible(self.dt)
        ordered("decay", a=self.a, limit=self.limit)
        positive("decay: bounds of a", low=self.a[0], high=self.a[1])
        positive("decay", dt_floor=self.dt_floor)


@dataclass(frozen=True)
class Gate:
    """How what is read from the memory meets its gate.

    Raises:
        ValueError: for an eps that is not positive, and for groups that are no whole number from 1 on.
    """

    norm: bool = True
    """Whether there is a norm."""
    norm_first: bool = False
    """The norm comes before the gate, norm(y) * silu(z), in place of norm(y * silu(z))."""
    eps: float = 1e-5
    """What the norm adds to the mean of squares."""
    groups: int | None = None
    """Groups of channels that are normed by themselves; None: those that share B and C."""

    def __post_init__(self) -> None:
        positive("gate", eps=self.eps)
        if self.groups is not None and not whole(self.groups):
            raise ValueError(f"gate: groups must be a whole number from 1 on, got {self.groups!r}")


class Mamba2(Mixer[Mamba2State]):
    """A Mamba-2 layer, with its convolution, gate, norm and both of its maps.

    Parameters have the names and shapes of the published checkpoints, but for the convolution: `conv.weight` (C, W) has the present
    first, `conv1d.weight[:, 0].flip(1)`; `conv.bias` is `conv1d.bias`.

    Args:
        d_model: width of input and output.
        d_state: N, rows of the matrix of a head.
        d_head: width P of a head; it divides expand * d_model. None: 64, or the widest below it that does.
        expand: the inner width as a multiple of `d_model`.
        n_groups: groups of heads that share B and C; they divide the heads.
        d_conv: width of the convolution.
        decay: how fast the memory forgets, as `conca.layers.mamba2.Decay` or a dict of it, {"dt": (1e-3, 1e-1), "dt_floor": 1e-4,
            "a": (1, 16), "limit": (0, inf)}: the first dt and A are drawn within `dt` and `a`; dt stays within `limit`.
        gate: norm and gate, as `conca.layers.mamba2.Gate` or a dict of it, {"norm": True, "norm_first": False, "eps": 1e-5,
            "groups": None}.
        bias: of both maps.
        device, dtype: of the parameters; those of the recurrence stay float32 in half precision.

    Raises:
        ValueError: for heads that do not divide the inner width, groups that do not divide the heads, and for options of `decay` and
            `gate` that they refuse.
    """

    resets = ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 128,
        d_head: int | None = None,
        expand: int = 2,
        n_groups: int = 1,
        d_conv: int = 4,
        decay: Decay | Mapping[str, Any] = Decay(),
        gate: Gate | Mapping[str, Any] = Gate(),
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.decay, self.gate = made(Decay, decay, "decay"), made(Gate, gate, "gate")
        self.d_model, self.d_state, self.n_groups = d_model, d_state, n_groups
        self.d_head, self.n_heads = P, H = heads("Mamba2", d_model, expand, d_head, n_groups)
        self.d_inner = E = P * H
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.widths = (E, E + 2 * n_groups * d_state, H)
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=bias, **to)
        self.conv = ShortConv(self.widths[1], d_conv=d_conv, **to)
        wide = to | {"dtype": torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)}
        self.A_log = nn.Parameter(torch.empty(H, **wide).uniform_(*self.decay.a).log())
        self.dt_bias = nn.Parameter(step_biases(H, self.decay.dt, self.decay.dt_floor, **wide))
        self.D = nn.Parameter(torch.ones(H, **wide))
        norm: dict[str, Any] = {
            "groups": self.gate.groups or n_groups,
            "eps": self.gate.eps,
            "norm_first": self.gate.norm_first,
        }
        self.norm = GatedNorm(E, **norm, **to) if self.gate.norm else None
        self.out_proj = nn.Linear(E, d_model, bias=bias, **to)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Heads of one group; odd widths in two groups, the norm first, dt within limits; no norm, no memory in the convolution."""
        return (
            cls(6, d_state=4, d_head=3),
            cls(
                6, d_state=3, d_head=3, n_groups=2, gate={"norm_first": True}, decay={"limit": (0.01, 0.05)}, bias=True
            ),
            cls(3, d_state=5, expand=1, d_conv=1, gate={"norm": False}),
        )

    def init_state(self, batch: int) -> Mamba2State:
        """Zeros: the tail of the convolution (B, W - 1, E + 2GN), a matrix (B, H, N, P) for every head."""
        S = torch.zeros(batch, self.n_heads, self.d_state, self.d_head, dtype=self.D.dtype, device=self.D.device)
        return Mamba2State(self.conv.init_state(batch).tail_BWD, S)

    def step(self, x: Tensor, state: Mamba2State, *, elapsed: Tensor | None = None) -> tuple[Tensor, Mamba2State]:
        """One token: x (B, D)."""
        z, inner, dt = torch.split(linear_row(self.in_proj, x), list(self.widths), -1)
        inner, (tail,) = self.conv.step(inner, ShortConvState(state.tail_BWC))
        with without_autocast(x):
            x_HP, k_GN, q_GN, log_a_H, dt_H = self._read(inner, dt)
            heads = self.n_heads // self.n_groups
            k, q = (t.repeat_interleave(heads, 1) for t in (k_GN, q_GN))
            S = (
                log_a_H.exp()[..., None, None] * self._matrices(state)
                + k[..., None] * (dt_H[..., None] * x_HP)[..., None, :]
            )
            y = (q[..., None] * S).sum(2) + self.D[:, None] * x_HP
            out = self._gated(y.flatten(1), z)
        return linear_row(self.out_proj, out.to(x.dtype)), Mamba2State(tail, S)

    def parallel(
        self, x: Tensor, state: Mamba2State, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Mamba2State]:
        """All tokens by `conca.ops.duality.duality`."""
        z, inner, dt = self.in_proj(x).split(self.widths, -1)
        inner, (tail,) = self.conv(inner, ShortConvState(state.tail_BWC), lengths=lengths, starts=starts)
        with without_autocast(x):
            x_HP, k, q, log_a, dt = self._read(inner, dt)
            q, k, v = (t[:, :, None] for t in (q, k, x_HP))
            y, S = duality(q, k, v, log_a, self._matrices(state), lengths=lengths, starts=starts, weight=dt)
            y = torch.addcmul(y[:, :, 0], self.D[:, None], x_HP)
            out = self._gated(y.flatten(2), z)
        return self.out_proj(out.to(x.dtype)), Mamba2State(tail, S)

    def _read(self, inner: Tensor, dt: Tensor) -> Read:
        """x (..., H, P), key and query (..., G, N), the logarithm of the decay and dt (..., H), float32 or better."""
        GN = self.n_groups * self.d_state
        x, k, q = torch.split(inner, [self.d_inner, GN, GN], -1)
        dt = F.softplus(dt.to(self.D.dtype) + self.dt_bias)
        if self.decay.limit != (0.0, math.inf):
            dt = dt.clamp(*self.decay.limit)
        x_HP = x.reshape(*x.shape[:-1], self.n_heads, self.d_head).to(self.D.dtype)
        k, q = (t.reshape(*t.shape[:-1], self.n_groups, self.d_state).to(self.D.dtype) for t in (k, q))
        return x_HP, k, q, -self.A_log.exp() * dt, dt

    def _gated(self, y_E: Tensor, z_E: Tensor) -> Tensor:
        """What goes into `out_proj`."""
        gated: Tensor = y_E * F.silu(z_E) if self.norm is None else self.norm(y_E, z_E)
        return gated

    def _matrices(self, state: Mamba2State) -> Tensor:
        """The memory in the precision of the layer. Raises ValueError for that of another size."""
        size, got = (self.n_heads, self.d_state, self.d_head), state.S_BHNP.shape
        if got[1:] != size:
            raise ValueError(f"Mamba2: expected S of shape (batch, {', '.join(map(str, size))}), got {tuple(got)}")
        return state.S_BHNP.to(self.D.dtype)

    def roles(self) -> dict[str, Role]:
        """The recurrence stays float32; it is not decayed, nor is the norm."""
        return dict.fromkeys(("A_log", "dt_bias", "D"), Role(decay=False, float32=True))

    def work(self) -> Work:
        """The maps and the convolution; a head's matrix decays, is written to and read."""
        memory = self.d_inner * self.d_state
        common, tail = super().work(), self.conv.weight[:, 1:]
        return Work(
            common.multiply_adds + 3 * memory,
            common.bytes + memory * self.D.element_size() + tail.numel() * tail.element_size(),
        )
