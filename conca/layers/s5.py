"""S5: one wide diagonal state space that all channels feed and read, run as a scan.

    h' = lambda h + B u,  y = 2 Re(C h) + D u          u and y have all channels; one of each conjugate pair is kept, P = N/2 modes
    h_t = exp(lambda dt) h_{t-1} + (exp(lambda dt) - 1) / lambda (B u_t)                 zero-order hold
    h_t = [(1 + lambda dt / 2) h_{t-1} + dt (B u_t)] / (1 - lambda dt / 2)               or bilinear
    out = x * sigmoid(W x),  x = gelu(y)                                                 or another gate

Smith, Warrington and Linderman, Simplified State Space Layers for Sequence Modeling, 2023. The system starts as HiPPO-N, the normal
part of HiPPO-LegS, in one block or several, in the coordinates of its eigenvectors: B is V* B, C is C V for real B and C. Every mode has
a time scale dt of its own, log-uniform. B may be a product of two matrices through r numbers, and C too.

The maps are single real matrix products over all steps. Irregular steps change the factors of (B, T, P) modes, never a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.impulse import impulse
from conca.layers.mixer import Mixer, Role, Work
from conca.layers.precision import without_autocast
from conca.layers.time_scales import drawn
from conca.ops.diagonal import diagonal_ssm
from conca.ops.discretise import bilinear, irregular, zero_order_hold
from conca.ops.hippo_forms import diagonal_plus_low_rank
from conca.ops.scan import scan
from conca.ops.wide import paired, wide_ssm
from conca.types import nearest

__all__ = ["S5", "S5State", "Structure"]

TRANSFORMS = {"zoh": zero_order_hold, "bilinear": bilinear}
GATES = {"half_glu1": 1, "half_glu2": 1, "full_glu": 2, "gelu": 0, "none": 0}
"""How wide the output map of a gate is, in units of the model width."""


class S5State(NamedTuple):
    """What S5 remembers: real and imaginary part of each mode."""

    h_BP2: Tensor


@dataclass(frozen=True)
class Structure:
    """What the matrices of S5 are made of.

    Raises:
        ValueError: for numbers that are not positive, or not whole.
    """

    blocks: int = 1
    """Blocks of HiPPO-N side by side on the diagonal; they divide the state into equal even parts."""
    rank: int | None = None
    """B and C are products of two matrices through this many numbers; None has them whole."""
    clip: float | None = None
    """Real parts of the eigenvalues are at most minus this (1e-4 where it is used); None leaves them below 0."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From a dict. Raises ValueError for anything else, and for a key that is not known."""
        known = cls.__dataclass_fields__
        if not isinstance(options, Mapping):
            raise ValueError(f"structure must be a Structure or a dict, got {options!r}")
        for name in options:
            if name not in known:
                raise ValueError(f"structure has no {name!r}; {nearest(name, known)}")
        return cls(**options)

    def __post_init__(self) -> None:
        for name in ("blocks", "rank", "clip"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, float | int) and value > 0):
                raise ValueError(f"structure: {name} must be positive, got {value!r}")
            if name != "clip" and value is not None and not isinstance(value, int):
                raise ValueError(f"structure: {name} must be a whole number, got {value!r}")


class S5(Mixer[S5State]):
    """A state-space layer with many inputs and many outputs, with its activation and its gate.

    With B and C whole they are 4 P d_model numbers, with rank r they are 2 r (2 P + d_model):

    >>> for rank in (None, 8):
    ...     layer = S5(128, d_state=128, structure=Structure(rank=rank))
    ...     print(sum(p.numel() for name, p in layer.named_parameters() if name[0] in "bc"))
    32768
    4096

    Args:
        d_model: width of input and output.
        d_state: real size of the state, even: P = N/2 complex modes.
        structure: blocks, rank and clip, as `Structure` or a dict of them.
        gate: what follows y. With x = gelu(y): "half_glu1" x sigmoid(W x), "half_glu2" y sigmoid(W x), "full_glu" V x sigmoid(W x),
            "gelu" x, "none" y.
        transform: from continuous to discrete time, "zoh" (zero-order hold) or "bilinear".
        dt: bounds between which the time scales of the modes are drawn, log-uniform, in units of one step.
        step_rescale: multiplies every time scale; 2 reads a sequence of half the sampling rate. It may be set later.
        dropout: on gelu(y), or on y.
        device, dtype: of the parameters; those of the state space stay float32 in half precision.

    Raises:
        ValueError: for a `d_state` that the blocks do not divide into even parts, an unknown `gate` or `transform`, bounds of `dt`
            that are not positive and in order, and a `step_rescale` that is not positive.
    """

    timed = resets = ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        structure: Structure | Mapping[str, Any] = Structure(),
        gate: str = "half_glu1",
        transform: str = "zoh",
        dt: tuple[float, float] = (1e-3, 1e-1),
        step_rescale: float = 1.0,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for word, known, name in ((gate, GATES, "gate"), (transform, TRANSFORMS, "transform")):
            if word not in known:
                raise ValueError(f"unknown {name} {word!r}; {nearest(word, known)}")
        structure = structure if isinstance(structure, Structure) else Structure.of(structure)
        if d_state < 1 or d_state % (2 * structure.blocks):
            raise ValueError(f"d_state {d_state} is not made of {structure.blocks} even parts")
        self.d_model, self.d_state, self.structure = d_model, d_state, structure
        self.gate, self.transform, self.step_rescale = gate, transform, step_rescale
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        to = {"device": device, "dtype": wide}
        self.log_dt = nn.Parameter(drawn(d_state // 2, dt, step_rescale, **to))
        self._start(to)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(d_model, GATES[gate] * d_model, device=device, dtype=dtype) if GATES[gate] else None

    def _start(self, to: dict[str, Any]) -> None:
        """The parameters of the state space: HiPPO-N, and maps drawn in its real coordinates."""
        D, N, blocks, rank = self.d_model, self.d_state, self.structure.blocks, self.structure.rank
        form = diagonal_plus_low_rank("legs", N // blocks)
        vectors = torch.kron(torch.eye(blocks, dtype=form.vectors_NN.dtype), form.vectors_NN)
        eigenvalues = form.eigenvalues_N.repeat(blocks)

        def pairs(value: Tensor) -> nn.Parameter:
            return nn.Parameter(torch.view_as_real(value.resolve_conj()).to(**to))

        self.log_decay = nn.Parameter((-eigenvalues.real).log().to(**to))
        self.frequency = nn.Parameter(eigenvalues.imag.to(**to))
        if rank is None:
            self.b = pairs(vectors.mH @ lecun(N, D).to(vectors.dtype))
            self.c = pairs(lecun(D, N).to(vectors.dtype) @ vectors)
        else:
            self.b_in, self.b_out = (
                nn.Parameter(lecun(rank, D).to(**to)),
                pairs(vectors.mH @ lecun(N, rank).to(vectors.dtype)),
            )
            self.c_in, self.c_out = (
                pairs(lecun(rank, N).to(vectors.dtype) @ vectors),
                nn.Parameter(lecun(D, rank).to(**to)),
            )
        self.skip = nn.Parameter(torch.randn(D, **to))

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """One block; two blocks with maps of rank 1, clipped, bilinear, at half the sampling rate; a single mode without a gate."""
        split = Structure(blocks=2, rank=1, clip=0.6)
        return (
            cls(4, d_state=4),
            cls(3, d_state=8, structure=split, transform="bilinear", gate="half_glu2", step_rescale=2.0),
            cls(3, d_state=2, gate="gelu"),
        )

    def init_state(self, batch: int) -> S5State:
        """Zeros (B, P, 2)."""
        return S5State(self.zeros(batch, self.d_state // 2, 2))

    def eigenvalues(self) -> Tensor:
        """Those of the continuous system, complex (P,)."""
        decay = -self.log_decay.exp()
        clip = self.structure.clip
        return torch.complex(decay if clip is None else decay.clamp(max=-clip), self.frequency)

    def discretised(self, elapsed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The factors a and b of h_t = a h_{t-1} + b (B u_t): complex (P,), or (B, T, P) for `elapsed` (B, T)."""
        dt_P = self.log_dt.exp() * self.step_rescale
        step = dt_P if elapsed is None else dt_P * elapsed.to(dt_P.dtype)[..., None]
        return TRANSFORMS[self.transform](self.eigenvalues(), step)

    def maps(self) -> tuple[Tensor, Tensor]:
        """B (P, D) and C (D, P), complex: y = 2 Re(C h)."""
        if self.structure.rank is None:
            return torch.view_as_complex(self.b), torch.view_as_complex(self.c)
        b, c = torch.view_as_complex(self.b_out), torch.view_as_complex(self.c_in)
        return b @ self.b_in.to(b.dtype), self.c_out.to(c.dtype) @ c

    @torch.no_grad()
    def poles(self) -> Tensor:
        """The eigenvalues times the time scales, complex (1, P): time scales are -1 / Re, periods 2 pi / |Im|, in steps."""
        return (self.eigenvalues() * self.log_dt.exp() * self.step_rescale)[None]

    def kernel(self, length: int) -> Tensor:
        """What each channel of the state space answers to an impulse in itself, (D, length): the diagonal of 2 Re(C a^l b B)."""
        x = impulse(length, self.d_model, self.log_dt)
        (a, scale), (b, c) = self.discretised(), self.maps()
        b_DP = (scale[:, None] * b).T
        return diagonal_ssm(x, a.expand_as(b_DP), b_DP, 2 * c, torch.zeros_like(b_DP)[None])[0][0].T

    def step(self, x: Tensor, state: S5State, *, elapsed: Tensor | None = None) -> tuple[Tensor, S5State]:
        """One token: x (B, D), elapsed (B,)."""
        u, h = x.to(self.log_dt.dtype), self._modes(state)
        with without_autocast(x):
            a, b = self.discretised(elapsed)
            h = a * h + self._fed(u, b)
            y = self._read(h, u)
        return self._left(y, h, x)

    def parallel(
        self, x: Tensor, state: S5State, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, S5State]:
        """A matrix product, a scan over (B, T, P), a matrix product; `elapsed` changes the factors of the scan alone."""
        u, h = x.to(self.log_dt.dtype), self._modes(state)
        with without_autocast(x):
            if elapsed is None:
                y, h = self._regular(u, h, lengths, starts)
            else:
                dt = self.log_dt.exp() * self.step_rescale
                times = elapsed.to(dt.dtype)[..., None]
                a, factor, fixed = irregular(self.transform, self.eigenvalues(), dt, times)
                h_BTP = scan(a, factor * self._fed(u, fixed), h, lengths=lengths, starts=starts)
                y, h = self._read(h_BTP, u), h_BTP[:, -1].clone()
        return self._left(y, h, x)

    def _regular(self, u: Tensor, h: Tensor, lengths: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """All steps alike: y (B, T, D) and the last state."""
        a, b = self.discretised()
        feeder, reader = self._feeder(b), self._reader()
        if self.structure.rank is None:
            return wide_ssm(u, feeder, a, h, reader, self.skip, lengths=lengths, starts=starts)
        y, h = wide_ssm(F.linear(u, self.b_in), feeder, a, h, reader, lengths=lengths, starts=starts)
        return torch.addcmul(F.linear(y, self.c_out), self.skip, u), h

    def _left(self, y: Tensor, h: Tensor, x: Tensor) -> tuple[Tensor, S5State]:
        """Output and state as the contract has them."""
        return self._mixed(y, x.dtype), S5State(torch.view_as_real(h))

    def _feeder(self, b: Tensor | None = None) -> Tensor:
        """B (of low rank: its outer factor), times b (P,), as a real matrix of 2P rows."""
        matrix = torch.view_as_complex(self.b if self.structure.rank is None else self.b_out)
        return torch.view_as_real(matrix if b is None else b[:, None] * matrix).transpose(1, 2).flatten(0, 1)

    def _reader(self) -> Tensor:
        """2 Re(C .) (of low rank: its inner factor) as a real matrix of 2P columns."""
        matrix = self.c if self.structure.rank is None else self.c_in
        return (matrix * matrix.new_tensor([2.0, -2.0])).flatten(-2)

    def _fed(self, u: Tensor, b: Tensor) -> Tensor:
        """b (B u), complex (..., P), from u (..., D); a b without time is taken into the matrix."""
        u = u if self.structure.rank is None else F.linear(u, self.b_in)
        return paired(F.linear(u, self._feeder(b))) if b.ndim == 1 else b * paired(F.linear(u, self._feeder()))

    def _read(self, h: Tensor, u: Tensor) -> Tensor:
        """2 Re(C h) + D u, real (..., D), from h (..., P)."""
        y = F.linear(torch.view_as_real(h).flatten(-2), self._reader())
        return torch.addcmul(y if self.structure.rank is None else F.linear(y, self.c_out), self.skip, u)

    def _modes(self, state: S5State) -> Tensor:
        """The state as complex numbers (B, P). Raises ValueError for the state of another size."""
        own = self.d_state // 2, 2
        if state.h_BP2.shape[1:] != own:
            raise ValueError(f"S5: expected a state of shape (batch, {own[0]}, 2), got {tuple(state.h_BP2.shape)}")
        return torch.view_as_complex(state.h_BP2.to(self.log_dt.dtype).contiguous())

    def _mixed(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The activation and the gate."""
        y = y.to(dtype)
        x: Tensor = self.dropout(y if self.gate == "none" else F.gelu(y))
        if self.out is None:
            return x
        gate = self.out(x)
        if self.gate == "full_glu":
            return F.glu(gate, -1)
        return (x if self.gate == "half_glu1" else y) * torch.sigmoid(gate)

    def roles(self) -> dict[str, Role]:
        """The state space stays float32; time scales, eigenvalues and B learn slowly and are not decayed; C is decayed."""
        slow, skip = Role(decay=False, rate=0.1, float32=True), Role(decay=False, float32=True)
        names = ("log_dt", "log_decay", "frequency", "b", "b_in", "b_out")
        kept = dict.fromkeys(names, slow) | dict.fromkeys(("c", "c_in", "c_out"), Role(float32=True)) | {"skip": skip}
        return {name: role for name, role in kept.items() if name in self._parameters}

    def work(self) -> Work:
        """The two maps, a complex product per mode, the direct path, and the gate's map."""
        common = super().work()
        maps = sum(p.numel() for name, p in self.named_parameters() if name[0] in "bc")
        gate = GATES[self.gate] * self.d_model**2
        return Work(
            maps + 2 * self.d_state + self.d_model + gate, common.bytes + self.d_state * self.log_dt.element_size()
        )


def lecun(outputs: int, inputs: int) -> Tensor:
    """A normal matrix (outputs, inputs) in float64, cut at two standard deviations, of variance 1 / inputs."""
    scale = inputs**-0.5 / 0.87962566103423978
    return nn.init.trunc_normal_(torch.empty(outputs, inputs, dtype=torch.float64), 0, scale, -2 * scale, 2 * scale)
