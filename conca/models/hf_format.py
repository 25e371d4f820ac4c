"""Mamba, Mamba-2 and FalconMamba written as transformers reads them: config.json, generation_config.json, safetensors, in shards."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from conca.layers.mamba import Mamba
from conca.layers.mamba2 import Mamba2
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.published_configs import SPECIAL
from conca.models.published_names import Place, places
from conca.models.run import umask
from conca.models.stack import Block
from conca.types import BadInput

__all__ = ["save_hf"]

MODEL = "model.safetensors"
SHARD = 5 << 30
"""Bytes of a file of weights, unless a single tensor has more."""
CLASSES = {
    "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
}


def save_hf(
    network: LanguageNetwork,
    config: LanguageConfig,
    folder: Path,
    *,
    generation: Mapping[str, Any] | None = None,
    shard: int = SHARD,
    also: Callable[[Path], None] | None = None,
) -> None:
    """Write a network as a checkpoint that transformers (and `read_pretrained`) reads; the folder is whole or not there.

    Args:
        network: blocks of Mamba alone, or of Mamba-2 alone, all with the same options.
        config: its description.
        folder: to be made; it may be there if it is empty.
        generation: becomes generation_config.json; its special tokens stand in config.json too.
        shard: bytes of a file of weights at most.
        also: is called with the folder before it has its name, to put more into it.

    Raises:
        BadInput: for a network that transformers has no model for, narrow weights, and a folder that is not empty.
    """
    described = _described(network, config) | {name: (generation or {}).get(name) for name in SPECIAL}
    folder = folder.absolute()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise BadInput(f"{folder}: exists; name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    try:
        _write(temporary / "config.json", described)
        _write(
            temporary / "generation_config.json", {"_from_model_config": generation is None} | dict(generation or {})
        )
        _write_weights(network, temporary, shard)
        if also is not None:
            also(temporary)
        temporary.chmod(0o777 & ~umask())
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write(path: Path, table: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def _write_weights(network: LanguageNetwork, folder: Path, shard: int) -> None:
    """The tensors, in files of at most `shard` bytes, with an index where there are several."""
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    files: list[dict[str, tuple[Tensor, Place]]] = [{}]
    size = total = 0
    for ours, place in places(network).items():
        total += own[ours].nbytes
        if size + own[ours].nbytes > shard and files[-1]:
            files.append({})
            size = 0
        size += own[ours].nbytes
        files[-1][place.name] = own[ours].detach(), place
    index: dict[str, str] = {}
    for i, names in enumerate(files, 1):
        file = MODEL if len(files) == 1 else f"model-{i:05}-of-{len(files):05}.safetensors"
        tensors = {name: at.layout.write(t.cpu()).contiguous() for name, (t, at) in names.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(names, file)
    if len(files) > 1:
        _write(folder / f"{MODEL}.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def _described(network: LanguageNetwork, config: LanguageConfig) -> dict[str, Any]:
    """What config.json says. Raises BadInput for a network that it has no words for."""
    layers = [part.inner if isinstance(part, Block) else part for part in network.stack.parts]
    other = next((layer for layer in layers if not isinstance(layer, Mamba | Mamba2)), None)
    if other is not None:
        raise BadInput(
            f"layers {config.layers!r}: transformers has no model with {type(other).__name__}; it has Mamba alone and "
            "Mamba2 alone. Save it as a run of conca"
        )
    own = [layer for layer in layers if isinstance(layer, Mamba | Mamba2)]
    facts = [_of_mamba(layer) if isinstance(layer, Mamba) else _of_mamba2(layer, config) for layer in own]
    if any(one != two for one, two in pairwise(facts)):
        raise BadInput(f"layers {config.layers!r}: in a model of transformers all layers have the same options")
    weight = own[0].in_proj.weight
    if not all(type(m) is nn.Linear for layer in own for m in (layer.in_proj, layer.out_proj)):
        raise BadInput("narrow weights are not written in the format of transformers; save the model as it was read")
    kind, dtype = facts[0]["model_type"], str(weight.dtype).removeprefix("torch.")
    return facts[0] | {
        "architectures": [CLASSES[kind]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": len(own),
        "layer_norm_epsilon": config.eps,
        "hidden_act": "silu",
        "use_conv_bias": True,
        "residual_in_fp32": weight.dtype.itemsize <= 4,
        "tie_word_embeddings": config.tied,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def _of_mamba(layer: Mamba) -> dict[str, Any]:
    """The options of a Mamba layer."""
    if layer.hold != "euler":
        raise BadInput(f"transformers has no Mamba with hold={layer.hold!r}; save it as a run of conca")
    norm = {"model_type": "mamba"} if layer.select_norm is None else {"model_type": "falcon_mamba"}
    return norm | {
        "state_size": layer.d_state,
        "conv_kernel": layer.conv.d_conv,
        "expand": max(1, layer.d_inner // layer.d_model),
        "intermediate_size": layer.d_inner,
        "time_step_rank": layer.dt_rank,
        "use_bias": layer.in_proj.bias is not None,
        **({} if layer.select_norm is None else {"mixer_rms_eps": layer.select_norm}),
    }


def _of_mamba2(layer: Mamba2, config: LanguageConfig) -> dict[str, Any]:
    """The options of a Mamba-2 layer."""
    gate = layer.gate
    if not gate.norm or gate.norm_first or gate.eps != config.eps or gate.groups not in (None, layer.n_groups):
        line = f"its norm comes after the gate, has n_groups groups, and the eps of the other norms ({config.eps})"
        raise BadInput(f"transformers has no Mamba-2 with this gate: {line}; save it as a run of conca")
    limit = layer.decay.limit
    return {
        "model_type": "mamba2",
        "state_size": layer.d_state,
        "conv_kernel": layer.conv.d_conv,
        "expand": layer.d_inner // layer.d_model,
        "num_heads": layer.n_heads,
        "head_dim": layer.d_head,
        "n_groups": layer.n_groups,
        "use_bias": layer.in_proj.bias is not None,
        **({} if limit == (0.0, float("inf")) else {"time_step_limit": list(limit)}),
    }
