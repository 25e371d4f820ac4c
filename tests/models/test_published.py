"""Published checkpoints: the logits of transformers, the format of mamba_ssm, Mamba-3 by its own words, the traps, and what is refused."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from transformers import (
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from conca.layers.quantised import HalfLinear, Int8Linear, narrowed
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.published import pretrained, read_pretrained
from conca.models.stack import pattern
from conca.types import BadInput

ALIKE = {"vocab_size": 24, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 5}
TWO = {**ALIKE, "head_dim": 4, "num_heads": 4, "chunk_size": 8}
KINDS = {
    "mamba": (MambaForCausalLM, MambaConfig, ALIKE | {"time_step_rank": 3}),
    "mamba, bias": (
        MambaForCausalLM,
        MambaConfig,
        ALIKE
        | {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "expand": 3, "tie_word_embeddings": False},
    ),
    "mamba2": (Mamba2ForCausalLM, Mamba2Config, TWO | {"n_groups": 1, "layer_norm_epsilon": 1e-3}),
    "mamba2, groups": (
        Mamba2ForCausalLM,
        Mamba2Config,
        TWO | {"n_groups": 2, "tie_word_embeddings": True, "use_bias": True},
    ),
    "mamba2, limit": (Mamba2ForCausalLM, Mamba2Config, TWO | {"n_groups": 4, "time_step_limit": (0.3, 0.7)}),
    "falcon_mamba": (FalconMambaForCausalLM, FalconMambaConfig, ALIKE | {"mixer_rms_eps": 1e-2}),
    "falcon_mamba, untied": (FalconMambaForCausalLM, FalconMambaConfig, ALIKE | {"tie_word_embeddings": False}),
}


class Wide(TorchFunctionMode):
    """What asks for single precision gets double: then transformers computes in float64 throughout."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = [*args], dict(kwargs or {})
        for at, value in [*enumerate(args)]:
            args[at] = torch.float64 if value is torch.float32 else value
        for key, value in kwargs.items():
            kwargs[key] = torch.float64 if value is torch.float32 else value
        return args[0].double() if func is Tensor.float else func(*args, **kwargs)


def theirs(kind, dtype=torch.float64):
    """A model of transformers, all of whose parameters are far from where they start."""
    torch.manual_seed(1)
    model_class, config_class, options = KINDS[kind]
    model = model_class(config_class(**options)).to(dtype).eval()
    with torch.no_grad():
        for parameter in {id(p): p for p in model.parameters()}.values():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def saved(kind, folder, dtype=torch.float64):
    """A model of transformers, and its folder."""
    model = theirs(kind, dtype)
    model.save_pretrained(folder)
    return model


def config_of(folder, **changes):
    """The config.json of a folder, changed; what is None goes."""
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind, dtype, tmp_path):
    """Plain, left-padded, right-padded, and continued inputs."""
    model, close = saved(kind, tmp_path, dtype), {torch.float32: 1e-4, torch.float64: 1e-9}[dtype]
    with torch.no_grad(), Wide() if dtype == torch.float64 else torch.enable_grad():
        ids = torch.randint(1, 24, (2, 13))
        plain = model(ids).logits
        alone = model(ids[1:, 5:]).logits
        padded = ids.clone()
        padded[1, :5] = 0
        mask = (torch.arange(13) >= torch.tensor([[0], [5]])).long()
        masked = model(padded, attention_mask=mask).logits
        cache, continued = model(ids[:, :9], use_cache=True).cache, []
        for t in range(9, 13):
            continued.append(model(ids[:, t : t + 1], cache=cache, use_cache=True).logits[:, 0])
    ours = read_pretrained(tmp_path).network
    assert {p.dtype for p in ours.parameters()} == {dtype}

    def same(got, want):
        assert_close(got, want, rtol=close, atol=close)

    with torch.no_grad():
        same(ours(ids)[0], plain)
        left, state = ours(padded, attention_mask=mask)
        same(left[0], plain[0])
        same(left[1, 5:], alone[0])
        if not model.config.use_bias:  # theirs lets the bias of in_proj into the padding
            same(left[1, 5:], masked[1, 5:])
        same(ours.step(ids[:, 0], state)[0][:1], ours(torch.cat([ids, ids[:, :1]], 1))[0][:1, -1])
        right = torch.cat([ids[1:, 5:], torch.zeros(1, 5, dtype=torch.long)], 1)
        same(ours(right, lengths=torch.tensor([8]))[0][:, :8], alone)
        _, state = ours(ids[:, :9])
        rest, _ = ours(ids[:, 9:], state)
        same(rest, plain[:, 9:])
        for t in range(9, 13):
            step, state = ours.step(ids[:, t], state)
            same(step, plain[:, t])
            if "limit" not in kind:  # theirs forgets the limits of dt when it continues
                same(step, continued[t - 9])


def old(weights, *, layer="mixer", head=True):
    """Weights of transformers in the names of mamba_ssm."""
    found = {name.replace("embeddings.", "embedding."): tensor for name, tensor in weights.items()}
    if head:
        found.setdefault("lm_head.weight", found["backbone.embedding.weight"])
    return found


def ssm_config(kind, **changes):
    """The config of mamba_ssm for a model of `KINDS`: the sizes of layers are left to their shapes."""
    layer = {"ssm_cfg": {"layer": "Mamba2"}} if kind.startswith("mamba2") else {"ssm_cfg": {}}
    return {"d_model": 8, "n_layer": 2, "vocab_size": 21, "rms_norm": True, "pad_vocab_size_multiple": 8, **layer} | changes


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "mamba2, groups"])
@pytest.mark.parametrize("prefix", ["backbone.", "model.backbone.", "model."])
def test_the_format_of_mamba_ssm(kind, prefix, tmp_path):
    """A pickle of tensors, the old names, few words in the config, and a table of which the last rows are no words."""
    model = theirs(kind)
    weights = {name.replace("backbone.", prefix): t for name, t in old(model.state_dict()).items()}
    if prefix == "model.backbone.":
        weights["model.lm_head.weight"] = weights.pop("lm_head.weight")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    ssm = {"layer": "Mamba2", "ngroups": 2} if "groups" in kind else ssm_config(kind)["ssm_cfg"] | {"d_state": 5}
    (tmp_path / "config.json").write_text(json.dumps(ssm_config(kind, ssm_cfg=ssm)))
    ids = torch.randint(0, 21, (2, 9))
    found = read_pretrained(tmp_path)
    assert (found.config.n_words, found.config.vocab, found.family) == (24, 21, kind.partition(",")[0])
    assert found.config.tied is (kind != "mamba2")
    assert found.generation == {}
    eps = KINDS[kind][2].get("layer_norm_epsilon")
    if eps is None:  # mamba_ssm has 1e-5 and no key for it
        with torch.no_grad(), Wide():
            assert_close(found.network(ids)[0], model(ids).logits, rtol=1e-9, atol=1e-9)


def test_the_format_of_codestral(tmp_path):
    """params.json, the prefix `model.`, one consolidated file, eight groups that the norm keeps apart."""
    model = theirs("mamba2, groups")
    weights = {f"model.{name}": tensor for name, tensor in old(model.state_dict()).items()}
    save_file({name: tensor.clone() for name, tensor in weights.items()}, tmp_path / "consolidated.safetensors")
    params = {"dim": 8, "n_layers": 2, "vocab_size": 24, "n_groups": 2, "tie_embeddings": False, "model_type": "mamba"}
    (tmp_path / "params.json").write_text(json.dumps(params))
    ids = torch.randint(0, 24, (2, 9))
    found = read_pretrained(tmp_path)
    assert not found.config.tied
    with torch.no_grad(), Wide():
        assert_close(found.network(ids)[0], model(ids).logits, rtol=1e-9, atol=1e-9)
        whole = read_pretrained(tmp_path, options={"norm_groups": 1}).network
        assert "'groups': 1" in whole.config.layers
        assert (whole(ids)[0] - found.network(ids)[0]).abs().max() > 1e-3
