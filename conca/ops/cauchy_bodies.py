"""The readable bodies of `conca.ops.cauchy`: the definition, and blocks of nodes by real matrix products; one signature.

The two terms of a conjugate pair are one fraction,
  v / (i y - x w) + conj(v) / (i y - x conj(w)) = (i y alpha - x beta) r,   alpha = 2 Re v,   beta = 2 Re(v conj(w)),
  r = 1 / ((x Re w)^2 + (x Im w - y)(x Im w + y) - 2 i x y Re w),
so that many numerators share one complex reciprocal, and their sums over the modes are real products of (alpha, beta) with r. The
real part of the denominator is written as factors because it cancels next to a pole.

A term of low rank is taken in by Sherman and Morrison: where the sums are a matrix S of left and right vectors, the last ones p and q
of a term -p q of the system, S becomes S00 - x S01 S10 / (1 + x S11). A change of S changes that by (1 l) dS (1 r), with the column
l = -x S01 / (1 + x S11) and the row r = -x S10 / (1 + x S11), so a gradient only gains a row and a column.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from conca.ops.doors import raised, real_of
from conca.types import BadInput

__all__ = [
    "aligned",
    "cauchy_blocks",
    "cauchy_blocks_backward",
    "cauchy_definition",
    "chained",
    "lowered",
    "numerators",
]

BLOCK = 1 << 17
"""Complex numbers that a block of nodes may take: what never holds is (D, N, J)."""

Pair = tuple[Tensor, Tensor]


def aligned(v: Tensor, w: Tensor, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments in one precision, their shapes checked: v (D, ..., N), w (D, N), y and x (J,). Raises BadInput."""
    x = torch.ones_like(y) if x is None else x
    if w.ndim != 2 or v.ndim < 3 or (v.shape[0], v.shape[-1]) != w.shape:
        raise BadInput(f"cauchy: v {tuple(v.shape)} must be (D, ..., N) for w {tuple(w.shape)} (D, N)")
    if y.ndim != 1 or x.shape != y.shape or y.dtype.is_complex or x.dtype.is_complex:
        raise BadInput(f"cauchy: nodes y {tuple(y.shape)} {y.dtype} and x {tuple(x.shape)} {x.dtype} must be real (J,)")
    real = raised(real_of(v.dtype))
    for t in (w, y, x):
        real = torch.promote_types(real, raised(real_of(t.dtype)))
    poles = torch.promote_types(real, torch.complex64)
    return v.to(poles), w.to(poles), y.to(real), x.to(real)


def cauchy_definition(v_DVMN: Tensor, w_DN: Tensor, y_J: Tensor, x_J: Tensor | None = None, *, rank: int = 0) -> Tensor:
    """`low_rank_cauchy` as it is defined, all (D, V, M, N, J) fractions at once."""
    v, w, y, x = aligned(v_DVMN, w_DN, y_J, x_J)
    v, w, z = v[..., None], w[:, None, None, :, None], torch.complex(torch.zeros_like(y), y)
    return lowered((v / (z - x * w) + v.conj() / (z - x * w.conj())).sum(-2), x, rank)


def cauchy_blocks(v_DVMN: Tensor, w_DN: Tensor, y_J: Tensor, x_J: Tensor | None = None, *, rank: int = 0) -> Tensor:
    """`low_rank_cauchy` over blocks of nodes, as real matrix products."""
    v, w, y, x = aligned(v_DVMN, w_DN, y_J, x_J)
    weights = numerators(v, w)
    parts = [v.new_zeros(len(v), v.shape[1] - rank, v.shape[2] - rank, 0)]
    for y_K, x_K in _blocks(w, y, x):
        sums = _sums(weights, reciprocals(w, y_K, x_K), y_K, x_K, v.shape[2])
        parts.append(lowered(sums, x_K, rank))
    return torch.cat(parts, -1)


def cauchy_blocks_backward(v: Tensor, w: Tensor, y: Tensor, x: Tensor, g: Tensor, rank: int) -> Pair:
    """Gradients to v and w from g, that into the sums; everything else is computed anew, block by block."""
    D, _, M, N = v.shape
    weights, done = numerators(v, w), 0
    by_numerator, by_pole = torch.zeros_like(weights), weights.new_zeros(D, 2, N)
    for y_K, x_K in _blocks(w, y, x):
        r, into = reciprocals(w, y_K, x_K), g[..., done : done + len(y_K)].conj()
        done += len(y_K)
        if rank:
            into = _raised(into, _sums(weights, r, y_K, x_K, M), x_K, rank)
        re, im = into.real.flatten(1, 2), into.imag.flatten(1, 2)
        # the loss changes by the real part of (into i y) r for alpha, and of (-into x) r for beta
        by_alpha, by_beta = torch.stack([-y_K * im, y_K * re], 2), torch.stack([-x_K * re, -x_K * im], 2)
        both = torch.cat([by_alpha, by_beta], 1)
        by_numerator = by_numerator + (both * _signs(y_K)).flatten(2) @ r.flatten(2).mT
        h_re, h_im = _product(r, _product(r, (weights.mT @ both.flatten(2)).reshape(r.shape))).unbind(2)
        by_pole = by_pole - torch.stack([(x_K * x_K * h_re).sum(-1), (2 * x_K * y_K * h_im).sum(-1)], 1)
    return chained(v, w, by_numerator, by_pole)


def lowered(sums_DVMJ: Tensor, x_J: Tensor, rank: int) -> Tensor:
    """Take in the last `rank` left and right vectors, one after another: (D, V - rank, M - rank, J)."""
    sums = sums_DVMJ
    for _ in range(rank):
        below = sums[:, -1:, :-1] * (x_J / (1 + x_J * sums[:, -1:, -1:]))
        sums = sums[:, :-1, :-1] - sums[:, :-1, -1:] * below
    return sums


def _raised(into: Tensor, sums: Tensor, x: Tensor, rank: int) -> Tensor:
    """The (conjugate) gradient into all sums from that into the lowered ones."""
    factors = []
    for _ in range(rank):
        gain = -x / (1 + x * sums[:, -1:, -1:])
        column, row = gain * sums[:, :-1, -1:], gain * sums[:, -1:, :-1]
        sums = sums[:, :-1, :-1] + column * sums[:, -1:, :-1]
        factors.append((column, row))
    for column, row in reversed(factors):
        into = torch.cat([into, (into * row).sum(2, keepdim=True)], 2)
        into = torch.cat([into, (into * column).sum(1, keepdim=True)], 1)
    return into


def numerators(v: Tensor, w: Tensor) -> Tensor:
    """alpha and then beta: (D, 2 V M, N) real."""
    v, w = v.flatten(1, -2), w[:, None]
    # not through conj(): its bit goes unseen inside a compiled program's operations
    return 2 * torch.cat([v.real, v.real * w.real + v.imag * w.imag], 1)


def reciprocals(w: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """r of every pole at every node, real and imaginary part: (D, N, 2, J)."""
    a, b = x * w.real[..., None], x * w.imag[..., None]
    re, im = a * a + (b - y) * (b + y), 2 * y * a
    return torch.stack([re, im], 2) / (re * re + im * im)[:, :, None]


def chained(v: Tensor, w: Tensor, by_numerator: Tensor, by_pole: Tensor) -> Pair:
    """Gradients to v and w from those to alpha and beta (D, 2 V M, N) and, (D, 2, N), those that came through r:
    to |w|^2, and to Re w without what |w|^2 has of it."""
    flat = v.flatten(1, -2)
    alpha, beta = by_numerator.chunk(2, 1)
    square, real = by_pole[:, 0], by_pole[:, 1]
    dv = 2 * torch.complex(alpha + w.real[:, None] * beta, w.imag[:, None] * beta)
    return dv.reshape(v.shape), 2 * ((beta * flat).sum(1) + square * w) + real


def _sums(weights: Tensor, r: Tensor, y: Tensor, x: Tensor, M: int) -> Tensor:
    """All sums, before the low rank: (D, V, M, J)."""
    totals = (weights @ r.flatten(2)).reshape(len(r), 2, weights.shape[1] // (2 * M), M, 2, r.shape[-1])
    (a_re, a_im), (b_re, b_im) = (part.unbind(3) for part in totals.unbind(1))
    return torch.complex(-y * a_im - x * b_re, y * a_re - x * b_im)


def _signs(y: Tensor) -> Tensor:
    """(1, -1) for the real and the imaginary part."""
    return torch.stack([torch.ones_like(y), -torch.ones_like(y)])


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The complex product of (D, N, 2, J) numbers."""
    (a_re, a_im), (b_re, b_im) = a.unbind(2), b.unbind(2)
    return torch.stack([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], 2)


def _blocks(w: Tensor, y: Tensor, x: Tensor) -> Iterator[Pair]:
    size = max(1, BLOCK // max(1, w.numel()))
    return zip(torch.split(y, size), torch.split(x, size))
