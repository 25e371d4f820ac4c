"""The readable bodies of `conca.ops.dplr.dplr_ssm`: recurrence, chunked matrix form, convolution; one signature.

The feedback Re(sum_n q h) is linear in the real and the imaginary part of h, not in h. So one step is a real matrix A on pairs, of
twice as many rows as there are modes, and everything else follows as for any linear system: from a state h before a chunk of L steps
  y_t = sum_{s<=t} (c A^{t-s} b) u_s + c A^{t+1} h  and  h' = A^L h + sum_s A^{L-1-s} b u_s.
Powers of A go up to L alone: the rows c A^k and the columns A^k b by doubling, A^L by squaring. No array has modes and time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from conca.ops.diagonal_bodies import CHUNK, aligned, in_chunks, within
from conca.types import BadInput

__all__ = ["aligned_dplr", "dplr_ssm_chunked", "dplr_ssm_convolution", "dplr_ssm_recurrence", "dplr_step"]

PACKED_CHUNK = 16
Maybe = Tensor | None
Aligned = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Maybe, Maybe]


def aligned_dplr(
    u: Tensor, a: Tensor, p: Tensor, q: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe, starts: Maybe
) -> Aligned:
    """The arguments in one precision, their shapes checked. Raises BadInput."""
    if p.ndim != 3 or p.shape[1:] != a.shape or q.shape != p.shape:
        shapes = f"p {tuple(p.shape)}, q {tuple(q.shape)}"
        raise BadInput(f"dplr_ssm: {shapes} must both be (R, D, N) for a {tuple(a.shape)}")
    h = h.to(torch.promote_types(h.dtype, torch.promote_types(p.dtype, q.dtype)))
    u, a, b, c, h, lengths, starts = aligned(u, a, b, c, h, lengths, starts, "dplr_ssm")
    return u, a, p.to(a.dtype), q.to(a.dtype), b, c, h, lengths, starts


def dplr_step(u_BD: Tensor, a_DN: Tensor, p_RDN: Tensor, q_RDN: Tensor, b_DN: Tensor, h_BDN: Tensor) -> Tensor:
    """The state one step later, a h - sum_r p_r Re(sum_n q_r h) + b u: O(N R) numbers for every channel."""
    feedback_RBD = (q_RDN[:, None] * h_BDN).sum(-1).real
    return a_DN * h_BDN - (p_RDN[:, None] * feedback_RBD[..., None]).sum(0) + b_DN * u_BD[..., None]


def dplr_ssm_recurrence(
    u_BTD: Tensor,
    a_DN: Tensor,
    p_RDN: Tensor,
    q_RDN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """`dplr_ssm` as it is defined, one step after another."""
    u, a, p, q, b, c, h, lengths, starts = aligned_dplr(u_BTD, a_DN, p_RDN, q_RDN, b_DN, c_DN, h_BDN, lengths, starts)
    outputs = []
    for t, u_BD in enumerate(u.unbind(1)):
        valid = None if lengths is None else t < lengths[:, None]
        x = u_BD if valid is None else torch.where(valid, u_BD, 0)
        old = h if starts is None else torch.where(starts[:, t, None, None], 0, h)
        new = dplr_step(x, a, p, q, b, old)
        y = (c * new).sum(-1).real
        h = new if valid is None else torch.where(valid[..., None], new, h)
        outputs.append(y if valid is None else torch.where(valid, y, 0))
    return torch.stack(outputs, 1) if outputs else u.clone(), h


class _Powers(NamedTuple):
    """What of a system a chunk of L steps needs, on pairs M = 2 N."""

    squares: tuple[Tensor, ...]
    """A^(2^i) (D, M, M), the last one A^L."""
    reads_DLM: Tensor
    """c A^k, k = 0..L-1."""
    writes_DLM: Tensor
    """A^k b, k = 0..L-1."""

    @property
    def kernel_DL(self) -> Tensor:
        """c A^k b."""
        return torch.einsum("dm,dlm->dl", self.reads_DLM[:, 0], self.writes_DLM)


def dplr_ssm_chunked(
    u_BTD: Tensor,
    a_DN: Tensor,
    p_RDN: Tensor,
    q_RDN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """`dplr_ssm` by matrix products within chunks and a scan between them. Differentiable any number of times.

    Unlike the recurrence and the kernel, what is not finite (and not padding) spreads over its chunk, and past a start.
    """
    u, a, p, q, b, c, h, lengths, starts = aligned_dplr(u_BTD, a_DN, p_RDN, q_RDN, b_DN, c_DN, h_BDN, lengths, starts)
    if min(u.numel(), a.shape[1]) == 0:
        return torch.zeros_like(u), h.clone()
    size = CHUNK if starts is None else PACKED_CHUNK
    system, h = _powers(a, p, q, b, c, size), _pairs(h)
    u_BJLD, valid, segment = in_chunks(u, lengths, starts, size)
    before = _states_before(u_BJLD, system, h, segment)
    y = within(u_BJLD, system.kernel_DL, segment) + _carried(before, system, segment)
    y = y.flatten(1, 2)[:, : u.shape[1]]
    last = _state_at(_ends(u, lengths), u_BJLD, before, system, segment)
    return (y if valid is None else torch.where(valid[..., None], y, 0)), _modes(last)


def dplr_ssm_convolution(
    u_BTD: Tensor,
    a_DN: Tensor,
    p_RDN: Tensor,
    q_RDN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """`dplr_ssm` as one long convolution by FFT, with the part of the incoming state and the final state, both by chunks.

    The kernel is what the system makes of a unit impulse, by chunks too; `conca.ops.dplr_kernel` has it as a Cauchy sum (Gu, Goel and
    Re 2022, S4). Raises BadInput for lengths or starts.
    """
    if lengths is not None or starts is not None:
        raise BadInput("dplr_ssm_convolution: lengths and starts are not a convolution; use dplr_ssm")
    u, a, p, q, b, c, h, _, _ = aligned_dplr(u_BTD, a_DN, p_RDN, q_RDN, b_DN, c_DN, h_BDN, None, None)
    if min(u.numel(), a.shape[1]) == 0:
        return torch.zeros_like(u), h.clone()
    steps, system, h = u.shape[1], _powers(a, p, q, b, c, CHUNK), _pairs(h)
    u_BJLD, _, _ = in_chunks(u, None, None, CHUNK)
    silent = torch.zeros_like(u_BJLD[:1])
    kernel_DT = _read(_states_before(silent, system, system.writes_DLM[None, :, 0], None), system)[0, :steps].T
    spectrum = torch.fft.rfft(u, 2 * steps, dim=1) * torch.fft.rfft(kernel_DT.T, 2 * steps, dim=0)
    y = torch.fft.irfft(spectrum, 2 * steps, dim=1)[:, :steps]
    silent = silent.expand(len(u), -1, -1, -1)
    y = y + _carried(_states_before(silent, system, h, None), system, None).flatten(1, 2)[:, :steps]
    before = _states_before(u_BJLD, system, h, None)
    return y, _modes(_state_at(_ends(u, None), u_BJLD, before, system, None))


def _pairs(z: Tensor) -> Tensor:
    """Complex numbers (..., N) as real ones (..., 2 N): real parts, then imaginary parts."""
    return torch.cat([z.real, z.imag], -1)


def _modes(x: Tensor) -> Tensor:
    """The inverse of `_pairs`."""
    return torch.complex(*x.chunk(2, -1))


def _powers(a: Tensor, p: Tensor, q: Tensor, b: Tensor, c: Tensor, size: int) -> _Powers:
    """The system as real matrices, and its powers up to `size`, a power of two."""
    re, im = torch.diag_embed(a.real), torch.diag_embed(a.imag)
    matrix = torch.cat([torch.cat([re, -im], -1), torch.cat([im, re], -1)], -2)
    squares = [matrix - torch.einsum("rdm,rdk->dmk", _pairs(p), _pairs(q.conj()))]
    reads, writes = _pairs(c.conj())[:, None], _pairs(b)[:, None]
    while reads.shape[1] < size:
        reads = torch.cat([reads, reads @ squares[-1]], 1)
        writes = torch.cat([writes, writes @ squares[-1].mT], 1)
        squares.append(squares[-1] @ squares[-1])
    return _Powers(tuple(squares), reads, writes)


def _states_before(u_BJLD: Tensor, system: _Powers, h: Tensor, segment: Maybe) -> Tensor:
    """The state before each chunk (B, chunks, D, M): what each adds, then each joined with the one 1, 2, 4, ... before it."""
    keep = torch.ones_like(u_BJLD[:, :, 0, :1, None])
    if segment is not None:
        last = segment[..., -1:]
        u_BJLD = torch.where((segment == last)[..., None], u_BJLD, 0)
        keep = keep * (last == 0)[..., None]
    added = torch.einsum("dsm,bjsd->bjdm", system.writes_DLM.flip(1), u_BJLD)
    states = torch.cat([h[:, None], added[:, :-1]], 1)
    keep = torch.cat([torch.zeros_like(keep[:, :1]), keep[:, :-1]], 1)
    reach, power = 1, system.squares[-1]
    while reach < states.shape[1]:
        carried = keep[:, reach:] * torch.einsum("dmk,bjdk->bjdm", power, states[:, :-reach])
        states = torch.cat([states[:, :reach], states[:, reach:] + carried], 1)
        keep = torch.cat([keep[:, :reach], keep[:, reach:] * keep[:, :-reach]], 1)
        reach, power = 2 * reach, power @ power
    return states


def _read(before: Tensor, system: _Powers) -> Tensor:
    """Outputs (B, chunks * L, D) of states that nothing is added to, beginning with the states themselves."""
    return torch.einsum("dlm,bjdm->bjld", system.reads_DLM, before).flatten(1, 2)


def _carried(before: Tensor, system: _Powers, segment: Maybe) -> Tensor:
    """What the state before a chunk gives to its outputs, until the first start."""
    after = torch.einsum("dmk,bjdk->bjdm", system.squares[0], before)
    y = _read(after, system).reshape(*before.shape[:2], -1, before.shape[2])
    return y if segment is None else torch.where((segment == 0)[..., None], y, 0)


def _ends(u: Tensor, lengths: Maybe) -> Tensor:
    """How many steps of each row are valid."""
    steps = u.shape[1]
    return torch.full((len(u),), steps, device=u.device) if lengths is None else lengths.clamp(0, steps)


def _state_at(ends: Tensor, u_BJLD: Tensor, before: Tensor, system: _Powers, segment: Maybe) -> Tensor:
    """The state after `ends` (B,) steps of each row, from that before the chunk that holds the last of them."""
    size = u_BJLD.shape[2]
    row = torch.arange(len(ends), device=ends.device)
    which = (ends - 1).clamp(min=0) // size
    inside = ends - which * size
    lag = inside[:, None] - 1 - torch.arange(size, device=ends.device)
    counts, state = lag >= 0, before[row, which]
    if segment is not None:
        mine = segment[row, which]
        final = mine.gather(1, (inside[:, None] - 1).clamp(min=0))
        counts = counts & (mine == final)
        state = torch.where((final == 0)[..., None] | (inside == 0)[:, None, None], state, 0)
    for i, square in enumerate(system.squares):  # A^inside, by the binary digits of it
        digit = (inside >> i) & 1 == 1
        state = torch.where(digit[:, None, None], torch.einsum("dmk,bdk->bdm", square, state), state)
    u_BLD = torch.where(counts[..., None], u_BJLD[row, which], 0)
    return state + torch.einsum("dbsm,bsd->bdm", system.writes_DLM[:, lag.clamp(min=0)], u_BLD)
