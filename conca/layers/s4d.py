"""S4D: one diagonal state space per channel, a memory of the whole past in N numbers, trained like a convolution.

    h' = lambda h + B u,  y = 2 Re(C h) + D u          one of each conjugate pair is kept, N/2 modes
    h_t = exp(lambda dt) h_{t-1} + (exp(lambda dt) - 1) / lambda B u_t                   zero-order hold
    h_t = [(1 + lambda dt / 2) h_{t-1} + dt B u_t] / (1 - lambda dt / 2)                 or bilinear
    out = W_1 gelu(y) * sigmoid(W_2 gelu(y))                                             channels mix here

Gu, Gupta, Goel and Re, On the Parameterization and Initialization of Diagonal State Space Models, 2022. Where the eigenvalues start is
in `conca.ops.spectra`; dt is log-uniform per channel. Modes that are real ("real") stay so: N of them in place of N/2 complex ones,
y = C h, and the N numbers of the state are theirs.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.impulse import impulse
from conca.layers.mixer import Mixer, Role, Work
from conca.layers.precision import without_autocast
from conca.layers.time_scales import drawn
from conca.ops.diagonal import diagonal_ssm
from conca.ops.discretise import bilinear, irregular, zero_order_hold
from conca.ops.scan import scan
from conca.ops.spectra import spectrum
from conca.types import nearest

__all__ = ["S4D", "S4DState"]

TRANSFORMS = {"zoh": zero_order_hold, "bilinear": bilinear}


class S4DState(NamedTuple):
    """What S4D remembers: real and imaginary part of each mode of each channel (or two real modes)."""

    h_BDN2: Tensor


class S4D(Mixer[S4DState]):
    """A diagonal state-space layer, with its activation and its gated output map.

    Args:
        d_model: width of input and output.
        d_state: real size of the state of a channel, even: N/2 complex modes, or N real ones.
        init: eigenvalues at the start: "legs", "lin", "inv", "quad", "fourier", "random", or "real".
        transform: from continuous to discrete time, "zoh" (zero-order hold) or "bilinear".
        dt: bounds between which the time scales of the channels are drawn, log-uniform, in units of one step.
        step_rescale: multiplies every time scale; 2 reads a sequence of half the sampling rate. It may be set later.
        dropout: on the activations, before the output map.
        bias: of the output map.
        device, dtype: of the parameters; those of the recurrence stay float32 in half precision.

    Raises:
        ValueError: for an odd `d_state`, an unknown `init` or `transform`, and for bounds of `dt` that are not positive and in
            order, or a `step_rescale` that is not positive.
    """

    timed = resets = ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        init: str = "legs",
        transform: str = "zoh",
        dt: tuple[float, float] = (1e-3, 1e-1),
        step_rescale: float = 1.0,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if transform not in TRANSFORMS:
            raise ValueError(f"unknown transform {transform!r}; {nearest(transform, TRANSFORMS)}")
        if d_state < 2 or d_state % 2:
            raise ValueError(f"d_state must be even and at least 2, got {d_state}")
        self.d_model, self.d_state, self.init = d_model, d_state, init
        self.transform, self.step_rescale = transform, step_rescale
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        eigenvalues, inputs = spectrum(init, d_state)
        pairs = eigenvalues.is_complex()

        def parameter(value: Tensor) -> nn.Parameter:
            return nn.Parameter(value.to(device=device, dtype=wide).expand(d_model, *value.shape).clone())

        self.log_dt = nn.Parameter(drawn(d_model, dt, step_rescale, device=device, dtype=wide))
        self.log_decay = parameter((-eigenvalues.real).log())
        self.frequency = parameter(eigenvalues.imag) if pairs else None
        self.b = parameter(torch.stack([inputs, torch.zeros_like(inputs)], -1) if pairs else inputs)
        scale = math.sqrt(0.5) if pairs else 1.0
        self.c = nn.Parameter(torch.randn(self.b.shape, device=device, dtype=wide) * scale)
        self.skip = nn.Parameter(torch.randn(d_model, device=device, dtype=wide))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(d_model, 2 * d_model, bias=bias, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Complex modes, real ones by the bilinear transform, an odd width, a single mode at half the sampling rate."""
        return (
            cls(6, d_state=4),
            cls(3, d_state=4, init="real", transform="bilinear"),
            cls(5, d_state=2, init="lin", step_rescale=2.0, bias=False),
        )

    def init_state(self, batch: int) -> S4DState:
        """Zeros (B, D, N/2, 2)."""
        return S4DState(self.zeros(batch, self.d_model, self.d_state // 2, 2))

    def eigenvalues(self) -> Tensor:
        """Those of the continuous system: complex (D, N/2), real (D, N) for real modes."""
        decay = -self.log_decay.exp()
        return decay if self.frequency is None else torch.complex(decay, self.frequency)

    def discretised(self, elapsed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The factors a and b of h_t = a h_{t-1} + b u_t: (D, N/2), or (B, T, D, N/2) for `elapsed` (B, T); N for real modes."""
        dt_D1 = self.log_dt.exp()[:, None] * self.step_rescale
        step = dt_D1 if elapsed is None else dt_D1 * elapsed.to(dt_D1.dtype)[..., None, None]
        a, b = TRANSFORMS[self.transform](self.eigenvalues(), step)
        return a, b * self._numbers(self.b)

    @torch.no_grad()
    def poles(self) -> Tensor:
        """The eigenvalues times the time scales, complex (D, modes): time scales are -1 / Re, periods 2 pi / |Im|, in steps."""
        return (self.eigenvalues() * self.log_dt.exp()[:, None] * self.step_rescale).to(self.log_dt.dtype.to_complex())

    def kernel(self, length: int) -> Tensor:
        """The impulse response (D, length) of the state spaces, without the direct path: C a^l b, twice the real part."""
        x = impulse(length, self.d_model, self.log_dt)
        a, b = self.discretised()
        h = self._modes(self.init_state(1))
        return diagonal_ssm(x, a, b, self._readers(), h)[0][0].T

    def step(self, x: Tensor, state: S4DState, *, elapsed: Tensor | None = None) -> tuple[Tensor, S4DState]:
        """One token: x (B, D), elapsed (B,)."""
        u = x.to(self.log_dt.dtype)
        a, b = self.discretised(elapsed)
        h = a * self._modes(state) + b * u[..., None]
        y = (self._readers() * h).sum(-1).real
        return self._mixed(y, u, x.dtype), self._state(h)

    def parallel(
        self, x: Tensor, state: S4DState, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, S4DState]:
        """The fused scan; with `elapsed` a scan over factors that differ from step to step."""
        u, h = x.to(self.log_dt.dtype), self._modes(state)
        c = self._readers()
        with without_autocast(x):
            if elapsed is None:
                a, b = self.discretised()
                y, h = diagonal_ssm(u, a, b, c, h, lengths=lengths, starts=starts)
            else:
                dt_D1 = self.log_dt.exp()[:, None] * self.step_rescale
                times = elapsed.to(dt_D1.dtype)[..., None, None]
                a, factor, fixed = irregular(self.transform, self.eigenvalues(), dt_D1, times)
                x_BTDN = factor * (fixed * self._numbers(self.b) * u[..., None])
                h_BTDN = scan(a, x_BTDN, h, lengths=lengths, starts=starts)
                y, h = (c * h_BTDN).sum(-1).real, h_BTDN[:, -1].clone()
        return self._mixed(y, u, x.dtype), self._state(h)

    def _numbers(self, parameter: Tensor) -> Tensor:
        """A parameter of the modes as complex numbers (D, N/2), or as real ones (D, N)."""
        return parameter if self.frequency is None else torch.view_as_complex(parameter)

    def _readers(self) -> Tensor:
        """What reads the modes: twice C, for the conjugates that are not kept, or C."""
        return self.c if self.frequency is None else 2 * torch.view_as_complex(self.c)

    def _modes(self, state: S4DState) -> Tensor:
        """The state as numbers of the modes (B, D, N/2 or N). Raises ValueError for the state of another size."""
        own = self.d_model, self.d_state // 2, 2
        if state.h_BDN2.shape[1:] != own:
            raise ValueError(
                f"S4D: expected a state of shape (batch, {', '.join(map(str, own))}), got {tuple(state.h_BDN2.shape)}"
            )
        h = state.h_BDN2.to(self.log_dt.dtype)
        return h.flatten(-2) if self.frequency is None else torch.view_as_complex(h.contiguous())

    def _state(self, h: Tensor) -> S4DState:
        """The inverse of `_modes`."""
        return S4DState(h.real.reshape(*h.shape[:-1], -1, 2) if self.frequency is None else torch.view_as_real(h))

    def _mixed(self, y: Tensor, u: Tensor, dtype: torch.dtype) -> Tensor:
        out: Tensor = F.glu(self.out(self.dropout(F.gelu((y + self.skip * u).to(dtype)))), -1)
        return out

    def roles(self) -> dict[str, Role]:
        """The recurrence stays float32; time scales, eigenvalues and input learn slowly, and nothing of it is decayed."""
        slow = Role(decay=False, rate=0.1, float32=True)
        steady = Role(decay=False, float32=True)
        names = ("log_dt", "log_decay", "b") if self.frequency is None else ("log_dt", "log_decay", "frequency", "b")
        return dict.fromkeys(names, slow) | dict.fromkeys(("c", "skip"), steady)

    def work(self) -> Work:
        """Per complex mode a product, an input and a reading: eight multiply-adds; three per real mode; and the output map."""
        numbers = self.d_model * self.d_state
        common, per_number = super().work(), 3 if self.frequency is None else 4
        bytes_ = common.bytes + numbers * self.log_dt.element_size()
        return Work(per_number * numbers + 2 * self.d_model**2 + self.d_model, bytes_)
