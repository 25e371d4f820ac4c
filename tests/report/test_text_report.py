"""The report of language models, trained here or elsewhere: every chapter is there, and its numbers are those of the run."""

import math
import re

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch

from conca import LSTM, Mamba, Mamba2, Mamba3, Mixer
from conca.data.corpus import Corpus
from conca.data.tokenizer import ByteTokenizer, read_tokenizer
from conca.estimators.text_config import TextConfig
from conca.estimators.text_positions import by_position
from conca.estimators.text_runs import TextRun, read_text_run, write_text_run
from conca.layers.quantised import narrowed
from conca.layers.states import size_in_bytes
from conca.models.costs import costs
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.ops.bodies import plain_bodies
from conca.report import holds, memory, surprise, text_facts, text_page, text_sample
from conca.report.page import Chapter, Page, Picture, Quote, Table, render
from conca.report.write import report, write_report

TITLES = [
    "How good it is, and what it is",
    "Training",
    "What it writes",
    "What it remembers",
    "What the state holds",
]
HOSTILE = '<script>alert("1")</script> & more.txt: 600 bytes'


def scores(**bits):
    names = [name.replace("_", " -") for name in bits]
    rows = {"bits per byte": list(bits.values()), "bytes": [600.0] * len(bits)}
    return pd.DataFrame(rows, index=pd.Index(names, name="answer"))


def history(**columns):
    return pd.DataFrame({"epoch": [0, 1, 2], "step": [50, 100, 130], "train/loss": [2.0, 1.5, math.log(2)], **columns})


def network(layers="mamba2(d_state=4, d_head=4)", vocab_size=256, n_tokens=256):
    torch.set_default_dtype(torch.float32)
    return LanguageNetwork(LanguageConfig(vocab_size=vocab_size, n_tokens=n_tokens, layers=layers, d_model=8)).eval()


def run(layers="mamba2(d_state=4, d_head=4)", **parts):
    found = {
        "config": TextConfig(layers=layers, d_model=8, max_minutes=2.0),
        "network": network(layers),
        "tokenizer": ByteTokenizer(),
        "source": HOSTILE,
        "scores": scores(model=2.5, xz_9=3.0, zstd_19=3.1),
        "history": history(**{"val/loss": [3.0, 2.0, 2.25]}),
    }
    return TextRun(**found | parts)


def pictures(parts):
    return [part for part in parts if isinstance(part, Picture)]


def tables(parts):
    return [part for part in parts if isinstance(part, Table)]


def test_every_chapter_is_there_and_the_numbers_are_those_of_the_run(tmp_path):
    made = run("mamba2(d_state=4, d_head=4) s4d(d_state=4) lstm attention(n_heads=2)")
    page = report(made)
    assert [chapter.title for chapter in page.chapters] == TITLES
    assert [len(pictures(chapter.parts)) for chapter in page.chapters] == [1, 1, 0, 5, 1]
    drawn = [p for chapter in page.chapters for p in pictures(chapter.parts)]
    for picture in drawn:
        assert re.search(r"\d", picture.alt) and "nan" not in picture.alt
    identifiers = [i for p in drawn for i in set(re.findall(r'\bid="([^"]+)"', p.svg))]
    assert len(identifiers) == len(set(identifiers)), "no two drawings share one"
    text = render(page)
    assert "<script" not in text and "&lt;script&gt;" in text
    first = page.chapters[0].parts
    assert first[0] == "The model needs 2.500 bits for each byte, 17% fewer than the best compressor, xz -9 (3.000)."
    assert tables(first)[0].rows == [
        ["model", "2.500", "600 bytes"],
        ["xz -9", "3.000", "600 bytes"],
        ["zstd -19", "3.100", "600 bytes"],
    ]
    facts = dict(tables(first)[1].rows)
    assert facts["text"] == HOSTILE and facts["tokens"] == "bytes, without a tokenizer"
    assert facts["parameters"].startswith(f"{sum(p.numel() for p in made.network.parameters()):,}, ")
    assert facts["started from"] == "nothing: first weights by the seed 0"
    assert (
        facts["learnt"].startswith("130 steps of 8 passages of 256 tokens; AdamW, rate up to 0.003")
        and "2 minutes" in facts["learnt"]
    )
    assert "learnt from ends at 1 bits for each byte. Kept: epoch 2, with 2 bits for each byte" in text
    assert [row[0] for row in tables(page.chapters[4].parts)[0].rows] == [c.name for c in costs(made.network)]
    made.network.run = made
    write_report(made.network, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == text, "a model has the page of its run, with the same text"


def test_the_sample_is_what_the_model_writes_whatever_bytes_it_takes():
    made = run()
    text, count, ended = text_sample.written(made)
    assert count == 400 and not ended and text_sample.beginning(made.tokenizer) == ([10], True)
    said, quote, marks = text_sample.chapter(made).parts
    assert said.startswith("400 bytes after a line's end, drawn at a temperature of 0.8 with the seed 0")
    assert quote == Quote(text) and "no text" in marks, "a network that knows nothing writes bytes of all kinds"
    html = render(Page("t", "l", [Chapter("c", [quote])]))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", html)
    shown = render(Page("t", "l", [Chapter("c", [Quote("\n<b>\x00\u202e\x1b[31m\tend")])]))
    assert "<pre>\n\n&lt;b&gt;\u2400\ufffd\u241b[31m\tend</pre>" in shown, "the first line's end stays"
    with torch.no_grad():
        made.network.norm.weight.fill_(math.nan)
    assert (
        text_sample.chapter(made).parts[0].startswith("It writes nothing: the network gives logits that are not finite")
    )


def words(folder, **said):
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="a"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(["<s>", "</s>"])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}')
    return read_tokenizer(folder)


def test_tokens_of_a_tokenizer_and_weights_from_elsewhere(tmp_path):
    tokenizer = words(tmp_path)
    made = run(
        "lstm", network=network("lstm", 8, 4), tokenizer=tokenizer, start="<i>other</i>", scores=scores(model=2.5)
    )
    page = report(made)
    facts = dict(tables(page.chapters[0].parts)[1].rows)
    assert facts["tokens"] == "4 of tokenizer.json, in a table of 8 rows" and facts["started from"] == "<i>other</i>"
    assert "rate up to 0.0002" in facts["learnt"], "that of a network that goes on"
    assert text_facts.ALONE in page.chapters[0].parts and not pictures(page.chapters[0].parts)
    assert "1 bits for each token. Kept" in pictures(page.chapters[1].parts)[0].caption
    assert "after the begin of a text" in page.chapters[2].parts[0]
    assert page.chapters[2].parts[-1] == text_sample.ENDED and "</s>" not in page.chapters[2].parts[1].text
    assert "2 bytes each" in pictures(page.chapters[4].parts)[0].caption
    found = network("mamba(d_state=2)")
    said = {"run": None, "tokenizer": None, "family": "mamba", "generation": {}, "notices": ["said <b>so</b>"]}
    found.__dict__.update(said)
    page = report(narrowed(found, "int8"))
    assert [chapter.title for chapter in page.chapters] == [TITLES[i] for i in (0, 2, 3, 4)]
    assert page.chapters[0].parts[0] == text_facts.ELSEWHERE and page.chapters[0].parts[-1] == "said <b>so</b>"
    assert page.title == "A language model: mamba" and page.chapters[1].parts == (text_sample.NOTHING,)
    assert "products in int8" in dict(tables(page.chapters[0].parts)[0].rows)["parameters"]


def test_a_run_that_held_nothing_out_or_validated_nothing():
    made = run(scores=pd.DataFrame(), history=history())
    page = report(made)
    assert page.chapters[0].parts[0] == text_facts.NOTHING and not pictures(page.chapters[0].parts)
    assert "No text was set aside" in page.chapters[1].parts[0]
    assert pictures(page.chapters[1].parts)[0].caption == "3 epochs; what was learnt from ends at 1 bits for each byte."
    assert "keeps no record" in report(run(history=pd.DataFrame())).chapters[1].parts[0]
    assert report(run(history=history()[:1])).chapters[1].parts == (
        "1 epoch; what was learnt from ends at 2.885 bits for each byte.",
    )


def test_the_verdict_names_the_best():
    say = text_facts.verdict
    lost = say(scores(model=4.0, xz_9=3.0, zstd_19=2.5))
    assert lost.startswith(
        "A compressor is better: zstd -19 needs 2.500 bits for each byte, the model 4.000, 60% more."
    )
    assert say(scores(model=2.501, xz_9=2.5)).startswith("About as good as a compressor")
    assert say(scores(model=2.5)) == "The model needs 2.5 bits for each byte."
    assert say(pd.DataFrame()) == "" == say(scores(model=math.nan, xz_9=2.0))
    part = scores(model=2.0, xz_9=3.0)
    part.loc["xz -9", "bytes"] = 100.0
    assert "xz -9: judged on the first 100 bytes of it alone." in text_facts.chapter(run(scores=part)).parts


def test_surprise_by_position_is_that_of_pieces_read_from_nothing(tmp_path):
    (tmp_path / "corpus.txt").write_bytes(np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8).tobytes())
    text, made = Corpus.open(tmp_path / "corpus.txt", ByteTokenizer()), network("lstm")
    found = by_position(made, text, range(700, 1000))
    assert found["from"].tolist() == [1, 16, 32] and found["to"].tolist() == [16, 32, 64]
    bits = []
    for at in (700, 778, 857, 936):
        ids = torch.from_numpy(text.read(at, at + 64).astype(np.int64))[None]
        bits.append(-made(ids)[0].detach().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0] / math.log(2))
    for low, high, mean, error in found.to_numpy():
        each = torch.stack(bits)[:, int(low) - 1 : int(high) - 1].mean(1)
        assert mean == pytest.approx(float(each.mean()), rel=1e-5)
        assert error == pytest.approx(float(each.std() / 2), rel=1e-3)
    assert by_position(made, text, range(900, 1000)).empty, "too little"
    made_run = run("lstm", network=made, positions=found.assign(**{"bits per byte": [5.0, 4.0, 3.999]}))
    write_text_run(tmp_path, made_run)
    again = read_text_run(tmp_path)
    pd.testing.assert_frame_equal(again.positions, made_run.positions, check_dtype=False)
    chapter = surprise.chapter(again.positions, text_page.best(again))
    said = "After at most 15 tokens a byte costs 5.00 bits, after 32 to 63 tokens 4.00 (20% fewer)."
    assert pictures(chapter.parts)[0].caption.startswith(said.replace("5.00", "5.000").replace(" 4.00", " 3.999"))
    assert pictures(chapter.parts)[0].caption.endswith(
        "From 16 tokens on no help of more than 1% can be told from chance."
    )


@pytest.mark.parametrize("layers", ["mamba2(d_state=4, d_head=4)*2", "lstm attention(n_heads=2)"])
def test_the_bytes_of_the_state_are_those_of_a_network_that_has_read(layers):
    made = network(layers)
    for count, held in zip((1, 9), holds.grown(made, (1, 9))):
        assert held == size_in_bytes(made.read(torch.zeros(1, count, dtype=torch.int64))[1])


@torch.no_grad()
@pytest.mark.parametrize("layer", [Mamba(4, d_state=3), Mamba2(8, d_state=3, d_head=4), Mamba3(8, d_state=4, d_head=4)])
def test_a_memory_of_a_selective_layer_fades_as_said(layer: Mixer):
    """What has no say: where everything that is read is 0, the state falls by what the time says."""
    rows = memory.resting_times(layer)
    assert rows.ndim == 1 and (rows > 0).all()
    if isinstance(layer, Mamba2):
        layer.decay = type(layer.decay)(limit=(0.5, 0.5))
        np.testing.assert_allclose(memory.resting_times(layer), 2 / layer.A_log.exp().numpy())
        layer.decay = type(layer.decay)()
    if not isinstance(layer, Mamba3):
        layer.conv.bias.zero_()
    with plain_bodies():
        _, state = layer(torch.randn(1, 6, layer.d_model))
        zero = torch.zeros(1, 8, layer.d_model)  # the short convolution has let go of what was before
        _, state = layer(zero, state)
        after = layer(zero[:, :1], state)[1]
    name = next(n for n in state._fields if n.startswith(("h_", "S_")))
    before, then = (getattr(s, name)[0] for s in (state, after))
    left = (then / before).reshape(len(rows), -1) if not isinstance(layer, Mamba) else (then / before).reshape(-1, 1)
    np.testing.assert_allclose(left, np.exp(-1 / rows)[:, None].repeat(left.shape[1], 1), rtol=1e-9)


def test_the_families_are_found_in_a_stack():
    made = network("mamba(d_state=2) lstm mamba2(d_state=4, d_head=4)")
    assert [name for name, _ in memory.layers_of(made.stack, Mamba | Mamba2 | Mamba3)] == ["layer 1", "layer 3"]
    assert [name for name, _ in memory.layers_of(made.stack, LSTM)] == ["layer 2"]
