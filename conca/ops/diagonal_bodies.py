"""The readable bodies of `conca.ops.diagonal.diagonal_ssm`: recurrence, chunked matrix form, convolution; one signature.

h_t = a h_{t-1} + b u_t and y_t = Re(sum_n c h_t) give, from a state h before a chunk of L steps,
  y_t = sum_{s<=t} K_{t-s} u_s + Re(sum_n c a^{t+1} h),  K_k = Re(sum_n c b a^k),  and  h' = a^L h + sum_s a^{L-1-s} b u_s,
which are matrix products within chunks and a short scan between them (Gu et al. 2022; Dao and Gu 2024, for the chunks).
"""

from __future__ import annotations

import torch
from torch import Tensor

from conca.ops.doors import raised, real_of, rows_fit
from conca.ops.scan import scan_tree
from conca.types import BadInput

__all__ = [
    "CHUNK",
    "aligned",
    "chunks",
    "diagonal_ssm_chunked",
    "diagonal_ssm_convolution",
    "diagonal_ssm_recurrence",
    "in_chunks",
    "powers",
    "within",
]

CHUNK = 64
PACKED_CHUNK = 16
"""With `starts` each row has a Toeplitz matrix of its own per channel, T * chunk * D numbers; hence a smaller chunk."""

Maybe = Tensor | None
Aligned = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Maybe, Maybe]


def aligned(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    h: Tensor,
    lengths: Maybe,
    starts: Maybe,
    operation: str = "diagonal_ssm",
) -> Aligned:
    """The arguments of `operation` in one precision, their shapes checked. Raises BadInput."""
    if u.ndim != 3 or a.ndim != 2 or u.dtype.is_complex:
        raise BadInput(f"{operation}: u {tuple(u.shape)} {u.dtype} must be real (B, T, D), a {tuple(a.shape)} (D, N)")
    want = {"a": (u.shape[2], a.shape[1]), "h": (u.shape[0], u.shape[2], a.shape[1])}
    want["b"] = want["c"] = want["a"]
    for name, t in {"a": a, "b": b, "c": c, "h": h}.items():
        if t.shape != want[name]:
            raise BadInput(f"{operation}: {name} has shape {tuple(t.shape)}, not {want[name]}, for u {tuple(u.shape)}")
    rows_fit(operation, u.shape, lengths, starts)
    real = raised(u.dtype)
    for t in (a, b, c, h):
        real = torch.promote_types(real, raised(real_of(t.dtype)))
    modes = torch.promote_types(real, torch.complex64)
    ends = None if lengths is None else lengths.to(torch.int64)
    fresh = None if starts is None else starts.to(torch.bool)
    return u.to(real), a.to(modes), b.to(modes), c.to(modes), h.to(modes), ends, fresh


def powers(a: Tensor, size: int) -> Tensor:
    """a^0 .. a^(size-1) on a new last axis, by doubling; exact and differentiable at a = 0 too."""
    table, square = torch.ones_like(a)[..., None], a
    while table.shape[-1] < size:
        table = torch.cat([table, table * square[..., None]], -1)
        square = square * square
    return table[..., :size]


def real_dot(equation: str, x: Tensor, y: Tensor) -> Tensor:
    """Re of an einsum of two complex tensors, as one real product; the mode axis must be `n` and is summed over."""
    left, right = equation.split("->")[0].split(",")
    result = equation.split("->")[1]
    pairs = f"{left.replace('n', 'nz')},{right.replace('n', 'nz')}->{result}"
    x, y = torch.view_as_real(x.conj().resolve_conj()), torch.view_as_real(y.resolve_conj())
    return torch.einsum(pairs, x.movedim(-1, left.index("n") + 1), y.movedim(-1, right.index("n") + 1))


def diagonal_ssm_recurrence(
    u_BTD: Tensor,
    a_DN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """`diagonal_ssm` as it is defined, one step after another."""
    u, a, b, c, h, lengths, starts = aligned(u_BTD, a_DN, b_DN, c_DN, h_BDN, lengths, starts)
    outputs = []
    for t, u_BD in enumerate(u.unbind(1)):
        valid = None if lengths is None else t < lengths[:, None]
        x = u_BD if valid is None else torch.where(valid, u_BD, 0)
        old = h if starts is None else torch.where(starts[:, t, None, None], 0, h)
        new = a * old + b * x[..., None]
        y = (c * new).sum(-1).real
        h = new if valid is None else torch.where(valid[..., None], new, h)
        outputs.append(y if valid is None else torch.where(valid, y, 0))
    return torch.stack(outputs, 1) if outputs else u.clone(), h


def diagonal_ssm_chunked(
    u_BTD: Tensor,
    a_DN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """`diagonal_ssm` by matrix products within chunks and a scan between them. Differentiable any number of times.

    Unlike the recurrence and the kernel, what is not finite (and not padding) spreads over its chunk, and past a start.
    """
    u, a, b, c, h, lengths, starts = aligned(u_BTD, a_DN, b_DN, c_DN, h_BDN, lengths, starts)
    y, last, _ = chunks(u, a, b, c, h, lengths, starts, CHUNK if starts is None else PACKED_CHUNK)
    return y, last


def chunks(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe, starts: Maybe, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The chunked form on aligned arguments: y, the last state, and the state before each chunk (B, chunks, D, N)."""
    rows, steps, width = u.shape
    count = -(-steps // size)
    if min(rows, steps, width, a.shape[1]) == 0:
        return torch.zeros_like(u), h.clone(), h[:, None].expand(-1, count, -1, -1)
    u_BJLD, valid, segment = in_chunks(u, lengths, starts, size)
    table = powers(a, size + 1)
    before = _states_before(u_BJLD, table, b, h, segment)
    kernel = (b[..., None] * c[..., None] * table[..., :size]).sum(1).real
    y = within(u_BJLD, kernel, segment) + _carried(before, table, c, segment)
    y = y.flatten(1, 2)[:, :steps]
    ends = torch.full((rows,), steps, device=u.device) if lengths is None else lengths.clamp(0, steps)
    last = _state_at(ends, u_BJLD, before, table, b, segment)
    return (y if valid is None else torch.where(valid[..., None], y, 0)), last, before


def in_chunks(u: Tensor, lengths: Maybe, starts: Maybe, size: int) -> tuple[Tensor, Maybe, Maybe]:
    """u (B, chunks, size, D), 0 where not valid; valid steps (B, T); the segment of each step in its chunk, 0 until the first start."""
    valid, (rows, steps, width) = None, u.shape
    if lengths is not None:
        valid = torch.arange(steps, device=u.device) < lengths[:, None]
        u = torch.where(valid[..., None], u, 0)
        starts = None if starts is None else starts & valid
    short = -steps % size
    u_BJLD = torch.nn.functional.pad(u, (0, 0, 0, short)).reshape(rows, -1, size, width)
    if starts is None:
        return u_BJLD, valid, None
    return u_BJLD, valid, torch.nn.functional.pad(starts, (0, short)).reshape(rows, -1, size).cumsum(-1)


def _states_before(u_BJLD: Tensor, table: Tensor, b: Tensor, h: Tensor, segment: Maybe) -> Tensor:
    """The state before each chunk: what each adds, then a scan over chunks."""
    size = u_BJLD.shape[2]
    decay = table[..., size][None, None]
    if segment is not None:
        last = segment[..., -1:]
        u_BJLD = torch.where((segment == last)[..., None], u_BJLD, 0)
        decay = torch.where((last == 0)[..., None], decay, 0)
    weights = torch.view_as_real(b[..., None] * table[..., :size].flip(-1))
    added = torch.einsum("dnsz,bjsd->bjdnz", weights, u_BJLD).contiguous()
    after = scan_tree(decay, torch.view_as_complex(added), h)
    return torch.cat([h[:, None], after[:, :-1]], 1)


def within(u_BJLD: Tensor, kernel_DL: Tensor, segment: Maybe) -> Tensor:
    """What the inputs of a chunk give to its own outputs, in the same segment: a Toeplitz matrix per channel."""
    lag = torch.arange(u_BJLD.shape[2], device=u_BJLD.device)
    lag = lag[:, None] - lag
    toeplitz = torch.where(lag >= 0, kernel_DL[:, lag.clamp(min=0)], 0)
    if segment is None:
        return torch.einsum("dts,bjsd->bjtd", toeplitz, u_BJLD)
    together = segment[..., :, None] == segment[..., None, :]
    matrices = torch.where(together[:, :, None], toeplitz, 0)
    return torch.einsum("bjdts,bjsd->bjtd", matrices, u_BJLD)


def _carried(before: Tensor, table: Tensor, c: Tensor, segment: Maybe) -> Tensor:
    """What the state before a chunk gives to its outputs, until the first start."""
    y = real_dot("dnt,bjdn->bjtd", c[..., None] * table[..., 1:], before)
    return y if segment is None else torch.where((segment == 0)[..., None], y, 0)


def _state_at(ends: Tensor, u_BJLD: Tensor, before: Tensor, table: Tensor, b: Tensor, segment: Maybe) -> Tensor:
    """The state after `ends` (B,) steps of each row, from that before the chunk that holds the last of them."""
    size = u_BJLD.shape[2]
    row = torch.arange(len(ends), device=ends.device)
    which = (ends - 1).clamp(min=0) // size
    inside = ends - which * size
    lag = inside[:, None] - 1 - torch.arange(size, device=ends.device)
    counts = lag >= 0
    decay = table[..., inside].movedim(-1, 0)
    if segment is not None:
        mine = segment[row, which]
        final = mine.gather(1, (inside[:, None] - 1).clamp(min=0))
        counts = counts & (mine == final)
        decay = torch.where((final == 0)[..., None] | (inside == 0)[:, None, None], decay, 0)
    u_BLD = torch.where(counts[..., None], u_BJLD[row, which], 0)
    weights = torch.view_as_real(b[:, None, :, None] * table[:, :, lag.clamp(min=0)].movedim(2, 1))
    added = torch.einsum("dbnsz,bsd->bdnz", weights, u_BLD).contiguous()
    return decay * before[row, which] + torch.view_as_complex(added)


def diagonal_ssm_convolution(
    u_BTD: Tensor,
    a_DN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """`diagonal_ssm` as one long convolution by FFT, with the warm state's part added and the exact final state.

    The theorem of Gu et al. 2022 (S4D) written out; D N T numbers of memory. Raises BadInput for lengths or starts.
    """
    if lengths is not None or starts is not None:
        raise BadInput("diagonal_ssm_convolution: lengths and starts are not a convolution; use diagonal_ssm")
    u, a, b, c, h, _, _ = aligned(u_BTD, a_DN, b_DN, c_DN, h_BDN, None, None)
    steps = u.shape[1]
    if min(*u.shape, a.shape[1]) == 0:
        return torch.zeros_like(u), h.clone()
    table = powers(a, steps + 1)
    kernel_TD = real_dot("dn,dnt->td", b * c, table[..., :steps])
    spectrum = torch.fft.rfft(u, 2 * steps, dim=1) * torch.fft.rfft(kernel_TD, 2 * steps, dim=0)
    y = torch.fft.irfft(spectrum, 2 * steps, dim=1)[:, :steps]
    y = y + real_dot("dnt,bdn->btd", c[..., None] * table[..., 1:], h)
    weights = torch.view_as_real(b[..., None] * table[..., :steps].flip(-1))
    added = torch.einsum("dnsz,bsd->bdnz", weights, u).contiguous()
    return y, table[..., steps] * h + torch.view_as_complex(added)
