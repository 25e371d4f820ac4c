"""The report of classifiers, easy and hostile: every chapter is there, and its numbers are those of the metrics."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.metrics import precision_recall_fscore_support

import conca
from conca.estimators.classifier import Classifier
from conca.estimators.classify_config import ClassifyConfig
from conca.estimators.label_runs import LabelRun
from conca.estimators.label_scores import score_labels
from conca.estimators.labels import MOST, Labels
from conca.layers.states import size_in_bytes
from conca.metrics.classification import Calibration, accuracy, confusion, expected_calibration_error
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig
from conca.report import classes, classify_facts, early, holds, memory, reliability
from conca.report import confusion as confusions
from conca.report.drawing import canvas
from conca.report.page import Picture, Table, render
from conca.report.words import percent
from conca.report.write import report, write_report
from conca.types import BadInput

HOSTILE = (
    "<b>x</b><script>alert(1)</script>",
    "🌧 \"'&",
    "\u05e9\u05dc\u05d5\u05dd",
    "y" * 200,
    "\u202eevil",
    "",
    "$x_1$ \\frac{1}{2}",
)
TITLES = [
    "How good it is, and what it is",
    "Training",
    "What is taken for what",
    "Class by class",
    "By length, and while reading",
    "Calibration",
    "What it remembers",
    "What the state holds",
]


SPACES = ClassifyConfig(layers="s4d(d_state=4) lstm", d_model=4)


def labels(names=("up", "down", "flat"), n=120, absent=None, lengths=None, causal=True, skill=2.0):
    """Answers by hand, some of them wrong; no sequence is of the class `absent`."""
    draw = np.random.default_rng(0)
    truth = draw.choice([k for k in range(len(names)) if k != absent], n)
    odds = np.exp(draw.normal(size=(n, len(names))) + skill * np.eye(len(names))[truth])
    probability = odds / odds.sum(1, keepdims=True)
    ends = np.stack([np.where(draw.random(n) < s / 10, probability.argmax(1), 0) for s in range(1, 11)])
    lengths = draw.integers(5, 80, n) if lengths is None else np.full(n, lengths)
    return Labels.of(names, truth, probability, lengths, ends if causal else None)


def fitted(found, config=None, history=None, **run):
    """A classifier as if it had been fitted, its weights those that it starts with."""
    config = config or ClassifyConfig(layers="attention(n_heads=2)", d_model=4)
    count = len(found.classes) if found else 3
    shape = ClassifyNetworkConfig(
        channels=2,
        symbols=0,
        classes=count,
        layers=config.layers,
        d_model=4,
        dropout=0.1,
        bidirectional=config.bidirectional,
    )
    counts = np.arange(count) + 5
    parts = {
        "config": config,
        "network": ClassifyNetwork(shape),
        "classes": np.array(found.classes if found else ["a", "b", "c"]),
        "counts": counts,
        "channels": ("x", "<i>y</i>"),
        "symbols": (),
        "rate": None,
        "reading": {},
        "source": "toy.ts: <u>many</u> sequences",
        "features": None,
        "scores": score_labels(found.truth, found.probability, counts, np.zeros_like(found.truth))
        if found
        else pd.DataFrame(),
        "evaluation": found,
        "history": history if history is not None else pd.DataFrame(),
    }
    classifier = Classifier(**{name: getattr(config, name) for name in ("layers", "d_model", "bidirectional")})
    classifier._take(LabelRun(**parts | run))
    return classifier


@pytest.fixture(scope="module")
def page():
    torch.set_default_dtype(torch.float32)
    history = pd.DataFrame({"epoch": [0, 1, 2], "train/loss": [2.0, 1, 1], "val/loss": [3.0, 1.5, 2]})
    return report(
        fitted(labels(), SPACES, history=history.assign(**{"val/accuracy": [0.25, 0.625, 0.5]}), rate=16_000.0)
    )


def pictures(parts):
    return [part for part in parts if isinstance(part, Picture)]


def tables(parts):
    return [part for part in parts if isinstance(part, Table)]


def test_every_chapter_is_there_and_every_picture_has_words(page):
    assert [chapter.title for chapter in page.chapters] == TITLES
    assert [len(pictures(chapter.parts)) for chapter in page.chapters] == [0, 1, 1, 0, 2, 1, 4, 1]
    for picture in (p for chapter in page.chapters for p in pictures(chapter.parts)):
        assert re.search(r"\d", picture.alt) and picture.caption[1:] in picture.alt and "nan" not in picture.alt
    identifiers = [
        i for c in page.chapters for p in pictures(c.parts) for i in set(re.findall(r'\bid="([^"]+)"', p.svg))
    ]
    assert len(identifiers) == len(set(identifiers)), "no two drawings share one"


def test_the_numbers_are_those_of_the_metrics(page):
    found = labels()
    text, right = render(page), percent(accuracy(found.truth, found.probability), 1)
    assert page.chapters[0].parts[0].startswith(f"The model is right most often: in {right} of cases; ")
    assert page.chapters[0].parts[1] == (
        f"Judged on sequences held out: 120 sequences of 3 classes, {found.lengths.min()} to {found.lengths.max()} steps long."
    )
    scores = tables(page.chapters[0].parts)[0]
    assert [row[0] for row in scores.rows] == ["model", "most frequent", "1-NN"] and scores.rows[2][3] == "-"
    counts = confusion(found.truth, found.probability)
    assert f"{counts.trace()} of 120 sequences are right ({right})" in text
    oracle = precision_recall_fscore_support(found.truth, found.said)
    for k, row in enumerate(tables(page.chapters[3].parts)[0].rows):
        assert row[1:] == [f"{k + 5}", f"{oracle[3][k]}", *(percent(oracle[i][k], 1) for i in range(3))]
    end, half = ((found.early[i] == found.truth).mean() for i in (9, 4))
    assert f"{percent(half, 1)} after half of it and {percent(end, 1)} at its end" in text
    error = expected_calibration_error(found.truth, found.probability)
    assert f"the expected calibration error is {percent(error, 1)}." in text
    assert "Kept: epoch 2, with a validation loss of 1.5 (62.5% of its answers right)." in text
    assert "16,000 of them a second" in text and "cross-entropy" in text and "pinball" not in text


def test_names_that_are_markup_empty_endless_or_written_the_other_way():
    found = labels(HOSTILE, absent=2)
    made = fitted(found)
    text = render(report(made))
    assert "<script" not in text and "<b>" not in text and "<i>" not in text and "<u>" not in text
    assert "&lt;script&gt;" in text and "$x_1$" in text and "(empty)" in text and "y" * 17 not in text
    assert text.count("\u2068") == text.count("\u2069") > 0, "every name is apart from the text around it"
    assert text.index("\u2068\u202eevil\u2069")
    assert f"No sequence of 3. \u2068{HOSTILE[2]}\u2069 was held out" in text
    row = tables(classes.chapter(found, made.counts_).parts)[0].rows[2]
    assert row[2] == "0" and row[4] == "-", "nothing is known of its recall"


@pytest.mark.parametrize("count", [2, 10, 52])
def test_the_matrix_holds_every_count_and_no_name(count):
    found = labels([f"name {k}" for k in range(count)], 400, skill=1.0)
    counts = confusion(found.truth, found.probability)
    chapter = confusions.chapter(found)
    (drawn,) = pictures(chapter.parts)
    assert len(drawn.svg) < 120_000 and "var(--one)" in drawn.svg and "var(--two)" in drawn.svg
    wrong = counts - np.diag(np.diag(counts))
    listed = tables(chapter.parts)[0].rows
    assert len(listed) == min(12, (wrong > 0).sum())
    assert [int(row[2]) for row in listed] == sorted(wrong[wrong > 0].tolist(), reverse=True)[: len(listed)]
    i, j = (int(cell.split(".")[0]) - 1 for cell in listed[0][:2])
    assert wrong[i, j] == int(listed[0][2]) and listed[0][3] == percent(wrong[i, j] / counts[i].sum(), 1)
    assert f"Most often \u2068name {i}\u2069 is taken for \u2068name {j}\u2069" in drawn.caption


def test_cells_are_as_deep_as_their_share_of_the_row():
    share = confusions.shares(np.array([[3, 1], [0, 0]]))
    np.testing.assert_array_equal(share, [[0.75, 0.25], [0.0, 0.0]])
    drawn = []
    axes = SimpleNamespace(add_patch=drawn.append)
    confusions.cells(axes, np.array([[100, 0, 0], [50, 50, 0], [0, 1, 99]]))
    depths = [(patch.get_alpha(), len(patch.get_path().vertices)) for patch in drawn]
    assert [corners for _, corners in depths] == [5, 10, 5, 5], "one shape a depth: 50%, then 99% and 100%; 1%, 50%"
    _, (plane,) = canvas()
    confusions.places(plane, ("1", "2", "3"))
    assert plane.yaxis_inverted() and not plane.xaxis_inverted(), "the diagonal falls"
    half, whole, little, wrong = (alpha for alpha, _ in depths)
    assert whole == pytest.approx(confusions.STRONG) and half == wrong and 0.12 < little < 0.2 < half < whole


def test_classes_that_are_whole_numbers_stand_for_themselves():
    assert classes.marks(("-1", "0", "12")) == ("-1", "0", "12") == classes.titles(("-1", "0", "12"))
    assert classes.marks(("0", "1.5")) == ("1", "2") and classes.marks(("٣", "4")) == ("1", "2")
    assert classes.titles(("0", "a")) == ("1. \u20680\u2069", "2. \u2068a\u2069")


def test_many_classes_have_no_picture_and_the_worst_are_listed():
    found = labels([f"c{k}" for k in range(150)], 600)
    assert not pictures(confusions.chapter(found).parts)
    rows = tables(classes.chapter(found, np.ones(150, int)).parts)[0].rows
    assert len(rows) == 60 and [float(r[-1][:-1]) for r in rows] == sorted(float(r[-1][:-1]) for r in rows)


def test_all_answers_right_and_all_of_one_length():
    found = labels(skill=40.0, lengths=7)
    assert "No answer was wrong." in confusions.chapter(found).parts
    first, picture = early.chapter(found).parts
    assert first == "All sequences judged are of one length, 7 steps, so there is nothing to compare by length."
    assert isinstance(picture, Picture)
    assert "120 of 120 sequences are right (100.0%)." in confusions.chapter(found).parts[1].caption


def test_enough_is_where_the_accuracy_stays():
    assert early.enough(np.array([0.9, 0.5, 0.95, 1.0])) == 3
    assert early.enough(np.array([0.96, 0.99, 1.0])) == 1
    assert early.enough(np.array([0.0, 0.0, 1.0])) == 3


def test_a_classifier_that_reads_both_ways():
    config = ClassifyConfig(layers="s4d(d_state=4)", d_model=4, bidirectional=True)
    page = report(fitted(labels(causal=False), config))
    assert [chapter.title for chapter in page.chapters] == TITLES
    text = render(page)
    assert "no answer before the end" in text and "both ways; it answers for whole sequences" in text
    assert "Layer 1 forward, impulse" in text and "Layer 1 backward, impulse" in text
    assert not pictures(page.chapters[7].parts) and "read whole sequences from both ends" in page.chapters[7].parts[0]


def test_a_run_without_sequences_held_out_says_so(tmp_path):
    made = fitted(None)
    write_report(made, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert text.count("<section ") == 4 and "No sequences were held out, so there is nothing to judge" in text
    with pytest.raises(NotFittedError):
        report(Classifier())


def test_a_saved_run_has_the_same_page(tmp_path):
    made = fitted(labels(HOSTILE))
    made.save(tmp_path / "run")
    loaded = conca.load(tmp_path / "run")
    assert render(report(loaded)) == render(report(made))


def test_the_bytes_of_the_state_are_those_of_a_network_that_has_read():
    for layers in ("s4d(d_state=4) lstm", "attention(n_heads=2, window=6)"):
        network = fitted(None, ClassifyConfig(layers=layers, d_model=4)).network_
        state = network.read(torch.zeros(1, 9, 2, dtype=torch.float32))[1]
        assert holds.grown(network, (9,)).tolist() == [size_in_bytes(state)]
    both = fitted(None, ClassifyConfig(layers="s4d(d_state=4)", d_model=4, bidirectional=True)).network_
    names = [name for name, _ in memory.layers_of(both.encoder, memory.StateSpace)]
    assert names == ["layer 1 forward", "layer 1 backward"]
    ahead, back = (layer for _, layer in memory.layers_of(both.encoder, memory.StateSpace))
    assert ahead is not back


def frame(**rows):
    return pd.DataFrame({"accuracy": list(rows.values())}, index=[name.replace("_", " ") for name in rows])


def test_the_verdict_names_the_best_answer_and_chance():
    found = labels()
    say = classify_facts.verdict
    assert say(frame(model=0.9, most_frequent=0.5)).startswith("The model is right most often: in 90.0% of cases")
    assert "may be chance" in say(frame(model=0.9, most_frequent=0.88), found)
    assert "chance" not in say(frame(model=0.9, most_frequent=0.5), found)
    lost = say(frame(model=0.4, most_frequent=0.5, near=0.9), found)
    assert lost.startswith("A simple answer is right more often: near in 90.0%") and "--epochs" in lost
    assert say(frame(model=0.5, most_frequent=0.5)).startswith("No better than a simple answer")
    assert say(frame(model=0.5)) == "" == say(frame(model=np.nan, most_frequent=0.5))


def test_the_verdict_on_probabilities_says_where_they_are_off():
    rows = [np.array([0.55, np.nan, 0.95]), np.array([0.9, np.nan, 0.6]), np.array([100, 0, 100])]
    said = reliability.verdict(Calibration(*rows))
    assert said == "Beyond chance, it is too sure at 95% and not sure enough at 55%."
    assert reliability.verdict(Calibration(rows[0], rows[0], rows[2])).startswith("No sign")


def test_answers_are_kept_and_read_again():
    found = labels()
    again = Labels.from_tensors(found.tensors(), found.classes)
    for name in ("truth", "probability", "lengths", "early"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert Labels.from_tensors(labels(causal=False).tensors(), found.classes).early is None
    many = MOST + 5
    long = Labels.of(["a", "b"], np.zeros(many, int), np.full((many, 2), 0.5), np.arange(many) + 1)
    assert len(long) == MOST and long.lengths[0] == 1 and long.lengths[-1] == many
    assert Labels.of(["a"], np.empty(0), np.empty((0, 1)), np.empty(0)) is None


DAMAGE = {
    "a class that there is not": lambda t: t["truth"].__setitem__(0, 3),
    "a negative class": lambda t: t["early"].__setitem__((0, 0), -1),
    "probabilities that add up to more": lambda t: t["probability"].mul_(2),
    "no number": lambda t: t["probability"].__setitem__(0, float("nan")),
    "a length of 0": lambda t: t["lengths"].__setitem__(0, 0),
    "one less": lambda t: t.update(truth=t["truth"][1:]),
    "other shares": lambda t: t.update(early=t["early"][1:]),
    "other numbers": lambda t: t.update(probability=t["probability"].double()),
    "a part lacks": lambda t: t.pop("lengths"),
    "nothing": lambda t: t.update({name: tensor[..., :0] for name, tensor in t.items()}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_answers_that_are_damaged_are_refused(damage):
    tensors = {name: tensor.clone() for name, tensor in labels().tensors().items()}
    DAMAGE[damage](tensors)
    with pytest.raises(BadInput, match="the run is damaged"):
        Labels.from_tensors(tensors, ("up", "down", "flat"))
    with pytest.raises(BadInput, match="the run is damaged"):
        Labels.from_tensors(labels().tensors(), ("up", "down"))
