"""LSSL: a dense state space in every channel, whose matrix is that of a HiPPO memory.

    x' = A x + B u,  y = C x + D u                                          one A, and B, C, D, dt of every channel
    x_t = (1 - alpha dt A)^-1 [(1 + (1 - alpha) dt A) x_{t-1} + dt B u_t]   generalised bilinear
    out = W gelu(y)                                                         M outputs per channel; channels mix here

Gu, Johnson, Goel, Saab, Dao, Rudra and Re, Combining Recurrent, Convolutional, and Continuous-time Models with Linear State-Space
Layers, 2021. Read step by step or by its Krylov kernel C a^l b it costs N^2 T per channel; what runs here goes by chunks, N T + N^3
log T. In a pattern it stands in the paper's block: norm, state space, GELU, linear map, residual.

A is fixed, B and C learn, as the text of the paper has it first; `learn` says otherwise. A learned A is W - W' - F F': the part that
turns and the part that damps. Every value of W and F has A + A' <= 0, so no state grows, for any alpha of 1/2 or more; the Legendre,
Laguerre and Fourier memories are of this form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.mixer import Mixer, Role, Work
from conca.layers.precision import without_autocast
from conca.layers.time_scales import drawn
from conca.ops.dense import dense_kernel, dense_ssm
from conca.ops.discretise import dense_generalised_bilinear
from conca.ops.doors import opened
from conca.ops.hippo import transition

__all__ = ["LSSL", "LSSLState"]

LEARNABLE = "abct"


class LSSLState(NamedTuple):
    """What LSSL remembers: the state of each channel."""

    h_BDN: Tensor


class LSSL(Mixer[LSSLState]):
    """A linear state-space layer, with its activation and its output map.

    Args:
        d_model: width of input and output.
        d_state: size of the state of a channel, N.
        measure: of which HiPPO memory A and the first B are, one of `conca.ops.hippo.MEASURES`.
        learn: letters: a the matrix A, b and c the maps B and C, t the time scales. What does not learn is a buffer.
        alpha: of the generalised bilinear transform: 0 forward Euler, 1/2 bilinear, 1 backward Euler.
        channels: outputs per channel, M.
        dt: bounds between which the time scales of the channels are drawn, log-uniform, in units of one step.
        step_rescale: multiplies every time scale; 2 reads a sequence of half the sampling rate. It may be set later.
        device, dtype: of the parameters; those of the recurrence stay float32 in half precision.

    Raises:
        ValueError: for an unknown measure or letter, sizes and bounds that are not positive, an alpha outside 0..1 or with which
            the largest time scale would make the state grow, and a learned A of a measure that is not of the form W - W' - F F'.
    """

    ragged = True
    a: Tensor
    turn: Tensor
    damp: Tensor
    log_dt: Tensor
    b: Tensor
    c: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        measure: str = "legs",
        learn: str = "bc",
        alpha: float = 0.5,
        channels: int = 1,
        dt: tuple[float, float] = (1e-3, 1e-1),
        step_rescale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if set(learn) - set(LEARNABLE):
            raise ValueError(f"learn takes the letters a, b, c, t (time scales), got {learn!r}")
        self.d_model, self.d_state, self.channels = d_model, d_state, channels
        self.learn, self.alpha, self.step_rescale = learn, alpha, step_rescale
        self._discrete: tuple[Tensor, Tensor, tuple[float, float], Tensor] | None = None
        matrix, inputs = transition(measure, d_state)
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        log_dt = drawn(d_model, dt, step_rescale, device=device, dtype=wide)
        _stable(matrix, alpha, dt[1] * step_rescale)

        def keep(name: str, value: Tensor, letter: str) -> None:
            value = value.to(device=device, dtype=wide)
            if letter in learn:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

        if "a" in learn:
            turn, damp = _turn_and_damp(matrix, measure)
            keep("turn", turn, "a")
            keep("damp", damp, "a")
        else:
            keep("a", matrix, "a")
        keep("log_dt", log_dt, "t")
        keep("b", inputs.expand(d_model, -1).clone(), "b")
        keep("c", torch.randn(d_model, channels, d_state, device=device, dtype=wide), "c")
        self.skip = nn.Parameter(torch.randn(d_model, channels, device=device, dtype=wide))
        self.out = nn.Linear(d_model * channels, d_model, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """A fixed matrix with two outputs per channel; everything learned, with backward Euler and an odd state."""
        return cls(4, d_state=4, channels=2), cls(3, d_state=5, measure="lagt", learn="abct", alpha=1.0)

    def init_state(self, batch: int) -> LSSLState:
        """Zeros (B, D, N)."""
        return LSSLState(self.zeros(batch, self.d_model, self.d_state))

    def transition(self) -> Tensor:
        """The continuous matrix A (N, N)."""
        if "a" in self.learn:
            return self.turn - self.turn.mT - self.damp @ self.damp.mT
        return self.a

    def discretised(self) -> tuple[Tensor, Tensor]:
        """The factors a (D, N, N) and b (D, N) of h_t = a h_{t-1} + b u_t.

        (1 - alpha dt A)^-1 is alpha a + (1 - alpha), which saves the second solution; a itself is kept until A or dt change.
        """
        dt_D1 = self.log_dt.exp()[:, None] * self.step_rescale
        a = self._transitions()
        shifted = torch.einsum("dnk,dk->dn", a, self.b)
        return a, dt_D1 * (self.alpha * shifted + (1 - self.alpha) * self.b)

    def kernel(self, length: int) -> Tensor:
        """The impulse response (D, length) of the state spaces to their first outputs, without the direct path."""
        return dense_kernel(*self.discretised(), self.c[:, :1], length)[:, 0]

    @torch.no_grad()
    def poles(self) -> Tensor:
        """Eigenvalues of A times the length of a step, one of each conjugate pair and the real ones: complex (D, modes)."""
        eigenvalues: Tensor = torch.linalg.eigvals(self.transition().double())
        eigenvalues = eigenvalues[eigenvalues.imag >= 0]
        return eigenvalues * (self.log_dt.double().exp() * self.step_rescale)[:, None]

    def step(self, x: Tensor, state: LSSLState, *, elapsed: Tensor | None = None) -> tuple[Tensor, LSSLState]:
        """One token: x (B, D)."""
        u, h = x.to(self.log_dt.dtype), self._checked_state(state)
        with without_autocast(x):
            a, b = self.discretised()
            h = torch.einsum("dnk,bdk->bdn", a, h) + b * u[..., None]
            y = torch.einsum("dmn,bdn->bdm", self.c, h)
        return self._mixed(y, u, x.dtype), LSSLState(h)

    def parallel(
        self, x: Tensor, state: LSSLState, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, LSSLState]:
        """Matrix products within chunks and between them."""
        u, h = x.to(self.log_dt.dtype), self._checked_state(state)
        with without_autocast(x):
            y, h = dense_ssm(u, *self.discretised(), self.c, h, lengths=lengths)
        return self._mixed(y, u, x.dtype), LSSLState(h)

    def _transitions(self) -> Tensor:
        """a (D, N, N), made anew where a gradient may be wanted, else only when what it is made of has changed."""
        matrix, log_dt = self.transition(), self.log_dt
        if opened(matrix, log_dt) or torch.compiler.is_compiling() or matrix.is_meta:
            return self._solved(matrix, log_dt)
        made, options = self._discrete, (self.step_rescale, self.alpha)
        if made is None or made[2] != options or not (_alike(made[0], matrix) and _alike(made[1], log_dt)):
            with torch.inference_mode(False), torch.no_grad():
                matrix, log_dt = matrix.clone(), log_dt.clone()
                made = matrix, log_dt, options, self._solved(matrix, log_dt)
            self._discrete = made
        return made[3]

    def _solved(self, matrix: Tensor, log_dt: Tensor) -> Tensor:
        step = log_dt.exp() * self.step_rescale
        return dense_generalised_bilinear(matrix, matrix[:, :0], step, self.alpha)[0]

    def _checked_state(self, state: LSSLState) -> Tensor:
        """The state (B, D, N). Raises ValueError for the state of another size."""
        own = self.d_model, self.d_state
        if state.h_BDN.shape[1:] != own:
            raise ValueError(
                f"LSSL: expected a state of shape (batch, {own[0]}, {own[1]}), got {tuple(state.h_BDN.shape)}"
            )
        return state.h_BDN.to(self.log_dt.dtype)

    def _mixed(self, y_BTDM: Tensor, u: Tensor, dtype: torch.dtype) -> Tensor:
        y = y_BTDM + self.skip * u[..., None]
        out: Tensor = self.out(F.gelu(y.to(dtype)).flatten(-2))
        return out

    def roles(self) -> dict[str, Role]:
        """The recurrence stays float32; matrix, time scales and input learn slowly, and nothing of it is decayed."""
        slow = Role(decay=False, rate=0.1, float32=True)
        steady = Role(decay=False, float32=True)
        known = dict.fromkeys(("turn", "damp", "log_dt", "b"), slow) | dict.fromkeys(("c", "skip"), steady)
        return {name: role for name, role in known.items() if name in self._parameters}

    def work(self) -> Work:
        """Per channel the matrix, an input and M readings; and the output map. The matrices of all channels are read."""
        width, size = self.d_model, self.d_state
        common = super().work()
        per_channel = size * size + size + self.channels * (size + 1)
        matrices = width * size * size * self.log_dt.element_size()
        return Work(width * per_channel + self.channels * width**2 + width, common.bytes + matrices)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As for the parameters of the recurrence, buffers stay float32 or better."""
        kept = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in kept.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.element_size() < 4:
                self._buffers[name] = old.to(new.device)
        self._discrete = None
        return self


def _alike(kept: Tensor, now: Tensor) -> bool:
    return kept.dtype == now.dtype and kept.device == now.device and torch.equal(kept, now)


def _stable(matrix: Tensor, alpha: float, step: float) -> None:
    """Raise ValueError where |1 + (1 - alpha) z| > |1 - alpha z| for an eigenvalue z of `step` times the matrix."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in 0..1, got {alpha}")
    if alpha < 0.5:
        eigenvalues = torch.linalg.eigvals(matrix)
        limit = float((-2 * eigenvalues.real / eigenvalues.abs().square()).min()) / (1 - 2 * alpha)
        if step > limit:
            raise ValueError(
                f"with alpha {alpha} and d_state {len(matrix)} the state grows for dt above {limit:.3g}, and dt goes up to "
                f"{step:.3g}; lower dt, or take alpha 0.5"
            )


def _turn_and_damp(matrix: Tensor, measure: str) -> tuple[Tensor, Tensor]:
    """W (N, N) and F (N, R) with W - W' - F F' = A; R is the rank of A + A'. Raises ValueError where there are none."""
    values, vectors = torch.linalg.eigh(-(matrix + matrix.mT) / 2)
    tiny = 1e-9 * float(values.abs().max())
    if float(values.min()) < -tiny:
        raise ValueError(
            f"A of measure {measure!r} cannot be learned: A + A' is not negative; use 'legs', 'legt' or 'lagt'"
        )
    kept = values > tiny
    return (matrix - matrix.mT) / 4, vectors[:, kept] * values[kept].sqrt()
