"""Arrays in `.npz` files and images in IDX files."""

import gzip
import struct
import zipfile

import numpy as np
import pytest

from conca.data.arrays import read_arrays
from conca.data.idx_file import read_idx
from conca.data.labelled_source import bit_reversal, read_labelled
from conca.types import BadInput

X = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


@pytest.fixture
def save(tmp_path):
    def one(**arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    return one


def test_axes_are_read_as_they_are_said_and_printed(save):
    data = read_arrays(save(X=X, y=["a", "b"]))
    assert data.values.dtype == np.float32 and (data.sequence(1) == X[1]).all()
    told = "a.npz: 2 sequences, 3 channels, 4 steps, 2 classes; X as (n=2, time=4, channels=3)"
    assert data.source == told
    turned = read_arrays(save(x=X.transpose(0, 2, 1), Y=[1, 2]), axes="nct")
    assert (turned.values == data.values).all() and turned.labels.tolist() == [1, 2] and "--axes" not in turned.source
    images = read_arrays(save(X=X.astype(np.uint8), y=[1, 2]), axes="nhw")
    assert images.values.shape == (24, 1) and images.values.dtype == np.uint8 and images.lengths.tolist() == [12, 12]
    assert read_arrays(save(X=X[:, :, 0], y=[1, 2])).values.shape == (8, 1)


def test_axes_that_look_turned_are_pointed_at(save):
    assert "(fewer steps than channels: if 3 is the number of channels, read it with --axes nct)" in (
        read_arrays(save(X=X.transpose(0, 2, 1), y=[1, 2])).source
    )
    assert "--axes ntc" in read_arrays(save(X=X, y=[1, 2]), axes="nct").source


def test_all_keys_have_their_say(save):
    poison = X.copy()
    poison[0, 2:] = np.inf
    more = {"lengths": np.array([2, 4], np.int32), "channels": ["p", "q", "r"], "ids": ["one", "two"], "rate": 50}
    data = read_arrays(save(X=poison, y=["a", "b"], split=["Train", "val"], **more))
    assert data.lengths.tolist() == [2, 4] and (data.values == np.concatenate([X[0, :2], X[1]])).all()
    assert data.parts.tolist() == ["train", "validation"] and data.channels == ("p", "q", "r")
    assert data.ids == ("one", "two") and data.rate == 50
    spelled = read_arrays(save(X=np.array([[0, 2, 0]], np.uint8), lengths=[2], y=[5], symbols=["(", "+", ")"]))
    assert spelled.symbols == ("(", "+", ")") and spelled.values.ravel().tolist() == [0, 2]
    split = read_arrays(save(X_train=X, y_train=[1, 2], x_test=X[:1], y_test=[2], X_validation=X[1:], y_validation=[1]))
    assert split.parts.tolist() == ["train", "train", "validation", "test"] and split.labels.tolist() == [1, 2, 1, 2]
    assert split.source.endswith("X_validation as (n=1, time=4, channels=3); X_test as (n=1, time=4, channels=3)")


BROKEN = {
    "'X' holds Python objects, which are never unpickled": {"X": np.array([[1], None], object), "y": [1, 2]},
    "'y' holds Python objects, which are never unpickled": {"X": X, "y": np.array(["a", 1], object)},
    "labels of shape (3,) for 2 sequences": {"X": X, "y": [1, 2, 3]},
    "'X' has no labels 'y'": {"X": X},
    "no array is named 'X' (or 'X_train'); the file has 'data', 'y'": {"data": X, "y": [1, 2]},
    "sequence 1 has the length 5; X has 4 steps": {"X": X, "y": [1, 2], "lengths": [4, 5]},
    "sequence 0 has the length 0": {"X": X, "y": [1, 2], "lengths": [0, 4]},
    "'lengths' is float64 of shape (2,)": {"X": X, "y": [1, 2], "lengths": [1.0, 4.0]},
    "'X' of shape (2, 2, 2, 2) cannot be read with the axes ntc; images": {"X": np.zeros((2, 2, 2, 2)), "y": [1, 2]},
    "'X' of shape (2, 0, 3) cannot be read": {"X": X[:, :0], "y": [1, 2]},
    "'X' of type complex64 is not of real numbers": {"X": X * 1j, "y": [1, 2]},
    "sequence '1', channel '3', step 3: inf is infinite": {"X": np.where(X == 23, np.inf, X), "y": [1, 2]},
    "the split names a part 'tset'; did you mean 'test'?": {"X": X, "y": [1, 2], "split": ["train", "tset"]},
    "symbols stand in one channel, and there are 3": {"X": X.astype(int) % 1, "y": [1, 2], "symbols": ["a"]},
    "beyond 1e+30": {"X": X * 1e35, "y": [1, 2]},
    "'X' of type float32 does not number the symbols": {"X": X, "y": [1, 2], "symbols": ["a"]},
    "is none of the 2 symbols": {"X": np.array([[0, 2]]), "y": [1], "symbols": ["a", "b"]},
    "'rate' is [1, 2]; give one positive number": {"X": X, "y": [1, 2], "rate": [1, 2]},
    "the label of sequence 0 is missing": {"X": X, "y": [np.nan, np.nan]},
    "the label of sequence 1 is empty": {"X": X, "y": ["a", ""]},
    "1 ids for 2 sequences": {"X": X, "y": [1, 2], "ids": ["one"]},
    "two arrays are named 'x'": {"X": X, "x": X, "y": [1, 2]},
}


@pytest.mark.parametrize("told", BROKEN)
def test_arrays_that_cannot_be_used_are_named_in_one_line(save, told):
    with pytest.raises(BadInput) as caught:
        read_arrays(save(**BROKEN[told]))
    assert told in str(caught.value) and "a.npz" in str(caught.value) and "\n" not in str(caught.value)


def test_labels_may_be_missing_where_nothing_is_learned(save):
    for y in ([np.nan, 1], ["", "a"], None):
        assert read_arrays(save(X=X, **({} if y is None else {"y": y})), labelled=False).labels is None
    assert read_arrays(save(X=X, y=[3, 4]), labelled=False).labels.tolist() == [3, 4]


def test_a_file_that_is_no_set_of_arrays_is_refused(save, tmp_path):
    path = save(X=X, y=[1, 2])
    whole = path.read_bytes()
    member = zipfile.ZipFile(path).read("X.npy")
    for damage in (whole[: len(whole) // 2], b"text", b"", whole.replace(b"\x00\x00\x00\x40", b"\x01\x00\x00\x40", 1)):
        path.write_bytes(damage)
        with pytest.raises(BadInput, match=r"a\.npz"):
            read_arrays(path)
    for name, content in (("/etc/X.npy", member), ("../X.npy", member), ("X.npy", b"x"), ("X.npy", member[:-4])):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(name, content)
        with pytest.raises(BadInput, match=r"absolute path|'\.\.'|is not an array|not of the size"):
            read_arrays(path)
    huge = member.replace(b"(2, 4, 3), }", b"(2,4,10**9)}").replace(b"10**9", b"99999")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("X.npy", huge)
    with pytest.raises(BadInput, match="not of the size that its header says"):
        read_arrays(path)
    with pytest.raises(BadInput, match="axes 'tcn' are not known"):
        read_arrays(path, axes="tcn")
    with pytest.raises(BadInput, match="is a directory"):
        read_arrays(tmp_path)


def idx(array, code=8):
    big = array.astype(array.dtype.newbyteorder(">"))
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + big.tobytes()


@pytest.fixture
def digits(tmp_path):
    images = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.array([5, 0, 4], np.uint8)))
    (tmp_path / "t10k-images.idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:1])))
    (tmp_path / "t10k-labels.idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([7], np.uint8))))
    return tmp_path


def test_images_are_read_row_by_row_with_their_labels(digits):
    for path in (digits, digits / "train-images-idx3-ubyte"):
        data = read_labelled(path)
        assert data.values.dtype == np.uint8 and data.sequence(1).ravel().tolist() == list(range(16, 32))
        assert data.labels.tolist() == [5, 0, 4, 7] and data.parts.tolist() == ["train"] * 3 + ["test"]
    test = read_labelled(digits / "t10k-images.idx3-ubyte.gz")
    assert test.labels.tolist() == [7] and test.parts is None
    (digits / "train-labels-idx1-ubyte").write_bytes(idx(np.array([5, 0], np.uint8)))
    with pytest.raises(BadInput, match=r"train-labels-idx1-ubyte: labels of shape \(2,\) for 3 images"):
        read_labelled(digits)
    (digits / "train-labels-idx1-ubyte").write_bytes(idx(np.array([5, 0, 0.5], ">f4"), 13))
    with pytest.raises(BadInput, match=r"the label of sequence 2 is the number 0.5, not a class"):
        read_labelled(digits / "train-images-idx3-ubyte")
    (digits / "train-labels-idx1-ubyte").unlink()
    assert read_labelled(digits / "train-images-idx3-ubyte", labelled=False).labels is None
    with pytest.raises(BadInput, match="no file of labels stands beside it; put train-labels-idx1-ubyte there"):
        read_labelled(digits)


def test_sets_of_several_names_lie_side_by_side(digits):
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        (digits / f"emnist-letters-train-{name}.gz").write_bytes(gzip.compress((digits / f"train-{name}").read_bytes()))
    assert len(read_labelled(digits / "emnist-letters-train-images-idx3-ubyte.gz")) == 3
    with pytest.raises(BadInput, match="several sets in it: emnist-letters, images; name one of them"):
        read_labelled(digits)


def test_steps_in_another_order(digits):
    plain = read_labelled(digits).sequence(0)
    permuted = read_labelled(digits, order="permuted").sequence(0)
    assert (permuted == plain[np.random.RandomState(92916).permutation(16)]).all()
    bits = [int(f"{i:04b}"[::-1], 2) for i in range(16)]
    assert (read_labelled(digits, order="bits").sequence(0) == plain[bits]).all()
    tens = [int(f"{i:010b}"[::-1], 2) for i in range(1024)]
    assert bit_reversal(784).tolist() == [i for i in tens if i < 784]
    assert bit_reversal(1).tolist() == [0] and bit_reversal(3).tolist() == [0, 2, 1]
    with pytest.raises(BadInput, match="order 'bit' is not known; did you mean 'bits'"):
        read_labelled(digits, order="bit")


def test_sequences_of_several_lengths_have_no_other_order(save):
    path = save(X=X, y=[1, 2], lengths=[2, 4])
    with pytest.raises(BadInput, match="asks for sequences of one length; these have from 2 to 4"):
        read_labelled(path, order="bits")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not an IDX file"),
        (b"\x00\x00\x08", "not an IDX file"),
        (b"\x1f\x8b\x08\x00", "not an IDX file"),
        (struct.pack(">HBB", 0, 8, 3) + b"\0\0", "ends inside its header"),
        (
            struct.pack(">HBBI", 0, 8, 1, 2**32 - 1) + b"12",
            r"the header says an array of 4294967295 \(.* the file has 2",
        ),
        (struct.pack(">HBB3I", 0, 14, 3, *[2**32 - 1] * 3), "over 16 GiB"),
        (idx(np.array([1, 2], np.uint8)) + b"x", "the file has more"),
    ],
)
def test_damaged_images_take_no_memory(tmp_path, content, told):
    for name, data in (("train-images-idx3-ubyte", content), ("train-images-idx3-ubyte.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadInput, match=told):
            read_idx(tmp_path / name)
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(X[0].astype(np.uint8)))[:-9])
    with pytest.raises(BadInput, match="cannot be read"):
        read_idx(tmp_path / "a.gz")


def test_numbers_of_all_types_are_read(tmp_path):
    for code, kind in ((8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")):
        array = np.array([[1, -2], [3, 100]]).astype(kind)
        (tmp_path / "a").write_bytes(idx(array, code))
        read = read_idx(tmp_path / "a")
        assert (read == array).all() and read.dtype == np.dtype(kind)
