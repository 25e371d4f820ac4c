"""Kernel of the selective scan h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = sum_n C_t h_t + D x_t, gated.

Lanes run over channels. A task is one row and a few blocks of channels; it goes through the chunks of the row, in each through its
blocks, in each through the states, which stay in registers over the steps of the chunk. With `saved` the states before each chunk are
kept. `starts` cut a chunk into pieces, `lengths` end a row early. Softplus, zero-order hold and the gate are fused in.

Where B and C are shared by all channels of a block they are numbers; otherwise ("mixed") they are vectors, filled in chunk by chunk.
What belongs to states lies in blocks: (block, state, lane), the last block filled up with zeros.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from conca.kernels.compiled import apart, compiled, inlined
from conca.kernels.diagonal import clear, cut
from conca.kernels.lane_math import LOG2E, absolute, exp2, expm1, fill, pick, sigmoid, softplus
from conca.kernels.lanes import (
    add,
    div,
    everywhere,
    fma,
    load,
    load_first,
    mul,
    put,
    scratch,
    splat,
    store,
    store_first,
    width,
)
from conca.kernels.pool import spread
from conca.kernels.views import array, ragged, rows
from conca.ops.selective_scan_bodies import CHUNK

__all__ = ["forward", "warm"]

BLOCKS = 8
"""Blocks of channels in one task, at most: B and C have a partial gradient for each task of a row."""

Maybe = Tensor | None


@inlined
def spread_out(t: Any, i: int, step: int, N: int, size: int, e: int, share: int, lanes: int, out: Any) -> None:
    """B or C of a chunk as vectors (N, chunk, lane): lane j reads the group of channel e + j, which has `share` channels."""
    W = width(out)
    for s in range(size):
        for n in range(N):
            v = splat(out.dtype.type(0))
            for j in range(lanes):
                v = put(v, j, t[i + s * step + (e + j) // share * N + n])
            store(out, (n * CHUNK + s) * W, v)


@inlined
def growth(rate: Any) -> Any:
    """(e^v - 1) / v, 1 at v = 0: zero-order hold weighs an input by this times the length of the step."""
    return pick(absolute(rate), fill(rate, 1e-30), div(expm1(rate), rate), fill(rate, 1.0))


@inlined
def prepare(
    x: Any, i: int, xt: int, dt: Any, j: int, dtt: int, bias: Any, D: Any, e: int, lanes: int, size: int, smooth: bool,
    td: Any, tp: Any, tx: Any, ty: Any,
) -> None:  # fmt: skip
    """A chunk of one block: lengths of steps, their products with the inputs, inputs, and what passes by of these."""
    W = width(td)
    skip, shift = load(D, e), load(bias, e)
    for s in range(size):
        u, d = load_first(x, i + s * xt, lanes), add(load_first(dt, j + s * dtt, lanes), shift)
        if smooth:
            d = softplus(d)
        store(td, s * W, d)
        store(tp, s * W, mul(d, u))
        store(tx, s * W, u)
        store(ty, s * W, mul(skip, u))


@apart
def advance(
    td: Any, tp: Any, ty: Any, B: Any, bi: int, bt: int, C: Any, ci: int, ct: int, tb: Any, tc: Any, mixed: bool,
    zoh: bool, A: Any, at: int, h: Any, k: int, N: int, cuts: Any, pieces: int,
) -> None:  # fmt: skip
    """The states of one block in one chunk: their outputs added to ty, h renewed."""
    W = width(td)
    for n in range(N):
        state, rate, m = load(h, k + n * W), load(A, at + n * W), n * CHUNK * W
        rate2 = mul(rate, fill(rate, LOG2E))
        for piece in range(pieces):
            if piece > 0:
                state = splat(td.dtype.type(0))
            for s in range(cuts[piece], cuts[piece + 1]):
                j = s * W
                d, fed = load(td, j), load(tp, j)
                b = load(tb, m + j) if mixed else everywhere(B, bi + n + s * bt)
                c = load(tc, m + j) if mixed else everywhere(C, ci + n + s * ct)
                if zoh:
                    fed = mul(fed, growth(mul(d, rate)))
                state = fma(exp2(mul(d, rate2)), state, mul(fed, b))
                store(ty, j, fma(state, c, load(ty, j)))
        store(h, k + n * W, state)


@compiled
def forward_tasks(
    x: Any, xr: int, xt: int, dt: Any, dr: int, dtt: int, A: Any, B: Any, br: int, bt: int, C: Any, cr: int, ct: int,
    h: Any, D: Any, z: Any, zr: int, zt: int, bias: Any, gated: bool, smooth: bool, zoh: bool, mixed: bool, share_b: int,
    share_c: int, per_group: int, y: Any, saved: Any, row: int, lengths: Any, starts: Any, T: int, E: int, N: int,
    groups: int, first: int, end: int,
) -> None:  # fmt: skip
    """Tasks first..end. Flat arrays: x, dt, z, B, C with strides of row and time; in blocks A (blocks, N, W), h (B, blocks, N, W)
    (the state, old and then new), D and bias (blocks W); y (B, T, E), saved (B, row)."""
    W = width(y)
    blocks, chunks, parts = -(-E // W), -(-T // CHUNK), -(-per_group // BLOCKS)
    td, tp, tx, ty = scratch(CHUNK * W, y), scratch(CHUNK * W, y), scratch(CHUNK * W, y), scratch(CHUNK * W, y)
    cuts = np.empty(CHUNK + 2, np.int64)
    room = N * CHUNK * W if mixed else W
    tb, tc = scratch(room, y), scratch(room, y)
    for task in range(first, end):
        part, group, r = task % parts, task // parts % groups, task // parts // groups
        low = group * per_group + part * BLOCKS
        high = min(low + BLOCKS, (group + 1) * per_group)
        length = lengths[r]
        for t0 in range(0, length, CHUNK):
            size = min(CHUNK, length - t0)
            pieces = cut(starts, r, t0, size, cuts)
            for block in range(low, high):
                e, lanes, k = block * W, min(W, E - block * W), (r * blocks + block) * N * W
                prepare(
                    x, r * xr + t0 * xt + e, xt, dt, r * dr + t0 * dtt + e, dtt, bias, D, e, lanes, size, smooth,
                    td, tp, tx, ty,
                )  # fmt: skip
                bi, ci = r * br + t0 * bt, r * cr + t0 * ct
                if mixed:
                    spread_out(B, bi, bt, N, size, e, share_b, lanes, tb)
                    spread_out(C, ci, ct, N, size, e, share_c, lanes, tc)
                if row > 0:
                    j = r * row + (block * chunks + t0 // CHUNK) * N * W
                    for i in range(0, N * W, W):
                        store(saved, j + i, load(h, k + i))
                bi, ci = bi + e // share_b * N, ci + e // share_c * N
                states = block * N * W, h, k, N, cuts, pieces
                advance(td, tp, ty, B, bi, bt, C, ci, ct, tb, tc, mixed, zoh, A, *states)
                for s in range(size):
                    v = load(ty, s * W)
                    if gated:
                        g = load_first(z, r * zr + (t0 + s) * zt + e, lanes)
                        v = mul(v, mul(g, sigmoid(g)))
                    store_first(y, (r * T + t0 + s) * E + e, v, lanes)
        for block in range(low, high):
            clear(y, (r * T + length) * E + block * W, E, T - length, min(W, E - block * W))


class Layout(NamedTuple):
    """How B and C lie over the blocks of channels."""

    mixed: bool
    share_b: int
    share_c: int
    per_group: int
    """Blocks in a group of tasks."""
    groups: int

    @property
    def parts(self) -> int:
        """Tasks of a group of one row."""
        return -(-self.per_group // BLOCKS)


def layout(x: Tensor, B: Tensor, C: Tensor) -> Layout:
    """Blocks that read one group each, or a mixture."""
    E, W = x.shape[2], 64 // x.element_size()
    share_b, share_c = E // B.shape[2], E // C.shape[2]
    blocks = -(-E // W)
    if x.shape[1] > min(B.shape[1], C.shape[1]):
        return Layout(True, share_b, share_c, blocks, 1)
    if B.shape[2] == C.shape[2] == 1:
        return Layout(False, share_b, share_c, blocks, 1)
    if share_b == share_c and share_b % W == 0:
        return Layout(False, share_b, share_c, share_b // W, B.shape[2])
    return Layout(True, share_b, share_c, blocks, 1)


def forward(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, D: Maybe, z: Maybe, bias: Maybe, lengths: Maybe,
    starts: Maybe, smooth: bool, zoh: bool, saved: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y (B, T, E) and the last state (B, E, N); `saved` (B, 0 or enough) receives the states before the chunks. Nothing is empty."""
    (rows_, T, E), N, how = x.shape, A.shape[1], layout(x, B, C)
    y, state = torch.empty_like(x, memory_format=torch.contiguous_format), blocks_of(h)
    args = *inputs(x, dt, A, B, C), array(state).reshape(-1), *extras(x, D, z, bias), smooth, zoh, *how[:4]
    outputs = array(y).reshape(-1), array(saved).reshape(-1), saved.shape[1]
    args = *args, *outputs, *ragged(x.shape, lengths, starts), T, E, N, how.groups
    tasks = rows_ * how.groups * how.parts
    spread(lambda first, end: forward_tasks(*args, first, end), tasks, 16 * x.numel() * N)
    return y, states_of(state, E)


def inputs(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Any, ...]:
    """x and dt with strides, A in blocks, B and C with strides, that of time 0 where they are constant."""
    steady = [rows(t.flatten(2)) for t in (B, C)]
    steady = [r._replace(time=0) if t.shape[1] == 1 else r for r, t in zip(steady, (B, C))]
    return *rows(x), *rows(dt), array(blocks_of(A)).reshape(-1), *steady[0], *steady[1]


def extras(x: Tensor, D: Maybe, z: Maybe, bias: Maybe) -> tuple[Any, ...]:
    """D, z with strides, bias, and whether there is a gate; zeros for what is not there."""
    size = -(-x.shape[2] * x.element_size() // 64) * (64 // x.element_size())
    vectors = [x.new_zeros(size) if t is None else F.pad(t.detach(), (0, size - t.shape[0])) for t in (D, bias)]
    return array(vectors[0]), *rows(x if z is None else z), array(vectors[1]), z is not None


def blocks_of(h: Tensor) -> Tensor:
    """(..., E, N) as a new (..., blocks, N, W)."""
    W = 64 // h.element_size()
    filled = F.pad(h.detach(), (0, 0, 0, -h.shape[-2] % W))
    return filled.reshape(*h.shape[:-2], -1, W, h.shape[-1]).mT.clone(memory_format=torch.contiguous_format)


def states_of(blocks: Tensor, E: int) -> Tensor:
    """The inverse of `blocks_of`: (..., E, N)."""
    return blocks.mT.flatten(-3, -2)[..., :E, :].contiguous()


def warm() -> None:
    """Compile the kernel in both precisions."""
    for dtype in (torch.float32, torch.float64):
        x, A = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
        forward(x, x, A, x[:, :, None], x[:, :, None], x, None, None, None, None, None, True, False, x.new_empty(1, 16))
