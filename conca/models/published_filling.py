"""Tensors of a checkpoint into a network, one after the other: each is checked, converted, narrowed and put in its place as it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from conca.layers.mixer import Mixer
from conca.layers.quantised import KINDS, NarrowLinear
from conca.models.language import LanguageNetwork
from conca.models.published_names import Place
from conca.models.tensor_files import Tensors
from conca.types import BadInput, nearest

__all__ = ["check_names", "filled"]

PIECE = 1 << 22
"""Numbers that are looked at together for NaN."""


def check_names(
    network: LanguageNetwork, found: Mapping[str, Place], tensors: Tensors, where: str, spare: Iterable[str] = ()
) -> None:
    """Hold names and shapes of a checkpoint against a network.

    Args:
        network: it may be without memory ("meta").
        found: where its parameters stand.
        tensors: of the checkpoint.
        where: the folder, for errors.
        spare: names that may be there and are not needed.

    Raises:
        BadInput: for a tensor that is missing, unknown, or of another shape (with both).
    """
    names, own = set(tensors.names()), network.state_dict()
    wanted = {place.name for place in found.values()}
    missing = [name for name in dict.fromkeys(place.name for place in found.values()) if name not in names]
    unknown = [name for name in tensors.names() if name not in wanted and name not in spare]
    if missing:
        raise BadInput(f"{where}: the tensor '{missing[0]}' is missing{_more(missing)}; the checkpoint is not whole")
    for ours, place in found.items():
        shape, needs = tensors.shape(place.name), place.layout.shape(tuple(own[ours].shape))
        if shape != needs:
            raise BadInput(f"{where}: the tensor '{place.name}' is {shape}, the model needs {needs}")
        if not tensors.dtype(place.name).is_floating_point:
            kind = str(tensors.dtype(place.name)).removeprefix("torch.")
            raise BadInput(f"{where}: the tensor '{place.name}' is {kind}; weights that are no floats are not read")
    if unknown:
        hint = nearest(unknown[0], wanted)
        raise BadInput(
            f"{where}: unknown tensor '{unknown[0]}'{_more(unknown)}; {hint if 'mean' in hint else 'the config speaks of another model'}"
        )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def filled(
    network: LanguageNetwork,
    found: Mapping[str, Place],
    tensors: Tensors,
    where: str,
    *,
    dtype: torch.dtype,
    quantize: str | None = None,
) -> LanguageNetwork:
    """Put the tensors of a checkpoint, which `check_names` has seen, into a network that was built without memory ("meta").

    Args:
        network: changed in place.
        found: where its parameters stand; what stands nowhere becomes 0 (the bias of a convolution without one).
        tensors: of the checkpoint.
        where: the folder, for errors.
        dtype: of the parameters; those of the recurrence are float32 or better.
        quantize: "int8" or "bfloat16" narrows each linear map when its weight arrives.

    Raises:
        BadInput: for a tensor that holds NaN or infinity.
    """
    wide = {
        f"{prefix}.{name}"
        for prefix, module in network.named_modules()
        if isinstance(module, Mixer)
        for name, role in module.roles().items()
        if role.float32
    }
    needed = torch.promote_types(dtype, torch.float32)
    for ours, parameter in list(network.named_parameters()):
        if ours not in found:
            put(network, ours, torch.zeros(parameter.shape, dtype=needed if ours in wide else dtype))
    goals: dict[str, list[str]] = {}
    for ours, place in found.items():
        goals.setdefault(place.name, []).append(ours)
    for _, names in tensors.by_file():
        for name in names:
            if name not in goals:
                continue
            tensor = tensors.tensor(name)
            check_finite(tensor, name, where)
            for ours in goals[name]:
                part = found[ours].layout.read(tensor)
                narrow = quantize is not None and isinstance(_module(network, ours), nn.Linear)
                to = part.dtype if narrow and ours.endswith("weight") else needed if ours in wide else dtype
                own = (
                    part.to(to)
                    if part.is_contiguous() and part.numel() == tensor.numel()
                    else part.to(to).clone(memory_format=torch.contiguous_format)
                )
                put(network, ours, own, quantize)
    return network


def check_finite(tensor: Tensor, name: str, where: str) -> None:
    """Raise BadInput if a tensor holds NaN or infinity."""
    if not all(bool(piece.isfinite().all()) for piece in torch.split(tensor.flatten(), PIECE)):
        raise BadInput(f"{where}: the tensor '{name}' holds NaN or infinity; the checkpoint is damaged")


def _module(network: nn.Module, name: str) -> nn.Module:
    return network.get_submodule(name.rpartition(".")[0])


def put(network: LanguageNetwork, name: str, tensor: Tensor, quantize: str | None = None) -> None:
    """Put a tensor in the place of a parameter."""
    place, _, last = name.rpartition(".")
    module = network.get_submodule(place)
    if isinstance(module, NarrowLinear):
        setattr(module, last, tensor)
        return
    setattr(module, last, nn.Parameter(tensor))
    if quantize is None or last != "weight":
        return
    if isinstance(module, nn.Linear):
        parent, _, own = place.rpartition(".")
        setattr(network.get_submodule(parent), own, KINDS[quantize].from_linear(module))
