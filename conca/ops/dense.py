"""A dense time-invariant state space: h_t = a h_{t-1} + b u_t, y_t = c h_t, real, for every channel of u.

The door `dense_ssm`, and three bodies of one signature: the recurrence (the definition, N^2 T work per channel), chunks (matrix
products everywhere, N T + N^3 log T) and the convolution. From a state h before a chunk of Q steps,
  y_t = sum_{s<=t} K_{t-s} u_s + c a^{t+1} h,  K_l = c a^l b,  and  h' = a^Q h + sum_s a^{Q-1-s} b u_s.
Rows c a^l and columns a^l b grow by doubling, with the squares of a; the states before the chunks are found in pairs of chunks, pairs
of pairs and so on (Gu et al., LSSL, 2021, for the Krylov kernel; Blelloch 1990, for the pairs). Nothing of size (D, N, T) is made.

Letters: channel d of D has the matrix a[d // (D / S)], S matrices in all; M outputs per channel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.doors import raised, rows_fit
from conca.types import BadInput

__all__ = ["dense_kernel", "dense_ssm", "dense_ssm_chunked", "dense_ssm_convolution", "dense_ssm_recurrence"]

CHUNK = 64
FEW = 4
"""So many chunks are walked one after another; more are paired, which costs one more square of a."""

Maybe = Tensor | None
Pair = tuple[Tensor, Tensor]


def dense_ssm(
    u_BTD: Tensor, a_SNN: Tensor, b_DN: Tensor, c_DMN: Tensor, h_BDN: Tensor, *, lengths: Maybe = None
) -> Pair:
    """Outputs y (B, T, D, M) of a dense state space from the state h (B, D, N), and the state after the last step.

    All real. y has the dtype of u; the state that of the widest argument, float32 or better; half precisions are computed in float32.
    lengths (B,) integers: past the length of a row y is 0 and the state stays what it was after the last valid token; u there may
    be anything, NaN too, and gets gradient 0. Differentiable any number of times.
    Raises BadInput where the shapes do not fit, also if S does not divide D.
    """
    return dense_ssm_chunked(u_BTD, a_SNN, b_DN, c_DMN, h_BDN, lengths=lengths)


def dense_ssm_recurrence(
    u_BTD: Tensor, a_SNN: Tensor, b_DN: Tensor, c_DMN: Tensor, h_BDN: Tensor, *, lengths: Maybe = None
) -> Pair:
    """`dense_ssm` as it is defined, one step after another."""
    u, a, b, c, h, ends = _aligned(u_BTD, a_SNN, b_DN, c_DMN, h_BDN, lengths)
    a_DNN = a.repeat_interleave(u.shape[2] // max(1, len(a)), 0)
    outputs = []
    for t, u_BD in enumerate(u.unbind(1)):
        new = torch.einsum("dnk,bdk->bdn", a_DNN, h) + b * torch.where(t < ends[:, None], u_BD, 0)[..., None]
        outputs.append(torch.where(t < ends[:, None, None], torch.einsum("dmn,bdn->bdm", c, new), 0))
        h = torch.where(t < ends[:, None, None], new, h)
    y = torch.stack(outputs, 1) if outputs else u.new_zeros(*u.shape, c.shape[1])
    return y.to(_out(u_BTD)), h.clone()


def dense_ssm_chunked(
    u_BTD: Tensor,
    a_SNN: Tensor,
    b_DN: Tensor,
    c_DMN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    size: int = CHUNK,
) -> Pair:
    """`dense_ssm` by matrix products within chunks of `size` steps, a power of two, and between them.

    What is not finite (and not padding) spreads over its chunk. Memory is that of u and y, and D N (N + size).
    """
    u, a, b, c, h, ends = _aligned(u_BTD, a_SNN, b_DN, c_DMN, h_BDN, lengths)
    steps, width = u.shape[1:]
    if u.numel() == 0 or h.numel() == 0:
        return u.new_zeros(*u.shape, c.shape[1], dtype=_out(u_BTD)), h.clone()
    size = min(size, 1 << (steps - 1).bit_length())
    squares = _squares(a, size)
    columns = _powers(squares, b[..., None], size)[..., 0]
    valid = torch.arange(steps, device=u.device) < ends[:, None]
    u_DQJB = _backwards(torch.where(valid[..., None], u, 0), size)
    before = _before(squares[-1], columns, u_DQJB, h)
    # row t of the windows is K_{t-s} for s falling, as u falls in its chunk
    windows = F.pad(c @ columns, (size - 1, 0)).unfold(-1, size, 1).transpose(1, 2).flatten(1, 2)
    responses = _powers([square.mT for square in squares], _times(a.mT, c.mT), size).flatten(2).mT
    y = torch.baddbmm(windows @ u_DQJB.flatten(2), responses, before.flatten(2))
    y = y.view(width, size, c.shape[1], *u_DQJB.shape[2:]).permute(4, 3, 1, 0, 2).flatten(1, 2)[:, :steps]
    y = y if lengths is None else torch.where(valid[..., None, None], y, 0)
    return y.to(_out(u_BTD)), _after(ends, squares, columns, u_DQJB, before)


def dense_ssm_convolution(
    u_BTD: Tensor, a_SNN: Tensor, b_DN: Tensor, c_DMN: Tensor, h_BDN: Tensor, *, lengths: Maybe = None
) -> Pair:
    """`dense_ssm` as one long convolution by FFT, with the warm state's part added and the exact final state.

    The theorem of Gu et al. 2021 (LSSL) written out. Raises BadInput for lengths.
    """
    if lengths is not None:
        raise BadInput("dense_ssm_convolution: lengths are not a convolution; use dense_ssm")
    u, a, b, c, h, ends = _aligned(u_BTD, a_SNN, b_DN, c_DMN, h_BDN, None)
    steps = u.shape[1]
    if 0 in (u.numel(), c.numel()):
        return dense_ssm_chunked(u_BTD, a, b, c, h)
    size = _root(steps)
    squares = _squares(a, size)
    rows = _powers([square.mT for square in squares], c.mT, size)
    kernel_BDMT = _krylov(squares[-1], rows, b[..., None], steps)
    spectrum = torch.fft.rfft(kernel_BDMT, 2 * steps) * torch.fft.rfft(u.mT, 2 * steps)[:, :, None]
    free_BDMT = _krylov(squares[-1], rows, _times(a, h.movedim(0, 2)), steps)
    y_BDMT = torch.fft.irfft(spectrum, 2 * steps)[..., :steps] + free_BDMT
    columns, u_DQJB = _powers(squares, b[..., None], size)[..., 0], _backwards(u, size)
    last = _after(ends, squares, columns, u_DQJB, _before(squares[-1], columns, u_DQJB, h))
    return y_BDMT.movedim(3, 1).to(_out(u_BTD)), last


def dense_kernel(a_SNN: Tensor, b_DN: Tensor, c_DMN: Tensor, steps: int) -> Tensor:
    """The impulse response K_t = c a^t b for t < steps, (D, M, T): some sqrt(T) rows c a^l times as many columns a^(jQ) b."""
    size = _root(steps)
    squares = _squares(a_SNN, size)
    rows = _powers([square.mT for square in squares], c_DMN.mT, size)
    return _krylov(squares[-1], rows, b_DN[..., None], steps)[0]


def _aligned(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor, lengths: Maybe) -> tuple[Tensor, ...]:
    """The arguments in one precision, their shapes checked, and the ends of the rows. Raises BadInput."""
    if u.ndim != 3 or a.ndim != 3 or c.ndim != 3 or any(t.dtype.is_complex for t in (u, a, b, c, h)):
        shapes = f"u {tuple(u.shape)}, a {tuple(a.shape)}, c {tuple(c.shape)}"
        raise BadInput(f"dense_ssm: {shapes} must be real (B, T, D), (S, N, N), (D, M, N)")
    rows, steps, width = u.shape
    size = a.shape[2]
    want = {"b": (width, size), "c": (width, c.shape[1], size), "h": (rows, width, size), "a": (len(a), size, size)}
    for name, t in {"a": a, "b": b, "c": c, "h": h}.items():
        if t.shape != want[name]:
            raise BadInput(f"dense_ssm: {name} has shape {tuple(t.shape)}, not {want[name]}, for u {tuple(u.shape)}")
    if (width % len(a) if len(a) else width) != 0:
        raise BadInput(f"dense_ssm: {len(a)} matrices cannot be shared evenly by {width} channels")
    rows_fit("dense_ssm", u.shape, lengths)
    real = raised(u.dtype)
    for t in (a, b, c, h):
        real = torch.promote_types(real, raised(t.dtype))
    ends = torch.full((rows,), steps, device=u.device) if lengths is None else lengths.clamp(0, steps)
    return u.to(real), a.to(real), b.to(real), c.to(real), h.to(real), ends.to(torch.int64)


def _out(u: Tensor) -> torch.dtype:
    """The dtype of y: that of u, but integers give floating-point numbers."""
    return u.dtype if u.dtype.is_floating_point else raised(u.dtype)


def _root(steps: int) -> int:
    """A power of two near the square root of the number of steps."""
    return 1 << (max(steps, 1).bit_length() // 2)


def _times(a_SNN: Tensor, x_DNX: Tensor) -> Tensor:
    """The matrix of each channel times what stands there, (D, N, X)."""
    if len(a_SNN) == len(x_DNX):
        return a_SNN @ x_DNX
    x_SNCX = x_DNX.view(len(a_SNN), len(x_DNX) // len(a_SNN), *x_DNX.shape[1:]).transpose(1, 2)
    return (a_SNN @ x_SNCX.flatten(2)).view_as(x_SNCX).transpose(1, 2).flatten(0, 1)


def _squares(a: Tensor, size: int) -> list[Tensor]:
    """a, a^2, a^4, .. a^size."""
    squares = [a]
    while 1 << (len(squares) - 1) < size:
        squares.append(squares[-1] @ squares[-1])
    return squares


def _powers(squares: list[Tensor], v_DNX: Tensor, size: int) -> Tensor:
    """a^l v for l < size, a power of two, by doubling: (D, N, size, X)."""
    table = v_DNX[:, :, None]
    for square in squares[: size.bit_length() - 1]:
        table = torch.cat([table, _times(square, table.flatten(2)).view_as(table)], 2)
    return table


def _krylov(stride_SNN: Tensor, rows_DNQM: Tensor, v_DNB: Tensor, steps: int) -> Tensor:
    """c a^t v for t < steps, (B, D, M, T), from the rows c a^l, l < Q, and a^Q."""
    width, _, size, outputs = rows_DNQM.shape
    count = 1 << max(0, -(-steps // size) - 1).bit_length()
    columns_DNJB = _powers(_squares(stride_SNN, count), v_DNB, count)
    product = rows_DNQM.flatten(2).mT @ columns_DNJB.flatten(2)
    table = product.view(width, size, outputs, count, v_DNB.shape[2])
    return table.permute(4, 0, 2, 3, 1).flatten(3)[..., :steps]


def _backwards(u_BTD: Tensor, size: int) -> Tensor:
    """Chunks of u, padded with zeros, each with its last step first: (D, Q, J, B)."""
    rows, steps, width = u_BTD.shape
    count = -(-steps // size)
    u = F.pad(u_BTD, (0, 0, 0, count * size - steps)).reshape(rows, count, size, width)
    return u.flip(2).permute(3, 2, 1, 0).contiguous()


def _before(stride_SNN: Tensor, columns_DNQ: Tensor, u_DQJB: Tensor, h_BDN: Tensor) -> Tensor:
    """The state before each chunk, (D, N, J, B): what each adds, then a scan over chunks."""
    start = h_BDN.permute(1, 2, 0)[:, :, None]
    if u_DQJB.shape[2] == 1:
        return start
    u = u_DQJB[:, :, :-1]
    added = (columns_DNQ @ u.flatten(2)).view(*columns_DNQ.shape[:2], *u.shape[2:])
    return _scan(stride_SNN, added, start)


def _scan(a: Tensor, v_DNJB: Tensor, h_DN1B: Tensor) -> Tensor:
    """h, a h + v_0, a (a h + v_0) + v_1, ..: J + 1 states. Pairs of steps are steps of a^2, whose states are every second one."""

    def moved(x_DNJB: Tensor) -> Tensor:
        return _times(a, x_DNJB.flatten(2)).view_as(x_DNJB)

    count = v_DNJB.shape[2]
    if count <= FEW:
        states = [h_DN1B]
        for j in range(count):
            states.append(moved(states[-1]) + v_DNJB[:, :, j : j + 1])
        return torch.cat(states, 2)
    even, odd = v_DNJB[:, :, ::2], v_DNJB[:, :, 1::2]
    pairs = count // 2
    whole = _scan(a @ a, moved(even[:, :, :pairs]) + odd, h_DN1B)
    between = moved(whole[:, :, : count - pairs]) + even
    paired = torch.stack([whole[:, :, :pairs], between[:, :, :pairs]], 3).flatten(2, 3)
    return torch.cat([paired, whole[:, :, pairs:], between[:, :, pairs:]], 2)


def _after(ends: Tensor, squares: list[Tensor], columns_DNQ: Tensor, u_DQJB: Tensor, before_DNJB: Tensor) -> Tensor:
    """The state (B, D, N) after `ends` (B,) steps of each row, from that before the chunk that holds the last of them."""
    size, rows = u_DQJB.shape[1], torch.arange(len(ends), device=ends.device)
    which = (ends - 1).clamp(min=0) // size
    rest = ends - which * size
    lag = torch.arange(size, device=ends.device)[:, None]
    u_DQB = u_DQJB[:, (lag + size - rest).clamp(max=size - 1), which, rows]
    added = columns_DNQ @ torch.where(lag < rest, u_DQB, 0)
    h_DNB = before_DNJB[:, :, which, rows]
    for k, square in enumerate(squares):
        h_DNB = torch.where((rest >> k) & 1 == 1, _times(square, h_DNB), h_DNB)
    return (h_DNB + added).permute(2, 0, 1).contiguous()
