"""S4: a state space of diagonal plus low rank in every channel, which holds the HiPPO memories exactly.

    h' = lambda h - sum_r p_r s_r + B u,  s_r = 2 Re(conj(p_r) h),  y = 2 Re(C h) + D u    one of each conjugate pair is kept, N/2 modes
    h_t = Abar h_{t-1} + Bbar u_t         the bilinear transform of all of it, which is again diagonal plus low rank (Woodbury)
    out = W_1 gelu(y) * sigmoid(W_2 gelu(y))                                               channels mix here

Gu, Goel and Re, Efficiently Modeling Long Sequences with Structured State Spaces, 2022. What feeds back is read by the p that it is
written with, so A + A* is negative for every value of the parameters and no state grows. lambda, p and B are shared by the channels
of a copy (n_ssm in the paper's code; channel d has copy d modulo their number); dt, C and D are a channel's own.

The paper convolves with a kernel from its generating function (`conca.ops.dplr_kernel`, a Cauchy sum); the step is linear in N as well, so
the fused scan computes the same from any state, keeps the last one, and costs less. Not timed: another duration is another Abar,
whose feedback would have to be solved for at every token.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.impulse import impulse
from conca.layers.mixer import Mixer, Role, Work
from conca.layers.precision import without_autocast
from conca.layers.time_scales import drawn
from conca.ops.dplr import dplr_generalised_bilinear, dplr_ssm, dplr_step
from conca.ops.dplr_kernel import DPLR, dense
from conca.ops.hippo_forms import diagonal_plus_low_rank

__all__ = ["S4", "S4State"]

FLOOR = 1e-4
"""Smallest decay at the start: the normal part of some memories does not decay at all, and what is kept is its logarithm."""


class S4State(NamedTuple):
    """What S4 remembers: real and imaginary part of each mode of each channel."""

    h_BDN2: Tensor


class S4(Mixer[S4State]):
    """A state-space layer with a diagonal plus low-rank matrix, its activation and its gated output map.

    Args:
        d_model: width of input and output.
        d_state: real size of the state of a channel, even: N/2 complex modes.
        measure: of which HiPPO memory the matrix is at the start: "legs", "lagt", "fourier" (rank 1), "legt" (rank 2), or
            "legsd", "foud" (rank 0, which leaves S4D with the bilinear transform).
        copies: how many matrices there are; the channels share them equally.
        dt: bounds between which the time scales of the channels are drawn, log-uniform, in units of one step.
        step_rescale: multiplies every time scale; 2 reads a sequence of half the sampling rate. It may be set later.
        dropout: on the activations, before the output map.
        bias: of the output map.
        device, dtype: of the parameters; those of the recurrence stay float32 in half precision.

    Raises:
        ValueError: for an odd `d_state`, a measure that is unknown or not of this form, `copies` that do not divide the channels,
            bounds of `dt` that are not positive and in order, and a `step_rescale` that is not positive.
    """

    resets = ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        measure: str = "legs",
        copies: int = 1,
        dt: tuple[float, float] = (1e-3, 1e-1),
        step_rescale: float = 1.0,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if d_model % copies:
            raise ValueError(f"copies must divide the {d_model} channels, got {copies}")
        self.d_model, self.d_state, self.copies = d_model, d_state, copies
        self.measure, self.step_rescale = measure, step_rescale
        form = diagonal_plus_low_rank(measure, d_state)
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)

        def parameter(value: Tensor) -> nn.Parameter:
            value = torch.view_as_real(value) if value.is_complex() else value
            return nn.Parameter(value.to(device=device, dtype=wide).clone())

        shared = (copies, d_state // 2)
        self.log_dt = nn.Parameter(drawn(d_model, dt, step_rescale, device=device, dtype=wide))
        self.log_decay = parameter((-form.eigenvalues_N.real).clamp(min=FLOOR).log().expand(shared))
        self.frequency = parameter(form.eigenvalues_N.imag.expand(shared))
        self.p = parameter(form.p_RN[:, None].expand(-1, *shared))
        self.b = parameter(form.b_N.expand(shared))
        self.c = nn.Parameter(torch.randn(d_model, d_state // 2, 2, device=device, dtype=wide) * math.sqrt(0.5))
        self.skip = nn.Parameter(torch.randn(d_model, device=device, dtype=wide))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(d_model, 2 * d_model, bias=bias, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Rank 1 with one matrix and an odd width; rank 2 with two, of three channels each, at half the sampling rate."""
        return cls(5, d_state=4), cls(6, d_state=4, measure="legt", copies=2, step_rescale=2.0, bias=False)

    def init_state(self, batch: int) -> S4State:
        """Zeros (B, D, N/2, 2)."""
        return S4State(self.zeros(batch, self.d_model, self.d_state // 2, 2))

    def system(self) -> DPLR:
        """The continuous systems of the channels: eigenvalues (D, N/2), p and q = 2 conj(p) (R, D, N/2), dt (D,)."""
        eigenvalues = self._of_channels(torch.complex(-self.log_decay.exp(), self.frequency))
        p = self._of_channels(torch.view_as_complex(self.p))
        return DPLR(eigenvalues, p, 2 * p.conj(), self.log_dt.exp() * self.step_rescale)

    def discretised(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The factors a (D, N/2), p, q (R, D, N/2) and b (D, N/2) of one step, as `dplr_ssm` takes them."""
        eigenvalues, p, q, dt_D = self.system()
        return dplr_generalised_bilinear(eigenvalues, p, q, self._inputs(), dt_D[:, None])

    def kernel(self, length: int) -> Tensor:
        """The impulse response (D, length) of the state spaces, without the direct path, by the scan.

        The paper's way to it, by the generating function, is `conca.ops.dplr_kernel.dplr_kernel` of `system()`; it needs eigenvalues
        that are not 0.
        """
        x = impulse(length, self.d_model, self.log_dt)
        return dplr_ssm(x, *self.discretised(), self._readers(), self._modes(self.init_state(1)))[0][0].T

    @torch.no_grad()
    def poles(self) -> Tensor:
        """Eigenvalues of the whole A times the time scales, complex (D, N): time scales are -1 / Re, periods 2 pi / |Im|, in steps.

        All N, conjugates too. Those of LegS are -1 .. -N; its eigenvectors are so nearly parallel that from N = 16 or so rounding
        moves the fast ones, which fade first.
        """
        eigenvalues = torch.complex(-self.log_decay.exp(), self.frequency).to(torch.complex128)
        p = torch.view_as_complex(self.p).to(torch.complex128)
        found = torch.linalg.eigvals(dense(eigenvalues, p, 2 * p.conj()))
        scaled = self._of_channels(found) * self.log_dt.exp()[:, None] * self.step_rescale
        return scaled.to(self.log_dt.dtype.to_complex())

    def resampled(self, factor: float) -> Self:
        """A copy that reads sequences whose steps take `factor` times as long: 2 for half the sampling rate.

        On signals without frequencies near the limit it is the same function of time. Raises ValueError where `factor` is not positive.
        """
        if not factor > 0:
            raise ValueError(f"the factor must be positive, got {factor}")
        other = copy.deepcopy(self)
        other.step_rescale = self.step_rescale * factor
        return other

    def step(self, x: Tensor, state: S4State, *, elapsed: Tensor | None = None) -> tuple[Tensor, S4State]:
        """One token, x (B, D): linear in N."""
        u, h = x.to(self.log_dt.dtype), self._modes(state)
        with without_autocast(x):
            h = dplr_step(u, *self.discretised(), h)
            y = (self._readers() * h).sum(-1).real
        return self._mixed(y, u, x.dtype), S4State(torch.view_as_real(h))

    def parallel(
        self, x: Tensor, state: S4State, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, S4State]:
        """The fused scan."""
        u, h = x.to(self.log_dt.dtype), self._modes(state)
        with without_autocast(x):
            y, h = dplr_ssm(u, *self.discretised(), self._readers(), h, lengths=lengths, starts=starts)
        return self._mixed(y, u, x.dtype), S4State(torch.view_as_real(h))

    def _of_channels(self, shared: Tensor) -> Tensor:
        """(..., copies, N/2) as (..., D, N/2): channel d has copy d modulo their number."""
        return shared.repeat(*[1] * (shared.ndim - 2), self.d_model // self.copies, 1)

    def _inputs(self) -> Tensor:
        return self._of_channels(torch.view_as_complex(self.b))

    def _readers(self) -> Tensor:
        """Twice C, for the conjugates that are not kept."""
        return 2 * torch.view_as_complex(self.c)

    def _modes(self, state: S4State) -> Tensor:
        """The state as complex numbers (B, D, N/2). Raises ValueError for the state of another size."""
        own = self.d_model, self.d_state // 2, 2
        if state.h_BDN2.shape[1:] != own:
            raise ValueError(
                f"S4: expected a state of shape (batch, {', '.join(map(str, own))}), got {tuple(state.h_BDN2.shape)}"
            )
        return torch.view_as_complex(state.h_BDN2.to(self.log_dt.dtype).contiguous())

    def _mixed(self, y: Tensor, u: Tensor, dtype: torch.dtype) -> Tensor:
        out: Tensor = F.glu(self.out(self.dropout(F.gelu((y + self.skip * u).to(dtype)))), -1)
        return out

    def roles(self) -> dict[str, Role]:
        """The recurrence stays float32; time scales, matrix and input learn slowly, and nothing of it is decayed."""
        slow = Role(decay=False, rate=0.1, float32=True)
        steady = Role(decay=False, float32=True)
        return dict.fromkeys(("log_dt", "log_decay", "frequency", "p", "b"), slow) | dict.fromkeys(
            ("c", "skip"), steady
        )

    def work(self) -> Work:
        """Per mode a complex product, an input and a reading, eight multiply-adds, and four for each rank; and the output map."""
        modes = self.d_model * self.d_state // 2
        common = super().work()
        per_mode = 8 + 4 * len(self.p)
        return Work(per_mode * modes + 2 * self.d_model**2 + self.d_model, common.bytes + 8 * modes)
