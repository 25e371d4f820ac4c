"""Mamba-3: a memory of matrices that takes in every token twice, forgets by what it reads, and turns its keys by summed angles.

    S_t = a_t S_{t-1} + b_t k_{t-1} x_{t-1}^T + c_t k_t x_t^T,   y_t = S_t^T q_t + D x_t        one N x P matrix per head
    a_t = exp(A_t dt_t),  b_t = (1 - l_t) dt_t a_t,  c_t = l_t dt_t                             exponential trapezoids
    q_t = turn(norm(C_t) + bias, w_t),  k_t = turn(norm(B_t) + bias, w_t),  w_t = w_{t-1} + dt_t pi tanh(angle_t)
    out = W (y_t * silu(z_t))

z, x, B, C, dt, A, l and the angle are read from the token by one linear map: dt = softplus(. + dt_bias), l = sigmoid(.),
A = min(-f(.), -floor). With rank R > 1 (multiple inputs and outputs) B and C are R keys and R queries; x_r = x * mimo_x_r,
z_r = z * mimo_z_r, the memory takes in the sum of k_r x_r^T, and out = W sum_r mimo_o_r * (y_r * silu(z_r)).

Lahoti et al., Mamba-3: Improved Sequence Modeling using State Space Principles, 2026. l = 1 without angles is Mamba-2 (Dao and Gu, 2024).

Two things the published checkpoints do not say. f was softplus in the runs of the paper and is "heavy-tail" in the code that loads
them: 1 + x from 0 on, 1 / (1 - x) below. And the code pairs neighbouring channels for rank 1, halves of the keys for others.
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
from conca.layers.norm import GatedNorm, RMSNorm
from conca.layers.options import heads, made, positive, whole
from conca.layers.precision import without_autocast
from conca.layers.quantised import linear_row
from conca.layers.states import where
from conca.layers.time_scales import possible, step_biases
from conca.ops.gated_skip import gated_skip
from conca.ops.rotation import PAIRINGS, TURN, Pairing, finest, summed_angles
from conca.ops.trapezoid import last_of, taken, trapezoid
from conca.ops.turned_keys import own_products, turned_keys, turned_keys_plain
from conca.types import nearest

__all__ = ["Decay", "Mamba3", "Mamba3State", "Rotation"]

ACTIVATIONS = ("heavy-tail", "softplus")
FRACTIONS = (0.5, 1.0)


class Mamba3State(NamedTuple):
    """What Mamba-3 remembers: angles in float64, the memory, and the turned keys and the values of the token before."""

    angle_BHS: Tensor
    S_BHNP: Tensor
    k_BRHN: Tensor
    x_BHP: Tensor


@dataclass(frozen=True)
class Rotation:
    """How keys and queries are turned.

    Raises:
        ValueError: for an unknown pairing, and a fraction that is neither 0.5 nor 1.
    """

    pairing: Pairing | None = None
    """Channels that turn together: "neighbours" (2i, 2i + 1), "halves" (i, i + N/2); None: neighbours for rank 1, else halves."""
    fraction: float = 0.5
    """The share of the channels of keys and queries that is turned, 0.5 or 1; half as many angles are read."""

    def __post_init__(self) -> None:
        if self.pairing is not None and self.pairing not in PAIRINGS:
            raise ValueError(f"rotation: unknown pairing {self.pairing!r}; {nearest(str(self.pairing), PAIRINGS)}")
        if self.fraction not in FRACTIONS:
            raise ValueError(f"rotation: fraction must be 0.5 or 1.0, got {self.fraction!r}")


@dataclass(frozen=True)
class Decay:
    """How fast the memory forgets: A = min(-f(.), -floor), and the dt that the layer starts with.

    Raises:
        ValueError: for an unknown activation, a floor that is not positive, and bounds of dt that are not positive and in order.
    """

    activation: str = "heavy-tail"
    """f: "heavy-tail" (1 + x from 0 on, 1 / (1 - x) below), or "softplus". Checkpoints do not say which they were trained with."""
    floor: float = 1e-4
    """-A is at least this."""
    dt: tuple[float, float] = (1e-3, 1e-1)
    """Bounds between which dt is drawn at the start, log-uniform."""
    dt_floor: float = 1e-4
    """At the start dt is at least this."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"decay: unknown activation {self.activation!r}; {nearest(self.activation, ACTIVATIONS)}")
        positive("decay", floor=self.floor, dt_floor=self.dt_floor)
        possible(self.dt)

    def of(self, x: Tensor) -> Tensor:
        """A, from what the map reads for it."""
        heavy = self.activation == "heavy-tail"
        f = torch.where(x >= 0, 1 + x, 1 / (1 - x.clamp(max=0))) if heavy else F.softplus(x)
        return (-f).clamp(max=-self.floor)


class Read(NamedTuple):
    """What is read from one token, or from all of a row; leading axes (B) or (B, T)."""

    z_E: Tensor
    x_HP: Tensor
    q_RGN: Tensor
    k_RGN: Tensor
    dt_H: Tensor
    log_a_H: Tensor
    now_H: Tensor
    late_H: Tensor
    rate_S: Tensor


class Mamba3(Mixer[Mamba3State]):
    """A Mamba-3 layer, with its gate and both of its maps; parameters are named as in the published checkpoints.

    Args:
        d_model: width of input and output.
        d_state: width N of keys and queries.
        d_head: width P of a head; it divides expand * d_model. None: 64, or the widest below it that does.
        expand: the inner width as a multiple of `d_model`.
        n_groups: groups of heads with keys of their own; they divide the heads.
        rank: R, keys and queries of a token; 1 is SISO, more is MIMO.
        rotation: which channels of keys and queries turn together, and the share of them that turns, as `conca.layers.mamba3.Rotation`
            or a dict of it, {"pairing": "neighbours" or "halves", "fraction": 0.5 or 1.0}.
        decay: the activation of A, its floor, and the first dt, as `conca.layers.mamba3.Decay` or a dict of it, {"activation":
            "heavy-tail" or "softplus", "floor": 1e-4, "dt": (1e-3, 1e-1), "dt_floor": 1e-4}.
        norm: a norm of each head before the gate (for hybrids).
        device, dtype: of the parameters; those of the recurrence stay float32 in half precision.

    Raises:
        ValueError: for heads that do not divide the inner width, groups that do not divide the heads, and for options of `rotation`
            and `decay` that they refuse.
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
        rank: int = 1,
        rotation: Rotation | Mapping[str, Any] = Rotation(),
        decay: Decay | Mapping[str, Any] = Decay(),
        norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(norm, bool):
            raise ValueError(f"Mamba3: norm must be True or False, got {norm!r}")
        if not whole(rank):
            raise ValueError(f"Mamba3: rank must be a whole number from 1 on, got {rank!r}")
        self.rotation, self.decay = made(Rotation, rotation, "rotation"), made(Decay, decay, "decay")
        self.pairing: Pairing = self.rotation.pairing or ("neighbours" if rank == 1 else "halves")
        self.d_model, self.d_state, self.rank, self.n_groups = d_model, d_state, rank, n_groups
        self.d_head, self.n_heads = P, H = heads("Mamba3", d_model, expand, d_head, n_groups)
        self.d_inner = E = P * H
        self.n_angles = int(d_state * self.rotation.fraction) // 2
        BC = n_groups * rank * d_state
        self.widths = (E, E, BC, BC, H, H, H, self.n_angles)
        to = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=False, **to)
        self.out_proj = nn.Linear(E, d_model, bias=False, **to)
        self._start(norm, {**to, "dtype": torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)})

    def _start(self, norm: bool, to: dict[str, Any]) -> None:
        """The parameters of the recurrence."""
        H, R, N, P = self.n_heads, self.rank, self.d_state, self.d_head
        self.dt_bias = nn.Parameter(step_biases(H, self.decay.dt, self.decay.dt_floor, **to))
        self.D = nn.Parameter(torch.ones(H, **to))
        self.B_norm, self.C_norm = RMSNorm(N, eps=1e-5, **to), RMSNorm(N, eps=1e-5, **to)
        self.B_bias, self.C_bias = (nn.Parameter(torch.ones(H, R, N, **to)) for _ in range(2))
        self.norm = GatedNorm(self.d_inner, groups=H, norm_first=True, **to) if norm else None
        if R > 1:
            self.mimo_x, self.mimo_z, self.mimo_o = (
                nn.Parameter(torch.full((H, R, P), value, **to)) for value in (1 / R, 1.0, 1 / R)
            )

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """One rank with neighbours turned; three of halves with groups and a norm; an odd state turned whole, under softplus."""
        return (
            cls(6, d_state=8, d_head=4),
            cls(4, d_state=4, d_head=2, n_groups=2, rank=3, norm=True),
            cls(
                3,
                d_state=5,
                d_head=3,
                rotation={"fraction": 1.0, "pairing": "halves"},
                decay={"activation": "softplus"},
            ),
        )

    def init_state(self, batch: int) -> Mamba3State:
        """Zeros: angles (B, H, S), the memory (B, H, N, P), the last keys (B, R, H, N) and values (B, H, P)."""
        angle, *rest = (torch.zeros(batch, *size, dtype=self.D.dtype, device=self.D.device) for size in self._sizes())
        return Mamba3State(finest(angle), *rest)

    def step(self, x: Tensor, state: Mamba3State, *, elapsed: Tensor | None = None) -> tuple[Tensor, Mamba3State]:
        """One token: x (B, D)."""
        u = linear_row(self.in_proj, x)
        with without_autocast(x):
            r, old = self._read(u), self._wide(state)
            steps = finest(r.dt_H)[..., None] * finest(r.rate_S)[:, None]
            turn = (old.angle_BHS + steps).remainder(TURN)
            biases = self.C_bias, self.B_bias
            q, k = turned_keys_plain(r.q_RGN, r.k_RGN, *biases, turn.to(r.q_RGN), None, self.pairing)
            old_x, x_RHP = self._ranked(old.x_BHP), self._ranked(r.x_HP)
            S = r.log_a_H.exp()[..., None, None] * (old.S_BHNP + _written(old.k_BRHN, old_x, r.late_H))
            S = S + _written(k, x_RHP, r.now_H)
            y = (q.transpose(1, 2) @ S).transpose(1, 2)
            inner = self._gated(y + self.D[:, None] * x_RHP, r.z_E)
        return linear_row(self.out_proj, inner.to(x.dtype)), Mamba3State(turn, S, k, r.x_HP.clone())

    def parallel(
        self, x: Tensor, state: Mamba3State, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Mamba3State]:
        """All tokens by `conca.ops.trapezoid.trapezoid`, over keys that are turned by summed angles."""
        u = self.in_proj(x)
        with without_autocast(x):
            r, old = self._read(u), self._wide(state)
            if starts is not None:  # else gradients of what is not finite in it would be 0 times that
                old = where(starts[:, 0], self._wide(self.init_state(x.shape[0])), old)
            turn, angle = summed_angles(r.dt_H, r.rate_S, old.angle_BHS, lengths=lengths, starts=starts)
            weight = taken(r.now_H, r.late_H, lengths=lengths, starts=starts)
            biases = self.C_bias, self.B_bias
            q, k = turned_keys(r.q_RGN, r.k_RGN, *biases, turn, weight, self.pairing)
            x_RHP, old_x = self._ranked(r.x_HP), self._ranked(old.x_BHP)
            y, S = trapezoid(
                q, k, x_RHP, r.log_a_H, r.late_H, old.S_BHNP, old.k_BRHN, old_x, lengths=lengths, starts=starts
            )
            own = r.now_H[..., None, None] * own_products(r.q_RGN, r.k_RGN, *biases)
            inner = self._inner(y, x_RHP, own + self.D[:, None].expand(-1, self.rank).diag_embed(), r.z_E)
            last = last_of(r.k_RGN, r.k_RGN[:, 0], lengths)
            _, k = turned_keys_plain(last, last, *biases, angle.to(last), None, self.pairing)
            k = k if lengths is None else torch.where((lengths > 0)[:, None, None, None], k, old.k_BRHN)
            last_x = last_of(r.x_HP, old.x_BHP, lengths)
        return self.out_proj(inner.to(x.dtype)), Mamba3State(angle, S, k, last_x)

    def _read(self, u: Tensor) -> Read:
        """What `in_proj` gives, (B, ..., widths), as what the recurrence takes; all but z float32 or better."""
        z, *rest = torch.split(u, [*self.widths], -1)
        x, k, q, dt, A, trap, angle = (t.to(self.D.dtype) for t in rest)
        q, k = (t.reshape(*u.shape[:-1], self.rank, self.n_groups, self.d_state) for t in (q, k))
        q, k = (norm(_rows(t, self.d_state)).reshape(t.shape) for norm, t in ((self.C_norm, q), (self.B_norm, k)))
        dt = F.softplus(dt + self.dt_bias)
        log_a, now = self.decay.of(A) * dt, trap.sigmoid() * dt
        late, rate = (-trap).sigmoid() * dt, math.pi * angle.tanh()
        return Read(z, x.reshape(*x.shape[:-1], -1, self.d_head), q, k, dt, log_a, now, late, rate)

    def _ranked(self, x_HP: Tensor) -> Tensor:
        """The values (..., R, H, P) of every rank."""
        return x_HP[..., None, :, :] * self.mimo_x.transpose(0, 1) if self.rank > 1 else x_HP[..., None, :, :]

    def _inner(self, y_BTRHP: Tensor, x_BTRHP: Tensor, own_BTHRR: Tensor, z_BTE: Tensor) -> Tensor:
        """What goes into `out_proj` (B, T, E): outputs, what each step gives to itself, the gate."""
        if self.rank == 1 and self.norm is None:
            return gated_skip(y_BTRHP.flatten(2), x_BTRHP.flatten(2), own_BTHRR.flatten(2), z_BTE.to(y_BTRHP.dtype))
        return self._gated(y_BTRHP + torch.einsum("bthrs,btshp->btrhp", own_BTHRR, x_BTRHP), z_BTE)

    def _gated(self, y_RHP: Tensor, z_E: Tensor) -> Tensor:
        """What goes into `out_proj` (..., E)."""
        z_RHP = z_E.reshape(*z_E.shape[:-1], 1, self.n_heads, self.d_head).to(y_RHP.dtype)
        if self.rank > 1:
            z_RHP = z_RHP * self.mimo_z.transpose(0, 1)
        if self.norm is None:
            y_RHP = y_RHP * F.silu(z_RHP)
        else:
            rows = _rows(y_RHP, self.d_inner)
            y_RHP = self.norm(rows, z_RHP.reshape(rows.shape)).reshape(y_RHP.shape)
        return ((y_RHP * self.mimo_o.transpose(0, 1)).sum(-3) if self.rank > 1 else y_RHP[..., 0, :, :]).flatten(-2)

    def _wide(self, state: Mamba3State) -> Mamba3State:
        """The state in the precision of the layer. Raises ValueError for the state of another size."""
        sizes = self._sizes()
        for name, leaf, size in zip(Mamba3State._fields, state, sizes):
            if leaf.shape[1:] != size:
                raise ValueError(
                    f"Mamba3: expected {name} of shape (batch, {', '.join(map(str, size))}), got {tuple(leaf.shape)}"
                )
        angle, *rest = state
        return Mamba3State(finest(angle), *(leaf.to(self.D.dtype) for leaf in rest))

    def _sizes(self) -> tuple[tuple[int, ...], ...]:
        H, N, P = self.n_heads, self.d_state, self.d_head
        return (H, self.n_angles), (H, N, P), (self.rank, H, N), (H, P)

    def roles(self) -> dict[str, Role]:
        """The recurrence stays float32; biases, norms and scales are not decayed."""
        kept = ["dt_bias", "D", "B_bias", "C_bias", "B_norm.weight", "C_norm.weight"]
        kept += ["mimo_x", "mimo_z", "mimo_o"] if self.rank > 1 else []
        return dict.fromkeys(kept, Role(decay=False, float32=True))

    def work(self) -> Work:
        """The maps; a head's memory decays, is written to twice and read, by each rank."""
        maps = self.d_model * (sum(self.widths) + self.d_inner)
        memory = self.d_inner * self.d_state
        size = sum(math.prod(size) for size in self._sizes())
        return Work(maps + memory * (1 + 3 * self.rank), super().work().bytes + size * self.D.element_size())


def _written(k_BRHN: Tensor, x_BRHP: Tensor, weight_BH: Tensor) -> Tensor:
    """weight sum_r k_r x_r^T (B, H, N, P)."""
    return k_BRHN.permute(0, 2, 3, 1) @ (x_BRHP * weight_BH[:, None, :, None]).transpose(1, 2)


def _rows(t: Tensor, width: int) -> Tensor:
    """What a norm is taken of, (B, T, ..., width); that of a step as (rows, width), which norms leave to PyTorch."""
    return t.reshape(*(t.shape[:2] if t.dim() > 4 else ()), -1, width)
