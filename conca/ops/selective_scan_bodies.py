"""The readable bodies of `conca.ops.selective_scan.selective_scan`: recurrence and chunked scan; one signature.

They take what `aligned` gives: everything in one precision, B and C as (B, T or 1, G, N), all arguments in place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.doors import raised
from conca.ops.scan import scan_tree
from conca.types import BadInput, nearest

__all__ = ["CHUNK", "HOLDS", "Arguments", "aligned", "plain_chunked", "plain_recurrence"]

CHUNK = 64
HOLDS = ("euler", "zoh")

Maybe = Tensor | None
Two = tuple[Tensor, Tensor]


class Arguments(NamedTuple):
    """The arguments of the operation, checked, in the order of its kernels."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    h: Tensor
    D: Maybe
    z: Maybe
    bias: Maybe
    lengths: Maybe
    starts: Maybe
    softplus: bool
    zoh: bool


def aligned(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, D: Maybe, z: Maybe, bias: Maybe,
    lengths: Maybe, starts: Maybe, softplus: bool, hold: str,
) -> Arguments:  # fmt: skip
    """The arguments in one precision, their shapes checked. Raises BadInput."""
    if x.ndim != 3 or A.ndim != 2 or x.dtype.is_complex:
        raise BadInput(
            f"selective_scan: x {tuple(x.shape)} {x.dtype} must be real (B, T, E), A {tuple(A.shape)} (E, N)"
        )
    if hold not in HOLDS:
        raise BadInput(f"selective_scan: unknown hold {hold!r}; {nearest(hold, HOLDS)}")
    rows, steps, width = x.shape
    N = A.shape[1]
    shapes = {"dt": (dt, x.shape), "A": (A, (width, N)), "h": (h, (rows, width, N)), "z": (z, x.shape)}
    shapes |= {
        "D": (D, (width,)),
        "bias": (bias, (width,)),
        "lengths": (lengths, (rows,)),
        "starts": (starts, (rows, steps)),
    }
    for name, (t, want) in shapes.items():
        if t is not None and t.shape != torch.Size(want):
            raise BadInput(
                f"selective_scan: {name} has shape {tuple(t.shape)}, not {tuple(want)}, for x {tuple(x.shape)}"
            )
    B, C = (_grouped(name, t, x, N) for name, t in (("B", B), ("C", C)))
    dtype = raised(x.dtype)
    for t in (dt, A, B, C, h, D, z, bias):
        dtype = dtype if t is None else torch.promote_types(dtype, raised(t.dtype))
    numbers: Any = [None if t is None else t.to(dtype) for t in (x, dt, A, B, C, h, D, z, bias)]
    ends = None if lengths is None else lengths.to(torch.int64)
    fresh = None if starts is None else starts.to(torch.bool)
    return Arguments(*(*numbers, ends, fresh, softplus, hold == "zoh"))


def _grouped(name: str, t: Tensor, x: Tensor, N: int) -> Tensor:
    """B or C as (B, T or 1, G, N); a constant one has a group for each channel."""
    rows, steps, width = x.shape
    if t.shape == (width, N) and t.ndim == 2:
        return t[None, None].expand(rows, 1, width, N)
    if t.ndim == 3 and t.shape == (rows, steps, N):
        return t[:, :, None]
    if t.ndim == 4 and (*t.shape[:2], t.shape[3]) == (rows, steps, N) and t.shape[2] > 0 and width % t.shape[2] == 0:
        return t
    raise BadInput(
        f"selective_scan: {name} has shape {tuple(t.shape)}; it must be (B, T, N), (B, T, G, N) with G dividing E, "
        f"or (E, N), for x {tuple(x.shape)} and N = {N}"
    )


def plain_recurrence(*args: Any) -> Two:
    """The operation as it is defined, one step after another."""
    a = _settled(Arguments(*args))
    h, outputs = a.h, []
    for t in range(a.x.shape[1]):
        decay, fed = _factors(a, t)
        old = h if a.starts is None else torch.where(a.starts[:, t, None, None], 0, h)
        h = decay * old + fed
        outputs.append(_read(h, a, t))
    return _ended(torch.stack(outputs, 1) if outputs else a.x.clone(), a), h.clone()


def plain_chunked(*args: Any) -> Two:
    """The operation by a scan within chunks, one chunk after another: without gradients it holds the states of one chunk at a time.

    Differentiable any number of times. Unlike the recurrence, what is not finite (and not padding) may spread over its chunk.
    """
    a = _settled(Arguments(*args))
    h, outputs = a.h, []
    for t0 in range(0, a.x.shape[1], CHUNK):
        part = slice(t0, t0 + CHUNK)
        decay, fed = _factors(a, part)
        states = scan_tree(decay, fed, h, starts=None if a.starts is None else a.starts[:, part])
        outputs.append(_read(states, a, part))
        h = states[:, -1]
    return _ended(torch.cat(outputs, 1) if outputs else a.x.clone(), a), h.clone()


def _live(a: Arguments) -> Maybe:
    """Which steps are within the lengths: (B, T), None for all."""
    return None if a.lengths is None else torch.arange(a.x.shape[1], device=a.x.device) < a.lengths[:, None]


def _ended(y: Tensor, a: Arguments) -> Tensor:
    """0 in the padding, where a constant C would go on reading the state."""
    live = _live(a)
    return y if live is None else torch.where(live[..., None], y, 0)


def _settled(a: Arguments) -> Arguments:
    """dt as the lengths of the steps; in the padding nothing is read or written, and steps are of length 0: the state stays."""
    live = _live(a)

    def kept(t: Tensor) -> Tensor:
        """0 in the padding."""
        return t if live is None else torch.where(live.view(*live.shape, *[1] * (t.ndim - 2)), t, 0)

    dt = kept(a.dt) if a.bias is None else kept(a.dt) + a.bias
    dt = kept(F.softplus(dt) if a.softplus else dt)
    starts = a.starts if a.starts is None or live is None else a.starts & live
    B, C = (kept(t) if t.shape[1] == a.x.shape[1] else t for t in (a.B, a.C))
    return a._replace(x=kept(a.x), dt=dt, B=B, C=C, z=None if a.z is None else kept(a.z), starts=starts)


def _factors(a: Arguments, at: int | slice) -> Two:
    """exp(dt A), and what is written: dt x B, with zero-order hold (exp(dt A) - 1) / A x B."""
    dt, x = a.dt[:, at], a.x[:, at]
    rate = dt[..., None] * a.A
    fed = (dt * x)[..., None] * _channels(a.B, a, at)
    return rate.exp(), fed * _growth(rate) if a.zoh else fed


def _growth(rate: Tensor) -> Tensor:
    """(e^v - 1) / v; near v = 0 its series, as the derivatives of the quotient are differences of what is nearly alike."""
    near = rate.abs() < 0.03
    small, large = torch.where(near, rate, 0), torch.where(near, 1, rate)
    series = torch.zeros_like(rate)
    for n in range(10, 0, -1):
        series = series * small + 1 / math.factorial(n)
    return torch.where(near, series, torch.expm1(large) / large)


def _channels(t: Tensor, a: Arguments, at: int | slice) -> Tensor:
    """B or C at some steps, for every channel: (B, ..., E, N)."""
    steady = t.shape[1] != a.x.shape[1]
    picked = t[:, (slice(None) if isinstance(at, slice) else 0) if steady else at]
    channels: Tensor = picked.repeat_interleave(a.x.shape[2] // t.shape[2], -2)
    return channels


def _read(states: Tensor, a: Arguments, at: int | slice) -> Tensor:
    """The outputs: C reads the states, the input passes by, the gate closes."""
    y = (states * _channels(a.C, a, at)).sum(-1)
    if a.D is not None:
        y = y + a.D * a.x[:, at]
    return y if a.z is None else y * F.silu(a.z[:, at])
