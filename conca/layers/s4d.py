"""S4D: one diagonal state space per channel, a memory of the whole past in N numbers, trained like a convolution.

    h' = lambda h + B u,  y = 2 Re(C h) + D u          one of each conjugate pair is kept, N/2 modes
    h_t = exp(lambda dt) h_{t-1} + (exp(lambda dt) - 1) / lambda B u_t                   zero-order hold
    out = W_1 gelu(y) * sigmoid(W_2 gelu(y))                                             channels mix here

Gu, Gupta, Goel and Re, On the Parameterization and Initialization of Diagonal State Space Models, 2022. Eigenvalues start at those of
the normal part of HiPPO-LegS ("legs") or at -1/2 + i pi n ("lin"); dt is log-uniform per channel.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.mixer import Mixer, Role, Work
from conca.layers.rows import inside, segments
from conca.ops.diagonal import diagonal_ssm
from conca.ops.discretise import zero_order_hold
from conca.ops.hippo import legs_normal
from conca.ops.scan import scan
from conca.types import nearest

__all__ = ["S4D", "S4DState"]

INITIALISATIONS = ("legs", "lin")


class S4DState(NamedTuple):
    """What S4D remembers: real and imaginary part of each mode of each channel."""

    h_BDN2: Tensor


class S4D(Mixer[S4DState]):
    """A diagonal state-space layer, with its activation and its gated output map.

    Args:
        d_model: width of input and output.
        d_state: real size of the state of a channel, even: N/2 complex modes.
        init: eigenvalues at the start, "legs" or "lin".
        dt: bounds between which the time scales of the channels are drawn, log-uniform, in units of one step.
        dropout: on the activations, before the output map.
        bias: of the output map.
        device, dtype: of the parameters; those of the recurrence stay float32 in half precision.

    Raises:
        ValueError: for an odd `d_state`, an unknown `init`, or bounds of `dt` that are not positive and in order.
    """

    timed = resets = ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        init: str = "legs",
        dt: tuple[float, float] = (1e-3, 1e-1),
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if init not in INITIALISATIONS:
            raise ValueError(f"unknown init {init!r}; {nearest(init, INITIALISATIONS)}")
        if not 0 < dt[0] <= dt[1]:
            raise ValueError(f"dt must be two positive bounds in order, got {dt}")
        if d_state < 2 or d_state % 2:
            raise ValueError(f"d_state must be even and at least 2, got {d_state}")
        self.d_model, self.d_state = d_model, d_state
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        eigenvalues, inputs = legs_normal(d_state) if init == "legs" else lin(d_state)

        def parameter(value: Tensor) -> nn.Parameter:
            return nn.Parameter(value.to(device=device, dtype=wide).expand(d_model, *value.shape[1:]).clone())

        self.log_dt = nn.Parameter(torch.empty(d_model, device=device, dtype=wide).uniform_(*map(math.log, dt)))
        self.log_decay = parameter((-eigenvalues.real).log()[None])
        self.frequency = parameter(eigenvalues.imag[None])
        self.b = parameter(torch.stack([inputs, torch.zeros_like(inputs)], -1)[None])
        self.c = nn.Parameter(torch.randn(d_model, d_state // 2, 2, device=device, dtype=wide) * math.sqrt(0.5))
        self.skip = nn.Parameter(torch.randn(d_model, device=device, dtype=wide))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(d_model, 2 * d_model, bias=bias, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Both initialisations, an odd width, a single mode."""
        return cls(6, d_state=4), cls(5, d_state=2, init="lin", bias=False)

    def init_state(self, batch: int) -> S4DState:
        """Zeros (B, D, N/2, 2)."""
        return S4DState(self.zeros(batch, self.d_model, self.d_state // 2, 2))

    def discretised(self, elapsed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The factors a and b of h_t = a h_{t-1} + b u_t: complex (D, N/2), or (B, T, D, N/2) for `elapsed` (B, T)."""
        eigenvalues = torch.complex(-self.log_decay.exp(), self.frequency)
        dt_D1 = self.log_dt.exp()[:, None]
        step = dt_D1 if elapsed is None else dt_D1 * elapsed.to(dt_D1.dtype)[..., None, None]
        a, b = zero_order_hold(eigenvalues, step)
        return a, b * torch.view_as_complex(self.b)

    def step(self, x: Tensor, state: S4DState, *, elapsed: Tensor | None = None) -> tuple[Tensor, S4DState]:
        """One token: x (B, D), elapsed (B,)."""
        u = x.to(self.log_dt.dtype)
        a, b = self.discretised(elapsed)
        h = a * self._modes(state) + b * u[..., None]
        y = 2 * (torch.view_as_complex(self.c) * h).sum(-1).real
        return self._mixed(y, u, x.dtype), S4DState(torch.view_as_real(h))

    def parallel(
        self, x: Tensor, state: S4DState, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, S4DState]:
        """The fused scan; with `elapsed` a scan over factors that differ from step to step."""
        if elapsed is not None and starts is not None:
            return segments(self, x, state, lengths, starts, elapsed)
        u, h = x.to(self.log_dt.dtype), self._modes(state)
        c = 2 * torch.view_as_complex(self.c)
        with torch.autocast(x.device.type, enabled=False):
            if elapsed is None:
                a, b = self.discretised()
                y, h = diagonal_ssm(u, a, b, c, h, lengths=lengths, starts=starts)
            else:
                if lengths is not None:
                    elapsed = elapsed * inside(x, lengths)  # a pad is a step of no duration
                a, b = self.discretised(elapsed)
                h_BTDN = scan(a, b * u[..., None], h)
                y, h = (c * h_BTDN).sum(-1).real, h_BTDN[:, -1].clone()
        return self._mixed(y, u, x.dtype), S4DState(torch.view_as_real(h))

    def _modes(self, state: S4DState) -> Tensor:
        """The state as complex numbers (B, D, N/2). Raises ValueError for the state of another size."""
        own = self.d_model, self.d_state // 2, 2
        if state.h_BDN2.shape[1:] != own:
            raise ValueError(
                f"S4D: expected a state of shape (batch, {', '.join(map(str, own))}), got {tuple(state.h_BDN2.shape)}"
            )
        return torch.view_as_complex(state.h_BDN2.contiguous())

    def _mixed(self, y: Tensor, u: Tensor, dtype: torch.dtype) -> Tensor:
        out: Tensor = F.glu(self.out(self.dropout(F.gelu((y + self.skip * u).to(dtype)))), -1)
        return out

    def roles(self) -> dict[str, Role]:
        """The recurrence stays float32; time scales, eigenvalues and input learn slowly, and nothing of it is decayed."""
        slow = Role(decay=False, rate=0.1, float32=True)
        steady = Role(decay=False, float32=True)
        return dict.fromkeys(("log_dt", "log_decay", "frequency", "b"), slow) | dict.fromkeys(("c", "skip"), steady)

    def work(self) -> Work:
        """Per mode a complex product, an input and a reading: eight multiply-adds; and the output map."""
        modes = self.d_model * self.d_state // 2
        common = super().work()
        return Work(8 * modes + 2 * self.d_model**2 + self.d_model, common.bytes + 8 * modes)


def lin(size: int) -> tuple[Tensor, Tensor]:
    """S4D-Lin: eigenvalues -1/2 + i pi n, complex128 (N/2,), and inputs 1."""
    n = torch.arange(size // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n), torch.ones_like(n)
