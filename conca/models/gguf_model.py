"""Mamba and Mamba-2 out of a GGUF file: its names and layouts as those of transformers, so that both are read by the same code.

A_log = log(-ssm_a),   conv1d (C, 1, W) of ssm_conv1d (C, W),   a head's numbers (H,) of (H, 1), the norm (E,) of (G, E / G)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conca.models.gguf_file import GGUFFile
from conca.models.gguf_tokenizer import known_tokens, special_tokens
from conca.models.published import Pretrained, pretrained
from conca.types import BadInput

__all__ = ["GGUFTensors", "described", "read_gguf"]

ENDS = {
    "token_embd.weight": "backbone.embeddings.weight",
    "output_norm.weight": "backbone.norm_f.weight",
    "output.weight": "lm_head.weight",
}
COMMON = {
    "attn_norm.weight": "norm.weight",
    "ssm_in.weight": "mixer.in_proj.weight",
    "ssm_conv1d.weight": "mixer.conv1d.weight",
    "ssm_conv1d.bias": "mixer.conv1d.bias",
    "ssm_a": "mixer.A_log",
    "ssm_d": "mixer.D",
    "ssm_out.weight": "mixer.out_proj.weight",
}
LAYERS = {
    "mamba": COMMON
    | {
        "ssm_x.weight": "mixer.x_proj.weight",
        "ssm_dt.weight": "mixer.dt_proj.weight",
        "ssm_dt.bias": "mixer.dt_proj.bias",
    },
    "mamba2": COMMON | {"ssm_dt.bias": "mixer.dt_bias", "ssm_norm.weight": "mixer.norm.weight"},
}
"""The architectures that are read, and how the parts of a layer are called in transformers."""


def read_gguf(
    path: Path,
    *,
    dtype: torch.dtype | None = None,
    quantize: str | None = None,
    options: Mapping[str, Any] = {},
) -> Pretrained:
    """Read a GGUF file of Mamba, FalconMamba or Mamba-2; arguments as those of `conca.models.published.read_pretrained`.

    Raises:
        BadInput: for a file that is not whole, another architecture, tensors that are missing or of a type that is not read, and sizes
            that contradict each other.
    """
    with GGUFFile(path) as file:
        tensors = GGUFTensors(file)
        return pretrained(
            described(file), tensors, where=str(path), dtype=dtype, quantize=quantize, options=options,
            generation=special_tokens(file),
        )  # fmt: skip


def described(file: GGUFFile) -> dict[str, Any]:
    """What the file says of its model, in the words of a config.json of transformers.

    As in llama.cpp, the norm of what FalconMamba selects has the eps of all others. Raises BadInput for an unknown architecture, and for
    sizes that are missing.
    """
    kind = architecture(file)
    eps = file.said(f"{kind}.attention.layer_norm_rms_epsilon", 1e-5)
    inner, heads = file.whole(f"{kind}.ssm.inner_size"), file.whole(f"{kind}.ssm.time_step_rank")
    found = {
        "model_type": kind,
        "hidden_size": file.whole(f"{kind}.embedding_length"),
        "num_hidden_layers": file.whole(f"{kind}.block_count"),
        "state_size": file.whole(f"{kind}.ssm.state_size"),
        "conv_kernel": file.whole(f"{kind}.ssm.conv_kernel"),
        "layer_norm_epsilon": eps,
        "vocab_size": known_tokens(file) or file.shape("token_embd.weight")[0],
    }
    if kind == "mamba2":
        return found | {"num_heads": heads, "n_groups": file.whole(f"{kind}.ssm.group_count", 1)}
    found |= {"intermediate_size": inner, "time_step_rank": heads}
    normed = bool(file.said(f"{kind}.ssm.dt_b_c_rms", False))
    return found | ({"model_type": "falcon_mamba", "mixer_rms_eps": eps} if normed else {})


def architecture(file: GGUFFile) -> str:
    """One of those that are read. Raises BadInput for any other."""
    kind = file.said("general.architecture")
    if kind not in LAYERS:
        what = "names no architecture" if kind is None else f"has the architecture {kind!r}"
        raise BadInput(f"{file.path}: {what}; known: {', '.join(LAYERS)}")
    return str(kind)


def wanted(kind: str, layers: int) -> Iterator[tuple[str, str]]:
    """The tensors of an architecture, by their names there and in transformers."""
    yield from ENDS.items()
    for i in range(layers):
        for ours, theirs in LAYERS[kind].items():
            yield f"blk.{i}.{ours}", f"backbone.layers.{i}.{theirs}"


class GGUFTensors:
    """The tensors of a GGUF file in the names and layouts of transformers; see `conca.models.tensor_files.Tensors`.

    Args:
        file: it stays open.

    Raises:
        BadInput: for an unknown architecture, and for a layer that lacks a tensor, by its name in the file.
    """

    def __init__(self, file: GGUFFile) -> None:
        kind = architecture(file)
        self.file, self.kind = file, kind
        there, known = dict.fromkeys(file.names()), dict[str, str]()
        for name, theirs in wanted(kind, file.whole(f"{kind}.block_count")):
            if name not in there and name != "output.weight":  # at the first: a count of layers may be anything
                raise BadInput(f"{file.path}: the tensor '{name}' is missing; the file is not whole")
            known[name] = theirs
        self.places = {known.get(name, name): name for name in there}

    def names(self) -> list[str]:
        """As transformers calls them; what it does not know keeps its name."""
        return list(self.places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape there."""
        return self._laid_out(name, self.file.shape(self._place(name)))

    def dtype(self, name: str) -> torch.dtype:
        """What `tensor` gives it in."""
        return self.file.dtype(self._place(name))

    def tensor(self, name: str, rows: slice | None = None) -> Tensor:
        """The numbers, or those of some rows, in memory of their own."""
        found = self.file.tensor(self._place(name), rows)
        if name.endswith("mixer.A_log"):
            if not bool((found < 0).all()):
                raise BadInput(f"{self.file.path}: '{self._place(name)}' must be below 0 everywhere; it is -exp(A_log)")
            found = found.neg_().log_()
        return found.view(self._laid_out(name, tuple(found.shape)))

    def by_file(self) -> Iterator[tuple[str, list[str]]]:
        """The file and the names in the order in which they stand there."""
        theirs = {place: name for name, place in self.places.items()}
        for path, names in self.file.by_file():
            yield path, [theirs[name] for name in names]

    def _laid_out(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape of the file as it is in transformers."""
        if name.endswith("conv1d.weight"):
            return (shape[0], 1, *(shape[1:] or (1,)))
        if self.kind == "mamba2" and name.endswith(("mixer.A_log", "mixer.D", "mixer.norm.weight")):
            return (torch.Size(shape).numel(),)
        return shape

    def _place(self, name: str) -> str:
        if name not in self.places:
            raise BadInput(f"{self.file.path}: the tensor '{name}' is missing")
        return self.places[name]
