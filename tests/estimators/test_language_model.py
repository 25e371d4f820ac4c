"""A language model as a user holds it: from published weights, tokens and texts, narrow and half precision, to disk and back."""

import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM

import conca
from conca.data.labelled_source import read_labelled
from conca.data.table import Origin, columns_of, read_table
from conca.data.text_files import find_text
from conca.data.tokenizer import ByteTokenizer, read_tokenizer
from conca.estimators.arguments import folder_of
from conca.estimators.kinds import is_run
from conca.estimators.published_tokenizer import tokenizer_of
from conca.infer.past import Past
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput


def model(layers="mamba2(d_state=4, d_head=8)*2", family=None, **options):
    torch.manual_seed(0)
    config = LanguageConfig(
        **{"vocab_size": 256, "n_tokens": 256, "layers": layers, "d_model": 16, "std": 0.5} | options
    )
    return conca.LanguageModel.around(LanguageNetwork(config).float().eval(), ByteTokenizer(), family=family)


def test_published_weights_write_what_transformers_writes(tmp_path):
    torch.manual_seed(0)
    theirs = MambaForCausalLM(MambaConfig(vocab_size=256, hidden_size=16, num_hidden_layers=2, state_size=4)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = conca.load(tmp_path / "theirs", tokenizer="bytes")
    assert ours.family == "mamba" and ours.notices == []
    ids, mask = torch.randint(1, 256, (2, 6)), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    want = theirs.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert torch.equal(ours.generate(ids, attention_mask=mask, max_new_tokens=5), want)
    ours.save_pretrained(tmp_path / "ours")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits)
    assert conca.load(tmp_path / "ours").tokenizer.name == "bytes"


def test_samples_and_shorter_rows():
    ours, ids = model(), torch.tensor([[72, 105], [72, 111]])
    assert ours.generate(ids, max_new_tokens=3, samples=2, temperature=1.0, seed=0).shape == (4, 5)
    first = ours.generate(ids[:1], max_new_tokens=1)[0, -1].item()
    short = ours.generate(ids, max_new_tokens=4, eos=(first,))
    assert short[0, 2:].tolist() == [first] * 4
    texts = ours.generate(["Hi", "Ho"], max_new_tokens=3)
    assert texts == [ours.generate("Hi", max_new_tokens=3), ours.generate("Ho", max_new_tokens=3)]


@pytest.mark.parametrize(("layers", "family"), [("mamba3(d_state=4, d_head=8)*2", "mamba3"), ("s5*2", None)])
def test_layers_that_transformers_does_not_have_are_kept_in_a_form_of_our_own(tmp_path, layers, family):
    ours = model(layers, family)
    ours.generation["eos_token_id"] = 10
    ours.save_pretrained(tmp_path / "kept")
    again, ids = conca.load(tmp_path / "kept"), torch.randint(256, (2, 7))
    assert torch.equal(again(ids)[0], ours(ids)[0])
    assert (again.family, again.generation, again.config) == (family, {"eos_token_id": 10}, ours.config)
    with pytest.raises(BadInput, match="exists"):
        ours.save_pretrained(tmp_path / "kept")


def test_half_precision_decodes_with_activations_in_float32(tmp_path):
    exact, ids = model(family="mamba2"), torch.randint(256, (1, 9))
    want, _ = exact(ids)
    half = model(family="mamba2").bfloat16()
    half.save_pretrained(tmp_path / "half")
    stored = conca.load(tmp_path / "half")
    assert stored.embedding.weight.dtype == torch.bfloat16
    stored.for_decoding()
    found, _ = stored(ids)
    assert found.dtype == torch.float32 and not any(p.dtype == torch.bfloat16 for p in stored.parameters())
    assert (found - want).abs().max() < 0.02 * want.abs().max()
    wide = conca.load(tmp_path / "half", dtype=torch.float32)
    torch.testing.assert_close(wide(ids)[0], found)


def test_a_score_counts_the_bytes_that_are_foretold():
    ours, text = model(), "Hello, world"
    ids = torch.tensor([list(text.encode())])
    h, _ = ours.read(ids[:, :-1])
    nats = ours.loss(h, ids[:, 1:], reduction="sum").item()
    found = ours.score(text)
    assert (found.tokens, found.bytes) == (11, 11)
    assert found.nats == pytest.approx(nats, rel=1e-5)
    texts = "éab", "é", b"\xff\xfeab", "\udcffab"  # the first token may be part of a character
    assert [ours.score(text).bytes for text in texts] == [3, 1, 3, 2]


def test_what_the_tokenizer_does_not_have_is_never_written():
    ids = torch.tensor([[65, 66]], dtype=torch.int8)
    wide, small = (model().generate(some, max_new_tokens=6) for some in (ids.long(), ids))
    assert torch.equal(wide, small)
    padded = model(vocab_size=264, n_tokens=264)
    with torch.no_grad():
        padded.embedding.weight[256:] = 50 * padded.embedding.weight[:8]
    assert padded.config.n_tokens == 256
    assert max(padded.generate(torch.tensor([[1, 2]]), max_new_tokens=8)[0]) < 256


def test_what_does_not_fit_is_refused():
    with pytest.raises(BadInput, match="256"):
        conca.LanguageModel.around(model(vocab_size=200, n_tokens=200), ByteTokenizer())
    ours = model()
    ours.tokenizer = None
    with pytest.raises(BadInput, match="no tokenizer"):
        ours.generate("Hi", max_new_tokens=2)
    with pytest.raises(BadInput, match="no such folder"):
        conca.load("nowhere.folder", dtype=torch.float32)
    with pytest.raises(BadInput, match="too long"):
        conca.load("x" * 5000)


@pytest.mark.parametrize(
    ("prompts", "options", "told"),
    [
        ({"input_ids": torch.ones(1, 2)}, {}, "expected a text, several"),
        ([1, 2, 3], {}, "expected a text, several"),
        (5, {}, "expected a text, several"),
        (None, {"input_ids": torch.ones(1, 2)}, "conca says 'prompts'"),
        (torch.tensor([1, 2]), {}, r"\(batch, time\), got \(2,\)"),
        ("Hi", {"attention_mask": torch.ones(1, 2)}, "attention_mask belongs to tokens"),
    ],
)
def test_prompts_of_another_kind_are_refused(prompts, options, told):
    with pytest.raises(BadInput, match=told):
        model().generate(prompts, max_new_tokens=2, **options)


def test_bytes_are_a_text():
    ours = model()
    assert ours.write(b"Hi", max_new_tokens=3).rows[0].text == ours.generate("Hi", max_new_tokens=3)
    with pytest.raises(BadInput, match="expected a str or bytes"):
        ours.score(torch.tensor([1, 2]))


def test_what_others_say_when_they_load_is_answered(tmp_path):
    model(family="mamba2").save_pretrained(tmp_path / "published")
    model("s5").save_pretrained(tmp_path / "run")
    for place in (tmp_path / "published", tmp_path / "run"):
        for option, told in {
            "torch_dtype": "conca says 'dtype'", "local_files_only": "HF_HUB_OFFLINE", "load_in_8bit": "quantize='int8'",
            "quantise": "did you mean 'quantize'",
        }.items():  # fmt: skip
            with pytest.raises(BadInput, match=told):
                conca.load(place, **{option: True})
        with pytest.raises(BadInput, match="a type of floats"):
            conca.load(place, dtype="auto")
    with pytest.raises(BadInput, match="'revision' belongs to published weights"):
        conca.load(tmp_path / "run", revision="main")


def test_what_is_loaded_in_inference_mode_can_be_trained(tmp_path):
    model(family="mamba2").save_pretrained(tmp_path / "mine")
    with torch.inference_mode():
        loaded = conca.load(tmp_path / "mine")
    assert not any(tensor.is_inference() for tensor in loaded.state_dict().values())


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "is not in the cache"), ("{}", r"is damaged: .*/tokenizer\.json: no tokenizer can be read from it \(.+\)")],
)
def test_the_tokenizer_of_a_family_that_cannot_be_used_says_why(tmp_path, monkeypatch, content, told):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    home = tmp_path / "hub" / "models--EleutherAI--gpt-neox-20b"
    (home / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    if content is not None:
        (home / "snapshots" / ("0" * 40) / "tokenizer.json").write_text(content)
    lines = []
    found = SimpleNamespace(family="mamba", config=SimpleNamespace(n_tokens=50280))
    assert tokenizer_of(tmp_path, found, lines) is None
    (line,) = lines
    assert re.search(rf"that of EleutherAI/gpt-neox-20b {told}.*; name a tokenizer\.json", line) and "\n" not in line


@pytest.mark.parametrize(("layers", "family"), [("mamba2(d_state=4, d_head=8)", "mamba2"), ("s5", None)])
def test_the_home_folder_is_named_as_in_a_shell(tmp_path, monkeypatch, layers, family):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    ours = model(layers, family)
    ours.save_pretrained("~/kept")
    left = ours.write("Hi", max_new_tokens=2).past
    left.save("~/text.state", ours)
    pd.DataFrame({"who": ["n"], "a": [1.5], "label": ["x"]}).to_csv(tmp_path / "home" / "table.csv", index=False)
    ids = torch.tensor([[1, 2]])
    for place in ("~/kept", Path("~/kept")):
        assert torch.equal(conca.load(place)(ids)[0], ours(ids)[0])
        assert torch.equal(conca.LanguageModel.from_pretrained(place)(ids)[0], ours(ids)[0])
    assert torch.equal(Past.load("~/text.state", ours).logits, left.logits)
    assert read_tokenizer("~/kept").name == "bytes"
    assert find_text("~/table.csv").files[0].name == "table.csv"
    assert [*read_table("~/table.csv").columns] == columns_of("~/table.csv") == ["who", "a", "label"]
    assert Origin.of("~/table.csv").row(0) == "row 2"
    assert len(read_labelled("~/table.csv", series="who", label="label").labels) == 1
    assert folder_of("~/run") == tmp_path / "home" / "run" and folder_of("~nobody-here/run") == Path("~nobody-here/run")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_an_id_has_an_owner_and_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for place in ("owner/name", "owner/name.v1", "owner/name/deep/x.gguf", "nowhere.gguf"):
        assert not is_run(place)
    for place in (
        "gpt2",
        "runs/lost",
        "./owner/name",
        "/owner/name",
        "../owner/name",
        "owner/na me",
        "owner/..",
        "~/lost",
        "a/b/c",
    ):
        assert is_run(place)
        with pytest.raises(BadInput, match="no such folder"):
            conca.load(place)
