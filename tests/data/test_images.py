"""Sets of images from IDX files and arrays: what is read, in which order, and what is refused with one line."""

import gzip
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image

from conca.data.image_grid import grid_of, png_of
from conca.data.images import Images, load_image, load_images
from conca.types import BadInput

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 8, 7), dtype=np.uint8)
RGB = RNG.integers(0, 256, (6, 8, 7, 3), dtype=np.uint8)


def write(root, path, array=GREY[0], **options):
    """One picture of an array (H, W) or (H, W, C)."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(root / path, **options)
    return root / path


def idx(path, array):
    """An IDX file of bytes."""
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def fails(match, read, *args, **options):
    """Reading raises one line."""
    with pytest.raises(BadInput, match=match) as caught:
        read(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# IDX


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_images_come_with_their_labels_and_their_test_part(tmp_path, end):
    train = idx(tmp_path / f"train-images-idx3-ubyte{end}", GREY[:4])
    idx(tmp_path / f"train-labels-idx1-ubyte{end}", np.array([3, 1, 3, 10], np.uint8))
    test = idx(tmp_path / f"t10k-images-idx3-ubyte{end}", GREY[4:])
    idx(tmp_path / f"t10k-labels-idx1-ubyte{end}", np.array([2, 1], np.uint8))
    for path in (train, tmp_path):
        data = load_images(path, labelled=True)
        assert (data.pixels == GREY[:, None]).all() and data.shape == (1, 8, 7) and len(data) == 6
        assert data.classes == ("1", "2", "3", "10") and data.labels.tolist() == [2, 0, 2, 3, 1, 0]
        assert data.labels.dtype == np.int64
        assert data.parts.tolist() == ["train"] * 4 + ["test"] * 2
    assert data.source.endswith(": 6 grey images (4 train, 2 test) of 8 x 7 pixels, 4 classes")
    alone = load_images(test)
    assert (alone.pixels == GREY[4:, None]).all() and alone.parts is None and alone.labels.tolist() == [1, 0]
    fails("holds the labels; name the file of the images", load_images, tmp_path / f"train-labels-idx1-ubyte{end}")


def test_idx_without_labels_has_none_and_says_so_where_they_are_wanted(tmp_path):
    path = idx(tmp_path / "train-images.idx3-ubyte", GREY)
    data = load_images(path)
    assert data.labels is None and data.classes == () and data.parts is None
    said = fails(
        "no file of labels stands beside it; put train-labels.idx1-ubyte there", load_images, path, labelled=True
    )
    assert str(path) in said
    idx(tmp_path / "train-labels.idx1-ubyte", np.zeros(5, np.uint8))
    fails(r"train-labels.idx1-ubyte: labels of shape \(5,\) for 6 images", load_images, path)


def test_packed_images_beside_what_they_were_unpacked_to_are_one_set(tmp_path):
    for end in ("", ".gz"):
        train = idx(tmp_path / f"train-images-idx3-ubyte{end}", GREY)
        idx(tmp_path / f"train-labels-idx1-ubyte{end}", np.arange(6, dtype=np.uint8))
        idx(tmp_path / f"t10k-images-idx3-ubyte{end}", GREY[:2])
        idx(tmp_path / f"t10k-labels-idx1-ubyte{end}", np.arange(2, dtype=np.uint8))
    for path in (tmp_path, train, tmp_path / "train-images-idx3-ubyte"):
        assert len(load_images(path, labelled=True)) == 8
    assert len(load_images(tmp_path / "t10k-images-idx3-ubyte.gz", labelled=True)) == 2


def test_test_part_without_labels_leaves_none_unless_they_are_wanted(tmp_path):
    idx(tmp_path / "train-images-idx3-ubyte", GREY)
    idx(tmp_path / "train-labels-idx1-ubyte", np.arange(6, dtype=np.uint8))
    idx(tmp_path / "t10k-images-idx3-ubyte", GREY)
    assert load_images(tmp_path).labels is None
    fails("put t10k-labels-idx1-ubyte there", load_images, tmp_path, labelled=True)


def test_damaged_idx_is_named(tmp_path):
    path = idx(tmp_path / "train-images-idx3-ubyte", GREY)
    path.write_bytes(path.read_bytes()[:-1])
    fails(
        "train-images-idx3-ubyte: the header says an array of 6 x 8 x 7 .336 bytes., the file has 335",
        load_images,
        path,
    )
    path.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 2**31))
    fails("over 16 GiB", load_images, path)


# arrays


@pytest.fixture
def save(tmp_path):
    def one(**arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    return one


def test_every_order_of_axes_and_every_type_of_an_array_is_read_alike(save):
    planes = RGB.transpose(0, 3, 1, 2)
    for x in (RGB, planes, RGB / 255, (RGB / 255).astype(np.float32), RGB.astype(np.int64), RGB.astype(">u2")):
        data = load_images(save(X=x))
        assert data.pixels.dtype == np.uint8 and (data.pixels == planes).all(), x.dtype
    for x in (GREY, GREY[:, None], GREY[..., None], (GREY / 255).astype(np.float64)):
        assert (load_images(save(x=x)).pixels == GREY[:, None]).all()
    assert (load_images(save(X=GREY > 99)).pixels == 255 * (GREY > 99)[:, None]).all()
    assert load_images(save(X=GREY)).pixels.flags.c_contiguous and load_images(save(X=RGB)).pixels.flags.c_contiguous


def test_what_is_read_in_blocks_is_read_alike_and_named_by_its_place_in_all(save, monkeypatch):
    monkeypatch.setattr("conca.data.image_arrays.BLOCK", 2 * GREY[0].size)
    assert (load_images(save(X=GREY / 255)).pixels == GREY[:, None]).all()
    fails("'X': image 5, row 2, column 3: the value nan", load_images, save(X=NAN))


def test_half_precision_keeps_every_level(save):
    levels = np.arange(256).reshape(1, 16, 16)
    assert (load_images(save(X=(levels / 255).astype(np.float16))).pixels == levels).all()


def test_labels_and_parts_of_arrays(save):
    names = np.array(["b", "a", "b", "c", "a", "a"])
    data = load_images(save(X=GREY, y=names), labelled=True)
    assert data.classes == ("a", "b", "c") and data.labels.tolist() == [1, 0, 1, 2, 0, 0] and data.parts is None
    split = load_images(save(X_train=GREY[:3], y_train=[7, 5, 7], X_test=GREY[3:], y_test=[11, 5, 5]), labelled=True)
    assert (split.pixels == GREY[:, None]).all()
    assert split.classes == ("5", "7", "11") and split.labels.tolist() == [1, 0, 1, 2, 0, 0]
    assert split.parts.tolist() == ["train"] * 3 + ["test"] * 3
    assert (split.part("test").pixels == GREY[3:, None]).all() and split.part("test").labels.tolist() == [2, 0, 0]
    assert (split.without("test").pixels == GREY[:3, None]).all() and len(split.without("validation")) == 6
    mixed = load_images(save(X_train=GREY[:2], y_train=[7, 10], X_test=GREY[2:], y_test=list("abab")))
    assert mixed.classes == ("10", "7", "a", "b") and mixed.labels.tolist() == [1, 0, 2, 3, 2, 3]
    marked = load_images(save(X=GREY, parts=["train", "val", "test"] * 2))
    assert marked.parts.tolist() == ["train", "validation", "test"] * 2 and marked.labels is None
    assert load_images(save(X=GREY, y=[1, 2, np.nan, 1, 2, 1])).labels is None


NAN, INF = (GREY / 255).copy(), (RGB / 255).copy()
NAN[5, 2, 3], INF[4, 1, 6, 2] = np.nan, -np.inf
REFUSED = {
    "'X': image 5, row 2, column 3: the value nan is not a number of a pixel": {"X": NAN},
    "'X_test': image 4, row 1, column 6: the value -inf is not": {"X_train": RGB, "X_test": INF},
    r"the value \d+ is not between 0 and 1; divide by 255, or save uint8": {"X": GREY.astype(float)},
    r"the value -0.\d+ is not between 0 and 1; save \(X \+ 1\) / 2": {"X": GREY / 127.5 - 1},
    "the value 256 is not between 0 and 255": {"X": GREY.astype(int) + (GREY.max() == GREY) * (256 - int(GREY.max()))},
    "image 0, row 0, column 0: the value -1 is not between 0 and 255": {"X": GREY.astype(np.int8) | -1},
    "'X' holds Python objects, which are never unpickled": {"X": np.array([[[1]], None], object)},
    "values of type complex128 are not pixels": {"X": GREY * 1j},
    "values of type <U2 are not pixels": {"X": np.array([[["aa"]]])},
    r"an array of shape \(6, 56\) is not of images; give \(n, H, W\)": {"X": GREY.reshape(6, 56)},
    r"an array of shape \(6, 8, 7, 4\) is not of images": {"X": np.zeros((6, 8, 7, 4))},
    r"an array of shape \(0, 8, 7\) is not of images": {"X": GREY[:0]},
    r"an array of shape \(6, 8, 7, 1, 1\) is not of images": {"X": GREY[..., None, None]},
    r"in the shape \(6, 3, 7, 3\) the channels may stand first or last": {"X": RGB[:, :3]},
    r"'train' has images of 1 x 8 x 7|'test' has images of 3 x 8 x 7, 'train' of 1 x 8 x 7": {
        "X_train": GREY,
        "X_test": RGB,
    },
    "no part is named 'val' .'x_val'.; known: test, train, validation": {"X_train": GREY, "X_val": GREY},
    "no array is named 'X' .or 'X_train'.; the file has 'data', 'y'": {"data": GREY, "y": [1]},
    r"labels of shape \(3,\) for 6 images; give one label each": {"X": GREY, "y": [1, 2, 3]},
    "the label of image 0 is the number 0.5, not a class": {"X": GREY, "y": [0.5] * 6},
    "the split names a part 'tset'; did you mean 'test'": {"X": GREY, "parts": ["tset"] * 6},
    r"the image has 65 x 2 pixels, and at most 64 a side are learned; scale all to fewer \(size, --size\)": {
        "X": np.zeros((1, 65, 2))
    },
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_arrays_may_not_hold(save, match):
    path = save(**REFUSED[match])
    assert str(path.parent) in fails(match, load_images, path)


def test_missing_labels_of_arrays_are_named(save):
    fails("'X' has no labels 'y'; add them", load_images, save(X=GREY), labelled=True)
    arrays = {"X_train": GREY, "y_train": [1] * 6, "X_test": GREY}
    fails("'X_test' has no labels 'y_test'; add them", load_images, save(**arrays), labelled=True)
    assert load_images(save(**arrays)).labels is None
    fails("the label of image 2 is missing", load_images, save(X=GREY, y=[1, 2, np.nan, 1, 2, 1]), labelled=True)


def test_zeros_and_ones_are_read_as_they_are_and_pointed_at(save):
    data = load_images(save(X=(GREY > 99).astype(np.uint8)))
    assert data.pixels.max() == 1 and "no value is above 1 of 255" in data.source
    assert "255" not in load_images(save(X=GREY)).source


def test_broken_and_swollen_npz(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\3\4 no archive")
    fails("not a readable .npz file", load_images, path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr("X.npy", b"")
    content = path.read_bytes().replace(struct.pack("<II", 2, 0), struct.pack("<II", 2, 2**31))
    path.write_bytes(content)
    fails("the file holds 2.0 GiB in 0.0 MiB", load_images, path)
    at = content.index(b"PK\1\2") + 6
    path.write_bytes(content[:at] + b"\x6d" + content[at + 1 :])
    fails("not a readable .npz file .zip file version 10.9.", load_images, path)


# one set


def test_stamps_tell_sets_apart():
    def stamp(pixels=GREY[:, None], labels=(0, 1, 0, 1, 0, 1), classes=("a", "b"), parts=None, **rest):
        known = None if labels is None else np.array(labels)
        return Images(pixels, known, classes, parts, **rest).stamp()

    changed = GREY[:, None].copy()
    changed[-1, 0, -1, -1] ^= 1
    every = [
        stamp(),
        stamp(changed),
        stamp(GREY.reshape(6, 1, 7, 8)),
        stamp(labels=(0, 1, 0, 1, 0, 0)),
        stamp(labels=None, classes=()),
        stamp(classes=("a", "c")),
        stamp(parts=np.array(["train"] * 6)),
        stamp(parts=np.array(["train"] * 5 + ["test"])),
    ]
    assert len(set(every)) == len(every)
    assert stamp(source="elsewhere", skipped=("x",)) == stamp(np.asfortranarray(GREY[:, None])) == every[0]


def test_sets_are_taken_apart_and_do_not_share():
    data = Images(
        GREY[:, None].copy(), np.arange(6), tuple("abcdef"), np.array(["train", "test"] * 3), "x.npz: 6 images"
    )
    part = data.part("test")
    assert part.labels.tolist() == [1, 3, 5] and part.parts.tolist() == ["test"] * 3 and part.classes == data.classes
    assert (data.without("test").pixels == GREY[::2, None]).all()
    assert (data.take([4, 0]).pixels[:, 0] == GREY[[4, 0]]).all() and not np.shares_memory(part.pixels, data.pixels)
    fails("x.npz: no images are marked as the part 'validation'", data.part, "validation")
    fails("x.npz: no images are left", part.without, "test")
    fails("no images are left", data.take, [])


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"pixels": GREY}, r"pixels are uint8 of shape \(6, 8, 7\)"),
        ({"pixels": RGB}, r"pixels are uint8 of shape \(6, 8, 7, 3\)"),
        ({"pixels": GREY[:, None] / 255}, "pixels are float64"),
        ({"pixels": GREY[:0, None]}, "give at least one image"),
        ({"labels": np.zeros(5, np.int64), "classes": ("a",)}, r"labels of shape \(5,\) for 6 images"),
        ({"labels": np.ones(6, np.int64), "classes": ("a",)}, "labels name none of the 1 classes"),
        ({"parts": np.array(["dev"] * 6)}, "a part is named 'dev'"),
    ],
)
def test_fields_that_do_not_fit_together(fields, match):
    fails(match, Images, **{"pixels": GREY[:, None]} | fields)


# out again


def test_pictures_come_back_as_they_were(tmp_path):
    for pixels in (GREY[:1], RGB[0].transpose(2, 0, 1)):
        (tmp_path / "x.png").write_bytes(png_of(pixels))
        assert (load_image(tmp_path / "x.png") == pixels).all() and png_of(pixels) == png_of(pixels.copy())
    fails(r"give pixels uint8 \(C, H, W\)", png_of, GREY)
    fails("a picture of float64", png_of, GREY[:1] / 255)


def test_grids_hold_every_image_in_rows():
    grid = grid_of(GREY[:5, None], gap=1)
    assert grid.shape == (1, 1 + 2 * 9, 1 + 3 * 8)
    for at in range(5):
        top, left = 1 + at // 3 * 9, 1 + at % 3 * 8
        assert (grid[0, top : top + 8, left : left + 7] == GREY[at]).all()
    assert (grid[0, 10:, 17:] == 128).all() and (grid[0, 0] == 128).all() and (grid[0, :, 8] == 128).all()
    assert (grid_of(GREY[:2, None], columns=9, gap=0) == np.concatenate(GREY[:2], 1)).all()
    scaled = grid_of(RGB.transpose(0, 3, 1, 2), columns=1, gap=0, scale=3)
    assert scaled.shape == (3, 6 * 24, 21) and (scaled[:, 1::3, 1::3] == RGB.reshape(48, 7, 3).transpose(2, 0, 1)).all()
    fails("a grid of 0 columns", grid_of, GREY[:, None], 0)
    fails("scale 0", grid_of, GREY[:, None], scale=0)
    fails("give at least one image", grid_of, GREY[:0, None])
