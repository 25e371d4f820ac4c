"""Tensors of a checkpoint into a network, one after the other: each is checked, converted, narrowed and put in its place as it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from conca.layers.quantised import WIDE, put
from conca.models.language import LanguageNetwork
from conca.models.published_names import Place
from conca.models.tensor_files import Tensors
from conca.types import BadInput, nearest

__all__ = ["check_names", "filled"]

PIECE = 1 << 18
"""Numbers that are looked at together for NaN."""


def check_names(
    network: LanguageNetwork, found: Mapping[str, Place], tensors: Tensors, where: str, spare: Iterable[str] = ()
) -> None:
    """Hold names, shapes and types of a checkpoint against a network, before any number is read.

    Args:
        network: it may be without memory ("meta").
        found: where its parameters stand.
        tensors: of the checkpoint.
        where: the folder, for errors.
        spare: names that may be there and are not needed.

    Raises:
        BadInput: for a tensor that is missing, unknown, of another shape (with both), or not of floats.
    """
    wanted = dict.fromkeys(place.name for place in found.values())
    names, own = dict.fromkeys(tensors.names()), network.state_dict()
    missing = [name for name in wanted if name not in names]
    if missing:
        raise BadInput(f"{where}: the tensor '{missing[0]}' is missing{_more(missing)}; the checkpoint is not whole")
    for ours, place in found.items():
        shape, needs = tensors.shape(place.name), place.layout.shape(tuple(own[ours].shape))
        if shape != needs:
            raise BadInput(f"{where}: the tensor '{place.name}' is {shape}, the model needs {needs}")
        if not tensors.dtype(place.name).is_floating_point:
            kind = str(tensors.dtype(place.name)).removeprefix("torch.")
            raise BadInput(f"{where}: the tensor '{place.name}' is {kind}; weights that are no floats are not read")
    unknown = [name for name in names if name not in wanted and name not in spare]
    if unknown:
        hint = nearest(unknown[0], wanted) if len(wanted) < 20 else "the config describes another model"
        raise BadInput(f"{where}: unknown tensor '{unknown[0]}'{_more(unknown)}; {hint}")


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def filled(
    network: LanguageNetwork, found: Mapping[str, Place], tensors: Tensors, where: str, quantize: str | None = None
) -> LanguageNetwork:
    """Put the tensors of a checkpoint, which `check_names` has seen, into a network that was built without memory ("meta").

    Args:
        network: changed in place; its parameters have the types that they are to have.
        found: where they stand; what stands nowhere becomes 0 (the bias of a convolution without one).
        tensors: of the checkpoint.
        where: the folder, for errors.
        quantize: "int8" or "bfloat16" narrows each linear map and the table when its weight arrives.

    Raises:
        BadInput: for a tensor that holds NaN or infinity.
    """
    types = {name: parameter.dtype for name, parameter in network.named_parameters()}
    modules = network.named_modules() if quantize is not None else ()
    narrow = {f"{name}.weight" for name, module in modules if type(module) in WIDE}
    for ours, parameter in [*network.named_parameters()]:
        if ours not in found:
            put(network, ours, torch.zeros(parameter.shape, dtype=parameter.dtype))
    goals: dict[str, list[str]] = {}
    for ours, place in found.items():
        goals.setdefault(place.name, []).append(ours)
    for _, names in tensors.by_file():
        for ours in [ours for name in names for ours in goals.get(name, ())]:
            stored, layout = Stored(tensors, found[ours], where), found[ours].layout
            if ours in narrow:
                put(network, ours, stored, quantize)
            else:
                put(network, ours, layout.read(stored[:]).to(types[ours]).contiguous())
    return network


class Stored:
    """The rows of a tensor of a checkpoint that are ours, read when they are asked for. Raises BadInput for NaN and infinity in them."""

    def __init__(self, tensors: Tensors, place: Place, where: str) -> None:
        self.tensors, self.name, self.where = tensors, place.name, where
        whole = tensors.shape(place.name)
        rows = place.layout.rows(whole[0])
        self.first, self.shape = rows.start, (rows.stop - rows.start, *whole[1:])
        self.dtype, self.device = tensors.dtype(place.name), torch.device("cpu")

    def __getitem__(self, rows: slice) -> Tensor:
        first, end, _ = rows.indices(self.shape[0])
        found = self.tensors.tensor(self.name, slice(self.first + first, self.first + end))
        _check_finite(found, self.name, self.where)
        return found


def _check_finite(tensor: Tensor, name: str, where: str) -> None:
    """Raise BadInput if a tensor holds NaN or infinity."""
    if not all(bool(piece.isfinite().all()) for piece in torch.split(tensor.flatten(), PIECE)):
        raise BadInput(f"{where}: the tensor '{name}' holds NaN or infinity; the checkpoint is damaged")
