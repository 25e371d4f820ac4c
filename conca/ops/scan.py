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
from conca.ops.doors import apply, fold, has_kernel, opened, raised
from conca.types import BadInput

__all__ = ["scan", "scan_doubling", "scan_recurrence", "scan_tree"]

Triple = tuple[Tensor, Tensor, Tensor]


def scan(a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor) -> Tensor:
    """All states h_t = a_t h_{t-1} + x_t, t = 1..T, from the state h_BE before the first step.

    x (B, T, ...) with any trailing shape; a broadcasts against x, h (B, ...) against one step of x. Real and complex mix; half
    precisions are raised to float32. Returns h of the shape of x; the last state is `h[:, -1]` (h_BE itself where T = 0).
    Raises BadInput where the shapes do not fit.
    """
    a, x, h = _aligned(a_BTE, x_BTE, h_BE)
    if x.numel() == 0 or not has_kernel("scan", x.device.type):
        return scan_tree(a, x, h)
    shape = x.shape
    a, x, h = a.reshape(*shape[:2], -1), x.reshape(*shape[:2], -1), h.reshape(shape[0], -1)
    states = apply(_Scan, a, x, h) if opened(a, x, h) else _scan(a, x, h)
    return cast(Tensor, states).reshape(shape)


def scan_recurrence(a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor) -> Tensor:
    """`scan` as it is defined, one step after another."""
    a, x, h = _aligned(a_BTE, x_BTE, h_BE)
    states = []
    for a_BE, x_BE in zip(a.unbind(1), x.unbind(1)):
        h = a_BE * h + x_BE
        states.append(h)
    return torch.stack(states, 1) if states else x.clone()


def scan_tree(a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor) -> Tensor:
    """`scan` by joining the steps in pairs, scanning the pairs alike, and filling in the steps between."""
    a, x, h = _aligned(a_BTE, x_BTE, h_BE)
    return _tree(a, x, h) if x.numel() else x.clone()


def _tree(a: Tensor, x: Tensor, h: Tensor) -> Tensor:
    pairs = x.shape[1] // 2
    if pairs == 0:
        return a * h[:, None] + x
    left, right = (slice(start, 2 * pairs, 2) for start in (0, 1))
    odd = _tree(a[:, right] * a[:, left], a[:, right] * x[:, left] + x[:, right], h)
    even = a[:, ::2] * torch.cat([h[:, None], odd], 1)[:, : x.shape[1] - pairs] + x[:, ::2]
    states = torch.stack([even[:, :pairs], odd], 2).flatten(1, 2)
    return states if x.shape[1] == 2 * pairs else torch.cat([states, even[:, -1:]], 1)


def scan_doubling(a_BTE: Tensor, x_BTE: Tensor, h_BE: Tensor) -> Tensor:
    """`scan` in log2(T) passes, each of which joins every step with the one 1, 2, 4, ... steps before it."""
    a, x, h = _aligned(a_BTE, x_BTE, h_BE)
    if x.numel() == 0:
        return x.clone()
    states = torch.cat([x[:, :1] + a[:, :1] * h[:, None], x[:, 1:]], 1)
    reach, length = 1, x.shape[1]
    while reach < length:
        states = torch.cat([states[:, :reach], states[:, reach:] + a[:, reach:] * states[:, :-reach]], 1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], 1)
        reach *= 2
    return states


def _aligned(a: Tensor, x: Tensor, h: Tensor) -> Triple:
    """One dtype, and the shape of x for all."""
    if x.ndim < 2:
        raise BadInput(f"scan: x has shape {tuple(x.shape)}; it needs at least the axes (batch, time)")
    dtype = raised(torch.promote_types(torch.promote_types(a.dtype, x.dtype), h.dtype))
    a, x, h = a.to(dtype), x.to(dtype), h.to(dtype)
    try:
        return a.expand(x.shape), x, h.expand(x.shape[0], *x.shape[2:])
    except RuntimeError as error:
        shapes = f"a {tuple(a.shape)}, x {tuple(x.shape)}, h {tuple(h.shape)}"
        raise BadInput(f"scan: {shapes} do not fit; a must broadcast to x, h to x without its time axis") from error


def _before(states: Tensor, h: Tensor) -> Tensor:
    """The state before each step."""
    return torch.cat([h[:, None], states[:, :-1]], 1)


def _after(x: Tensor) -> Tensor:
    """The value of the next step, 0 at the last."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)


@torch.library.custom_op("conca::scan", mutates_args=())
def _scan(a: Tensor, x: Tensor, h: Tensor) -> Tensor:
    return cast(Tensor, bodies.required("scan", x.device.type)(a, x, h))


@_scan.register_fake
def _(a: Tensor, x: Tensor, h: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_scan.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
    states = _scan(*(fold(info.batch_size, t, d, 0) for t, d in zip(tensors, dims)))
    return states.unflatten(0, (info.batch_size, -1)), 0


@torch.library.custom_op("conca::scan_backward", mutates_args=())
def _scan_backward(a: Tensor, h: Tensor, states: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to a, x and h from the gradient `g` into all states."""
    return cast(Triple, bodies.required("scan_backward", a.device.type)(a, h, states, g))


@_scan_backward.register_fake
def _(a: Tensor, h: Tensor, states: Tensor, g: Tensor) -> Triple:
    new = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (g, g, h)]
    return new[0], new[1], new[2]


@_scan_backward.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Triple, tuple[int, int, int]]:
    da, dx, dh = _scan_backward(*(fold(info.batch_size, t, d, 0) for t, d in zip(tensors, dims)))
    shape = (info.batch_size, -1)
    return (da.unflatten(0, shape), dx.unflatten(0, shape), dh.unflatten(0, shape)), (0, 0, 0)


class _Scan(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, x: Tensor, h: Tensor) -> Tensor:
        return cast(Tensor, _scan(a, x, h))

    @staticmethod
    def setup_context(ctx: Any, inputs: Triple, output: Tensor) -> None:
        a, _, h = inputs
        ctx.save_for_backward(a, h, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Triple:
        return cast(Triple, apply(_ScanBackward, *ctx.saved_tensors, g))


class _ScanBackward(Function):
    """dx is the scan of g backward in time; da and dh are products with it. Its own derivative is a scan forward in time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, h: Tensor, states: Tensor, g: Tensor) -> Triple:
        return cast(Triple, _scan_backward(a, h, states, g))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Triple) -> None:
        a, h, states, _ = inputs
        ctx.save_for_backward(a, h, states, output[1])

    @staticmethod
    def backward(ctx: Any, ga: Tensor, gx: Tensor, gh: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a, h, states, dx = ctx.saved_tensors
        r = scan(a, gx + ga * _before(states, h), gh)
        through = ga.conj() * dx
        return dx * _before(r, gh).conj(), through[:, 0], _after(through), r
