"""`conca fit --task text` at the prompt."""

import io
import json
import sys

import pytest
import tokenizers

SMALL = ["--task", "text", "--layers", "lstm", "--d-model", "8", "--length", "16", "--epochs", "1", "--devices", "cpu"]


def test_text_is_learnt_and_what_it_is_worth_is_shown(say, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("what flowed in, flows out\n" * 100)
    status, out, err = say("fit", "a.txt", "--out", "run", *SMALL)
    assert status == 0, err
    assert out.index("bits per byte") < out.index("model") < out.index("xz -9")
    assert err.index("memory: at least") < err.index("epoch 1/1") < err.index("wrote run")
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert say("fit", "a.txt", "--out", "run", *SMALL)[0] == 2
    again = [*SMALL[:2], *SMALL[6:], "--from", "run"]
    status, out, err = say("fit", "a.txt", "--out", "lora", *again, "--lora", "2")
    assert status == 2 and "an adapter would touch nothing" in err
    status, out, err = say("fit", "a.txt", "--out", "more", *again)
    assert status == 0 and "copies" in err, err
    assert json.loads((tmp_path / "more" / "config.json").read_text())["start"] == "run"


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self):
        return True


def test_encoding_shows_how_far_it_is_to_whoever_looks(say, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TERM", "xterm")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "flows": 1, "out": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save("tokenizer.json")
    for name in ("one.txt", "other.txt"):
        (tmp_path / name).write_text("what flows out flows in\n" * 50)
    seen = []
    for out, *rest in (("quiet", "one.txt", "-q"), ("seen", "other.txt"), ("cached", "other.txt")):
        with monkeypatch.context() as changed:
            changed.setattr(sys, "stderr", Terminal())
            assert say("fit", *rest, "--out", out, *SMALL, "--tokenizer", "tokenizer.json")[0] == 0
            seen.append(sys.stderr.getvalue())
    assert ["encoding" in told for told in seen] == [False, True, False]
    assert "1.2/1.2 kB" in seen[1] and seen[1].rindex("encoding") < seen[1].index("memory: at least")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "text", "--horizon", "3"], "--horizon belongs to --task forecast, and this is text"),
        (["--lora", "3", "--horizon", "3"], "--lora belongs to --task text, and this is forecast"),
        (["--task", "text", "--from", "r", "--d-model", "3"], "--d-model belongs to a new network"),
        (["--task", "text", "--lora", "3"], "say which one goes on"),
        (["--task", "text"], "nothing.txt"),
        (["--task", "texts"], "did you mean 'text'"),
    ],
)
def test_what_cannot_be_asked(say, options, words):
    status, _, err = say("fit", "nothing.txt", "--out", "run", *options)
    assert status == 2 and words in err and err.count("\n") == 1
