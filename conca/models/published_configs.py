"""What the config.json of a published checkpoint says, in our words: of mamba_ssm, of transformers, and of Codestral's params.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conca.types import BadInput

__all__ = ["FAMILIES", "SPECIAL", "Said", "said"]

FAMILIES = ("mamba", "mamba2", "mamba3", "falcon_mamba")
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Tokens that begin a text, end it, and fill rows up."""
LAYERS = {"Mamba1": "mamba", "Mamba2": "mamba2", "Mamba3": "mamba3"}
KNOWN = "known: mamba, mamba2 and falcon_mamba of transformers; Mamba1, Mamba2 and Mamba3 of mamba_ssm; Codestral's params.json"
MAMBA_KEYS = {
    "d_model": "hidden_size", "d_state": "state_size", "d_conv": "conv_kernel", "dt_rank": "time_step_rank",
    "d_inner": "intermediate_size",
}  # fmt: skip
MAMBA2_KEYS = {
    "d_model": "hidden_size", "d_state": "state_size", "d_conv": "conv_kernel", "n_heads": "num_heads",
    "d_head": "head_dim", "n_groups": "n_groups",
}  # fmt: skip
SSM_KEYS = {
    "d_state": "d_state", "d_conv": "d_conv", "dt_rank": "dt_rank", "d_head": "headdim", "n_groups": "ngroups",
}  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What a config says; what it does not say has the default of the program that wrote it.

    where     the file, for errors
    family    one of `FAMILIES`; None: the tensors show it
    sizes     our name of a size, the key, and its value
    vocab     tokens that exist; None: all rows of the table
    tied      whether the table is the head; None: it does not say
    norm      of Mamba-2: whether there is a norm at the gate
    """

    where: str
    family: str | None
    layers: int | None
    vocab: int | None
    tied: bool | None
    eps: float = 1e-5
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    n_groups: int = 1
    select_norm: float | None = None
    conv_bias: bool = True
    limit: tuple[float, float] = (0.0, math.inf)
    gate_eps: float = 1e-5
    norm: bool = True
    norm_first: bool = False
    floor: float = 1e-4
    notices: tuple[str, ...] = ()


def said(config: Mapping[str, Any], where: str) -> Said:
    """What a config says.

    Raises:
        BadInput: for an unknown architecture (the known ones are listed), and for what is not read: attention, quantised weights,
            norms with a mean, other activations.
    """
    if config.get("quantization_config"):
        raise BadInput(f"{where}: the weights are quantised there, which is not read; take the checkpoint without")
    if {"dim", "n_layers"} <= set(config):
        ssm = {"layer": "Mamba2", "ngroups": config.get("n_groups", 1)}
        tied = config.get("tie_embeddings", False)
        return _of_mamba_ssm(
            {**config, "d_model": config["dim"], "n_layer": config["n_layers"], "ssm_cfg": ssm, "tie_embeddings": tied},
            where,
        )
    kind = config.get("model_type")
    if kind in ("mamba", "mamba2", "falcon_mamba") and ("hidden_size" in config or "d_model" not in config):
        return _of_transformers(config, kind, where)
    if "d_model" in config and ("n_layer" in config or "ssm_cfg" in config):
        return _of_mamba_ssm(config, where)
    what = "no architecture is named" if kind is None else f"unknown architecture {kind!r}"
    raise BadInput(f"{where}: {what}; {KNOWN}")


def _of_transformers(config: Mapping[str, Any], kind: str, where: str) -> Said:
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise BadInput(f"{where}: hidden_act is {config['hidden_act']!r}; only silu is read")
    eps = _number(config, "layer_norm_epsilon", 1e-5, where)
    second = kind == "mamba2"
    keys = MAMBA2_KEYS if second else MAMBA_KEYS
    low, high = _bounds(config.get("time_step_limit"), where) if second else (0.0, math.inf)
    return Said(
        where=where,
        family=kind,
        layers=_whole(config, "num_hidden_layers", where),
        vocab=_whole(config, "vocab_size", where),
        tied=_flag(config, "tie_word_embeddings", where),
        eps=eps,
        sizes={ours: (key, value) for ours, key in keys.items() if (value := _whole(config, key, where)) is not None},
        n_groups=8,
        select_norm=_number(config, "mixer_rms_eps", 1e-6, where) if kind == "falcon_mamba" else None,
        conv_bias=_flag(config, "use_conv_bias", where) is not False,
        limit=(low, high),
        gate_eps=eps,
    )


def _of_mamba_ssm(config: Mapping[str, Any], where: str) -> Said:
    ssm = config.get("ssm_cfg") or {}
    if not isinstance(ssm, Mapping):
        raise BadInput(f"{where}: ssm_cfg must be a table, not {ssm!r}")
    layer = ssm.get("layer")
    if layer is not None and layer not in [*LAYERS]:
        raise BadInput(f"{where}: unknown architecture, ssm_cfg names the layer {layer!r}; {KNOWN}")
    if config.get("attn_layer_idx"):
        raise BadInput(f"{where}: the layers {config['attn_layer_idx']} are attention (attn_layer_idx), not read here")
    if config.get("rms_norm", True) is not True:
        raise BadInput(f"{where}: rms_norm is false; norms that take the mean away are not read")
    if ssm.get("D_has_hdim"):
        raise BadInput(f"{where}: D_has_hdim, a number D for each channel, is not read; a head has one here")
    sizes = {ours: (key, value) for ours, key in SSM_KEYS.items() if (value := _whole(ssm, key, where)) is not None}
    if (width := _whole(config, "d_model", where)) is not None:
        sizes["d_model"] = ("d_model", width)
    if ssm.get("is_mimo"):
        sizes["rank"] = ("mimo_rank", _whole(ssm, "mimo_rank", where) or 4)
    return Said(
        where=where,
        family=None if layer is None else LAYERS[layer],
        layers=_whole(config, "n_layer", where),
        vocab=_whole(config, "vocab_size", where),
        tied=_flag(config, "tie_embeddings", where),
        sizes=sizes,
        conv_bias=_flag(ssm, "conv_bias", where) is not False,
        limit=_bounds(ssm.get("dt_limit"), where),
        norm=_flag(ssm, "rmsnorm", where) is not False,
        norm_first=bool(_flag(ssm, "norm_before_gate", where)),
        floor=_number(ssm, "A_floor", 1e-4, where),
    )


def _whole(config: Mapping[str, Any], key: str, where: str) -> int | None:
    """A whole number, None where it is not said ("auto")."""
    value = config.get(key)
    if value is None or value == "auto":
        return None
    if type(value) is not int or value < 1:
        raise BadInput(f"{where}: {key} must be a whole number from 1 on, not {value!r}")
    return value


def _flag(config: Mapping[str, Any], key: str, where: str) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadInput(f"{where}: {key} must be true or false, not {value!r}")
    return value


def _number(config: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadInput(f"{where}: {key} must be a number above 0, not {value!r}")
    return float(value)


def _bounds(value: object, where: str) -> tuple[float, float]:
    """Limits of dt; infinity may be written as JSON's extension, as a word, or in a tag."""
    if value is None:
        return 0.0, math.inf
    try:
        low, high = (float(v["__float__"] if isinstance(v, dict) else v) for v in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError, KeyError):
        low, high = math.nan, math.nan
    if not 0 <= low <= high:
        raise BadInput(f"{where}: the limits of dt must be two numbers in order, not {value!r}")
    return low, high
