"""Language models at the prompt: generate, chat, score, info, and what they refuse."""

import csv
import errno
import io
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pandas as pd
import pytest
import tokenizers
import torch

import conca
from conca.cli import generate
from conca.data.tokenizer import ByteTokenizer
from conca.infer.generating import Writer
from conca.infer.past import Past
from conca.models.language import LanguageConfig, LanguageNetwork

Say = Callable[..., tuple[int, str, str]]
TEMPLATE = "{% for m in messages %}{{ '<' + m.role[0] + '>' + m.content + '\\n' }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes with random weights, which nobody may change."""
    torch.set_default_dtype(torch.float64)  # a fixture of a module is made before what every test begins with
    torch.manual_seed(1)
    config = LanguageConfig(
        vocab_size=256, n_tokens=256, layers="mamba2(d_state=4, d_head=8) mamba(d_state=3)", d_model=16, std=0.5
    )
    network = LanguageNetwork(config).float().eval()
    folder = tmp_path_factory.mktemp("kept") / "model"
    conca.LanguageModel.around(network, ByteTokenizer()).save_pretrained(folder)
    return folder


def test_a_text_is_the_same_alone_in_company_in_parts_and_from_stdin(
    say: Say, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = ["--temperature", 0.9, "--seed", 5]
    status, alone, err = say("generate", kept, "-p", "Hello", "-n", 12, *drawn)
    assert status == 0 and "wrote 12 in" in err and len(alone) > 4
    _, lines, _ = say("generate", kept, "-p", "Hello", "-p", "A longer prompt", "-n", 12, "--json", "-q", *drawn)
    first, second = map(json.loads, lines.splitlines())
    assert first["text"] + "\n" == alone and first["ended"] == "length" and second["prompt"] == "A longer prompt"
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello"))
    assert say("generate", kept, "-p", "-", "-n", 12, "-q", "--echo", *drawn)[1] == "Hello" + alone
    assert say("generate", kept, "-p", "Hello", "-n", 7, "--state", "text.state", "-q", *drawn)[0] == 0
    status, _, err = say("generate", kept, "-n", 5, "--state", "text.state", "--json", *drawn)
    assert status == 0 and "read 1 token" in err
    model = conca.load(kept)
    whole = model.write("Hello", max_new_tokens=12, temperature=0.9, seed=5)
    part = model.write("Hello", max_new_tokens=7, temperature=0.9, seed=5)
    rest = model.write([[]], past=part.past, max_new_tokens=5, temperature=0.9, seed=5)
    assert whole.rows[0].ids.tolist() == part.rows[0].ids.tolist() + rest.rows[0].ids.tolist()
    assert model.generate("Hello", max_new_tokens=12, temperature=0.9, seed=5) + "\n" == alone


def broken_off(at: int, end: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many pieces of a text something ends the writing."""
    say, pieces = generate.say, iter(range(1, 10**6))

    def interrupted(text: str) -> None:
        if next(pieces) == at:
            end()
        say(text)

    monkeypatch.setattr(generate, "say", interrupted)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("form", ["stream", "stop", "json", "several"])
def test_a_signal_loses_nothing_that_was_written(
    number: int, status: int, form: str, say: Say, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = conca.load(kept)
    whole = model.write(["Hello", "Hi"][: 1 + (form == "several")], max_new_tokens=12, temperature=0.9, seed=5)
    held = [word for letter in sorted(set(whole.rows[0].text)) for word in ("--stop", f"{letter} will not come")]
    words = {"stop": held, "json": ["--json"], "several": ["-p", "Hi"]}.get(form, [])
    drawn = ["--temperature", 0.9, "--seed", 5, "--state", "text.state"]
    with monkeypatch.context() as changed:
        if form in ("json", "several"):  # nothing is printed before the end, so the writing itself is interrupted
            push = Writer._push
            changed.setattr(Writer, "_push", lambda *a: (a[3] == 5 and signal.raise_signal(number), push(*a))[1])
        else:
            broken_off(5, lambda: signal.raise_signal(number), changed)
        found, out, err = say("generate", kept, "-p", "Hello", "-n", 12, *words, *drawn)
    assert found == status and "Traceback" not in err and "wrote " in err
    past = Past.load("text.state", model)
    count = int(past.written[0])
    assert 5 <= count < 9
    texts = [model.decoded(row.ids[:count]) for row in whole.rows]
    assert (json.loads(out)["text"] if form == "json" else out.removesuffix("\n")) == "\n---\n".join(texts)
    rest = model.write([[] for _ in texts], past=past, max_new_tokens=12 - count, temperature=0.9, seed=5)
    assert [row.ids.tolist() for row in rest.rows] == [row.ids[count:].tolist() for row in whole.rows]


def test_a_signal_before_anything_is_written_changes_no_state(say: Say, kept: Path, monkeypatch) -> None:
    say("generate", kept, "-p", "Hello", "-n", 3, "--state", "text.state")
    before = Path("text.state").read_bytes()
    made = generate.writer_of

    def interrupted(*words: object) -> Writer:
        writer = made(*words)
        writer._read = lambda: signal.raise_signal(signal.SIGTERM)
        return writer

    monkeypatch.setattr(generate, "writer_of", interrupted)
    assert say("generate", kept, "-n", 3, "--state", "text.state") == (143, "", "")
    assert Path("text.state").read_bytes() == before


def test_a_reader_that_leaves_loses_no_state(say: Say, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inward, outward = os.pipe()
    with os.fdopen(outward, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        broken_off(3, lambda: os.close(inward), monkeypatch)
        assert say("generate", kept, "-p", "Hello", "-n", 12, "--state", "text.state") == (141, "", "")
    model = conca.load(kept)
    whole, past = model.write("Hello", max_new_tokens=12), Past.load("text.state", model)
    rest = model.write([[]], past=past, max_new_tokens=9)
    assert whole.rows[0].ids[3:].tolist() == rest.rows[0].ids.tolist()


@pytest.mark.parametrize("words", [[], ["--json"], ["--samples", 2], ["--echo"]])
def test_where_nothing_could_be_printed_the_state_stays(say: Say, kept: Path, monkeypatch, words: list[object]) -> None:
    say("generate", kept, "-p", "Hello", "-n", 3, "--state", "text.state")
    before = Path("text.state").read_bytes()

    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(generate, "say", full)
    status, _, err = say("generate", kept, "-p", " there", "-n", 3, "--state", "text.state", *words)
    assert (status, err) == (2, "conca: output: No space left on device\n")
    assert Path("text.state").read_bytes() == before


def test_samples_beams_and_stop_strings(say: Say, kept: Path) -> None:
    _, out, _ = say(
        "generate", kept, "-p", "ab", "-n", 4, "--samples", 3, "--temperature", 1, "--seed", 0, "--json", "-q"
    )
    texts = [json.loads(line)["text"] for line in out.splitlines()]
    assert len(texts) == 3 and len(set(texts)) > 1
    model = conca.load(kept)
    found = model.generate("ab", max_new_tokens=4, num_beams=3)
    assert found != model.generate("ab", max_new_tokens=4)
    assert say("generate", kept, "-p", "ab", "-n", 4, "--beams", 3, "-q") == (0, found + "\n", "")
    text = model.generate("ab", max_new_tokens=9)
    end = text[3]
    _, out, _ = say("generate", kept, "-p", "ab", "-n", 9, "--stop", end, "--json", "-q")
    assert json.loads(out) == {"prompt": "ab", "text": text[: text.index(end)], "ended": "stop"}


def test_a_score_is_the_sum_of_its_tokens(say: Say, kept: Path) -> None:
    text = ("Once upon a time. \n" * 200).encode() + b"\xff\x00"
    Path("story.txt").write_bytes(text)
    status, out, err = say("score", kept, "story.txt", "--tokens", "tokens.csv")
    assert status == 0 and "wrote tokens.csv" in err
    table = pd.read_csv("tokens.csv", keep_default_na=False)
    found = pd.to_numeric(table["log_likelihood"], errors="coerce")
    assert len(table) == len(text) and found.isna().sum() == 1
    bits = -found.sum() / math.log(2) / (len(text) - 1)
    shown = float(out.split("as stored")[1].split()[0])
    assert shown == pytest.approx(bits, rel=1e-3)
    assert conca.load(kept).score(text).bits_per_byte == pytest.approx(bits, rel=1e-5)
    assert say("score", kept, "story.txt", "--tokens", "tokens.csv")[0] == 2


def test_a_table_of_tokens_is_read_as_it_was_written(say: Say, kept: Path) -> None:
    text = bytes(range(256)) + b'a\r\nb,"c"\r'
    Path("odd.txt").write_bytes(text)
    assert say("score", kept, "odd.txt", "--tokens", "odd.csv", "-q")[0] == 0
    table = pd.read_csv("odd.csv", keep_default_na=False)
    assert table["id"].tolist() == list(text) and table["position"].tolist() == list(range(len(text)))
    with Path("odd.csv").open(newline="", encoding="utf-8") as file:
        assert [row[1] for row in csv.reader(file)][1:] == [str(byte) for byte in text]
    assert "is the text that is scored" in say("score", kept, "odd.txt", "--tokens", "odd.txt", "--force")[2]
    assert Path("odd.txt").read_bytes() == text


def test_one_token_is_nothing_to_score(say: Say, kept: Path) -> None:
    Path("one.txt").write_text("a")
    status, out, err = say("score", kept, "one.txt", "--tokens", "tokens.csv")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "one.txt" in err and "give at least two" in err and not Path("tokens.csv").exists()
    Path("two.txt").write_text("ab")
    status, out, _ = say("score", kept, "two.txt")
    assert status == 0 and out.split("as stored")[1].split()[0] != "-"


def test_narrow_weights_are_judged_beside_those_stored_and_kept(say: Say, kept: Path) -> None:
    Path("story.txt").write_text("Once upon a time. " * 20)
    status, out, err = say("score", kept, "story.txt", "--quantize", "int8")
    assert (
        status == 0
        and {"as stored", "int8"} <= set(out.replace("\n", "  ").split("  ")) | {"as stored"}
        and "loses" in err
    )
    status, out, _ = say("score", kept, "story.txt", "--quantize", "int8", "--save", "narrow")
    again = say("score", "narrow", "story.txt")[1]
    assert out.split("int8")[1].split()[:3] == again.split("as stored")[1].split()[:3]
    assert say("generate", "narrow", "-p", "a", "-n", 3, "-q")[0] == 0
    assert "int8" in say("info", "narrow")[1]
    assert "--quantize" in say("score", kept, "story.txt", "--save", "other")[2]


def test_a_talk_is_one_state_and_can_be_taken_back(say: Say, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("talk.jinja").write_text(TEMPLATE)

    def talked(*lines: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        return say("chat", kept, "--template", "talk.jinja", "-n", 4, "--temperature", 1, "--seed", 0)

    status, out, err = talked(
        "Hi there", "/save kept.talk", "How are you?", "/undo", "/load kept.talk", "/undo", "/undo", "/what"
    )
    assert status == 0 and len(out) > 4 and Path("kept.talk").exists()
    assert err.count("is taken back") == 2 and "no turn to take back" in err and "/what: unknown" in err
    status, _, err = say("chat", kept)
    assert status == 2 and "has no chat template" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-p", "", "-n", 3], "the prompt is empty"),
        (["-n", 3], "-p is missing"),
        (["-p", "a", "-n", 0], "from 1 on, not 0"),
        (["-p", "a", "--top-p", 2], "top_p must be"),
        (["-p", "a", "--temperature", -1], "temperature must be"),
        (["-p", "a", "--samples", 0], "--samples must be at least 1"),
        (["-p", "a", "--save", "there"], "--quantize int8"),
        (["-p", "a", "--quantize", "int8", "--save", "."], "exists; name another folder"),
        (["-p", "a", "--quantize", "int4"], "int8"),
        (["-p", "a", "--tokenizer", "nowhere.json"], "nowhere.json"),
        (["-p", "a", "--state", "no/such/folder"], "in a folder that is there"),
    ],
)
def test_bad_input_is_one_line(say: Say, kept: Path, words: list[object], told: str) -> None:
    status, out, err = say("generate", kept, *words)
    assert (status, out) == (2, "")
    assert told in err and err.count("\n") == 1


def test_places_that_hold_no_language_model(say: Say, kept: Path, fitted: Path) -> None:
    assert "is a run to forecast" in say("generate", fitted / "run", "-p", "a")[2]
    assert "is a language model" in say("predict", kept, fitted / "air.csv.xz")[2]
    assert "is a language model" in say("stream", kept)[2]
    assert (
        "--tokens belongs to language models" in say("score", fitted / "run", fitted / "air.csv.xz", "--tokens", "x")[2]
    )
    assert "there is no such folder" in say("generate", "nowhere", "-p", "a")[2]
    assert "nowhere.gguf: there is no such file" in say("generate", "nowhere.gguf", "-p", "a")[2]
    Path("model.safetensors").touch()
    assert "name the folder of the checkpoint" in say("generate", "model.safetensors", "-p", "a")[2]
    Path("empty").mkdir()
    assert say("generate", "empty", "-p", "a")[0] == 2


def test_info_and_report_take_an_id(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "hub" / "models--owner--name"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    (home / "snapshots").mkdir()
    config = LanguageConfig(vocab_size=256, n_tokens=256, layers="mamba(d_state=3)", d_model=8)
    model = conca.LanguageModel.around(LanguageNetwork(config).float(), ByteTokenizer(), family="mamba")
    model.save_pretrained(home / "snapshots" / ("0" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    status, out, err = say("info", "owner/name")
    assert status == 0 and "mamba(d_state=3" in out, err
    assert "name a file (--out)" in say("report", "owner/name")[2]
    status, _, err = say("report", "owner/name", "--out", "page.html")
    assert status == 0 and Path("page.html").is_file(), err


def test_a_state_that_grows_is_judged_in_windows(say: Say) -> None:
    torch.manual_seed(0)
    config = LanguageConfig(vocab_size=256, n_tokens=256, layers="attention", d_model=8)
    conca.LanguageModel.around(LanguageNetwork(config).float(), ByteTokenizer()).save_pretrained("grows")
    Path("story.txt").write_text("Once upon a time. " * 100)
    status, _, err = say("score", "grows", "story.txt", "--tokens", "tokens.csv")
    assert status == 0 and "reads windows of 1024" in err
    table = pd.read_csv("tokens.csv", keep_default_na=False)
    assert table["position"].tolist() == list(range(1800)) and (table["log_likelihood"] == "").sum() == 1


def test_a_tokenizer_that_loses_text_is_named(say: Say) -> None:
    lossy = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    lossy.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    lossy.save("tokenizer.json")
    torch.manual_seed(0)
    config = LanguageConfig(vocab_size=2, n_tokens=2, layers="mamba(d_state=2)", d_model=8)
    conca.LanguageModel.around(LanguageNetwork(config).float()).save_pretrained("small")
    Path("story.txt").write_text("the end of the story\n" * 9)
    status, _, err = say("score", "small", "story.txt", "--tokenizer", "tokenizer.json")
    assert status == 0 and "loses a part of the text" in err
