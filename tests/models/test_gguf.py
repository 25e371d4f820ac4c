"""GGUF files: written here with the package `gguf` from our own networks, read back, and refused where they are damaged."""

import json
import struct

import numpy as np
import pytest
import tokenizers
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType, quants
from tokenizers import AddedToken, pre_tokenizers
from tokenizers.models import BPE

from conca.layers.quantised import Int8Linear, kind_of
from conca.models.gguf_file import GGUFFile
from conca.models.gguf_model import read_gguf
from conca.models.gguf_tokenizer import CUTS, tokenizer_files
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput

MODELS = {
    "mamba": "mamba(d_state=4, dt_rank=5)*2",
    "falcon": "mamba(d_state=4, d_conv=3, select_norm=1e-5)",
    "mamba2": "mamba2(d_state=8, d_head=16)*2",
    "groups": "mamba2(d_state=8, d_head=16, n_groups=2, d_conv=2)",
}
WORDS = ["!", "a", "b", "Ġ", "ab", "Ġab", "<end>", "  ", "[PAD8]", "[PAD9]"]
KINDS = [TokenType.NORMAL] * 6 + [TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNUSED]


def network(which, tied=True):
    torch.manual_seed(1)
    config = LanguageConfig(vocab_size=10, n_tokens=8, layers=MODELS[which], d_model=32, tied=tied, std=0.5)
    made = LanguageNetwork(config).float().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def named(made):
    yield "token_embd.weight", made.embedding.weight
    yield "output_norm.weight", made.norm.weight
    if made.head is not None:
        yield "output.weight", made.head.weight
    for i, part in enumerate(made.stack.parts):
        layer, first = part.inner, hasattr(part.inner, "x_proj")
        own = {"attn_norm.weight": part.norm.weight, "ssm_in.weight": layer.in_proj.weight}
        own |= {"ssm_conv1d.weight": layer.conv.weight.flip(1), "ssm_conv1d.bias": layer.conv.bias}
        own |= {"ssm_dt.bias": layer.dt_bias, "ssm_out.weight": layer.out_proj.weight}
        if first:
            own |= {"ssm_a": -layer.A_log.exp(), "ssm_d": layer.D}
            own |= {"ssm_x.weight": layer.x_proj.weight, "ssm_dt.weight": layer.dt_proj.weight}
        else:
            own |= {"ssm_a": -layer.A_log.exp()[:, None], "ssm_d": layer.D[:, None]}
            own |= {"ssm_norm.weight": layer.norm.weight.view(layer.n_groups, -1)}
        yield from ((f"blk.{i}.{name}", value) for name, value in own.items())


@torch.no_grad()
def write(path, made, kind="F32", without=(), kinds=KINDS, arch=None, also=lambda out: None):
    layer, type_ = made.stack.parts[0].inner, GGMLQuantizationType[kind]
    first = hasattr(layer, "x_proj")
    out = GGUFWriter(path, arch or ("mamba" if first else "mamba2"))
    out.add_embedding_length(32)
    out.add_block_count(len(made.stack.parts))
    out.add_ssm_conv_kernel(layer.conv.d_conv)
    out.add_ssm_inner_size(layer.d_inner)
    out.add_ssm_state_size(layer.d_state)
    out.add_ssm_time_step_rank(layer.dt_rank if first else layer.n_heads)
    out.add_layer_norm_rms_eps(1e-5)
    if first:
        out.add_ssm_dt_b_c_rms(layer.select_norm is not None)
    else:
        out.add_ssm_group_count(layer.n_groups)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("mpt")
    out.add_token_list(WORDS)
    out.add_token_types(kinds)
    out.add_token_merges(["a b", "Ġ ab"])
    out.add_eos_token_id(6)
    out.add_chat_template("{{ messages[0].content }}")
    also(out)
    for name, value in named(made):
        data = value.contiguous().float().numpy()
        narrow = name.endswith("weight") and any(part in name for part in ("embd", "ssm_in", "ssm_out", "output.w"))
        if name not in without:
            out.add_tensor(name, quants.quantize(data, type_) if narrow else data, raw_dtype=type_ if narrow else None)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.mark.parametrize(("which", "tied"), [("mamba", True), ("falcon", False), ("mamba2", False), ("groups", True)])
def test_what_is_written_is_read(which, tied, tmp_path, monkeypatch):
    made, ids = network(which, tied), torch.randint(8, (2, 9))
    for kind, rounding in (("F32", 0), ("F16", 2**-11), ("BF16", 2**-8), ("Q8_0", 1 / 127)):
        read = read_gguf(write(tmp_path / f"{kind}.gguf", made, kind), dtype=torch.float32)
        assert read.family == {"falcon": "falcon_mamba", "groups": "mamba2"}.get(which, which)
        assert (read.config.n_tokens, read.config.vocab_size, read.config.tied) == (8, 10, tied)
        assert read.generation == {"eos_token_id": 6} and not read.network.training
        own = read.network.state_dict()
        for name, value in made.state_dict().items():
            near = 1e-6 if name.endswith("A_log") else rounding * float(value.abs().max())
            assert own[name].dtype == torch.float32
            torch.testing.assert_close(own[name], value, rtol=0, atol=near)
        with torch.no_grad():
            near = 1e-5 if kind == "F32" else 0.3
            torch.testing.assert_close(read.network(ids)[0], made(ids)[0], rtol=near, atol=near)
    stored = read_gguf(tmp_path / "BF16.gguf").network
    assert stored.embedding.weight.dtype == torch.bfloat16 and stored.stack.parts[0].inner.A_log.dtype == torch.float32
    narrow = read_gguf(tmp_path / "Q8_0.gguf", quantize="int8").network
    with monkeypatch.context() as context:  # rows in several pieces
        context.setattr("conca.ops.one_row.PIECE", 100)
        pieces = read_gguf(tmp_path / "Q8_0.gguf", quantize="int8").network.state_dict()
    assert all(torch.equal(value, pieces[name]) for name, value in narrow.state_dict().items())
    assert kind_of(narrow) == "int8" and type(narrow.stack.parts[0].inner.in_proj) is Int8Linear
    with torch.no_grad():
        torch.testing.assert_close(narrow(ids)[0], read.network(ids)[0], rtol=0.2, atol=0.2)


def test_types_that_are_not_read_are_named_with_their_tensor(tmp_path):
    path = write(tmp_path / "a.gguf", network("mamba2"), "Q4_0")
    with pytest.raises(BadInput, match=r"the tensor '(blk.0.ssm_in|token_embd).weight' is kept as Q4_0; F32, F16"):
        read_gguf(path)


def test_what_is_missing_or_damaged_is_named(tmp_path):
    path, made = tmp_path / "a.gguf", network("mamba2")
    for name in ("blk.1.ssm_a", "token_embd.weight", "blk.0.ssm_norm.weight"):
        with pytest.raises(BadInput, match=rf"the tensor '{name}' is missing"):
            read_gguf(write(path, made, without=[name]))
    with pytest.raises(BadInput, match=r"unknown tensor 'blk.7.odd'"):
        read_gguf(write(path, made, also=lambda out: out.add_tensor("blk.7.odd", np.zeros(3, np.float32))))
    with pytest.raises(BadInput, match=r"'mamba2.ssm.inner_size' is missing"):
        read_gguf(write(path, made, arch="mamba2", also=lambda out: out.kv_data[0].pop("mamba2.ssm.inner_size")))
    with pytest.raises(BadInput, match="architecture 'llama'; known: mamba, mamba2"):
        read_gguf(write(path, made, arch="llama"))
    with pytest.raises(BadInput, match="one of 3 parts"):
        read_gguf(write(path, made, also=lambda out: out.add_uint16("split.count", 3)))
    with pytest.raises(BadInput, match=r"num_heads 3"):
        read_gguf(write(path, made, also=lambda out: replaced(out, "mamba2.ssm.time_step_rank", 3)))
    with torch.no_grad():
        made.stack.parts[0].inner.A_log[0] = float("nan")
    with pytest.raises(BadInput, match=r"'blk.0.ssm_a' must be below 0"):
        read_gguf(write(path, made))
    whole = write(path, network("mamba2")).read_bytes()
    for end in (8, 40, 300, len(whole) // 2, len(whole) - 50):
        path.write_bytes(whole[:end])
        with pytest.raises(BadInput, match="not a whole GGUF file"):
            read_gguf(path)
    for data in (b"", b"GG", b"PK\x03\x04" + whole):
        path.write_bytes(data)
        with pytest.raises(BadInput, match="not a GGUF file"):
            read_gguf(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_gguf(tmp_path / "nowhere.gguf")


def header(*fields, tensors=b"", n_tensors=0, n_fields=None):
    """The bytes of a GGUF file without tensors."""
    counts = struct.pack("<IQQ", 3, n_tensors, len(fields) if n_fields is None else n_fields)
    return b"GGUF" + counts + b"".join(fields) + tensors + bytes(2000)


def field(key, kind, data):
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + data


@pytest.mark.parametrize(
    "data",
    [
        header(field("x", 9, struct.pack("<IQ", 0, 2**60))),  # numbers of no end
        header(field("x", 9, struct.pack("<IQ", 8, 2**60))),  # texts
        header(field("x", 9, struct.pack("<IQ", 9, 2**63))),  # arrays
        header(field("x", 9, struct.pack("<IQ", 9, 1) * 5000)),  # arrays in arrays
        header(field("x", 8, struct.pack("<Q", 2**64 - 1))),
        header(field("x", 77, b"")),
        header(n_fields=2**62),
        header(n_tensors=2**62),
        header(tensors=struct.pack("<QI", 0, 2**31), n_tensors=1),
    ],
)
def test_counts_that_the_file_is_too_short_for_are_not_believed(data, tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(BadInput, match="not a whole GGUF file"):
        GGUFFile(path)


def test_layers_without_end_are_not_looked_for(tmp_path):
    path = write(
        tmp_path / "a.gguf", network("mamba2"), also=lambda out: replaced(out, "mamba2.block_count", 2**32 - 1)
    )
    with pytest.raises(BadInput, match=r"the tensor 'blk.2.attn_norm.weight' is missing"):
        read_gguf(path)


def replaced(out, key, value):
    out.kv_data[0][key].value = value


def test_a_tokenizer_is_what_it_was(tmp_path):
    path = write(tmp_path / "a.gguf", network("mamba"))
    with GGUFFile(path) as file:
        files = tokenizer_files(file)
        assert file.names() == [tensor.name for tensor in GGUFReader(path).tensors]
    inner = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    assert inner.encode(" abab  !<end>").ids == [5, 4, 7, 0, 6]
    assert inner.decode([5, 4, 7, 0, 6]) == " abab  !"
    assert inner.get_vocab_size() == 8
    said = json.loads(files["tokenizer_config.json"])
    assert said == {"eos_token": "<end>", "add_bos_token": False, "chat_template": "{{ messages[0].content }}"}


def trained(cut):
    """A tokenizer of a page of text, which cuts as a published one does."""
    inner = tokenizers.Tokenizer(BPE())
    inner.pre_tokenizer, inner.decoder = cut, tokenizers.decoders.ByteLevel()
    text = "The first 12345 words, they're here: naïve, straße — 日本! " * 4
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [text], tokenizers.trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    )
    inner.add_special_tokens([AddedToken("<|end|>", special=True)])
    return inner


@pytest.mark.parametrize("pre", ["gpt-2", "falcon"])
def test_text_is_cut_as_by_the_tokenizer_itself(pre, tmp_path):
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")
    falcon = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), plain, pre_tokenizers.Digits(), digits])
    theirs = trained({"gpt-2": plain, "falcon": falcon}[pre])
    saved = json.loads(theirs.to_str())
    tokens = [theirs.id_to_token(i) for i in range(theirs.get_vocab_size())]

    def vocabulary(out):
        for key in ("tokens", "token_type", "merges", "pre"):
            del out.kv_data[0][f"tokenizer.ggml.{key}"]
        out.add_token_list(tokens)
        out.add_token_types([TokenType.CONTROL if t == "<|end|>" else TokenType.NORMAL for t in tokens])
        out.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
        out.add_tokenizer_pre(pre)

    with GGUFFile(write(tmp_path / "a.gguf", network("mamba"), also=vocabulary)) as file:
        ours = tokenizers.Tokenizer.from_str(tokenizer_files(file)["tokenizer.json"].decode())
    for text in ("They're  here: 1234567\n\n naïve, x=3;  ", "日本 straße!!<|end|> the?", "", "\t words"):
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)


def test_a_tokenizer_of_scores_joins_the_highest_first(tmp_path):
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, "▁", "a", "b", "c", "ab", "bc", "▁a", "abc"]
    kinds = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 8]

    def vocabulary(out):
        for key in ("tokens", "token_type", "merges", "pre", "eos_token_id"):
            del out.kv_data[0][f"tokenizer.ggml.{key}"]
        replaced(out, "tokenizer.ggml.model", "llama")
        out.add_token_list(tokens)
        out.add_token_types(kinds)
        out.add_token_scores([0.0] * 263 + [-3.0, -1.0, -2.0, -4.0])
        out.add_bos_token_id(1)

    with GGUFFile(write(tmp_path / "a.gguf", network("mamba"), also=vocabulary)) as file:
        files = tokenizer_files(file)
    inner = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    for text, pieces in (
        ("abc", ["▁a", "bc"]),
        ("b abc</s>é", ["▁", "b", "▁a", "bc", "</s>", "▁", "<0xC3>", "<0xA9>"]),
    ):
        found = inner.encode(text)
        assert found.tokens == pieces
        assert inner.decode(found.ids).replace(" ", "") == text.replace("</s>", "").replace(" ", "")
    assert json.loads(files["tokenizer_config.json"])["add_bos_token"] is True


def test_tokenizers_that_cannot_be_read_say_why(tmp_path):
    def changed(key, value):
        def change(out):
            replaced(out, f"tokenizer.ggml.{key}", value)

        return GGUFFile(write(tmp_path / "a.gguf", network("mamba"), also=change))

    assert tokenizer_files(changed("model", "no_vocab")) is None
    for key, value, line in (
        ("model", "bert", "of the kind 'bert'; gpt2 and llama are read"),
        ("model", "llama", "has no scores"),
        ("pre", "falcon5", "cuts text as 'falcon5' does; did you mean 'falcon"),
        ("merges", ["a zz"], "its tokenizer cannot be read"),
        ("merges", ["a b c"], "its tokenizer cannot be read"),
    ):
        with pytest.raises(BadInput, match=line):
            tokenizer_files(changed(key, value))
    for patterns in CUTS.values():
        for pattern in patterns:
            tokenizers.Regex(pattern)
