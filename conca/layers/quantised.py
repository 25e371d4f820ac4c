"""Linear maps and tables whose weights are kept in int8 or bfloat16: a quarter or half of the memory, and of the time of decoding.

`narrowed` makes them of a model that is there; `put` and `skeleton` while one is read, so that it never has to be there whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registry

from conca.layers.narrow import DTYPES, Narrow, empty_rows, rounded_rows
from conca.layers.narrow_embedding import NarrowEmbedding
from conca.layers.tied_embedding import TiedEmbedding
from conca.ops.doors import traced
from conca.ops.one_row import FEW, Matrix, one_row
from conca.types import BadInput, nearest

__all__ = [
    "HalfLinear",
    "Int8Linear",
    "NarrowLinear",
    "kind_of",
    "linear_row",
    "narrow_of",
    "narrowed",
    "plain_linear",
    "put",
    "skeleton",
]

Rows = tuple[Tensor, Tensor | None]


class NarrowLinear(Narrow):
    """A linear map with narrow weights (O, K), scales (O,) or none, and a bias (O,) or none."""

    keeps: ClassVar[str]

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(weight, scale, bias)
        self.out_features, self.in_features = weight.shape

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Self:
        """The same map, rounded. Raises BadInput if a weight is not finite."""
        weight, scale = rounded_rows(linear.weight, cls.keeps)
        return cls(weight, scale, None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """y (..., O) of x (..., K), in the type of x. Raises ValueError for another width, and for integers."""
        return self.product(x)

    def extra_repr(self) -> str:
        """Sizes, as `nn.Linear` shows them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8Linear(NarrowLinear):
    """Weights in int8, the largest of a row at 127: each is rounded to 1 / 254 of it at most."""

    keeps = "int8"


class HalfLinear(NarrowLinear):
    """Weights in bfloat16, 8 bits each, under activations of any type."""

    keeps = "bfloat16"


KINDS: dict[str, type[NarrowLinear]] = {"int8": Int8Linear, "bfloat16": HalfLinear}
WIDE = nn.Linear, TiedEmbedding
"""What is narrowed."""


def narrowed(model: nn.Module, kind: str = "int8", names: Iterable[str] | None = None) -> nn.Module:
    """Put narrow maps and tables in the place of the `nn.Linear` and `TiedEmbedding` in a model, and give the model back.

    A weight that two of them share stays shared.

    Args:
        model: changed in place; when it is itself an `nn.Linear` or `TiedEmbedding`, its narrow one comes back.
        kind: "int8" or "bfloat16".
        names: qualified names as in `model.named_modules()`, or last parts of them ("in_proj"), one or several; None takes all.

    Raises:
        BadInput: for an unknown kind, a name that nothing to narrow has, and for a map that is hooked or parametrised.
    """
    if kind not in KINDS:
        raise BadInput(f"narrowed: unknown kind {kind!r}; {nearest(kind, KINDS)}")
    found = {name: module for name, module in model.named_modules(remove_duplicate=False) if type(module) in WIDE}
    wanted = None if names is None else {names} if isinstance(names, str) else set(names)
    for name in wanted or ():
        if not any(name in (full, full.rpartition(".")[2]) for full in found):
            raise BadInput(
                f"narrowed: the model has no nn.Linear or TiedEmbedding named {name!r}; {nearest(name, found)}"
            )
    made: dict[nn.Module, nn.Module] = {}
    rounded: dict[Tensor, Rows] = {}
    for name, module in found.items():
        if wanted is not None and not wanted & {name, name.rpartition(".")[2]}:
            continue
        weight = module._parameters.get("weight")
        if not unchanged(module) or weight is None:
            raise BadInput(f"narrowed: {name or 'the map'} is hooked or parametrised; take that away first")
        if module not in made:
            if weight not in rounded:
                rounded[weight] = rounded_rows(weight, kind)
            made[module] = _around(kind, module, *rounded[weight])
        if not name:
            return made[module]
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made[module])
    return model


def narrow_of(kind: str, module: nn.Module, weight: Matrix) -> Narrow:
    """The narrow module with this weight that takes the place of an `nn.Linear` or `TiedEmbedding`; of the module only the bias is kept.

    Raises:
        BadInput: for an unknown kind, another module, another shape, and a weight that is not finite.
    """
    if type(module) not in WIDE:
        raise BadInput(f"narrowed: {type(module).__name__} is neither an nn.Linear nor TiedEmbedding")
    if module.weight.shape != weight.shape:
        raise BadInput(f"narrowed: expected a weight {tuple(module.weight.shape)}, got {tuple(weight.shape)}")  # type: ignore[arg-type]
    return _around(kind, module, *rounded_rows(weight, kind))


def _around(kind: str, module: nn.Module, weight: Tensor, scale: Tensor | None) -> Narrow:
    """A narrow module in the place of another, with the rows given to it."""
    own = module.weight
    assert isinstance(own, Tensor)
    scale = None if scale is None else scale.to(torch.promote_types(own.dtype, torch.float32))
    new: Narrow
    if isinstance(module, TiedEmbedding):
        new = NarrowEmbedding(weight, scale, dtype=own.dtype)
    else:
        bias = module.bias
        new = KINDS[kind](weight, scale, bias.detach().clone() if isinstance(bias, Tensor) else None)
    return new.train(module.training)


def skeleton(model: nn.Module, kind: str) -> nn.Module:
    """Put narrow modules without numbers in the place of every `nn.Linear` and `TiedEmbedding`, for `load_state_dict(..., assign=True)`.

    Those of a model under torch.device("meta") take no memory. Raises BadInput for an unknown kind.
    """
    for name, module in [*model.named_modules(remove_duplicate=False)]:
        if type(module) in WIDE and name:
            parent, _, last = name.rpartition(".")
            new = _around(kind, module, *empty_rows(module.weight, kind))
            setattr(model.get_submodule(parent), last, new)
    return model


def put(model: nn.Module, name: str, tensor: Matrix, kind: str | None = None) -> None:
    """A tensor that has been read takes its place in a model that was built under torch.device("meta"), as it is.

    Args:
        model: has a parameter or buffer of this name.
        name: as in its state_dict.
        tensor: its numbers; weights to narrow may be read while they are asked for.
        kind: the weights of `nn.Linear` and `TiedEmbedding` are narrowed on the way, "int8" or "bfloat16"; None: they are not.

    Raises:
        BadInput: for a name the model does not have, another shape, an unknown kind, and a weight to narrow that is not finite.
    """
    path, _, last = name.rpartition(".")
    places = dict(model.named_modules(remove_duplicate=False))
    module = places.get(path)
    slots = {} if module is None else module._parameters if last in module._parameters else module._buffers
    old = slots.get(last)
    if module is None or old is None:
        raise BadInput(f"the model has no tensor '{name}'; {nearest(name, model.state_dict())}")
    if old.shape != tensor.shape:
        raise BadInput(f"'{name}' is {tuple(tensor.shape)}, but the model has {tuple(old.shape)} there")
    if kind is not None and last == "weight" and type(module) in WIDE:
        new = narrow_of(kind, module, tensor)
        for full, other in places.items():
            if other is module:
                parent, _, own = full.rpartition(".")
                setattr(places[parent], own, new)
        return
    tensor = tensor if isinstance(tensor, Tensor) else tensor[:]
    if last in module._parameters:
        module._parameters[last] = nn.Parameter(tensor, requires_grad=old.requires_grad and tensor.is_floating_point())
    elif isinstance(module, Narrow) and last == "weight" and tensor.dtype != old.dtype:
        raise BadInput(f"'{name}' is {tensor.dtype}, but the model keeps it in {old.dtype}")
    else:
        module._buffers[last] = tensor


def kind_of(model: nn.Module) -> str | None:
    """What the weights of a model are kept in: "int8" if any are, "bfloat16" if any are, None if it has no narrow module."""
    found = {module.kind for module in model.modules() if isinstance(module, Narrow)}
    return next((kind for kind in DTYPES if kind in found), None)


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


def unchanged(module: nn.Module) -> bool:
    """Whether a map or a table is only its own weight and bias: no hook, no replaced part."""
    if type(module) is nn.Linear:
        return plain_linear(module)
    return unobserved(module) and type(module._parameters.get("weight")) is nn.Parameter


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
