"""Causal softmax attention: the memory that keeps everything, or the last `window` tokens.

    y_t = W_out sum_s softmax_s(q_t . k_s / sqrt(K)) v_s   over s <= t  (and s > t - window)

Vaswani et al., Attention Is All You Need, 2017; rotary positions of Su et al., RoFormer, 2021, taken from the state.

Full attention is not bounded: its state is a cache that grows. A cache is append-only: entries below a state's fill are never
rewritten, so an old state stays valid. All states on one buffer share its tip, the number of entries claimed; a step writes in place
only when its state is the one at the tip. A window is a buffer of twice its size, slid when it is full.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.mixer import Mixer, Work
from conca.ops.attention import attend
from conca.ops.rotation import rotate
from conca.types import State

__all__ = ["Attention", "Cache"]

PIECE = 256
"""Queries of a windowed layer that are run at once, at least."""

_claim = Lock()


def _forget() -> None:
    """In the child of a fork nobody is left to give the lock back."""
    global _claim
    _claim = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Cache(NamedTuple):
    """Keys and values of what was read; C is the capacity of the buffer."""

    k_BCHK: Tensor
    v_BCHK: Tensor
    fill_B: Tensor
    """Entries of the buffer that belong to this state."""
    seen_B: Tensor
    """Tokens read so far: the position of the next one."""
    tip_B: Tensor
    """Entries claimed, one tensor shared by all states on this buffer."""


class Attention(Mixer[Cache]):
    """Causal multi-head softmax attention, full or over a sliding window.

    Args:
        d_model: width of input and output.
        n_heads: number of heads.
        d_head: width of a head; `d_model / n_heads` when None.
        window: tokens that can be seen, the present one included; None sees all and is not bounded.
        rope_base: base of the rotary positions; None uses no positions.
        dropout: on the output.
        bias: of the linear maps.
        device, dtype: of the parameters.

    Raises:
        ValueError: if `n_heads` does not divide `d_model` and `d_head` is not given, or a number is less than 1.
    """

    ragged = True

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int = 4,
        d_head: int | None = None,
        window: int | None = None,
        rope_base: float | None = 10000.0,
        dropout: float = 0.0,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if d_head is None and d_model % n_heads:
            raise ValueError(f"n_heads={n_heads} does not divide d_model={d_model}; give d_head")
        self.d_model, self.n_heads, self.window, self.rope_base = d_model, n_heads, window, rope_base
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.bounded = window is not None
        inner = n_heads * self.d_head
        self.q, self.k, self.v = (nn.Linear(d_model, inner, bias=bias, device=device, dtype=dtype) for _ in range(3))
        self.out = nn.Linear(inner, d_model, bias=bias, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Full; windows that slide, are longer than the text, hold two tokens (odd head, no positions) or one."""
        return (
            cls(8, n_heads=2),
            cls(8, n_heads=2, window=3),
            cls(6, n_heads=2, window=64, bias=True),
            cls(4, n_heads=1, d_head=3, window=2, rope_base=None),
            cls(2, n_heads=1, window=1),
        )

    def init_state(self, batch: int) -> Cache:
        """An empty cache; that of a window already has its final size."""
        size = 0 if self.window is None else 2 * self.window
        k, v = (self.zeros(batch, size, self.n_heads, self.d_head, half=True) for _ in range(2))
        fill, seen, tip = (torch.zeros(batch, dtype=torch.long, device=k.device) for _ in range(3))
        return Cache(k, v, fill, seen, tip)

    def step(self, x: Tensor, state: Cache, *, elapsed: Tensor | None = None) -> tuple[Tensor, Cache]:
        """One token: x (B, D). Without gradients it writes into the buffer where nobody else could see it."""
        if torch.is_grad_enabled():
            y, state = self.parallel(x[:, None], state, lengths=None, starts=None, elapsed=None)
            return y[:, 0], state
        if len(x) == 0:
            return x.clone(), state
        q, k, v = self._project(x[:, None], state.seen_B)
        state = self._claimed(state)
        rows = torch.arange(len(x), device=x.device)
        state.k_BCHK[rows, state.fill_B] = k[:, 0].to(state.k_BCHK.dtype)
        state.v_BCHK[rows, state.fill_B] = v[:, 0].to(state.v_BCHK.dtype)
        state = state._replace(fill_B=state.fill_B + 1, seen_B=state.seen_B + 1)
        return self._read(q, *self._visible(state))[:, 0], state

    def parallel(
        self, x: Tensor, state: Cache, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Cache]:
        """All queries at once; with a window in pieces, so that the work is linear in T."""
        T = x.shape[1]
        n = torch.full_like(state.fill_B, T) if lengths is None else lengths.to(state.fill_B)
        if self.window is None:
            return self._piece(x, state, n)
        size, outputs = max(self.window, PIECE), []
        for t in range(0, T, size):
            piece = x[:, t : t + size]
            y, state = self._piece(piece, state, (n - t).clamp(0, piece.shape[1]))
            outputs.append(y)
        return torch.cat(outputs, 1), state

    def _piece(self, x_BTD: Tensor, state: Cache, n_B: Tensor) -> tuple[Tensor, Cache]:
        """Reads T tokens, of which n count in each row, into a buffer of its own."""
        T, old, device = x_BTD.shape[1], state.k_BCHK.shape[1], x_BTD.device
        q, k, v = self._project(x_BTD, state.seen_B)
        slot, t = torch.arange(old, device=device), torch.arange(T, device=device)
        mine = slot < state.fill_B[:, None]  # behind the fill others may have written anything, NaN too
        past = (z.masked_fill(~mine[..., None, None], 0) for z in (state.k_BCHK, state.v_BCHK))
        keys, values = (torch.cat([old_z, z.to(old_z.dtype)], 1) for old_z, z in zip(past, (k, v)))
        mask = self._mask(state, mine, t) if old else None  # in a fresh text the padding lies behind all valid tokens
        y = self._read(q, keys, values, mask, causal=not old)
        total = state.fill_B + n_B
        keep = total if self.window is None else total.clamp(max=self.window)
        size = old + T if self.window is None else 2 * self.window
        entry = (total - keep)[:, None] + torch.arange(size, device=device)
        source = torch.where(entry < state.fill_B[:, None], entry, entry - state.fill_B[:, None] + old)
        k, v = (_gathered(z, source.clamp(max=old + T - 1), keep) for z in (keys, values))
        return y, Cache(k, v, keep, state.seen_B + n_B, keep.clone())

    def _mask(self, state: Cache, mine_BC: Tensor, t_T: Tensor) -> Tensor:
        """Which entries of the buffer, and of the T tokens behind it, each of these tokens sees: (B, T, C + T)."""
        seen, slot = state.seen_B[:, None], torch.arange(mine_BC.shape[1], device=t_T.device)
        at_BS = torch.cat([seen - state.fill_B[:, None] + slot, seen + t_T], 1)
        real_BS = F.pad(mine_BC, (0, len(t_T)), value=True)
        now_BT1 = (seen + t_T)[..., None]
        mask_BTS = real_BS[:, None] & (at_BS[:, None] <= now_BT1)
        if self.window is not None:
            mask_BTS &= at_BS[:, None] > now_BT1 - self.window
        return mask_BTS

    def _project(self, x_BTD: Tensor, seen_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part(x_BTD).unflatten(-1, (self.n_heads, self.d_head)) for part in (self.q, self.k, self.v))
        if self.rope_base is not None:
            at_BT = seen_B[:, None] + torch.arange(x_BTD.shape[1], device=x_BTD.device)
            q, k = rotate(q, at_BT, self.rope_base), rotate(k, at_BT, self.rope_base)
        return q, k, v

    def _visible(self, state: Cache) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and mask (B, 1, S) of the entries that the newest token sees.

        What others have written behind the fill, and what has left the window, may be NaN: it is cut off, or made 0.
        """
        fill = state.fill_B
        low, high = (int(end) for end in torch.aminmax(fill))
        begin = 0 if self.window is None else max(0, low - self.window)
        k, v = (z[:, begin:high] for z in (state.k_BCHK, state.v_BCHK))
        if low == high:
            return k, v, None
        slot = torch.arange(begin, high, device=fill.device)
        seen = slot < fill[:, None]
        if self.window is not None:
            seen &= slot >= fill[:, None] - self.window
        k, v = (z.masked_fill(~seen[..., None, None], 0) for z in (k, v))
        return k, v, seen[:, None]

    def _read(
        self, q_BTHK: Tensor, k_BSHK: Tensor, v_BSHK: Tensor, mask_BTS: Tensor | None, *, causal: bool = False
    ) -> Tensor:
        q, k, v = (z.to(q_BTHK.dtype).transpose(1, 2) for z in (q_BTHK, k_BSHK, v_BSHK))
        y: Tensor = self.dropout(self.out(attend(q, k, v, mask_BTS, causal=causal).transpose(1, 2).flatten(2)))
        return y

    def _claimed(self, state: Cache) -> Cache:
        """A state whose next entry may be written: this one if it is at the tip of its buffer, else on a copy."""
        with _claim:
            if _at_tip(state):
                state.tip_B.add_(1)
                return state
        state = self._copied(state)
        state.tip_B.add_(1)
        return state

    def _copied(self, state: Cache) -> Cache:
        """On a buffer of its own, with room: doubled where it is full, or slid."""
        if self.window is None:
            capacity = state.k_BCHK.shape[1]
            room = max(16, capacity) if bool((state.fill_B == capacity).any()) else 0
            k, v = (F.pad(z, (0, 0, 0, 0, 0, room)) for z in (state.k_BCHK, state.v_BCHK))
            return state._replace(k_BCHK=k, v_BCHK=v, tip_B=state.fill_B.clone())
        keep = state.fill_B.clamp(max=self.window)
        entry = (state.fill_B - keep)[:, None] + torch.arange(2 * self.window, device=keep.device)
        k, v = (_gathered(z, entry.clamp(max=z.shape[1] - 1), keep) for z in (state.k_BCHK, state.v_BCHK))
        return Cache(k, v, keep, state.seen_B, keep.clone())

    def canonical(self, state: Cache) -> State:
        """The entries that the next token can see, oldest first, and the position."""
        fill = state.fill_B
        size = (int(fill.max()) if len(fill) else 0) if self.window is None else self.window
        if size == 0:
            return state.k_BCHK[:, :0], state.v_BCHK[:, :0], state.seen_B
        entry = fill[:, None] - size + torch.arange(size, device=fill.device)
        rows = torch.arange(len(fill), device=fill.device)[:, None]
        empty = (entry < 0)[..., None, None]
        k, v = (z[rows, entry.clamp(min=0)].masked_fill(empty, 0) for z in (state.k_BCHK, state.v_BCHK))
        return k, v, state.seen_B

    def work(self) -> Work:
        """The projections; and over the window the products with keys and values (of full attention: per token seen)."""
        common, inner, seen = super().work(), self.n_heads * self.d_head, self.window or 1
        size = next(self.parameters()).element_size()
        return Work(common.multiply_adds + 2 * inner * seen, common.bytes + 2 * inner * seen * size)


def _at_tip(state: Cache) -> bool:
    k = state.k_BCHK
    closed = k.is_inference() and not torch.is_inference_mode_enabled()
    if closed or k.requires_grad or state.v_BCHK.requires_grad or (k.stride(0) == 0 and len(k) > 1):
        return False
    return bool(((state.fill_B == state.tip_B) & (state.fill_B < k.shape[1])).all())


def _gathered(z_BCHK: Tensor, source_BC: Tensor, keep_B: Tensor) -> Tensor:
    """Entries `source` of each row; those beyond `keep` are 0."""
    rows = torch.arange(len(z_BCHK), device=z_BCHK.device)[:, None]
    used = torch.arange(source_BC.shape[1], device=z_BCHK.device) < keep_B[:, None]
    return z_BCHK[rows, source_BC].masked_fill(~used[..., None, None], 0)
