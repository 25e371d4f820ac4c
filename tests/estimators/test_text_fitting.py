"""A training on text as a whole: its run, its scores, what goes on from it, and what cannot be used."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from conca.data.tokenizer import ByteTokenizer
from conca.estimators import text_fitting, text_judging
from conca.estimators.adapters import load_adapter
from conca.estimators.text_config import TextConfig
from conca.estimators.text_fitting import Start, fit_text
from conca.estimators.text_memory import estimated
from conca.estimators.text_runs import read_text_run
from conca.layers.quantised import narrowed
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.train import keeper
from conca.train.passages import Passages
from conca.types import BadInput

SMALL = TextConfig(
    layers="mamba2(d_state=4,d_head=8)*2", d_model=16, length=32, batch_size=4, epochs=2, lr=1e-2, devices="cpu"
)
TEXT = ("The basin holds what flowed in. " * 200)[:-3]


@pytest.fixture(autouse=True)
def _single(monkeypatch, tmp_path):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "basin.txt").write_text(TEXT)
    return tmp_path / "basin.txt"


def bits(network, text):
    """Of every byte of a text but the first."""
    ids = torch.tensor(list(text.encode()))[None]
    with torch.no_grad():
        h, _ = network.read(ids[:, :-1])
        return network.loss(h, ids[:, 1:], reduction="none")[0].numpy() / np.log(2)


def test_a_run_is_written_and_read_and_goes_on(corpus, tmp_path):
    told = []
    run = fit_text(corpus, SMALL, tmp_path / "run", say=told.append)
    assert "held out" in told[0] and "memory: at least" in told[1] and "steps: 128 tokens each" in told[2]
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer_config.json", "metrics.csv", "scores.csv"} <= files
    back = read_text_run(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(run.network.state_dict().values(), back.network.state_dict().values()))
    assert back.config == SMALL and back.tokenizer.name == "bytes"
    assert back.scores.equals(run.scores) and list(back.history["step"]) == list(run.history["step"])
    held = run.scores.loc["model", "bytes"]
    assert held == -(-len(TEXT) // 10) and list(run.scores.index[:2]) == ["model", "xz -9"]
    cut = len(TEXT) - int(held)
    alone = bits(run.network, TEXT[cut - 1 :]).mean()
    assert run.scores.loc["model", "bits per byte"] == pytest.approx(alone, rel=1e-4)
    with pytest.raises(BadInput, match="exists"):
        fit_text(corpus, SMALL, tmp_path / "run")

    before = {name: tensor.clone() for name, tensor in back.network.state_dict().items()}
    start = Start(back.network, back.tokenizer, "run")
    config = replace(SMALL, epochs=1, lora=2, lr=3e-2)
    more = fit_text(corpus, config, tmp_path / "more", start=start)
    changed = {n for n, tensor in more.network.state_dict().items() if not torch.equal(tensor, before[n])}
    assert changed == {f"stack.parts.{i}.inner.{name}.weight" for i in (0, 1) for name in ("in_proj", "out_proj")}
    again = read_text_run(tmp_path / "run").network
    load_adapter(again, tmp_path / "more" / "adapter")
    np.testing.assert_allclose(bits(again, TEXT[:200]), bits(more.network, TEXT[:200]), rtol=1e-4, atol=1e-5)
    assert read_text_run(tmp_path / "more").start == "run"
    whole = fit_text(corpus, replace(SMALL, epochs=1), start=Start(again_of(tmp_path), ByteTokenizer(), "run"))
    assert whole.scores.loc["model", "bits per byte"] < run.scores.loc["model", "bits per byte"]


def test_a_training_that_was_stopped_goes_on(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    monkeypatch.setattr(keeper, "SHARE", 0)
    whole = fit_text(corpus, SMALL)
    end = keeper.Keeper.on_train_batch_end

    def press(self, *rest):
        end(self, *rest)
        if self.course.step == 30:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keeper.Keeper, "on_train_batch_end", press)
        fit_text(corpus, SMALL, tmp_path / "run")
    for config, words in ((SMALL, "unfinished"), (replace(SMALL, lr=1e-3), "begun with lr 0.01, not 0.001")):
        with pytest.raises(BadInput, match=words):
            fit_text(corpus, config, tmp_path / "run", resume=config is not SMALL)
    run = fit_text(corpus, SMALL, tmp_path / "run", resume=True)
    both = zip(whole.network.state_dict().values(), run.network.state_dict().values())
    assert all(torch.equal(a, b) for a, b in both) and run.scores.equals(whole.scores)


def again_of(tmp_path):
    return read_text_run(tmp_path / "run").network


def test_rows_teach_completions_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    draw = np.random.default_rng(0)
    rows = [{"prompt": f"{draw.integers(10**6)} ", "completion": "yes"} for _ in range(300)]
    path.write_text("\n".join(map(json.dumps, rows)))
    run = fit_text(path, replace(SMALL, layers="lstm", epochs=4, length=64))
    assert run.tokenizer.eos == 0
    assert run.scores.loc["model", "bytes"] % 4 == 0
    assert run.scores.loc["model", "bits per byte"] < 1
    assert any("completions" in line for line in run.notices)
    said = bits(run.network, "123456 yes\0")
    assert said[-4:].mean() < 1 < said[:5].mean()


@pytest.mark.parametrize("layers", ["attention", "mamba2(d_state=4,d_head=8)"])
def test_what_grows_is_judged_in_windows(corpus, layers, monkeypatch):
    seen = []
    score = text_judging.score
    monkeypatch.setattr(text_judging, "score", lambda *a, **k: seen.append(k) or score(*a, **k))
    run = fit_text(corpus, replace(SMALL, layers=layers, epochs=1))
    assert run.scores.loc["model", "bytes"] == -(-len(TEXT) // 10)
    assert (len(seen) > 1) is (layers == "attention")
    assert all(k["end"] - k["begin"] <= 32 for k in seen) is (layers == "attention")


def test_memory_is_that_of_what_is_kept():
    network = LanguageNetwork(LanguageConfig(50, 50, "lstm", 8))
    weights = sum(p.nbytes for p in network.parameters())

    class Text:
        read = staticmethod(lambda begin, end: np.zeros(end - begin, np.uint8))
        mask = staticmethod(lambda begin, end: np.ones(end - begin, bool))

    passages = [Passages(Text(), 0, 1000, length=n, batch_size=1, seed=0)[0] for n in (50, 100)]
    one, two = (estimated(network, batch, 3, copies=2) for batch in passages)
    assert (one.weights, one.gradients, one.moments, one.copies) == (weights, weights, 2 * weights, 2 * weights)
    assert 1.5 < two.activations / one.activations < 2.7
    assert two.activations > 3 * 100 * 8 * 4 * 4
    assert "GB" not in two.line() and two.total == sum(vars(two).values())


def test_what_cannot_be_used(corpus, tmp_path):
    network, narrow = (LanguageNetwork(LanguageConfig(300, 300, "lstm", 8)) for _ in range(2))
    narrowed(narrow)
    for words, call in (
        ("lora", lambda: fit_text(corpus, replace(SMALL, lora=2))),
        (
            "tokenizer of its own",
            lambda: fit_text(corpus, SMALL, tokenizer="x", start=Start(network, ByteTokenizer(), "a")),
        ),
        (
            "256",
            lambda: fit_text(corpus, SMALL, start=Start(LanguageNetwork(LanguageConfig(50, 50, "lstm", 8)), None, "a")),
        ),
        (
            "int8 .* cannot learn",
            lambda: fit_text(corpus, SMALL, start=Start(narrow, ByteTokenizer(), "a")),
        ),
        ("nowhere", lambda: fit_text(tmp_path / "nowhere.txt", SMALL)),
        ("lora must be", lambda: TextConfig(lora=0)),
        ("test_fraction", lambda: TextConfig(test_fraction=1.0)),
        ("would touch nothing", lambda: fit_text(corpus, replace(SMALL, lora=2), start=Start(network, None, "a"))),
    ):
        with pytest.raises(BadInput, match=words) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_large_network_and_one_that_goes_on_keep_no_average(monkeypatch):
    network = LanguageNetwork(LanguageConfig(50, 50, "lstm", 8))
    passages = type("P", (), {"each": 700})
    assert text_fitting.recipe_of(SMALL, passages, network, goes_on=False).average
    assert not text_fitting.recipe_of(SMALL, passages, network, goes_on=True).average
    monkeypatch.setattr(text_fitting, "LARGE", 100)
    assert not text_fitting.recipe_of(SMALL, passages, network, goes_on=False).average
    assert TextConfig().course(1200) == (24, 500) and TextConfig(epochs=3).course(10) == (3, 25)
    assert TextConfig(max_minutes=3.0).course(100)[0] == 1000
    assert TextConfig().held_out(10**5) == 0.1 and TextConfig().held_out(2**30) == 2**-10
