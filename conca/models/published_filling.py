"""Tensors of a checkpoint into a network, one after the other: each is checked, converted, narrowed and put in its place as it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from conca.layers.quantised import put
from conca.layers.tied_embedding import TiedEmbedding
from conca.models.language import LanguageNetwork
from conca.models.published_names import Place
from conca.models.tensor_files import Tensors
from conca.types import BadInput, nearest

__all__ = ["check_names", "filled"]

PIECE = 1 << 20
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
    if quantize is not None:  # what is narrowed comes as it is stored
        maps = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | TiedEmbedding)]
        types |= {f"{name}.weight": tensors.dtype(found[f"{name}.weight"].name) for name in maps}
    for ours, parameter in [*network.named_parameters()]:
        if ours not in found:
            put(network, ours, torch.zeros(parameter.shape, dtype=parameter.dtype))
    goals: dict[str, list[str]] = {}
    for ours, place in found.items():
        goals.setdefault(place.name, []).append(ours)
    for _, names in tensors.by_file():
        for name in names:
            if name in goals:
                tensor = tensors.tensor(name)
                _check_finite(tensor, name, where)
                for ours in goals[name]:
                    put(network, ours, _own(found[ours].layout.read(tensor), tensor, types[ours]), quantize)
    return network


def _own(part: Tensor, whole: Tensor, dtype: torch.dtype) -> Tensor:
    """What is kept of a tensor: contiguous, without the memory of the rest of it."""
    wanted = part.to(dtype)
    shared = wanted.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() and len(wanted) < len(whole)
    return wanted.clone(memory_format=torch.contiguous_format) if shared else wanted.contiguous()


def _check_finite(tensor: Tensor, name: str, where: str) -> None:
    """Raise BadInput if a tensor holds NaN or infinity."""
    if not all(bool(piece.isfinite().all()) for piece in torch.split(tensor.flatten(), PIECE)):
        raise BadInput(f"{where}: the tensor '{name}' holds NaN or infinity; the checkpoint is damaged")
