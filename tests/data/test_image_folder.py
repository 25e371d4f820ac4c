"""Pictures in files, folders and archives: kinds of pixels, classes and parts, sizes, colours, masks."""

import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from conca.data.image_file import coloured
from conca.data.image_grid import png_of
from conca.data.images import load_image, load_images, load_mask
from conca.types import BadInput

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 8, 7), dtype=np.uint8)
RGB = RNG.integers(0, 256, (6, 8, 7, 3), dtype=np.uint8)


def write(root, path, array=GREY[0], **options):
    """One picture of an array (H, W) or (H, W, C)."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(root / path, **options)
    return root / path


def fails(match, read, *args, **options):
    """Reading raises one line."""
    with pytest.raises(BadInput, match=match) as caught:
        read(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# folders


@pytest.fixture
def folder(tmp_path):
    """Two classes of two pictures and of one."""
    for at, path in enumerate(("dog/b.png", "dog/a.png", "cat/deep/er/z.PNG")):
        write(tmp_path, path, GREY[at])
    return tmp_path


def test_folders_are_classes_and_order_is_that_of_the_paths(folder):
    for junk in ("readme.txt", "dog/list.csv", "dog/.hidden.png", ".git/x.png", "__MACOSX/dog/y.png"):
        (folder / junk).parent.mkdir(parents=True, exist_ok=True)
        (folder / junk).write_bytes(b"no picture")
    (folder / "dog" / "empty.png").mkdir()
    data = load_images(folder, labelled=True)
    assert (data.pixels[:, 0] == GREY[[2, 1, 0]]).all()
    assert data.classes == ("cat", "dog") and data.labels.tolist() == [0, 1, 1] and data.parts is None
    assert data.source == f"{folder}: 3 grey images of 8 x 7 pixels, 2 classes; 2 other files passed over"


def test_flat_folders_and_one_picture_have_no_labels(tmp_path):
    for at in range(3):
        write(tmp_path, f"{2 - at}.png", RGB[at])
    data = load_images(tmp_path)
    assert (data.pixels == RGB[[2, 1, 0]].transpose(0, 3, 1, 2)).all() and data.labels is None
    fails("0.png: the picture lies in no folder of a class; move it into one", load_images, tmp_path, labelled=True)
    assert (load_images(tmp_path / "1.png").pixels[0] == RGB[1].transpose(2, 0, 1)).all()


def test_pictures_beside_folders_of_classes_leave_no_labels(folder):
    write(folder, "stray.png")
    assert load_images(folder).labels is None and len(load_images(folder)) == 4
    fails("stray.png: the picture lies in no folder of a class", load_images, folder, labelled=True)


def test_folders_of_parts_and_classes_named_like_parts(tmp_path):
    for at, path in enumerate(("Training/7/a.png", "val/10/b.png", "test/7/c.png", "test/8/d.png")):
        write(tmp_path / "parts", path, GREY[at])
    data = load_images(tmp_path / "parts", labelled=True)
    assert (data.pixels[:, 0] == GREY[[0, 2, 3, 1]]).all()
    assert data.parts.tolist() == ["train", "test", "test", "validation"]
    assert data.classes == ("7", "8", "10") and data.labels.tolist() == [0, 0, 1, 2]
    for path in ("train/a.png", "test/b.png"):
        write(tmp_path / "flat", path)
    flat = load_images(tmp_path / "flat")
    assert flat.parts.tolist() == ["test", "train"] and flat.labels is None
    for path in ("train/a.png", "car/b.png"):
        write(tmp_path / "vehicles", path)
    vehicles = load_images(tmp_path / "vehicles")
    assert vehicles.classes == ("car", "train") and vehicles.parts is None


def test_a_folder_around_the_folders_of_classes_is_no_class(folder, tmp_path_factory):
    (outer := tmp_path_factory.mktemp("outer")).joinpath("wrapped").symlink_to(folder)
    assert load_images(outer).classes == ("cat", "dog")


def test_several_sets_in_a_folder_are_named(folder):
    np.savez(folder / "x.npz", X=GREY)
    fails("there are several sets in it: x.npz, cat/deep/er/z.PNG; name one of them", load_images, folder)


# sizes and colours


def test_mixed_sizes_need_a_size(folder):
    write(folder, "dog/c.png", GREY[0, :5])
    said = fails(r"c.png: the picture has 5 x 7 pixels, .*z.PNG' 8 x 7; .*\(size, --size\)", load_images, folder)
    assert str(folder / "dog") in said
    data = load_images(folder, size=(8, 7))
    assert data.shape == (1, 8, 7) and (data.pixels[1, 0] == GREY[1]).all() and "1 image scaled" in data.source
    assert load_images(folder, size=4).shape == (1, 4, 4)


def test_large_pictures_need_a_size_and_are_smoothed(tmp_path):
    board = np.indices((130, 128)).sum(axis=0).astype(np.uint8) % 2 * 255
    path = write(tmp_path, "big.png", board)
    fails(r"big.png: the image has 130 x 128 pixels, and at most 64 a side .* \(size, --size\)", load_images, tmp_path)
    small = load_images(tmp_path, size=16).pixels
    assert (abs(small.astype(int) - 127) < 12).all()
    np.savez(tmp_path / "big.npz", X=board[None])
    arrays = load_images(tmp_path / "big.npz", size=16)
    assert (arrays.pixels == small).all() and "scaled from 130 x 128 pixels" in arrays.source
    assert load_image(path).shape == (1, 130, 128)


@pytest.mark.parametrize("size", [0, -1, 65, (8,), (8, 8, 8), 8.0, "8", True, (8, None)])
def test_sizes_that_are_none(folder, size):
    fails("give height and width from 1 to 64 pixels", load_images, folder, size=size)


def test_grey_among_colours_needs_a_colour(folder):
    write(folder, "dog/c.png", RGB[0])
    fails(r"c.png: the picture is in colour, 'cat.*z.PNG' grey; .*\(colour, --colour", load_images, folder)
    grey, colour = load_images(folder, colour="grey"), load_images(folder, colour="rgb")
    assert grey.shape == (1, 8, 7) and colour.shape == (3, 8, 7)
    assert (grey.pixels[3, 0] == np.asarray(Image.fromarray(RGB[0]).convert("L"))).all()
    assert (colour.pixels[0] == GREY[2]).all() and (colour.pixels[3] == RGB[0].transpose(2, 0, 1)).all()
    fails("colour 'gray' is not known .*did you mean 'grey'", load_images, folder, colour="gray")


def test_grey_of_arrays_is_grey_of_pictures(tmp_path):
    every = coloured(RGB.transpose(0, 3, 1, 2), "grey")
    assert all((every[i, 0] == np.asarray(Image.fromarray(RGB[i]).convert("L"))).all() for i in range(6))
    np.savez(tmp_path / "a.npz", X_train=RGB, X_test=GREY)
    data = load_images(tmp_path / "a.npz", colour="grey")
    assert (data.pixels[:6] == every).all() and (data.pixels[6:] == GREY[:, None]).all()


def test_every_format_is_read(tmp_path):
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8) * 8
    for end in ("png", "jpg", "jpeg", "bmp", "gif", "webp", "tif", "tiff", "pgm"):
        options = {"quality": 100} if end.startswith("j") else {"lossless": True} if end == "webp" else {}
        write(tmp_path, f"{end}/x.{end.upper()}", smooth, **options)
    data = load_images(tmp_path, colour="grey")
    assert len(data.classes) == 9 and abs(data.pixels.astype(int) - smooth).max() <= 2
    (tmp_path / "gif" / "x.GIF").rename(tmp_path / "png" / "named_wrongly.png")
    assert len(load_images(tmp_path / "png", colour="rgb")) == 2


MODES = {  # mode: (kind, what 8 bits of it are)
    "1": (Image.fromarray(GREY[0] > 127), (GREY[0] > 127)[None] * 255),
    "16 bits": (Image.fromarray(GREY[0].astype(np.uint16) * 257), GREY[0][None]),
    "P": (Image.fromarray(RGB[0] // 128 * 255).quantize(8), (RGB[0] // 128 * 255).transpose(2, 0, 1)),
    "LA": (Image.fromarray(np.stack([GREY[0], GREY[1]], 2)), np.rint(GREY[0] / 255 * GREY[1])[None]),
    "RGBA": (
        Image.fromarray(np.concatenate([RGB[0], GREY[1][..., None]], 2)),
        np.rint(RGB[0] / 255 * GREY[1][..., None]).transpose(2, 0, 1),
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_kinds_of_pixels(tmp_path, mode):
    image, expected = MODES[mode]
    image.save(tmp_path / "x.png")
    pixels = load_image(tmp_path / "x.png")
    assert pixels.dtype == np.uint8 and pixels.shape == expected.shape and (pixels == expected).all()
    assert pixels.flags.writeable and pixels.flags.c_contiguous
    assert ("1 image with transparency laid on black" in load_images(tmp_path).source) == mode.endswith("A")


def test_transparent_colours_of_palettes_and_of_grey_lie_on_black(tmp_path):
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.save(tmp_path / "x.gif", transparency=1)
    assert load_image(tmp_path / "x.gif").tolist() == [[[10, 0], [70, 0]], [[20, 0], [80, 0]], [[30, 0], [90, 0]]]
    Image.fromarray(np.array([[5, 200]], np.uint8)).save(tmp_path / "y.png", transparency=200)
    assert load_image(tmp_path / "y.png").tolist() == [[[5, 0]]]


def test_printing_colours_are_converted_and_others_refused(tmp_path):
    Image.new("CMYK", (3, 2), (0, 255, 255, 0)).save(tmp_path / "x.tif")
    assert load_image(tmp_path / "x.tif")[:, 0, 0].tolist() == [255, 0, 0]
    for array in (GREY[0].astype(np.float32), GREY[0].astype(np.int32)):
        path = write(tmp_path, "y.tif", array)
        fails("y.tif: pixels of the kind [FI] are not read; save it with 8 bits a channel", load_image, path)


# archives


def test_archives_of_folders_are_read_as_the_folder(folder, tmp_path_factory):
    (folder / "dog" / "bad.png").write_bytes(b"")
    here = tmp_path_factory.mktemp("archives")
    with zipfile.ZipFile(here / "pets.zip", "w") as packed:
        for path in folder.rglob("*.*"):
            packed.write(path, "pets" / path.relative_to(folder))
    with tarfile.open(here / "pets.tgz", "w:gz") as packed:
        packed.add(folder, "pets")
    plain = load_images(folder, skip_broken=True)
    for name in ("pets.zip", "pets.tgz"):
        said = fails("bad.png: the file is empty", load_images, here / name)
        assert said.startswith(f"{here / name}/pets/dog/bad.png")
        data = load_images(here / name, labelled=True, skip_broken=True)
        assert data.stamp() == plain.stamp() and data.classes == ("cat", "dog")
        assert data.source.startswith(f"{name}: 3 grey images") and data.skipped[0].startswith(str(here / name))
    with zipfile.ZipFile(here / "out.zip", "w") as packed:
        packed.writestr("../x.png", png_of(GREY[:1]))
    fails("member '../x.png' has '..' in its path", load_images, here / "out.zip")


# one picture, and a mask of it


def test_a_picture_of_a_shape(tmp_path):
    grey, colour = write(tmp_path, "grey.png"), write(tmp_path, "colour.png", RGB[0])
    same = write(tmp_path, "same.png", np.repeat(GREY[0][..., None], 3, 2))
    assert (load_image(grey, shape=(1, 8, 7)) == GREY[0]).all() and load_image(same).shape == (3, 8, 7)
    assert (load_image(same, shape=(1, 8, 7)) == GREY[0]).all()
    assert (load_image(grey, shape=(3, 8, 7)) == GREY[0]).all() and load_image(grey, shape=(3, 8, 7)).shape == (3, 8, 7)
    assert (load_image(colour, shape=(3, 8, 7)) == RGB[0].transpose(2, 0, 1)).all()
    fails(
        r"colour.png: the picture has colours where grey is wanted; convert it to grey",
        load_image,
        colour,
        shape=(1, 8, 7),
    )
    assert (load_image(colour, shape=(1, 8, 7), colour="grey") == coloured(load_image(colour), "grey")).all()
    fails(r"grey.png: the picture is 8 x 7 pixels where 7 x 8 are wanted", load_image, grey, shape=(1, 7, 8))
    fails("colour 'RBG' is not known", load_image, grey, colour="RBG")


MASK = GREY[0] > 140
LEVELS = np.where(MASK, GREY[1] | 1, 0).astype(np.uint8)
MASKS = {
    "1": Image.fromarray(MASK),
    "L": Image.fromarray(LEVELS),
    "16 bits": Image.fromarray(LEVELS.astype(np.uint16)),
    "RGB": Image.fromarray(np.stack([0 * LEVELS, 0 * LEVELS, LEVELS], 2)),
    "LA": Image.fromarray(np.stack([LEVELS, GREY[2]], 2)),
    "RGBA": Image.fromarray(np.stack([LEVELS, 0 * LEVELS, LEVELS, 255 - LEVELS], 2)),
    "P": Image.fromarray(np.stack([0 * LEVELS, 255 * MASK, 0 * LEVELS], 2).astype(np.uint8)).quantize(2),
}


@pytest.mark.parametrize("mode", MASKS)
def test_masks_of_every_kind_are_true_where_they_are_not_black(tmp_path, mode):
    MASKS[mode].save(tmp_path / "mask.png")
    mask = load_mask(tmp_path / "mask.png", (8, 7))
    assert mask.dtype == bool and (mask == MASK).all()
    assert (load_mask(tmp_path / "mask.png", (3, 8, 7)) == MASK).all()


def test_transparent_palettes_of_masks_are_ignored(tmp_path):
    image = MASKS["P"].copy()
    image.save(tmp_path / "mask.png", transparency=bytes([0, 9]))
    assert (load_mask(tmp_path / "mask.png", (8, 7)) == MASK).all()
    with Image.open(tmp_path / "mask.png") as again:
        assert again.info["transparency"] == bytes([0, 9])


def test_masks_that_say_nothing(tmp_path):
    path = write(tmp_path, "mask.png", MASK)
    fails(r"mask.png: the mask is 8 x 7 pixels where 8 x 8 are wanted \(height x width\)", load_mask, path, (1, 8, 8))
    fails(
        "mask.png: the mask is black all over, so nothing is damaged",
        load_mask,
        write(tmp_path, "mask.png", 0 * GREY[0]),
        (8, 7),
    )
    fails(
        "mask.png: the mask has no black, so nothing is known",
        load_mask,
        write(tmp_path, "mask.png", GREY[0] | 1),
        (8, 7),
    )
    fails("gone.png: there is no such file", load_mask, tmp_path / "gone.png", (8, 7))
