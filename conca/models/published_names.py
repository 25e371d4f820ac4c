"""Names of published weights beside ours: where each parameter of a language model stands in a checkpoint, and in which layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from conca.layers.gated_mlp import GatedMLP
from conca.layers.mamba import Mamba
from conca.models.language import LanguageNetwork
from conca.models.stack import Block
from conca.types import BadInput

__all__ = ["CONV", "GATE", "SAME", "VALUE", "Layout", "Place", "Prefixes", "places"]

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """How a tensor is laid out there: ours from theirs, theirs from ours, their shape from ours, and which of their rows are ours."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]
    shape: Callable[[Shape], Shape]
    rows: Callable[[int], slice] = lambda count: slice(0, count)


SAME = Layout(lambda t: t, lambda t: t, lambda shape: shape)
CONV = Layout(
    lambda t: t[:, 0].flip(1), lambda t: t.flip(1)[:, None], lambda shape: (shape[0], 1, *shape[1:])
)  # the present stands first in ours
VALUE = Layout(lambda t: t, lambda t: t, lambda shape: (2 * shape[0], *shape[1:]), lambda count: slice(0, count // 2))
GATE = Layout(
    lambda t: t, lambda t: t, lambda shape: (2 * shape[0], *shape[1:]), lambda count: slice(count // 2, count)
)
RENAMED = {"conv.weight": "conv1d.weight", "conv.bias": "conv1d.bias"}
MLP = {
    "gate.weight": ("mlp.fc1.weight", GATE),
    "inner.weight": ("mlp.fc1.weight", VALUE),
    "out.weight": ("mlp.fc2.weight", SAME),
}


class Place(NamedTuple):
    """A tensor of a checkpoint, and the layout in which a parameter stands there."""

    name: str
    layout: Layout


class Prefixes(NamedTuple):
    """What comes before the names of layers, the name of the table, and that of the head."""

    backbone: str = "backbone."
    table: str = "backbone.embeddings.weight"
    head: str = "lm_head.weight"


USUAL = Prefixes()


def places(network: LanguageNetwork, prefixes: Prefixes = USUAL) -> dict[str, Place]:
    """Where each parameter stands, by our name.

    Raises:
        BadInput: for a stack that no published format has names for.
    """
    found = {
        "embedding.weight": Place(prefixes.table, SAME),
        "norm.weight": Place(f"{prefixes.backbone}norm_f.weight", SAME),
    }
    if network.head is not None:
        found["head.weight"] = Place(prefixes.head, SAME)
    layer = -1
    for i, part in enumerate(network.stack.parts):
        inner = part.inner if isinstance(part, Block) else part
        if not isinstance(inner, GatedMLP):
            layer += 1
        elif layer < 0:
            raise BadInput("a published checkpoint has no name for a gated MLP before the first layer")
        ours, theirs = f"stack.parts.{i}", f"{prefixes.backbone}layers.{layer}"
        found[f"{ours}.norm.weight"] = Place(f"{theirs}.norm{'2' * isinstance(inner, GatedMLP)}.weight", SAME)
        for name, place in _inner(inner).items():
            found[f"{ours}.inner.{name}"] = Place(f"{theirs}.{place.name}", place.layout)
    return found


def _inner(inner: nn.Module) -> dict[str, Place]:
    """Where the parameters of a mixer stand, within its layer."""
    own = [*inner.state_dict()]
    if isinstance(inner, GatedMLP):
        return {name: Place(*MLP[name]) for name in own if name in MLP}
    renamed = RENAMED | ({"dt_bias": "dt_proj.bias"} if isinstance(inner, Mamba) else {})
    return {name: Place(f"mixer.{renamed.get(name, name)}", CONV if name == "conv.weight" else SAME) for name in own}
