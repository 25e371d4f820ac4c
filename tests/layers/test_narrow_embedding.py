"""Narrow embeddings: what they give, what they keep through casts and files, and a language model that is made of them."""

import copy
import json
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import conca  # noqa: F401  (registers the kernels)
from conca.infer.decoder import Decoder
from conca.layers.narrow_embedding import NarrowEmbedding
from conca.layers.quantised import HalfLinear, Int8Linear, kind_of, narrow_of, narrowed, put, skeleton
from conca.layers.tied_embedding import TiedEmbedding
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.language_file import load_network, network_skeleton, save_network
from conca.ops import bodies
from conca.ops.cross_entropy import linear_cross_entropy
from conca.types import BadInput

KINDS = pytest.mark.parametrize("kind", ["int8", "bfloat16"])
LAYERS = "mamba(d_state=3) mamba2(d_state=4, d_head=4)"


def table(kind, vocab_size=23, d_model=6):
    tokens = TiedEmbedding(vocab_size, d_model, std=1.0)
    with torch.no_grad():
        tokens.weight[2] = 0
    narrow = narrowed(tokens, kind)
    wide = narrow.weight.double() if narrow.scale is None else narrow.weight * narrow.scale[:, None]
    assert_close(wide, tokens.weight.detach(), rtol=0, atol=float(tokens.weight.detach().abs().max()) / 250)
    return narrow, wide


def network(tied=True, **options):
    given = {"vocab_size": 23, "n_tokens": 20, "layers": LAYERS, "d_model": 8, "tied": tied, "std": 0.5} | options
    return LanguageNetwork(LanguageConfig(**given)).eval()


@KINDS
def test_it_is_the_table_of_its_rounded_rows(kind, monkeypatch):
    for place in ("layers.narrow.PIECE", "ops.narrow_cross_entropy.WIDENED", "ops.narrow_cross_entropy.ROWS"):
        monkeypatch.setattr(f"conca.{place}", 4)
    monkeypatch.setattr("conca.ops.narrow_cross_entropy.PIECE", 100)
    narrow, wide = table(kind)
    ids = torch.randint(23, (3, 5))
    ids[0, 0] = 2
    assert_close(narrow(ids), wide[ids], rtol=0, atol=0)
    assert not narrow(torch.tensor(2)).any()
    with pytest.raises(IndexError):
        narrow(torch.tensor([23]))
    for shape in ((6,), (2, 6), (3, 5, 6), (0, 6)):
        x = torch.randn(shape)
        assert_close(narrow.logits(x), x @ wide.T)
    with pytest.raises(ValueError, match=r"NarrowEmbedding: expected numbers \(..., 6\)"):
        narrow.logits(torch.zeros(2, 5))
    x, target = torch.randn(3, 5, 6, requires_grad=True), torch.randint(23, (3, 5))
    target[1, 2:] = -100
    x.data[1, 3] = torch.nan  # what is ignored may be anything
    for plain in (nullcontext, bodies.plain_bodies):
        for reduction in ("mean", "sum", "none"):
            with plain():
                found = narrow.loss(x, target, reduction=reduction)
                want = linear_cross_entropy(x, wide, target, reduction=reduction)
                with torch.no_grad():
                    assert_close(narrow.loss(x, target, reduction=reduction), want)
            assert_close(found, want)
            g = torch.rand_like(found)
            assert_close(torch.autograd.grad(found, x, g)[0], torch.autograd.grad(want, x, g)[0])
    with pytest.raises(IndexError, match="label 23"):
        narrow.loss(x, target.clamp(min=23))
    assert narrow.loss(x[:0], target[:0]).isnan()


def test_a_head_with_a_bias_has_a_loss_too():
    head = nn.Linear(6, 9)
    narrow, x, target = Int8Linear.from_linear(head), torch.randn(4, 6), torch.randint(9, (4,))
    for plain in (nullcontext, bodies.plain_bodies):
        with plain():
            assert_close(narrow.loss(x, target), nn.functional.cross_entropy(narrow(x), target))


@KINDS
def test_casts_copies_and_files_keep_it(kind):
    narrow, _ = table(kind)
    ids, x = torch.tensor([4, 2]), torch.randn(2, 6)
    want = narrow(ids), narrow.logits(x)
    assert (narrow.float()(ids).dtype, narrow.bfloat16()(ids).dtype) == (torch.float32, torch.float32)
    narrow.double()
    assert narrow(ids).dtype == torch.float64 and narrow.weight.dtype == getattr(torch, kind)
    assert_close((narrow(ids), narrow.logits(x)), want, rtol=1e-6, atol=1e-6)
    again = copy.deepcopy(narrow)
    assert torch.equal(again(ids), narrow(ids)) and not [*again.parameters()]
    other, _ = table(kind)
    other.load_state_dict(narrow.state_dict())
    assert torch.equal(other(ids), narrow(ids)) and kind in repr(other)
    with pytest.raises(RuntimeError, match=r"weight is torch.float64, but the model keeps it in"):
        other.load_state_dict({"weight": torch.zeros(23, 6), "scale": torch.ones(23)}, strict=False)
    for bad in (torch.nan, torch.inf):
        tokens = TiedEmbedding(3, 4)
        tokens.weight.data[1, 2] = bad
        with pytest.raises(BadInput, match="not finite"):
            narrowed(tokens, kind)


@KINDS
@pytest.mark.parametrize("tied", [True, False])
def test_a_network_decodes_scores_and_is_kept(kind, tied, tmp_path):
    wide = network(tied)
    narrow = narrowed(copy.deepcopy(wide), kind)
    assert kind_of(narrow) == kind and kind_of(wide) is None
    assert type(narrow.embedding) is NarrowEmbedding and tied == (narrow.head is None)
    recurrent = {name: t for name, t in wide.state_dict().items() if "A_log" in name or "dt_bias" in name}
    assert all(torch.equal(narrow.state_dict()[name], t) for name, t in recurrent.items())
    ids = torch.randint(20, (2, 7))
    with torch.no_grad(), bodies.watched() as used:
        assert_close(narrow(ids)[0], wide(ids)[0], rtol=0, atol=0.3)
        h, _ = narrow.read(ids)
        want = nn.functional.cross_entropy(narrow.logits(h).flatten(0, 1), ids.flatten())
        assert_close(narrow.loss(h, ids), want)
        decoder = Decoder(
            narrow.stack, embedding=narrow.embedding, norm=narrow.norm, head=narrow.head or narrow.embedding
        )
        state, same = narrow.init_state(2), narrow.init_state(2)
        for token in ids.unbind(1):
            logits, state = decoder.step(token, state)
            expected, same = narrow.step(token, same)
            assert_close((logits, state), (expected, same))
        assert "program" in used
        assert decoder._plan.ends
    path = tmp_path / "model.safetensors"
    save_network(narrow, path)
    assert load_file(path)["embedding.weight"].dtype == getattr(torch, kind)
    config = LanguageConfig.from_dict(json.loads(json.dumps(narrow.config.as_dict())))
    assert_close(load_network(config, path, quantized=kind)(ids)[0], narrow(ids)[0])
    save_network(wide, path)
    assert_close(load_network(config, path)(ids)[0], wide(ids)[0])
    assert_close(load_network(config, path, quantize=kind)(ids)[0], narrow(ids)[0])


def test_what_does_not_fit_a_file_is_named(tmp_path):
    path, wide = tmp_path / "model.safetensors", network()
    save_network(narrowed(copy.deepcopy(wide), "int8"), path)
    with pytest.raises(BadInput, match=r"model.safetensors: the model has no tensor '\S+scale'"):
        load_network(wide.config, path)
    with pytest.raises(BadInput, match="kept in int8; take the model they were made of"):
        load_network(wide.config, path, quantized="int8", quantize="bfloat16")
    with pytest.raises(BadInput, match="unknown kind 'int9'"):
        network_skeleton(wide.config, "int9")
    save_network(wide, path)
    with pytest.raises(BadInput, match=r"the tensor '\S+scale' is missing"):
        load_network(wide.config, path, quantized="int8")
    with pytest.raises(BadInput, match=r"is torch.float64, but the model keeps it in torch.bfloat16"):
        load_network(wide.config, path, quantized="bfloat16")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        load_network(wide.config, path)


def test_a_model_on_meta_is_filled_name_by_name():
    wide = network(tied=False)
    hollow, weight = network_skeleton(wide.config), wide.embedding.weight.detach()
    put(hollow, "embedding.weight", weight, "int8")
    put(hollow, "norm.weight", wide.norm.weight, "int8")
    assert type(hollow.embedding) is NarrowEmbedding and hollow.norm.weight.dtype == torch.float64
    assert hollow.head.weight.is_meta and not network_skeleton(network(layers="s5").config).embedding.weight.is_meta
    with pytest.raises(BadInput, match=r"'head.weight' is \(3, 2\), but the model has \(23, 8\) there"):
        put(hollow, "head.weight", torch.zeros(3, 2))
    with pytest.raises(BadInput, match=r"no tensor 'heed.weight'; did you mean 'head.weight'"):
        put(hollow, "heed.weight", torch.zeros(3, 2))
    with pytest.raises(BadInput, match=r"expected a weight \(23, 8\)"):
        narrow_of("int8", hollow.head, weight[:, :3])
    with pytest.raises(BadInput, match="RMSNorm is neither"):
        narrow_of("int8", hollow.norm, weight)
    map_ = nn.Linear(8, 23, device="meta")
    assert type(narrow_of("bfloat16", map_, weight)) is HalfLinear and narrow_of("int8", map_, weight).bias.is_meta
    assert type(skeleton(nn.Sequential(map_), "int8")[0]) is Int8Linear


def test_what_is_shared_stays_shared_and_what_is_watched_is_not_narrowed():
    tokens, head = TiedEmbedding(5, 4), nn.Linear(4, 5, bias=False)
    head.weight = tokens.weight
    model = narrowed(nn.ModuleDict({"tokens": tokens, "head": head}))
    assert model["tokens"].weight is model["head"].weight
    assert (
        type(narrowed(nn.ModuleDict({"tokens": TiedEmbedding(5, 4), "head": nn.Linear(4, 5)}), names="head")["tokens"])
        is TiedEmbedding
    )
    watched = TiedEmbedding(5, 4)
    watched.register_forward_hook(lambda *a: None)
    with pytest.raises(BadInput, match="hooked"):
        narrowed(nn.ModuleDict({"tokens": watched}))
