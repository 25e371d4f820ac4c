"""Attacks on classifiers: changes of a limited size by which a class is lost, looked for by projected ascent."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from conca.energy.chain import undisturbed
from conca.energy.classifier import labels_of
from conca.energy.draws import norm as length_of
from conca.energy.draws import positive, whole
from conca.energy.network import value_of
from conca.types import BadInput

__all__ = ["pgd"]


def pgd(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    size: float,
    *,
    norm: Literal["linf", "l2"] = "linf",
    steps: int = 40,
    step: float | None = None,
    bounds: tuple[float, float] | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Points no further than `size` from x at which the cross entropy of y is as high as projected ascent finds it.

    The ascent is along the slope of the margin, m = logsumexp of the other logits - that of y. Cross entropy is
    log(1 + exp(m)), so it is the same way and the same winner; but m does not go flat where the network is very sure.

    Args:
        net: gives logits (B, K); it is asked in eval mode, and left as it was.
        x, y: data (B, ...), floating point, and labels (B,).
        size: of the ball around each row, 0 or more.
        norm: "linf" (no coordinate moves further) or "l2" (the whole row does not).
        steps, step: of the ascent; a step is 2.5 size / steps where it is not given.
        bounds: (low, high) of the data, never left.
        generator: with one, each row starts at random in its ball; without, at x.

    Returns:
        (B, ...), of the steps of each row that with the highest cross entropy.

    Raises:
        BadInput: for another norm, sizes, steps or bounds that cannot be, data that are no floating-point numbers or out of
            bounds, labels that do not fit, and networks whose logits are not finite or do not depend on x by a slope.

    Source: Madry et al. 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks".
    """
    stride = _checked(x, size, norm, steps, step, bounds)
    x = x.detach()
    near = x if generator is None else _projected(x, x + _start(x, size, norm, generator), size, norm, bounds)
    best, most = near, torch.full((len(x),), -math.inf, dtype=x.dtype, device=x.device)
    with torch.inference_mode(False), undisturbed(net, x):
        net.eval()
        for k in range(steps + 1):
            margin, slope = _ascent(net, near.clone(), y)
            better = margin > most
            best, most = torch.where(_rows(better, x), near, best), torch.where(better, margin, most)
            if k < steps:
                near = _projected(x, near + stride * _direction(slope, norm), size, norm, bounds)
    return best


def _checked(
    x: Tensor, size: float, norm: str, steps: int, step: float | None, bounds: tuple[float, float] | None
) -> float:
    """The length of a step."""
    if norm not in ("linf", "l2"):
        raise BadInput(f"norm must be 'linf' or 'l2', not {norm!r}")
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not (size >= 0 and math.isfinite(size)):
        raise BadInput(f"the size of an attack must be 0 or more and finite, not {size!r}")
    whole(steps, "the steps of an attack")
    if not x.is_floating_point() or x.dim() < 2:
        raise BadInput(f"an attack changes floating-point data of shape (B, ...), not {x.dtype} of {tuple(x.shape)}")
    if bounds is not None and not bounds[0] < bounds[1]:
        raise BadInput(f"bounds are (low, high), low below high, not {bounds}")
    if bounds is not None and not bool(((x >= bounds[0]) & (x <= bounds[1])).all()):
        low, high = float(x.min()), float(x.max())
        raise BadInput(f"the data lie between {low:g} and {high:g}, out of bounds={bounds}; bounds are in units of x")
    return 2.5 * size / steps if step is None else positive(step, "the step of an attack")


def _ascent(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Margins (B,) and their slope in x."""
    with torch.enable_grad():
        x.requires_grad_()
        logits = value_of(net(x))
        if logits.dim() != 2 or len(logits) != len(x) or logits.shape[1] < 2:
            shape = tuple(logits.shape)
            raise BadInput(f"an attack needs logits of two classes or more, ({len(x)}, K), not of shape {shape}")
        if not bool(logits.isfinite().all()):
            rows = int((~logits.isfinite().all(1)).sum())
            raise BadInput(
                f"the logits of {rows} of {len(x)} rows are not finite: what cannot be judged is not attacked"
            )
        if not logits.requires_grad:
            raise BadInput("the logits have no slope in x; the network must not detach it or run without gradients")
        own = labels_of(y, logits)[:, None]
        margin = logits.scatter(1, own, -math.inf).logsumexp(1) - logits.gather(1, own)[:, 0]
        (slope,) = torch.autograd.grad(margin.sum(), x)
    return margin.detach(), slope


def _rows(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.dim() - 1))


def _direction(slope: Tensor, kind: str) -> Tensor:
    """The steepest direction of length 1: of signs, or along the slope; 0 where that is 0."""
    if kind == "linf":
        return slope.sign()
    length = _rows(length_of(slope), slope)
    return torch.where(length > 0, slope / length.clamp(min=torch.finfo(slope.dtype).tiny), 0)


def _start(x: Tensor, size: float, kind: str, generator: torch.Generator) -> Tensor:
    """A place in the ball around 0, uniform in it."""
    if kind == "linf":
        return size * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) - 1)
    way = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    radius = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device) ** (
        1 / max(1, math.prod(x.shape[1:]))
    )
    return way * _rows(size * radius / length_of(way), x)


def _projected(x: Tensor, near: Tensor, size: float, kind: str, bounds: tuple[float, float] | None) -> Tensor:
    """The nearest place in the ball around x, and within the bounds."""
    apart = near - x
    if kind == "linf":
        apart = apart.clamp(-size, size)
    else:
        length = _rows(length_of(apart), x)
        apart = torch.where(length > size, apart * (size / length.clamp(min=torch.finfo(x.dtype).tiny)), apart)
    return x + apart if bounds is None else (x + apart).clamp(*bounds)
