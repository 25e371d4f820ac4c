"""Linear maps whose weights are kept in int8 or bfloat16: a quarter or half of the memory, and of the time of decoding.

    y = scale * (W x) + bias                            W in int8 with a scale for each row, or in bfloat16 without

Activations keep their type: with one row, or a few, reading W is the work, and rounding them would gain nothing. Many rows multiply
pieces of W that are widened for it. The weights are buffers: they are not trained, and gradients to the input pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registry

from conca.ops.doors import traced
from conca.ops.one_row import FEW, one_row, one_row_plain, quantised_rows
from conca.types import BadInput, nearest

__all__ = ["HalfLinear", "Int8Linear", "NarrowLinear", "linear_row", "narrowed", "plain_linear"]

PIECE = 4096
"""Rows of the weights that are widened at once for many rows of x."""


class NarrowLinear(nn.Module):
    """A linear map with narrow weights (O, K), scales (O,) or none, and a bias (O,) or none."""

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Self:
        """The same map, rounded."""
        raise NotImplementedError(f"{cls.__name__} does not define from_linear")

    def forward(self, x: Tensor) -> Tensor:
        """y (..., O) of x (..., K), in the type of x. Raises ValueError for another width, and for integers."""
        if x.dim() < 1 or x.shape[-1] != self.in_features or not x.is_floating_point():
            name = type(self).__name__
            raise ValueError(f"{name}: expected numbers (..., {self.in_features}), got {x.dtype} {tuple(x.shape)}")
        rows = x.reshape(-1, self.in_features)
        few = len(rows) <= FEW and not (torch.is_grad_enabled() and x.requires_grad)
        y = one_row(rows, self.weight, self.bias, self.scale) if few else self._many(rows)
        return y.view(*x.shape[:-1], self.out_features)

    def _many(self, x: Tensor) -> Tensor:
        scale, bias = self.scale, self.bias
        parts = [
            one_row_plain(x, self.weight[o], None if bias is None else bias[o], None if scale is None else scale[o])
            for o in (slice(i, i + PIECE) for i in range(0, self.out_features, PIECE))
        ]
        return torch.cat(parts, -1)

    def extra_repr(self) -> str:
        """Sizes, as `nn.Linear` shows them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        weight, scale = self.weight, self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.dtype != weight.dtype:  # what was rounded gains nothing by more bits
            self.weight = weight.to(self.weight.device)
        if scale is not None and self.scale is not None and self.scale.element_size() < 4:
            self.scale = scale.to(self.scale.device)
        return self


class Int8Linear(NarrowLinear):
    """Weights in int8, the largest of a row at 127."""

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Self:
        """The same map, each weight rounded to 1 / 254 of the largest of its row at most. Raises BadInput if one is not finite."""
        weight, scale = quantised_rows(linear.weight)
        return cls(weight, scale, None if linear.bias is None else linear.bias.detach().clone())


class HalfLinear(NarrowLinear):
    """Weights in bfloat16, under activations of any type."""

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Self:
        """The same map, each weight rounded to 8 bits."""
        return cls(
            linear.weight.detach().bfloat16(), None, None if linear.bias is None else linear.bias.detach().clone()
        )


KINDS: dict[str, type[NarrowLinear]] = {"int8": Int8Linear, "bfloat16": HalfLinear}


def narrowed(model: nn.Module, kind: str = "int8", names: Iterable[str] | None = None) -> nn.Module:
    """Put narrow maps in the place of the `nn.Linear` in a model, and give the model back.

    Args:
        model: changed in place; when it is itself an `nn.Linear`, its narrow map comes back.
        kind: "int8" or "bfloat16".
        names: qualified names as in `model.named_modules()`, or last parts of them ("in_proj"), one or several; None takes all.

    Raises:
        BadInput: for an unknown kind, a name that no `nn.Linear` has, and for a map that is hooked or parametrised.
    """
    if kind not in KINDS:
        raise BadInput(f"narrowed: unknown kind {kind!r}; {nearest(kind, KINDS)}")
    found = {name: module for name, module in model.named_modules(remove_duplicate=False) if type(module) is nn.Linear}
    wanted = None if names is None else {names} if isinstance(names, str) else set(names)
    for name in wanted or ():
        if not any(name in (full, full.rpartition(".")[2]) for full in found):
            raise BadInput(f"narrowed: the model has no nn.Linear named {name!r}; {nearest(name, found)}")
    made: dict[nn.Module, NarrowLinear] = {}
    for name, linear in found.items():
        if wanted is not None and not wanted & {name, name.rpartition(".")[2]}:
            continue
        if not plain_linear(linear):
            raise BadInput(f"narrowed: {name or 'the map'} is hooked or parametrised; take that away first")
        new = made.setdefault(linear, KINDS[kind].from_linear(linear))
        if not name:
            return new
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, new)
    return model


OBSERVERS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
FORWARD = nn.Linear.forward


def plain_linear(module: nn.Module) -> bool:
    """Whether calling a module is `F.linear` on its own weight and bias and nothing else: no subclass, no hook, no replaced part."""
    return (
        type(module) is nn.Linear
        and unobserved(module)
        and nn.Linear.forward is FORWARD
        and type(module._parameters.get("weight")) is nn.Parameter
        and type(module._parameters.get("bias", 0)) in (nn.Parameter, type(None))
    )


def unobserved(module: nn.Module) -> bool:
    """Whether a call of a module runs the `forward` of its class and nothing else."""
    own = vars(module)
    return not (
        any(own[name] for name in OBSERVERS)
        or any(getattr(registry, f"_global{name}") for name in OBSERVERS)
        or "forward" in own
        or own.get("_compiled_call_impl") is not None
    )


def linear_row(module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)` for x (B, K); few rows of a plain `nn.Linear` without gradients take the kernel.

    Whatever watches or replaces the module (hooks, wrappers, subclasses, parametrisations) takes effect: then it is called.
    """
    served = (
        not traced()
        and not torch.is_grad_enabled()
        and x.is_cpu
        and type(x) is Tensor
        and x.ndim == 2
        and len(x) <= FEW
        and not torch.is_autocast_enabled("cpu")
        and plain_linear(module)
        and module.weight.dtype == x.dtype
    )
    y: Tensor = one_row(x, module.weight, module.bias) if served else module(x)  # type: ignore[arg-type]
    return y
