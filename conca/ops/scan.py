"""First-order diagonal scan: h_t = a_t h_{t-1} + x_t, elementwise over channels, real or complex.

Bodies with one signature: `scan_recurrence` is the definition; `scan_tree` joins neighbours two by two (Ladner and Fischer 1980,
Blelloch 1990), in 2 log2(T) passes that are together as long as a few over all steps, and runs where there is no kernel;
`scan_doubling` (Hillis and Steele 1986) takes log2(T) full passes; `scan` is the door. The derivative of a scan is the same scan run
backward in time with conjugate coefficients (Martin and Cundy 2018), so derivatives of any order are scans.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.doors import apply, has_kernel, opened, raised, rows_of_all
from conca.types import BadInput

__all__ = ["scan", "scan_doubling", "scan_recurrence", "scan_tree"]

Triple = tuple[Tensor, Tensor, Tensor]
Maybe = Tensor | None
Whole = tuple[Tensor, Tensor, Tensor, Maybe]


def scan(a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor, *, lengths: Maybe = None, starts: Maybe = None) -> Tensor:
    """All states h_t = a_t h_{t-1} + x_t, t = 1..T, from the state h_BE before the first step.

    x (B, T, ...) with any trailing shape; a broadcasts against x, h (B, ...) against one step of x. Real and complex mix; half
    precisions are raised to float32. Where a has no time axis, or one of size 1, it is the same at every step, and the gradient to it
    is summed over time as it arises: no tensor of the size of x is needed for it.
    lengths (B,) integers: past the length of a row the state stays what it was after the last valid token; x there may be anything,
    NaN too, and gets gradient 0. starts (B, T) bool: the state before that step is 0, whatever it was.
    Returns h of the shape of x; the last state is `h[:, -1]` (h_BE itself where T = 0). Raises BadInput where the shapes do not fit.
    """
    a, x, h = _aligned(a_BTE, x_BTE, h_BE)
    ends, fresh = _ragged(x, lengths, starts)
    if x.numel() == 0 or not has_kernel("scan", x.device.type):
        return scan_tree(a_BTE, x, h, lengths=ends, starts=fresh)
    shape = x.shape
    steady = a.ndim < x.ndim
    x, h = x.reshape(*shape[:2], -1), h.reshape(shape[0], -1)
    a = a.reshape(h.shape if steady else x.shape)
    states = apply(_Scan, a, x, h, ends, fresh) if opened(a, x, h) else _scan(a, x, h, ends, fresh)
    return cast(Tensor, states).reshape(shape)


def scan_recurrence(
    a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor, *, lengths: Maybe = None, starts: Maybe = None
) -> Tensor:
    """`scan` as it is defined, one step after another."""
    a, x, h, fresh = _whole(a_BTE, x_BTE, h_BE, lengths, starts)
    states = []
    for t, (a_BE, x_BE) in enumerate(zip(a.unbind(1), x.unbind(1))):
        h = a_BE * _kept(h, None if fresh is None else fresh[:, t]) + x_BE
        states.append(h)
    return torch.stack(states, 1) if states else x.clone()


def scan_tree(a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor, *, lengths: Maybe = None, starts: Maybe = None) -> Tensor:
    """`scan` by joining the steps in pairs, scanning the pairs alike, and filling in the steps between."""
    a, x, h, fresh = _whole(a_BTE, x_BTE, h_BE, lengths, starts)
    return _tree(a, x, h, fresh) if x.numel() else x.clone()


def _tree(a: Tensor, x: Tensor, h: Tensor, fresh: Maybe) -> Tensor:
    """`fresh` (B, T, 1..) marks what does not depend on what was before it."""
    pairs = x.shape[1] // 2
    if pairs == 0:
        return a * _kept(h[:, None], fresh) + x
    left, right = (slice(start, 2 * pairs, 2) for start in (0, 1))
    joined = cut = evens = None
    if fresh is not None:
        cut, evens = fresh[:, right], fresh[:, ::2]
        joined = fresh[:, left] | cut
    odd = _tree(a[:, right] * a[:, left], a[:, right] * _kept(x[:, left], cut) + x[:, right], h, joined)
    before = torch.cat([h[:, None], odd], 1)[:, : x.shape[1] - pairs]
    even = a[:, ::2] * _kept(before, evens) + x[:, ::2]
    states = torch.stack([even[:, :pairs], odd], 2).flatten(1, 2)
    return states if x.shape[1] == 2 * pairs else torch.cat([states, even[:, -1:]], 1)


def scan_doubling(a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor, *, lengths: Maybe = None, starts: Maybe = None) -> Tensor:
    """`scan` in log2(T) passes, each of which joins every step with the one 1, 2, 4, ... steps before it."""
    a, x, h, fresh = _whole(a_BTE, x_BTE, h_BE, lengths, starts)
    if x.numel() == 0:
        return x.clone()
    states = torch.cat([x[:, :1] + a[:, :1] * _kept(h[:, None], None if fresh is None else fresh[:, :1]), x[:, 1:]], 1)
    reach, length = 1, x.shape[1]
    while reach < length:
        cut = None if fresh is None else fresh[:, reach:]
        states = torch.cat([states[:, :reach], states[:, reach:] + a[:, reach:] * _kept(states[:, :-reach], cut)], 1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], 1)
        fresh = None if fresh is None else torch.cat([fresh[:, :reach], fresh[:, reach:] | fresh[:, :-reach]], 1)
        reach *= 2
    return states


def _kept(before: Tensor, fresh: Maybe) -> Tensor:
    """What was before, and 0 where a sequence starts: a product would keep NaN."""
    return before if fresh is None else torch.where(fresh, 0, before)


def _aligned(a: Tensor, x: Tensor, h: Tensor) -> Triple:
    """One dtype; h with the shape of one step of x, and a with that of x, or with that of h where it is constant in time."""
    if x.ndim < 2:
        raise BadInput(f"scan: x has shape {tuple(x.shape)}; it needs at least the axes (batch, time)")
    dtype = raised(torch.promote_types(torch.promote_types(a.dtype, x.dtype), h.dtype))
    time = a.ndim - x.ndim + 1
    shapes = f"a {tuple(a.shape)}, x {tuple(x.shape)}, h {tuple(h.shape)}"
    a, x, h = a.to(dtype), x.to(dtype), h.to(dtype)
    try:
        h = h.expand(x.shape[0], *x.shape[2:])
        if time < 0 or a.shape[time] == 1:
            return (a if time < 0 else a.squeeze(time)).expand(h.shape), x, h
        return a.expand(x.shape), x, h
    except RuntimeError as error:
        raise BadInput(f"scan: {shapes} do not fit; a must broadcast to x, h to x without its time axis") from error


def _ragged(x: Tensor, lengths: Maybe, starts: Maybe) -> tuple[Maybe, Maybe]:
    """Lengths and starts in their types, their shapes checked. Raises BadInput."""
    for name, t, want in (("lengths", lengths, x.shape[:1]), ("starts", starts, x.shape[:2])):
        if t is not None and t.shape != want:
            raise BadInput(f"scan: {name} has shape {tuple(t.shape)}, not {tuple(want)}, for x {tuple(x.shape)}")
    return None if lengths is None else lengths.to(torch.int64), None if starts is None else starts.to(torch.bool)


def _whole(a: Tensor, x: Tensor, h: Tensor, lengths: Maybe, starts: Maybe) -> Whole:
    """What a plain body runs on: a with the shape of x, 1 in the padding, where x is 0; and 0 at starts, which are marked."""
    a, x, h = _aligned(a, x, h)
    lengths, fresh = _ragged(x, lengths, starts)
    a = (a[:, None] if a.ndim < x.ndim else a).expand(x.shape)
    ones = (1,) * (x.ndim - 2)
    if lengths is not None:
        valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        fresh = None if fresh is None else fresh & valid
        valid = valid.reshape(*x.shape[:2], *ones)
        a, x = torch.where(valid, a, 1), torch.where(valid, x, 0)
    fresh = None if fresh is None else fresh.reshape(*x.shape[:2], *ones)
    return _kept(a, fresh), x, h, fresh


def _before(states: Tensor, h: Tensor) -> Tensor:
    """The state before each step."""
    return torch.cat([h[:, None], states[:, :-1]], 1)


def _after(x: Tensor) -> Tensor:
    """The value of the next step, 0 at the last."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)


@torch.library.custom_op("conca::scan", mutates_args=())
def _scan(a: Tensor, x: Tensor, h: Tensor, lengths: Maybe, starts: Maybe) -> Tensor:
    """States from x (B, T, E), h (B, E), and a of the shape of x, or of h where it is constant in time."""
    return cast(Tensor, bodies.required("scan", x.device.type)(a, x, h, lengths, starts))


@_scan.register_fake
def _(a: Tensor, x: Tensor, h: Tensor, lengths: Maybe, starts: Maybe) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_scan.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Maybe) -> tuple[Any, Any]:
    return rows_of_all(_scan, info.batch_size, dims, args, ())


@torch.library.custom_op("conca::scan_backward", mutates_args=())
def _scan_backward(
    a: Tensor, h: Tensor, states: Tensor, g: Tensor, lengths: Maybe, starts: Maybe
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to a (of its shape), x and h from the gradient `g` into all states."""
    return cast(Triple, bodies.required("scan_backward", a.device.type)(a, h, states, g, lengths, starts))


@_scan_backward.register_fake
def _(a: Tensor, h: Tensor, states: Tensor, g: Tensor, lengths: Maybe, starts: Maybe) -> Triple:
    new = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (a, g, h)]
    return new[0], new[1], new[2]


@_scan_backward.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Maybe) -> tuple[Any, Any]:
    return rows_of_all(_scan_backward, info.batch_size, dims, args, ())


class _Scan(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, x: Tensor, h: Tensor, lengths: Maybe, starts: Maybe) -> Tensor:
        return cast(Tensor, _scan(a, x, h, lengths, starts))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, _, h, lengths, starts = inputs
        ctx.save_for_backward(a, h, output, lengths, starts)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, h, states, lengths, starts = ctx.saved_tensors
        return *apply(_ScanBackward, a, h, states, g, lengths, starts), None, None


class _ScanBackward(Function):
    """dx is the scan of g backward in time; da and dh are products with it. Its own derivative is a scan forward in time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, h: Tensor, states: Tensor, g: Tensor, lengths: Maybe, starts: Maybe) -> Triple:
        return cast(Triple, _scan_backward(a, h, states, g, lengths, starts))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Triple) -> None:
        a, h, states, _, lengths, starts = inputs
        ctx.save_for_backward(a, h, states, output[1], lengths, starts)

    @staticmethod
    def backward(ctx: Any, ga: Tensor, gx: Tensor, gh: Tensor) -> tuple[Tensor | None, ...]:
        a, h, states, dx, lengths, starts = ctx.saved_tensors
        fresh = None if starts is None else starts[..., None]
        steady = a.ndim < dx.ndim
        ga = ga[:, None] if steady else ga
        r = scan(
            a[:, None] if steady else a, gx + ga * _kept(_before(states, h), fresh), gh, lengths=lengths, starts=starts
        )
        through = _kept(ga.conj() * dx, fresh)
        da = _kept(dx * _before(r, gh).conj(), fresh)
        return da.sum(1) if steady else da, through[:, 0], _after(through), r, None, None
