"""HiPPO: a gated recurrent cell whose memory is the best approximation of the past of a signal that it chooses itself.

    f_t = W_fx x_t + W_fh h_{t-1} + b_f                                              what to remember, a few channels
    m_t = A_t m_{t-1} + B_t f_t                                                      its projection, N numbers a channel
    g_t, v_t = W_x x_t + W_m m_t + b,   h_t = (1 - sigmoid(g_t)) h_{t-1} + sigmoid(g_t) tanh(v_t)

Gu, Dao, Ermon, Rudra and Re, HiPPO: Recurrent Memory with Optimal Polynomial Projections, 2020. With "legs" the memory is of all of the
past alike: its update is divided by the time read, which is part of the state, without a longest time. The other measures (of
`conca.ops.hippo`) are time-invariant. A and B are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from conca.layers.mixer import Mixer, Role, Work
from conca.layers.precision import without_autocast
from conca.ops.hippo import LAGUERRE, MEASURES, transition
from conca.ops.hippo_memory import ALPHAS, METHODS, legs_stretch, scaled_steps, translated_steps
from conca.ops.hippo_rebuild import SCALED, reach
from conca.types import nearest

__all__ = ["HiPPO", "HiPPOState"]

STEPS = 200
"""Steps in a window, where `dt` is not given."""

BLOCK = 32
"""Steps whose matrices are made at once, where they differ from step to step."""


Pair = tuple[Tensor, Tensor]


class HiPPOState(NamedTuple):
    """What the cell remembers."""

    h_BD: Tensor
    """The last output."""
    m_BMN: Tensor
    """The coefficients of each remembered channel."""
    t_B: Tensor
    """Time read so far, in nominal steps."""


class HiPPO(Mixer[HiPPOState]):
    """The HiPPO recurrent network; its weights stay float32 in half precision.

    `elapsed` is understood: the scaled memory takes it in its stride, the others then make a matrix for each step, and for each row
    whose times differ. There is no other form than the loop over steps: what is remembered depends on the output before.

    Args:
        d_model: width of input and output.
        d_state: N, numbers of memory of each channel; even for the Fourier measures.
        channels: how many signals are remembered.
        measure: one of `conca.ops.hippo.MEASURES`; "legs" and "legsd" are scaled here.
        dt: time units of the measure per step. None is 1 for Laguerre, and otherwise 1/200 of the window. Without effect if scaled.
        method: discretisation, one of `conca.ops.hippo_memory.METHODS`. Those but "zoh" of "legs" solve a triangular system
            at each step; "zoh", and "legsd", make matrices for each step, N^3 each.
        bias: of the maps.
        device, dtype: of the parameters, which are float32 or better.

    Raises:
        ValueError: for an unknown measure or method, a size that does not fit the measure, channels or a dt that are not positive.
    """

    timed = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        channels: int = 1,
        measure: str = "legs",
        dt: float | None = None,
        method: str = "bilinear",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for word, value, known in (("measure", measure, MEASURES), ("method", method, METHODS)):
            if value not in known:
                raise ValueError(f"unknown {word} {value!r}; {nearest(value, known)}")
        if dt is not None and not dt > 0:
            raise ValueError(f"dt must be positive, got {dt}")
        self.A_NN, self.B_N = transition(measure, d_state)
        self.d_model, self.d_state, self.channels = d_model, d_state, channels
        self.measure, self.method = measure, method
        unit = 1.0 if measure in LAGUERRE else min(reach(measure), 2.0) / STEPS
        self.dt = unit if dt is None else dt
        self.fixed = (
            None
            if measure in SCALED
            else translated_steps(self.A_NN, self.B_N, torch.tensor(self.dt, dtype=torch.float64), method)
        )
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        self.read = nn.Linear(d_model, channels + 2 * d_model, bias=bias, device=device, dtype=wide)
        self.again = nn.Linear(d_model, channels, bias=False, device=device, dtype=wide)
        self.recall = nn.Linear(channels * d_state, 2 * d_model, bias=False, device=device, dtype=wide)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Scaled, solved in order; scaled, by matrices; translated, with several channels."""
        return (
            cls(4, d_state=5, channels=2),
            cls(3, d_state=4, measure="legs", method="zoh", bias=False),
            cls(4, d_state=4, measure="legt", channels=2, dt=0.1, method="zoh"),
        )

    def init_state(self, batch: int) -> HiPPOState:
        """Zeros: output (B, D), memory (B, M, N), and no time read."""
        memory = self.zeros(batch, self.channels, self.d_state)
        return HiPPOState(self.zeros(batch, self.d_model), memory, self.zeros(batch))

    def step(self, x: Tensor, state: HiPPOState, *, elapsed: Tensor | None = None) -> tuple[Tensor, HiPPOState]:
        """One token: x (B, D), elapsed (B,)."""
        elapsed = None if elapsed is None else elapsed[:, None]
        y, state = self.parallel(x[:, None], state, lengths=None, starts=None, elapsed=elapsed)
        return y[:, 0], state

    def parallel(
        self, x: Tensor, state: HiPPOState, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, HiPPOState]:
        """The loop over steps; all that reads x alone is one product before it."""
        own = self.channels, self.d_state
        if state.m_BMN.shape[1:] != own:
            raise ValueError(
                f"HiPPO: expected a memory of shape (batch, {own[0]}, {own[1]}), got {tuple(state.m_BMN.shape)}"
            )
        h, m, read = (leaf.to(self.zeros(0).dtype) for leaf in state)
        outputs = []
        with without_autocast(x):
            fed, inner = self.read(x.to(h.dtype)).split([self.channels, 2 * self.d_model], -1)
            passed = h.new_ones(x.shape[:2]) if elapsed is None else elapsed.to(h.dtype)
            before = read[:, None] + passed.cumsum(1) - passed
            update = self.updates(before, passed, even=elapsed is None)
            for t, (fed_BM, inner_BD) in enumerate(zip(fed.unbind(1), inner.unbind(1), strict=True)):
                m = update(m, fed_BM + self.again(h), t)
                gate, new = (inner_BD + self.recall(m.flatten(1))).chunk(2, -1)
                h = torch.lerp(h, torch.tanh(new), torch.sigmoid(gate))
                outputs.append(h)
        return torch.stack(outputs, 1).to(x.dtype), HiPPOState(h, m, read + passed.sum(1))

    def updates(self, before: Tensor, passed: Tensor, *, even: bool) -> Callable[[Tensor, Tensor, int], Tensor]:
        """The update of the memory at step t, as a function of m (B, M, N), its input (B, M) and t.

        Args:
            before, passed: (B, T), time read before each step, and time that it takes.
            even: every step takes 1.
        """
        if self.measure == "legs" and self.method in ALPHAS:
            return self.solved(before, passed)
        if even and self.fixed is not None:
            a, b = (matrix.to(passed) for matrix in self.fixed)
            return lambda m, f, t: m @ a.mT + f[..., None] * b
        if alike(before) and alike(passed):  # one matrix for all rows
            before, passed = before[:1], passed[:1]
        made: dict[str, Pair] = {}

        def dense(m: Tensor, f: Tensor, t: int) -> Tensor:
            if t % BLOCK == 0:
                block = slice(t, t + BLOCK)
                made["block"] = self.matrices(before[:, block], passed[:, block])
            a, b = (matrix[:, t % BLOCK] for matrix in made["block"])
            return m @ (a[0] if len(a) == 1 else a).mT + f[..., None] * b[:, None]

        return dense

    def solved(self, before: Tensor, passed: Tensor) -> Callable[[Tensor, Tensor, int], Tensor]:
        """LegS by the generalised bilinear transform: A is triangular, so each row solves in order with its own time."""
        A_NN, B_N, alpha = self.A_NN.to(passed), self.B_N.to(passed), ALPHAS[self.method]
        eye, fresh = torch.eye(self.d_state).to(passed), before == 0
        early = (1 - alpha) * passed / torch.where(fresh, 1, before)
        late = alpha * passed / torch.where(before + passed == 0, 1, before + passed)

        def update(m: Tensor, f: Tensor, t: int) -> Tensor:
            begin, end = early[:, t, None, None], late[:, t, None, None]
            new = m + begin * (m @ A_NN.mT) + (begin + end) * f[..., None] * B_N
            if alpha:
                new = torch.linalg.solve_triangular(eye - end * A_NN, new.mT, upper=False).mT
            return torch.where(fresh[:, t, None, None], f[..., None] * eye[0], new)

        return update

    def matrices(self, before: Tensor, passed: Tensor) -> Pair:
        """The discretised A (B, T, N, N) and B (B, T, N) of steps that differ: arguments as of `updates`."""
        A_NN, B_N = self.A_NN.to(passed), self.B_N.to(passed)
        if self.fixed is not None:
            return translated_steps(A_NN, B_N, self.dt * passed, self.method)
        if self.measure != "legs" or self.method != "zoh":
            return scaled_steps(A_NN, B_N, before, passed, self.method)
        a, b = legs_stretch(before / torch.where(before == 0, 1, before + passed), self.d_state)
        return a.to(passed), b.to(passed)

    def roles(self) -> dict[str, Role]:
        """Everything stays float32; biases are not decayed."""
        return {name: Role(decay="bias" not in name, float32=True) for name, _ in self.named_parameters()}

    def work(self) -> Work:
        """Each weight once, and N^2 for the memory of each channel."""
        common = super().work()
        return Work(common.multiply_adds + self.channels * self.d_state**2, common.bytes)


def alike(steps: Tensor) -> bool:
    """Whether all rows are the same; not asked while a graph is compiled, or where a gradient has to reach each row."""
    if torch.compiler.is_compiling() or (steps.requires_grad and torch.is_grad_enabled()):
        return False
    return bool((steps == steps[:1]).all())
