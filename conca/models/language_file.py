"""A language model's network as one safetensors file, narrow or not, read tensor by tensor and never there twice.

Narrow weights stand in the file as they are, `tokens.weight` in int8 and `tokens.scale` in float32 beside it; which model a file belongs
to, and that it is narrow ("quantized": "int8"), is said where its description is.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from conca.layers.quantised import put, skeleton
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.run import new_file, umask
from conca.types import BadInput

__all__ = ["load_network", "network_skeleton", "save_network"]


def network_skeleton(config: LanguageConfig, quantized: str | None = None) -> LanguageNetwork:
    """The network without numbers, under torch.device("meta"), in eval(); `quantized`: what its maps and its table are kept in.

    Layers that need numbers to be made (S4, S5) are made with them, on the CPU. Raises BadInput for a pattern that cannot be built, and
    an unknown kind.
    """
    try:
        with torch.device("meta"):
            network = LanguageNetwork(config)
        hollow = _filled_by_name(network)
    except BadInput:
        hollow = False
    network = (network if hollow else LanguageNetwork(config)).eval()
    return network if quantized is None else cast(LanguageNetwork, skeleton(network, quantized))


def _filled_by_name(network: LanguageNetwork) -> bool:
    """Whether all that a network holds is in its state_dict."""
    held = [name for name, _ in chain(network.named_parameters(), network.named_buffers())]
    loose = any(isinstance(value, Tensor) for module in network.modules() for value in vars(module).values())
    return not loose and set(held) <= set(network.state_dict())


def save_network(network: LanguageNetwork, path: Path) -> None:
    """Write what a network holds to `path`, whole or not at all."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    part = new_file(path)
    try:
        save_file(tensors, part)
        part.chmod(0o666 & ~umask())  # it makes its file anew
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_network(
    config: LanguageConfig, path: Path, *, quantized: str | None = None, quantize: str | None = None
) -> LanguageNetwork:
    """The network that `save_network` wrote, in eval().

    Args:
        config: its description.
        path: the file.
        quantized: what its maps and its table are kept in there, "int8", "bfloat16" or None.
        quantize: what they are narrowed to while they are read; None: they stay as they are.

    Raises:
        BadInput: for a file that is missing or broken, tensors that are missing, too many or of another shape or type, an unknown kind,
            and for narrowing what is already narrow.
    """
    if quantized is not None and quantize not in (None, quantized):
        raise BadInput(
            f"{path}: its weights are kept in {quantized}; take the model they were made of to have {quantize}"
        )
    if not path.is_file():
        raise BadInput(f"{path}: is missing")
    network = network_skeleton(config, quantized)
    wanted = set(network.state_dict())
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name in sorted(wanted - names):
                raise BadInput(f"{path}: the tensor '{name}' is missing; the file belongs to another model")
            for name in names:
                put(network, name, file.get_tensor(name), None if quantized else quantize)
    except SafetensorError as error:
        line = " ".join(str(error).split())
        raise BadInput(f"{path}: not a whole safetensors file ({line}); copy it again") from None
    except BadInput as error:
        raise error if str(path) in str(error) else BadInput(f"{path}: {error}") from None
    return network
