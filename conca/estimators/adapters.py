"""Adapters of low rank beside the linear maps of a language model, through PEFT: made, kept in its format, read, and merged.

    y = W x + (alpha / r) B A x          A (r, in) and B (out, r) are learnt, W is not

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from conca.estimators.arguments import folder_of
from conca.models.language import LanguageNetwork
from conca.models.run import write_tensors
from conca.train.seeds import seeded
from conca.types import BadInput, nearest

__all__ = ["is_adapted", "load_adapter", "lora", "merge", "save_adapter"]

PUBLISHED = {"mamba", "mamba2", "falcon_mamba"}
"""Families whose models in `transformers` have the same linear maps, called `backbone.layers.I.mixer.NAME`."""
TARGETS = "in_proj", "x_proj"
"""The maps of these that get an adapter: there, the others are not called, their weights are read, so an adapter would be passed over."""
SPARED = {"dt_proj"}
"""Maps that make a step of a few numbers; they are small themselves."""
OURS, THEIRS = r"stack\.parts\.(\d+)\.inner\.", r"backbone\.layers\.(\d+)\.mixer\."
NAME, PREFIX = "default", "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def lora(
    network: LanguageNetwork,
    rank: int,
    targets: Iterable[str] | None = None,
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    family: str | None = None,
) -> list[str]:
    """Put adapters beside linear maps of a network, in place; from then on nothing else of it is learnt. At first they add nothing.

    Args:
        network: what they go beside.
        rank: r.
        targets: last parts of the names of the maps; None: all within layers, but for those that make steps, or, of a family that
            `transformers` knows, those that get one there.
        alpha: scales what they add by alpha / r; None: 2 r.
        dropout: on what they read.
        seed: of A.
        family: of a published checkpoint.

    Returns:
        The names of the maps that have one now.

    Raises:
        BadInput: if no map has such a name, or the network has adapters.
        ModuleNotFoundError: without PEFT.
    """
    if is_adapted(network):
        raise BadInput("the network has an adapter already; merge it first")
    maps = {name.rpartition(".")[2] for name in linear_maps(network)}
    if targets is None:
        targets = [n for n in maps - SPARED if family not in PUBLISHED or n in TARGETS]
    wanted = sorted(set(targets))
    found = [name for name in linear_maps(network) if name.rpartition(".")[2] in wanted]
    if not found:
        known = ", ".join(sorted(maps)) if maps else "none at all"
        asked = f"called {', '.join(wanted)}" if wanted else "for it"
        raise BadInput(f"an adapter would touch nothing: the layers have no linear map {asked}; they have {known}")
    for name in wanted:
        if name not in maps:
            raise BadInput(f"no layer has a linear map called '{name}'; {nearest(name, maps)}")
    from_peft = peft()
    config = from_peft.LoraConfig(
        r=rank, lora_alpha=2 * rank if alpha is None else alpha, lora_dropout=dropout, target_modules=found
    )
    inject(network, config, seed)
    return found


def inject(network: LanguageNetwork, config: Any, seed: int) -> None:
    """Adapters as PEFT puts them in; what belongs to them is learnt, nothing else."""
    with seeded(seed):
        peft().inject_adapter_in_model(config, network, adapter_name=NAME)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_("lora_" in name)
    network.peft_config = {NAME: config}  # type: ignore[assignment]


def peft() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import peft as found
    except ModuleNotFoundError as error:
        line = f'adapters need {error.name}, which is not installed: pip install "conca[all]"'
        raise ModuleNotFoundError(line, name=error.name) from error
    return found


def linear_maps(network: LanguageNetwork) -> list[str]:
    """The names of the linear maps within layers."""
    return [f"stack.{name}" for name, part in network.stack.named_modules() if type(part) is nn.Linear]


def adapted(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The maps that have an adapter, and their names."""
    return ((name, part) for name, part in network.named_modules() if hasattr(part, "base_layer"))


def is_adapted(network: nn.Module) -> bool:
    """Whether a network has adapters."""
    return any(True for _ in adapted(network))


def save_adapter(network: LanguageNetwork, folder: str | Path, *, family: str | None = None, base: str = "") -> None:
    """Write an adapter as PEFT does: adapter_config.json and adapter_model.safetensors.

    Args:
        network: with an adapter.
        folder: it is made.
        family: of a published checkpoint; of those that `transformers` knows, the names are those of its modules, so that PEFT
            puts the adapter beside its model. Else they are ours.
        base: the checkpoint that it belongs to.

    Raises:
        BadInput: if there is no adapter.
    """
    if not is_adapted(network):
        raise BadInput("the network has no adapter to save; make one with lora")
    folder = folder_of(folder)
    folder.mkdir(parents=True, exist_ok=True)
    theirs = family in PUBLISHED
    tensors = {
        PREFIX + (re.sub(OURS, r"backbone.layers.\1.mixer.", name) if theirs else name).replace(f".{NAME}.", "."): p
        for name, p in network.state_dict().items()
        if "lora_" in name
    }
    write_tensors(folder / WEIGHTS, tensors)
    config: Any = network.peft_config[NAME]  # type: ignore[index]
    names = {name.rpartition(".")[2] for name, _ in adapted(network)}
    saved = type(config)(
        r=config.r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=sorted(names),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base or None,
        inference_mode=True,
    )
    saved.save_pretrained(str(folder))


def load_adapter(network: LanguageNetwork, folder: str | Path, *, learns: bool = False) -> None:
    """Put the adapter in a folder of PEFT's format beside the maps of a network, in place.

    Raises:
        BadInput: if it is missing, damaged, no LoRA of linear maps alone, or of another network; the message names what does not fit.
    """
    folder = folder_of(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise BadInput(f"{folder}: no adapter, {name} is missing")
    try:
        config, tensors = peft().LoraConfig.from_pretrained(str(folder)), load_file(folder / WEIGHTS)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{folder}: the adapter cannot be read ({' '.join(str(error).split())})") from None
    ours = {own_name(key): tensor for key, tensor in tensors.items()}
    known = linear_maps(network)
    names = {key.partition(".lora_")[0] for key in ours}
    for name in sorted(names):
        if name not in known:
            raise BadInput(
                f"{folder}: the adapter belongs beside '{name}', which this network does not have as a linear map"
            )
    config.target_modules, config.inference_mode = sorted(names), not learns
    check_shapes(folder, network, ours)
    inject(network, config, 0)
    own = network.state_dict()
    for key, tensor in ours.items():
        at = re.sub(r"\.(lora_\w+)\.", rf".\1.{NAME}.", key)
        if at not in own:
            raise BadInput(f"{folder}: the adapter has '{key}', which is not understood; only plain LoRA is")
        own[at].copy_(tensor)


def check_shapes(folder: Path, network: LanguageNetwork, tensors: dict[str, Tensor]) -> None:
    """Raise BadInput for an adapter of maps of other widths."""
    for key, tensor in tensors.items():
        name, _, kind = key.partition(".lora_")
        base: Any = network.get_submodule(name)
        width = base.in_features if kind.startswith("A") else base.out_features
        has = tensor.shape[-1] if kind.startswith("A") else tensor.shape[0]
        if kind[:1] in ("A", "B") and has != width:
            raise BadInput(f"{folder}: '{key}' is {tuple(tensor.shape)}, the map has width {width}")


def own_name(key: str) -> str:
    """What a tensor of an adapter is called here."""
    return re.sub("^" + THEIRS, r"stack.parts.\1.inner.", key.removeprefix(PREFIX))


def merge(network: LanguageNetwork) -> None:
    """Add what adapters say to the maps beside them, in place; what is left is a network without any, all of which can learn."""
    with torch.no_grad():
        for name, part in list(adapted(network)):
            wrapped: Any = part
            wrapped.merge()
            parent, _, last = name.rpartition(".")
            setattr(network.get_submodule(parent), last, wrapped.get_base_layer())
    if hasattr(network, "peft_config"):
        del network.peft_config
    network.requires_grad_(True)
