"""Published checkpoints as language models: of mamba_ssm, of transformers, FalconMamba, Codestral; sizes come from the shapes.

The network is built without memory and filled tensor by tensor, so a model takes its own size and never two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from conca.layers.quantised import KINDS
from conca.models import published_configs
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.published_filling import check_names, filled
from conca.models.published_names import places
from conca.models.published_sizes import Sizes, found_prefixes
from conca.models.tensor_files import TensorFiles, Tensors, read_json
from conca.ops.one_row import row_pieces
from conca.types import BadInput, nearest

__all__ = ["Pretrained", "pretrained", "read_pretrained"]


@dataclass
class Pretrained:
    """A checkpoint, read.

    config      what describes the network; its pattern holds every option
    network     in evaluation mode
    family      "mamba", "mamba2", "mamba3" or "falcon_mamba"
    generation  generation_config.json, or the special tokens of the config
    notices     what was taken without being said, for whoever reads
    """

    config: LanguageConfig
    network: LanguageNetwork
    family: str
    generation: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def read_pretrained(
    place: Path,
    *,
    dtype: torch.dtype | None = None,
    quantize: str | None = None,
    options: Mapping[str, Any] = {},
) -> Pretrained:
    """Read the folder of a checkpoint.

    Args:
        place: with config.json (or params.json) and weights.
        dtype: of the parameters, but for those of the recurrence, which are float32 or better; None: as stored.
        quantize: "int8" or "bfloat16" narrows every linear map as it arrives; the rest is float32 then, unless `dtype` says otherwise.
        options: what no checkpoint says: `activation` ("heavy-tail" or "softplus") and `pairing` ("neighbours" or "halves") of
            Mamba-3, `norm_groups` of Mamba-2.

    Raises:
        BadInput: for a folder that is none, without config or weights, an unknown architecture, sizes that contradict each other, and
            tensors that are missing, unknown, of another shape, or not finite.
    """
    path = next((place / name for name in ("config.json", "params.json") if (place / name).is_file()), None)
    if path is None and place.is_dir():
        raise BadInput(f"{place}: no config.json and no params.json; name the folder of a checkpoint")
    with TensorFiles(place) as tensors:
        config = read_json(path or place / "config.json")
        if (place / "generation_config.json").is_file():
            said = read_json(place / "generation_config.json")
            generation = {
                name: value
                for name, value in said.items()
                if not name.startswith("_") and name != "transformers_version"
            }
        else:
            generation = {name: config[name] for name in published_configs.SPECIAL if config.get(name) is not None}
        return pretrained(
            config, tensors, where=str(place), dtype=dtype, quantize=quantize, options=options, generation=generation
        )


def pretrained(
    described: Mapping[str, Any],
    tensors: Tensors,
    *,
    where: str,
    dtype: torch.dtype | None = None,
    quantize: str | None = None,
    options: Mapping[str, Any] = {},
    generation: Mapping[str, Any] = {},
) -> Pretrained:
    """The language model of a config and of tensors with published names, wherever they come from.

    Args:
        described: what a config.json says.
        tensors: in the names and layouts of mamba_ssm or transformers.
        where: where they come from, for errors.
        dtype, quantize, options: as in `read_pretrained`.
        generation: is passed on.

    Raises:
        BadInput: as `read_pretrained` does.
    """
    if quantize is not None and quantize not in KINDS:
        raise BadInput(f"quantize: unknown kind {quantize!r}; {nearest(quantize, KINDS)}")
    prefixes = found_prefixes(tensors, where)
    sizes = Sizes(tensors, published_configs.said(described, where), prefixes, options)
    vocab_size, n_tokens, d_model = sizes.rows()
    tied = _tied(tensors, sizes, where)
    config = LanguageConfig(vocab_size, n_tokens, sizes.pattern(d_model), d_model, tied=tied, eps=sizes.said.eps)
    with torch.device("meta"):
        network = LanguageNetwork(config)
    found = places(network, prefixes)
    if not sizes.said.conv_bias:
        there = set(tensors.names())
        found = {ours: at for ours, at in found.items() if not (ours.endswith("conv.bias") and at.name not in there)}
    check_names(network, found, tensors, where, spare=[prefixes.head])
    stored = tensors.dtype(found["stack.parts.0.inner.in_proj.weight"].name)
    own = dtype or (stored if quantize is None else torch.float32)
    network.to(torch.promote_types(own, torch.float32)).to(own)  # recurrences keep what the first step gives
    filled(network, found, tensors, where, quantize)
    return Pretrained(config, network.eval(), sizes.family(), dict(generation), sizes.notices())


def _tied(tensors: Tensors, sizes: Sizes, where: str) -> bool:
    """Whether the table is also the head: it is, unless there is another head."""
    head, table = sizes.prefixes.head, sizes.prefixes.table
    if head not in tensors.names():
        if sizes.said.tied is False:
            raise BadInput(f"{where}: the tensor '{head}' is missing, and the config says that it is not the table")
        return True
    if sizes.said.tied is False or tensors.shape(head) != tensors.shape(table):
        return False
    pieces = row_pieces(tensors.shape(head))
    return all(torch.equal(tensors.tensor(head, rows), tensors.tensor(table, rows)) for rows in pieces)
