"""`conca fit --task text` at the prompt."""

import json

import pytest

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
