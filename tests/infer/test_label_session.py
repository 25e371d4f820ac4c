"""Streams of labels in Python: after every step what the network says of the sequence so far, and states that are values, and files."""

from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest
import torch

from conca.estimators.classifier import Classifier
from conca.infer import Session
from conca.infer import label_session as module
from conca.infer.label_session import LabelSession
from conca.infer.label_stream import LabelStream, SampleStream
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig, rescaled
from conca.types import BadInput

CLASSES = ("cat", "dog", "owl")
WORDS = ("[MAX", "]", "0", "1")
CLOSE = {"rtol": 0, "atol": 2e-6}


def network(layers: str = "s4d", *, symbols: int = 0, seed: int = 0, **options: object) -> ClassifyNetwork:
    torch.manual_seed(seed)
    config = ClassifyNetworkConfig(1 if symbols else 2, symbols, len(CLASSES), layers, 8, **options)
    made = ClassifyNetwork(config)
    with torch.no_grad():
        made.head.weight.mul_(8)  # so that labels differ from step to step
    made.mean.fill_(0.5)
    return made.eval()


def sequence(steps: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(steps, 2)) * 3
    rows[::7, 1] = np.nan
    return rows


def every(net: ClassifyNetwork, rows: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(rows)
    with torch.inference_mode():
        logits, _ = net.every(x[None] if net.config.symbols else x.float()[None])
    return logits[0].double().softmax(-1).numpy()


@pytest.mark.parametrize("layers", ["s4d", "lstm s4d", "attention(window=3)", "attention s4d"])
def test_step_by_step_it_is_the_whole_sequence(layers: str) -> None:
    net, rows = network(layers), sequence(23)
    wanted = every(net, rows)
    session = LabelSession(net, CLASSES)
    said = [session.step(row) for row in rows]
    np.testing.assert_allclose([probability for _, probability in said], wanted, **CLOSE)
    assert [label for label, _ in said] == [CLASSES[place] for place in wanted.argmax(1)]
    assert np.ptp(wanted, axis=0).max() > 0.1, "otherwise nothing is said"
    assert session.steps() == 23
    assert (session.size_in_bytes() > 0, len(session)) == (True, 1)


@pytest.mark.parametrize("layers", ["s4d", "attention s4d"])
def test_many_sequences_side_by_side_whatever_their_order(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 5)
    monkeypatch.setattr(module, "MOST", 12)
    net = network(layers)
    rows = {"a": sequence(17, 1), "b": sequence(3, 2), "c": sequence(1, 3), "d": sequence(11, 4)}
    keys = [key for key, own in rows.items() for _ in own]
    order = np.random.default_rng(0).permutation(len(keys))
    shuffled = [keys[place] for place in order]
    turn = dict.fromkeys(rows, 0)
    mixed = np.empty((len(keys), 2))
    for place, key in enumerate(shuffled):
        mixed[place] = rows[key][turn[key]]
        turn[key] += 1
    session = LabelSession(net, CLASSES)
    found = np.concatenate([session.push(shuffled[:13], mixed[:13]), session.push(shuffled[13:], mixed[13:])])
    for key, own in rows.items():
        np.testing.assert_allclose(found[[k == key for k in shuffled]], every(net, own), **CLOSE)
        assert session.steps(key) == len(own)


def test_only_the_last_answer_is_the_last_of_all() -> None:
    net, rows = network(), sequence(31)
    session = LabelSession(net, CLASSES)
    session.read(rows[:9])
    np.testing.assert_allclose(session.last(rows[9:]), every(net, rows)[-1], **CLOSE)
    assert session.steps() == 31
    with pytest.raises(BadInput, match="no step"):
        session.last(rows[:0])


def test_a_state_is_a_value() -> None:
    net, rows = network(), sequence(20)
    session = LabelSession(net, CLASSES)
    session.read(rows[:8])
    saved = session.state()
    one = session.read(rows[8:])
    session.step(rows[0], "another")
    session.restore(saved)
    assert len(session) == 1
    np.testing.assert_array_equal(session.read(rows[8:]), one)
    other = LabelSession(network("lstm"), CLASSES)
    with pytest.raises(BadInput, match="not the state"):
        other.restore(saved)
    assert len(other) == 0


@pytest.mark.parametrize("layers", ["s4d lstm", "attention s4d"])
def test_on_disk_with_the_same_bits(layers: str, tmp_path: Path) -> None:
    net, rows, path = network(layers), sequence(15), tmp_path / "state"
    session = LabelSession(net, CLASSES)
    keys: list[Hashable] = [None, "a", ("b", "c"), "a", "a"]
    session.push(keys, rows[:5])
    session.save(path)
    wanted = session.push(["a", ("b", "c"), None, "new"], rows[5:9])
    again = LabelSession(network(layers), CLASSES)
    again.load(path)
    assert [again.steps(key) for key in (None, "a", ("b", "c"))] == [1, 3, 1]
    np.testing.assert_array_equal(again.push(["a", ("b", "c"), None, "new"], rows[5:9]), wanted)
    again.step(rows[0], 7)
    with pytest.raises(BadInput, match="key 7 cannot be saved"):
        again.save(path)
    assert LabelSession(net, CLASSES).load(path) is None, "the old file is whole"


def test_files_that_are_no_state_of_this_network(tmp_path: Path) -> None:
    net, path = network(), tmp_path / "state"
    session = LabelSession(net, CLASSES)
    session.step([1.0, 2.0])
    session.save(path)
    whole = path.read_bytes()
    other = LabelSession(network(seed=1), CLASSES), LabelSession(net, ("cat", "dog", "fox"))
    for one in other:
        with pytest.raises(BadInput, match="another run"):
            one.load(path)
    with rescaled(net, 2.0), pytest.raises(BadInput, match="another run"):
        LabelSession(net, CLASSES).load(path)
    for bad, why in ((whole[:50], "damaged"), (b"", "damaged"), (whole[:-9] + b"\1" * 9, "damaged")):
        path.write_bytes(bad)
        with pytest.raises(BadInput, match=why):
            session.load(path)
    with pytest.raises(BadInput, match="no such file"):
        session.load(tmp_path / "nothing")
    with pytest.raises(BadInput, match="directory"):
        session.save(tmp_path)
    assert session.steps() == 1


def test_symbols_by_their_text_or_their_number() -> None:
    net = network(symbols=len(WORDS))
    session = LabelSession(net, CLASSES, symbols=WORDS)
    found = [session.step(symbol)[1] for symbol in ("[MAX", "0", 3, "]")]
    np.testing.assert_allclose(found, every(net, np.array([0, 2, 3, 1])), **CLOSE)
    for bad, why in (("[MAXX", r"did you mean '\[MAX'"), (4, "no symbol number 4"), (-1, "no symbol number -1")):
        with pytest.raises(BadInput, match=why):
            session.step(bad)
    assert session.steps() == 4, "what was refused was not read"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([1.0], "2 channels"),
        ([1.0, 2.0, 3.0], "2 channels"),
        (1.0, "2 channels"),
        ([1.0, np.inf], "infinite"),
        (["a", 1.0], "2 numbers"),
    ],
)
def test_rows_that_cannot_be_read(row: list, why: str) -> None:
    session = LabelSession(network(), CLASSES)
    with pytest.raises(BadInput, match=why):
        session.step(row)
    assert len(session) == 0


def test_an_answer_that_is_not_taken_was_never_given() -> None:
    stream = LabelStream(LabelSession(network(), CLASSES), b"1,2", "here", channels=("1", "2"))
    first = next(stream.feed(b"0.5,1\n2,"))
    assert stream.session.steps(()) == 0
    (again,) = stream.feed(b"0\n0.5,1\n")
    assert again.text.splitlines()[0].startswith("1,")
    assert stream.session.steps(()) == 2
    assert first.text.startswith("1,") and first.faults == []


@pytest.mark.parametrize("count", [23, 24])
def test_samples_cut_anywhere(count: int) -> None:
    torch.manual_seed(0)
    one = ClassifyNetwork(ClassifyNetworkConfig(1, 0, 3, "s4d", 8)).eval()
    data = np.random.default_rng(0).integers(-(2**15), 2**15, count).astype("<i2").tobytes() + b"x"
    found = []
    for size in (1, 5, 100):
        stream = SampleStream(LabelSession(one, CLASSES), 4, every=True)
        pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
        answers = [answer for piece in pieces for answer in stream.feed(piece)] + list(stream.feed(b"", end=True))
        assert [fault for answer in answers for fault in answer.faults] == [
            "stdin: the last sample is half a sample; it is passed over"
        ]
        found.append("".join(answer.text for answer in answers))
    assert found[0] == found[1] == found[2]
    assert [line.split(",")[0] for line in found[0].splitlines()] == ["4", "8", "12", "16", "20", str(count)]
    stream = SampleStream(LabelSession(one, CLASSES), 4)
    assert next(stream.feed(data)).text.startswith("4,")
    assert stream.session.steps(()) == 0, "an answer that is not taken was never given"


def test_a_classifier_is_no_forecaster() -> None:
    with pytest.raises(BadInput, match="a Classifier is no fitted forecaster"):
        Session(Classifier())


def test_both_directions_have_no_answer_after_a_step() -> None:
    with pytest.raises(BadInput, match="bidirectional"):
        LabelSession(network(bidirectional=True), CLASSES)
