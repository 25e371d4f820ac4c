"""Published checkpoints: the logits of transformers, the format of mamba_ssm, Mamba-3 by its own words, the traps, and what is refused."""

import ctypes
import json
import math
from pathlib import Path

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
        ALIKE | {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "expand": 3, "tie_word_embeddings": False},
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


def old(weights):
    """Weights of transformers in the names of mamba_ssm."""
    found = {name.replace("embeddings.", "embedding."): tensor for name, tensor in weights.items()}
    return {"lm_head.weight": found["backbone.embedding.weight"]} | found


def ssm_config(kind, **changes):
    """The config of mamba_ssm for a model of `KINDS`: the sizes of layers are left to their shapes."""
    layer = {"ssm_cfg": {"layer": "Mamba2"}} if kind.startswith("mamba2") else {"ssm_cfg": {}}
    return {
        "d_model": 8,
        "n_layer": 2,
        "vocab_size": 21,
        "rms_norm": True,
        "pad_vocab_size_multiple": 8,
        **layer,
    } | changes


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "mamba2, groups"])
@pytest.mark.parametrize("prefix", ["backbone.", "model.backbone.", "model."])
def test_the_format_of_mamba_ssm(kind, prefix, tmp_path):
    """A pickle of tensors, the old names, few tokens in the config, and a table of which the last rows are no tokens."""
    model = theirs(kind)
    weights = {name.replace("backbone.", prefix): t for name, t in old(model.state_dict()).items()}
    if prefix == "model.backbone.":
        weights["model.lm_head.weight"] = weights.pop("lm_head.weight")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    ssm = {"layer": "Mamba2", "ngroups": 2} if "groups" in kind else ssm_config(kind)["ssm_cfg"] | {"d_state": 5}
    (tmp_path / "config.json").write_text(json.dumps(ssm_config(kind, ssm_cfg=ssm)))
    ids = torch.randint(0, 21, (2, 9))
    found = read_pretrained(tmp_path)
    assert (found.config.vocab_size, found.config.n_tokens, found.family) == (24, 21, kind.partition(",")[0])
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


def mamba3(rank, inner, fraction=0.5, norm=False, floor=1e-4):
    """A checkpoint of Mamba-3 in its published names, two layers with MLPs, from sizes alone: N 8, P 4, one group."""
    torch.manual_seed(3)
    d, N, P, H = 6, 8, 4, 3
    E, S = P * H, int(N * fraction) // 2
    weights = {"backbone.embedding.weight": torch.randn(24, d), "backbone.norm_f.weight": torch.rand(d)}
    for i in range(2):
        own = {
            "norm.weight": (d,), "mixer.in_proj.weight": (2 * E + 2 * N * rank + 3 * H + S, d), "mixer.dt_bias": (H,),
            "mixer.D": (H,), "mixer.B_norm.weight": (N,), "mixer.C_norm.weight": (N,), "mixer.B_bias": (H, rank, N),
            "mixer.C_bias": (H, rank, N), "mixer.out_proj.weight": (d, E), "norm2.weight": (d,),
            "mlp.fc1.weight": (2 * inner, d), "mlp.fc2.weight": (d, inner),
        }  # fmt: skip
        own |= {f"mixer.mimo_{name}": (H, rank, P) for name in "xzo" if rank > 1}
        own |= {"mixer.norm.weight": (E,)} if norm else {}
        weights |= {f"backbone.layers.{i}.{name}": 0.7 * torch.randn(shape) for name, shape in own.items()}
    cfg = {"layer": "Mamba3", "d_state": N, "headdim": P, "rope_fraction": fraction, "A_floor": floor}
    cfg |= {"is_mimo": True, "mimo_rank": rank} if rank > 1 else {}
    return weights, ssm_config("mamba3", d_model=d, d_intermediate=inner, ssm_cfg=cfg)


def rms(x, weight=1.0, eps=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(v, angle, halves):
    """Vectors (..., N) with pairs of their channels turned by angles (S,)."""
    N, S = v.shape[-1], len(angle)
    a, b = (torch.arange(S), torch.arange(S) + N // 2) if halves else (2 * torch.arange(S), 2 * torch.arange(S) + 1)
    out, c, s = v.clone(), angle.cos(), angle.sin()
    out[..., a], out[..., b] = v[..., a] * c - v[..., b] * s, v[..., a] * s + v[..., b] * c
    return out


def mixed3(w, u, halves, heavy, floor):
    """One Mamba-3 mixer over tokens (T, d), token by token, as the paper and its code say it."""
    (H, R, N), E = w["B_bias"].shape, w["out_proj.weight"].shape[1]
    P, out = E // H, []
    rows = u @ w["in_proj.weight"].T
    z, x, B, C, dt, A, trap, angle = rows.split(
        [E, E, N * R, N * R, H, H, H, rows.shape[1] - 2 * E - 2 * N * R - 3 * H], 1
    )
    f = torch.where(A >= 0, 1 + A, 1 / (1 - A.clamp(max=0))) if heavy else F.softplus(A)
    A, dt, lam = torch.minimum(-f, torch.tensor(-floor)), F.softplus(dt + w["dt_bias"]), trap.sigmoid()
    theta, S, old_k, old_x = (
        torch.zeros(H, angle.shape[1]),
        torch.zeros(H, P, N),
        torch.zeros(R, H, N),
        torch.zeros(R, H, P),
    )
    mimo = {k: w[f"mimo_{k}"].transpose(0, 1) if R > 1 else torch.ones(1, H, P) for k in "xzo"}
    for t in range(len(u)):
        theta = theta + dt[t, :, None] * math.pi * angle[t].tanh()
        k, q = (
            rms(v[t].view(R, 1, N), w[f"{n}_norm.weight"]) + w[f"{n}_bias"].transpose(0, 1)
            for n, v in (("B", B), ("C", C))
        )
        k, q = (torch.stack([turned(v[:, h], theta[h], halves) for h in range(H)], 1) for v in (k, q))
        xr, zr = x[t].view(H, P) * mimo["x"], z[t].view(H, P) * mimo["z"]
        alpha = (A[t] * dt[t]).exp()
        beta, gamma = (1 - lam[t]) * dt[t] * alpha, lam[t] * dt[t]
        S = (
            alpha[:, None, None] * S
            + beta[:, None, None] * torch.einsum("rhp,rhn->hpn", old_x, old_k)
            + gamma[:, None, None] * torch.einsum("rhp,rhn->hpn", xr, k)
        )
        y = torch.einsum("hpn,rhn->rhp", S, q) + w["D"][:, None] * xr
        y = rms(y, w["norm.weight"].view(H, P)) if "norm.weight" in w else y
        out.append(((y * F.silu(zr)) * mimo["o"]).sum(0).flatten())
        old_k, old_x = k, xr
    return torch.stack(out) @ w["out_proj.weight"].T


def logits3(weights, ids, halves, heavy=True, floor=1e-4):
    """The logits of a checkpoint of Mamba-3, from its tensors alone."""
    x = weights["backbone.embedding.weight"][ids]
    for i in range(2):
        own = {k.removeprefix(f"backbone.layers.{i}."): v for k, v in weights.items() if f".layers.{i}." in k}
        mixer = {k.removeprefix("mixer."): v for k, v in own.items() if k.startswith("mixer.")}
        x = x + mixed3(mixer, rms(x, own["norm.weight"]), halves, heavy, floor)
        value, gate = (rms(x, own["norm2.weight"]) @ own["mlp.fc1.weight"].T).chunk(2, -1)
        x = x + (value * F.silu(gate)) @ own["mlp.fc2.weight"].T
    return rms(x, weights["backbone.norm_f.weight"]) @ weights["backbone.embedding.weight"].T


@pytest.mark.parametrize(
    ("rank", "options", "made"),
    [
        (1, {}, {}),
        (2, {}, {}),
        (1, {"activation": "softplus", "pairing": "halves"}, {"fraction": 1.0, "norm": True, "floor": 0.5}),
        (3, {"activation": "softplus", "pairing": "neighbours"}, {"norm": True}),
    ],
)
def test_mamba3_by_its_own_words(rank, options, made, tmp_path):
    """Rows of in_proj, MLPs of a width rounded to 128, what the checkpoint does not say, and that it comes to stand in the pattern."""
    weights, config = mamba3(rank, 16, **made)
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | {"d_intermediate": 13}))
    found, ids = read_pretrained(tmp_path, options=options), torch.randint(0, 21, (1, 9))
    halves = options.get("pairing", "halves" if rank > 1 else "neighbours") == "halves"
    want = logits3(weights, ids[0], halves, "activation" not in options, made.get("floor", 1e-4))
    assert_close(found.network(ids)[0][0], want, rtol=1e-9, atol=1e-9)
    assert found.family == "mamba3"
    assert ("heavy-tail is taken" in str(found.notices)) is ("activation" not in options)
    assert options.get("activation", "heavy-tail") in found.config.layers
    again = pattern(found.config.layers, 6, eps=found.config.eps)
    assert [tuple(p.shape) for p in again.parameters()] == [tuple(p.shape) for p in found.network.stack.parameters()]
    assert again.parts[1].inner.inner.out_features == 16


def test_recurrences_stay_in_float32(tmp_path):
    """Linear maps keep the stored type; what a recurrence needs is float32, in whatever type it was stored."""
    saved("mamba", tmp_path / "a", torch.bfloat16)
    weights, config = mamba3(2, 16)
    (tmp_path / "b").mkdir()
    save_file({name: t.half() for name, t in weights.items()}, tmp_path / "b" / "model.safetensors")
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    kept = {"A_log", "D", "dt_bias", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o"}
    for place, dtype in (("a", torch.bfloat16), ("b", torch.float16)):
        network = read_pretrained(tmp_path / place).network
        for name, parameter in network.named_parameters():
            last = name.rpartition(".")[2]
            wide = last in kept or "B_norm" in name or "C_norm" in name
            assert parameter.dtype == (torch.float32 if wide else dtype), name
        assert network(torch.tensor([[1, 2, 3]]))[0].isfinite().all()
        assert {p.dtype for p in read_pretrained(tmp_path / place, dtype=torch.float64).network.parameters()} == {
            torch.float64
        }
    stored = load_file(tmp_path / "a" / "model.safetensors")["backbone.layers.0.mixer.A_log"]
    assert torch.equal(read_pretrained(tmp_path / "a").network.stack.parts[0].inner.A_log, stored.float())


def test_what_configs_are_known_to_say_wrongly(tmp_path):
    """expand of FalconMamba, d_inner of old configs, the bias of their class, a missing eps: shapes say what is there."""
    model = saved("falcon_mamba", tmp_path)
    ids, want = torch.randint(0, 24, (1, 7)), read_pretrained(tmp_path).network
    config_of(tmp_path, expand=16, d_inner=160, use_bias=True, ssm_cfg={}, d_model=8, n_layer=2, use_conv_bias=None)
    found = read_pretrained(tmp_path)
    assert "expand=2" in found.config.layers
    assert "bias=False" in found.config.layers
    assert_close(found.network(ids)[0], want(ids)[0])
    config_of(tmp_path, mixer_rms_eps=None, time_step_rank="auto")
    with torch.no_grad(), Wide():
        for layer in model.backbone.layers:
            for norm in (layer.mixer.dt_layernorm, layer.mixer.b_layernorm, layer.mixer.c_layernorm):
                norm.eps = 1e-6
        assert_close(read_pretrained(tmp_path).network(ids)[0], model(ids).logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_a_head_is_tied_unless_it_is_another(kind, tmp_path):
    saved(kind, tmp_path)
    weights = old(load_file(tmp_path / "model.safetensors"))
    for said in (True, None):
        config_of(tmp_path, tie_word_embeddings=said)
        same = weights | {"lm_head.weight": weights["backbone.embedding.weight"].clone()}
        save_file(same, tmp_path / "model.safetensors")
        assert read_pretrained(tmp_path).network.head is None
        save_file(same | {"lm_head.weight": torch.randn(24, 8)}, tmp_path / "model.safetensors")
        assert read_pretrained(tmp_path).network.head is not None
    config_of(tmp_path, tie_word_embeddings=False)
    save_file(same, tmp_path / "model.safetensors")
    assert read_pretrained(tmp_path).network.head is not None
    save_file({n: t for n, t in same.items() if n != "lm_head.weight"}, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match=r"'lm_head\.weight' is missing, and the config says that it is not the table"):
        read_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["mamba, bias", "mamba2, groups", "falcon_mamba, untied"])
@pytest.mark.parametrize("quantize", ["int8", "bfloat16"])
def test_maps_are_narrowed_as_they_arrive(kind, quantize, tmp_path):
    saved(kind, tmp_path, torch.bfloat16)
    ids = torch.randint(0, 24, (2, 9))
    got = read_pretrained(tmp_path, quantize=quantize).network
    want = narrowed(read_pretrained(tmp_path, dtype=torch.float32).network, quantize)
    assert {type(m) for m in got.modules() if hasattr(m, "in_features")} == {
        {"int8": Int8Linear}.get(quantize, HalfLinear)
    }
    for name, tensor in want.state_dict().items():
        assert torch.equal(got.state_dict()[name], tensor), name
    assert got.state_dict()["embedding.weight"].dtype == {"int8": torch.int8}.get(quantize, torch.bfloat16)
    assert torch.equal(got(ids)[0], want(ids)[0])


def test_generation_configs(tmp_path):
    saved("mamba2", tmp_path)
    found = read_pretrained(tmp_path).generation
    assert (found["eos_token_id"], found["bos_token_id"], found["pad_token_id"]) == (2, 0, 1)
    assert not [name for name in found if name.startswith("_") or "version" in name]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6], "temperature": 0.5}')
    assert read_pretrained(tmp_path).generation == {"eos_token_id": [5, 6], "temperature": 0.5}
    (tmp_path / "generation_config.json").unlink()
    config_of(tmp_path, eos_token_id=[3, 4], pad_token_id=None)
    assert read_pretrained(tmp_path).generation == {"eos_token_id": [3, 4], "bos_token_id": 0}


LAYER = "backbone.layers.0.mixer"


def broken(folder, **weights):
    """The checkpoint in a folder with some tensors replaced, or taken away (None)."""
    found = load_file(folder / "model.safetensors")
    found |= {name.replace("/", "."): tensor for name, tensor in weights.items()}
    save_file({name: t for name, t in found.items() if t is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"model_type": "jamba"},
            r"unknown architecture 'jamba'; known: mamba, mamba2 and falcon_mamba of transformers",
        ),
        ({"model_type": None}, r"no architecture is named; known: mamba"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"the weights are quantised there, which is not read"),
        ({"hidden_act": "gelu"}, r"hidden_act is 'gelu'; only silu is read"),
        ({"vocab_size": 25}, r"vocab_size is 25, but 'backbone\.embeddings\.weight' has only 24 rows"),
        ({"hidden_size": 9}, r"'backbone\.embeddings\.weight' is \(24, 8\): that is 8 where .* says hidden_size 9"),
        ({"state_size": 6}, r"mixer\.A_log' is \(16, 5\): that is 5 where .* says state_size 6"),
        ({"intermediate_size": 32}, r"mixer\.A_log' is \(16, 5\): that is 16 where .* says intermediate_size 32"),
        ({"time_step_rank": 4}, r"mixer\.dt_proj\.weight' is \(16, 3\): that is 3 where .* says time_step_rank 4"),
        ({"conv_kernel": 3}, r"mixer\.conv1d\.weight' is \(16, 1, 4\): that is 4 where .* says conv_kernel 3"),
        ({"num_hidden_layers": 3}, r"the tensors of 1 of 3 layers are missing"),
        ({"num_hidden_layers": 1}, r"unknown tensor 'backbone\.layers\.1\.[\w.]+' \(and 9 more\)"),
        ({"num_hidden_layers": "two"}, r"num_hidden_layers must be a whole number from 1 on, not 'two'"),
        ({"layer_norm_epsilon": 0}, r"layer_norm_epsilon must be a number above 0, not 0"),
        ({"use_conv_bias": "yes"}, r"use_conv_bias must be true or false, not 'yes'"),
    ],
)
def test_configs_that_are_refused(changes, line, tmp_path):
    saved("mamba", tmp_path)
    config_of(tmp_path, **changes)
    with pytest.raises(BadInput, match=line) as error:
        read_pretrained(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("weights", "line"),
    [
        (
            {f"{LAYER}.out_proj.weight": torch.zeros(8, 15)},
            r"out_proj\.weight' is \(8, 15\), the model needs \(8, 16\)",
        ),
        ({f"{LAYER}.conv1d.bias": torch.zeros(15)}, r"conv1d\.bias' is \(15,\), the model needs \(16,\)"),
        (
            {"backbone.layers.1.mixer.conv1d.weight": torch.zeros(16, 1, 3)},
            r"is \(16, 1, 3\), the model needs \(16, 1, 4\)",
        ),
        ({f"{LAYER}.A_log": torch.zeros(16)}, r"A_log' is \(16,\): it has 1 axes where 2 are expected"),
        ({f"{LAYER}.D": None}, r"0\.mixer\.D' is missing; the checkpoint is not whole"),
        ({f"{LAYER}.conv1d.bias": None}, r"0\.mixer\.conv1d\.bias' is missing"),
        ({f"{LAYER}.A_log": None}, r"0\.mixer\.A_log' is missing"),
        ({"backbone.embeddings.weight": None}, r"'backbone\.embeddings\.weight' is missing; is it a language model"),
        ({"backbone.rope": torch.zeros(2)}, r"unknown tensor 'backbone\.rope'"),
        ({f"{LAYER}.D": torch.full((16,), math.nan)}, r"0\.mixer\.D' holds NaN or infinity"),
        ({f"{LAYER}.in_proj.weight": torch.full((32, 8), math.inf)}, r"in_proj\.weight' holds NaN or infinity"),
        (
            {f"{LAYER}.out_proj.weight": torch.zeros(8, 16, dtype=torch.int8)},
            r"out_proj\.weight' is int8; weights that",
        ),
    ],
)
def test_weights_that_are_refused(weights, line, tmp_path):
    saved("mamba", tmp_path)
    broken(tmp_path, **weights)
    with pytest.raises(BadInput, match=line) as error:
        read_pretrained(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"attn_layer_idx": [1, 3]}, r"the layers \[1, 3\] are attention \(attn_layer_idx\)"),
        ({"rms_norm": False}, r"rms_norm is false; norms that take the mean away are not read"),
        ({"ssm_cfg": {"layer": "Mamba2", "D_has_hdim": True}}, r"D_has_hdim, a number D for each channel, is not read"),
        ({"ssm_cfg": {"layer": "Mamba9"}}, r"ssm_cfg names the layer 'Mamba9'; known"),
        (
            {"ssm_cfg": {"layer": "Mamba2", "ngroups": 3}},
            r"conv1d\.weight' is .*: 10 of its channels .* 3 groups of 1 .* 6",
        ),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 8}}, r"out_proj\.weight' is .*: that is 4 where .* says headdim 8"),
        ({"ssm_cfg": {"layer": "Mamba2", "dt_limit": [3, 1]}}, r"limits of dt must be two numbers in order"),
        ({"ssm_cfg": {"layer": "Mamba3"}}, r"'backbone\.layers\.0\.mixer\.B_bias' is missing"),
        ({"ssm_cfg": {"layer": "Mamba1"}}, r"'backbone\.layers\.0\.mixer\.A_log' is \(4,\): it has 1 axes where 2"),
    ],
)
def test_what_is_refused_of_mamba_ssm(changes, line, tmp_path):
    save_file({n: t.clone() for n, t in old(theirs("mamba2").state_dict()).items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(ssm_config("mamba2") | changes))
    with pytest.raises(BadInput, match=line):
        read_pretrained(tmp_path)


def test_folders_and_options_that_are_refused(tmp_path):
    saved("mamba", tmp_path / "a")
    with pytest.raises(BadInput, match="quantize: unknown kind 'int4'; did you mean 'int8'"):
        read_pretrained(tmp_path / "a", quantize="int4")
    with pytest.raises(BadInput, match="mamba has no option 'activation'; it has none"):
        read_pretrained(tmp_path / "a", options={"activation": "softplus"})
    with pytest.raises(BadInput, match="there is no such folder"):
        read_pretrained(tmp_path / "b")
    (tmp_path / "a" / "config.json").rename(tmp_path / "a" / "other.json")
    with pytest.raises(BadInput, match=r"no config\.json and no params\.json"):
        read_pretrained(tmp_path / "a")
    for text in ("[1]", "{", '{"model_type": "mamba"'):
        (tmp_path / "a" / "config.json").write_text(text)
        with pytest.raises(BadInput, match=r"config\.json: (holds no table|cannot be read)"):
            read_pretrained(tmp_path / "a")


JUNK = [0, -1, 3, 7.5, 10**12, "x", [1], {"a": 1}, True, math.nan]
KEYS = {
    "transformers": "model_type hidden_size num_hidden_layers vocab_size state_size conv_kernel num_heads n_groups time_step_rank "
    "layer_norm_epsilon tie_word_embeddings use_conv_bias hidden_act time_step_limit quantization_config",
    "mamba_ssm": "d_model n_layer vocab_size ssm_cfg attn_layer_idx rms_norm tie_embeddings",
}
CFG = "layer d_state d_conv dt_rank headdim ngroups dt_limit rmsnorm norm_before_gate conv_bias A_floor is_mimo D_has_hdim"


@pytest.mark.parametrize("kind", ["mamba", "mamba2, groups"])
@pytest.mark.parametrize("form", KEYS)
def test_no_value_of_a_config_breaks_anything(kind, form, tmp_path):
    """Whatever stands under a key, a checkpoint is read, or one line says what is wrong."""
    model = theirs(kind)
    tensors, read = Given(model.state_dict()), 0
    config = model.config.to_dict() if form == "transformers" else ssm_config(kind)
    cfg = CFG.split() if form == "mamba_ssm" else []
    for key in [*KEYS[form].split(), *cfg]:
        for value in JUNK:
            try:
                found = pretrained(
                    config | ({"ssm_cfg": {key: value}} if key in cfg else {key: value}), tensors, where="here"
                )
            except BadInput as error:
                assert "\n" not in str(error)
            else:
                read += 1
                assert not any(p.is_meta for p in found.network.parameters())
    assert read > 15


def resident(key):
    """A number of /proc/self/status, in bytes."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) << 10


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="only Linux says how much memory was in use at most, and only glibc gives back what is free",
)
@pytest.mark.parametrize("end", ["safetensors", "bin"])
@pytest.mark.parametrize("quantize", [None, "bfloat16", "int8"])
def test_reading_takes_the_result_and_one_shard_at_most(quantize, end, tmp_path):
    """92 MB in float32, table and head in files of their own: only a file that is mapped is there beside the result."""
    E, d, layers, vocab = 1024, 512, 4, 16000
    sizes = {
        "norm.weight": (d,), "mixer.in_proj.weight": (2 * E, d), "mixer.out_proj.weight": (d, E), "mixer.A_log": (E, 16),
        "mixer.conv1d.weight": (E, 1, 4), "mixer.conv1d.bias": (E,), "mixer.x_proj.weight": (48, E), "mixer.D": (E,),
        "mixer.dt_proj.weight": (E, 16), "mixer.dt_proj.bias": (E,),
    }  # fmt: skip
    index, shard, stem = {}, 0, {"safetensors": "model", "bin": "pytorch_model"}[end]
    inner = {f"backbone.layers.{i}.{name}": shape for i in range(layers) for name, shape in sizes.items()}
    table, head = (
        {"backbone.embedding.weight": (vocab, d)},
        {"backbone.norm_f.weight": (d,), "lm_head.weight": (vocab, d)},
    )
    for file, shapes in enumerate((table, inner, head)):
        own = {name: torch.full(shape, 0.01 + file, dtype=torch.float32) for name, shape in shapes.items()}
        (save_file if end == "safetensors" else torch.save)(own, tmp_path / f"{file}.{end}")
        index |= dict.fromkeys(own, f"{file}.{end}")
        shard = max(shard, sum(t.nbytes for t in own.values()))
    del own
    (tmp_path / f"{stem}.{end}.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text(json.dumps({"d_model": d, "n_layer": layers, "vocab_size": vocab}))
    read_pretrained(tmp_path, quantize=quantize)  # what is compiled or imported once
    ctypes.CDLL(None).malloc_trim(0)  # what is free would be used first, and not seen
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    network = read_pretrained(tmp_path, quantize=quantize).network
    result = sum(t.nbytes for t in network.state_dict().values())
    peak, mapped = resident("VmHWM") - before, shard if end == "bin" else 0
    assert result < {None: 93e6, "bfloat16": 47e6, "int8": 24e6}[quantize]
    assert peak < result + mapped + 24e6, (
        f"{peak / 1e6:.0f} MB at most for {result / 1e6:.0f} MB and {mapped / 1e6:.0f} MB"
    )


class Given(dict):
    """Tensors that stand in memory, as a reader of another format hands them on."""

    def names(self):
        return list(self)

    def shape(self, name):
        return tuple(self[name].shape)

    def dtype(self, name):
        return self[name].dtype

    def tensor(self, name, rows=None):
        return (self[name] if rows is None else self[name][rows]).clone()

    def by_file(self):
        yield "", list(self)


def test_tensors_of_any_source():
    weights, config = mamba3(2, 16)
    found, ids = pretrained(config, Given(weights), where="here", generation={"a": 1}), torch.randint(0, 21, (1, 5))
    assert_close(found.network(ids)[0][0], logits3(weights, ids[0], True), rtol=1e-9, atol=1e-9)
    assert found.generation == {"a": 1}
    assert not found.network.training
    assert LanguageNetwork(LanguageConfig.from_dict(found.config.as_dict())).load_state_dict(found.network.state_dict())
