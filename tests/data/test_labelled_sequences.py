"""Labelled sequences as values, their parts, their labels as numbers."""

import numpy as np
import pytest

from conca.data.labelled import Labelled, joined, labels_of_text, settle_labels
from conca.data.split_labels import encode_labels, stratified
from conca.types import BadInput


@pytest.fixture
def three():
    arrays = [np.arange(6, dtype=np.int16).reshape(3, 2), np.full((1, 2), 7, np.int16), np.full((2, 2), 9, np.int16)]
    return Labelled.of(arrays, ["b", "a", "b"], parts=np.array(["train", "test", "train"]), source="f.ts")


def test_sequences_of_several_lengths_lie_end_to_end(three):
    assert three.values.dtype == np.int16 and three.values.shape == (6, 2)
    assert three.offsets.tolist() == [0, 3, 4] and len(three) == 3
    assert [three.sequence(i).tolist() for i in range(3)] == [[[0, 1], [2, 3], [4, 5]], [[7, 7]], [[9, 9], [9, 9]]]
    assert three.ids == ("0", "1", "2") and three.channels == ("1", "2")
    assert three.named("f.ts").source == "f.ts: 3 sequences (2 train, 1 test), 2 channels, 1 to 3 steps, 2 classes"


def test_what_is_taken_is_a_copy_in_the_order_asked_for(three):
    taken = three.take([2, 0])
    assert taken.lengths.tolist() == [2, 3] and taken.ids == ("2", "0") and taken.parts.tolist() == ["train", "train"]
    taken.values[:] = -1
    assert three.values.min() == 0
    assert three.part("test").labels.tolist() == ["a"]
    assert three.take(np.array([False, True, False])).values.tolist() == [[7, 7]]
    with pytest.raises(BadInput, match=r"^f\.ts: no sequences are marked as the part 'validation'; "):
        three.part("validation")
    with pytest.raises(BadInput, match="no sequences are left"):
        three.take([])


@pytest.mark.parametrize(
    ("sequences", "told"),
    [
        ([[1.0], [1.0, np.inf]], r"sequence 'q', channel '1', step 1: inf is infinite"),
        ([[1.0], []], r"sequence 'q' has no steps"),
        ([[1.0], [[1.0, 2.0]]], r"sequence 'q' has 2 channels where sequence 'p' has 1"),
        ([[1.0], ["x"]], r"sequence 'q' holds values of type <U1"),
        ([[1.0], [[1.0], [1.0, 2.0]]], r"sequence 'q' is ragged"),
        ([[1.0], np.zeros((1, 1, 1))], r"sequence 'q' has 3 axes"),
        ([[1.0], np.array([None])], r"sequence 'q' holds values of type object"),
    ],
)
def test_the_sequence_that_cannot_be_used_is_named(sequences, told):
    with pytest.raises(BadInput, match=told) as caught:
        Labelled.of(sequences, ids=("p", "q"))
    assert "\n" not in str(caught.value)


def test_missing_values_may_be_there_and_symbols_must_be():
    assert np.isnan(Labelled.of([[np.nan, 1.0]]).values[0, 0])
    spelled = Labelled.of([np.array([0, 2]), np.array([1])], symbols=("x", "y", "z"))
    assert spelled.summary == "2 sequences, 3 symbols, 1 to 2 steps"
    with pytest.raises(BadInput, match=r"sequence '1', channel '1', step 0: 3 is none of the 3 symbols"):
        Labelled.of([np.array([0, 2]), np.array([3])], symbols=("x", "y", "z"))
    with pytest.raises(BadInput, match="there are no sequences"):
        Labelled.of([])


def test_labels_settle_as_text_or_integers():
    assert settle_labels([1.0, 2.0], 2).dtype == np.int64
    assert settle_labels(np.array(["a", "b"], object), 2).dtype.kind == "U"
    assert settle_labels(np.array([b"a", b"b"]), 2).tolist() == ["a", "b"]
    assert labels_of_text(["10", "-1"]).tolist() == [10, -1]
    assert labels_of_text(["007", "1"]).tolist() == ["007", "1"]
    for labels in ([1.5, 2], [1, np.nan], ["a", ""], np.array(["a", None], object), [[1, 0], [0, 1]], [1]):
        with pytest.raises(BadInput, match=r"^f: "):
            settle_labels(labels, 2, "f: ")
    with pytest.raises(BadInput, match="some labels are text and some are numbers"):
        settle_labels(np.array(["a", 1], object), 2)


def test_parts_of_a_split_are_joined():
    train, test = Labelled.of([[1], [2, 3]], [1, 2]), Labelled.of([[4]], ["2"])
    both = joined({"train": train, "test": test}, "f")
    assert both.labels.tolist() == ["1", "2", "2"] and both.parts.tolist() == ["train", "train", "test"]
    assert both.ids == ("0", "1", "2") and both.values.ravel().tolist() == [1, 2, 3, 4]
    assert joined({"train": train, "test": Labelled.of([[4]])}, "f").labels is None
    with pytest.raises(BadInput, match="'test' has 2 channels, 'train' 1"):
        joined({"train": train, "test": Labelled.of([[[4, 5]]], ["2"])}, "f")


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.99])
def test_every_class_keeps_an_example(share):
    labels = np.repeat(["a", "b", "c", "d"], [1, 2, 10, 87])
    kept, held = stratified(labels, share, seed=3)
    assert sorted([*kept, *held]) == list(range(100)) and (np.diff(kept) > 0).all() and (np.diff(held) > 0).all()
    assert set(labels[kept]) == {*"abcd"} and "a" not in labels[held]
    assert len(held) == min(round(share * 100), 96)
    assert np.abs((labels[held] == "d").sum() - share * 87) <= 1.01
    again = stratified(labels, share, seed=3)
    assert (again[0] == kept).all() and (again[1] == held).all()
    assert share in (0.0, 0.99) or (stratified(labels, share, seed=4)[1] != held).any()


def test_a_split_of_little_holds_out_one_if_it_can():
    assert [len(side) for side in stratified([1, 1], 0.1, 0)] == [1, 1]
    assert [len(side) for side in stratified([1, 2], 0.9, 0)] == [2, 0]
    with pytest.raises(BadInput, match="a share of 1 cannot be held out"):
        stratified([1, 1], 1, 0)


def test_labels_become_places_and_strange_ones_are_counted():
    assert encode_labels(["b", "a", "b"], ["a", "b"]).tolist() == [1, 0, 1]
    assert encode_labels([10, 9], ["10", "9"]).tolist() == [0, 1]
    assert encode_labels([3], np.array([3, 1])).tolist() == [0]
    told = (
        r"^3 sequences have labels that were never seen in training: 'x' \(2\), 'z' \(1\); leave them out, or train on"
    )
    with pytest.raises(BadInput, match=told):
        encode_labels(["x", "a", "z", "x"], ["a", "b"])
    with pytest.raises(BadInput, match=r"'0' .* and 2 other labels; "):
        encode_labels(list("0123456"), ["a"])
