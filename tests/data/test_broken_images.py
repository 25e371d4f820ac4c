"""Broken, cut, locked and swollen picture files among good ones: named, and passed over only where that is asked."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

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


@pytest.fixture
def folder(tmp_path):
    """Two classes of two pictures and of one."""
    for at, path in enumerate(("dog/b.png", "dog/a.png", "cat/deep/er/z.PNG")):
        write(tmp_path, path, GREY[at])
    return tmp_path


def chunk(kind, content):
    """One chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, *more):
    """A PNG file that declares a size, and holds a few bytes."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def half(content):
    return content[: len(content) // 2]


def flipped(content):
    at = content.index(b"IDAT") + 12
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


GOOD = png_of(GREY[:1])
BROKEN = {
    "half.png": (half(GOOD), "half.png: the picture is broken or cut short"),
    "head.png": (GOOD[:20], "head.png: the picture is broken or cut short"),
    "flipped.png": (flipped(GOOD), "flipped.png: the picture is broken or cut short"),
    "empty.png": (b"", "empty.png: the file is empty"),
    "text.jpg": (b"<html>404</html>", "text.jpg: the file is no picture in a format that is read"),
    "program.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "program.png: the file is no picture"),
    "short.png": (png(30, 30), "short.png: the picture is broken or cut short"),
    "bomb.png": (png(30000, 30000), "bomb.png: the file declares too many pixels, where 67,108,864 are the most"),
    "huge.png": (png(2**31 - 1, 2**31 - 1), "huge.png: the file declares"),
    "large.png": (png(2**13 + 1, 2**13), "large.png: the file declares 8192 x 8193 pixels"),
    "none.png": (png(0, 0), "none.png: the (picture|file) is"),
    "text_bomb.png": (
        png(8, 7, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 24)))),
        "text_bomb.png: the picture is broken",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_among_good_ones_is_named_and_skipped_only_where_that_is_asked(folder, name):
    content, match = BROKEN[name]
    (folder / "dog" / name).write_bytes(content)
    said = fails(match, load_images, folder)
    assert said.endswith(", or pass over broken files (skip_broken, --skip-broken)") and said.count("; ") == 1
    data = load_images(folder, skip_broken=True)
    assert (data.pixels[:, 0] == GREY[[2, 1, 0]]).all() and data.labels.tolist() == [0, 1, 1]
    assert len(data.skipped) == 1 and data.skipped[0].startswith(f"{folder / 'dog' / name}: ")
    assert "1 broken file passed over" in data.source
    fails(match, load_image, folder / "dog" / name)
    fails(match, load_mask, folder / "dog" / name, (8, 7))


def test_all_broken_is_bad_input_even_where_they_are_skipped(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    fails(
        "none of 2 pictures can be read, the first: .*a.png: the file is empty", load_images, tmp_path, skip_broken=True
    )


def test_skipped_files_take_their_labels_and_parts_along(tmp_path):
    for at, path in enumerate(("train/a/0.png", "train/b/1.png", "test/a/2.png", "test/b/3.png")):
        write(tmp_path, path, GREY[at])
    (tmp_path / "test" / "a" / "2.png").write_bytes(b"")
    data = load_images(tmp_path, skip_broken=True)
    assert data.parts.tolist() == ["test", "train", "train"] and data.labels.tolist() == [1, 0, 1]
    assert (data.pixels[:, 0] == GREY[[3, 0, 1]]).all()


def test_places_without_images(tmp_path):
    fails("nothing.*: there is no such file or folder; check the path", load_images, tmp_path / "nothing")
    fails("the folder is empty; it needs pictures", load_images, tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    fails("there are no pictures in it; it needs pictures", load_images, tmp_path)
    fails("notes.txt: this kind of file is not read as images", load_images, tmp_path / "notes.txt")
    (tmp_path / "x.png").mkdir()
    fails("there are no pictures in it", load_images, tmp_path)
    fails("the folder is empty", load_images, tmp_path / "x.png")
    fails("x.png: is a directory or a device where a picture is wanted", load_image, tmp_path / "x.png")
    fails("y.png: there is no such file; check the path", load_image, tmp_path / "y.png")


def test_links_to_nowhere_and_pipes_are_broken_files(folder):
    (folder / "dog" / "gone.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "dog" / "pipe.png")
    fails("gone.png: there is no such file; check the path", load_images, folder)
    data = load_images(folder, skip_broken=True)
    assert len(data) == 3 and [line.partition(": ")[0][-8:] for line in data.skipped] == ["gone.png", "pipe.png"]


def test_places_that_are_no_pictures_and_names_that_are_no_text(folder):
    os.mkfifo(folder / "pipe.png")
    fails("pipe.png: is neither a file nor a folder", load_images, folder / "pipe.png")
    fails("pipe.png: is a directory or a device", load_mask, folder / "pipe.png", (8, 7))
    os.remove(folder / "pipe.png")
    for name in (b"two\nlines.png", b"latin\xe9.png"):
        bad = os.fsencode(folder) + b"/dog/" + name
        with open(bad, "wb") as file:
            file.write(GOOD)
        fails(r"the name 'dog/.*\\.*.png' is not one line of text in UTF-8; rename it", load_images, folder)
        os.remove(bad)


def test_pixels_are_counted_also_where_pillow_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "x.png").write_bytes(png(30000, 30000))
    fails(
        "x.png: the file declares 30000 x 30000 pixels, where 67,108,864 are the most", load_image, tmp_path / "x.png"
    )


def test_what_may_not_be_read_is_named(folder, monkeypatch):
    locked, open_, walk = folder / "dog" / "a.png", type(folder).open, os.scandir

    def refuse(path, *rest):
        if path == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return open_(path, *rest)

    monkeypatch.setattr(type(folder), "open", refuse)
    fails("a.png: may not be read .permission denied.; change its permissions", load_images, folder)
    assert len(load_images(folder, skip_broken=True)) == 2

    def closed(path):
        if str(path).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(path))
        return walk(path)

    monkeypatch.setattr(os, "scandir", closed)
    fails("dog: the folder cannot be read .Permission denied.", load_images, folder, skip_broken=True)


@pytest.mark.parametrize("end", ["gif", "png", "webp", "tif"])
def test_of_an_animation_the_first_picture_is_read(tmp_path, end):
    first, *others = [Image.fromarray(np.full((8, 7), level, np.uint8)) for level in (40, 90, 200)]
    options = {"lossless": True} if end == "webp" else {}
    first.save(tmp_path / f"x.{end}", save_all=True, append_images=others * 40, **options)
    pixels = load_image(tmp_path / f"x.{end}", colour="grey")
    assert pixels.shape == (1, 8, 7) and abs(pixels.astype(int) - 40).max() <= 1


def test_bombs_of_other_formats_set_nothing_aside(tmp_path):
    buffer = io.BytesIO()
    frames = [Image.new("RGBA", (8, 8), (9, 2, 3, level)) for level in (40, 200)]
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:])
    webp = bytearray(buffer.getvalue())
    at = webp.index(b"VP8X") + 12
    webp[at : at + 6] = (8999).to_bytes(3, "little") * 2
    gif = (
        b"GIF89a"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\0\0,\0\0\0\0"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\2\0;"
    )
    bmp = (
        b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 10000, 10000, 1, 24, 0, 0, 0, 0, 0, 0)
    )
    pgm = b"P5 100000 100000 255 "
    for name, content in (("a.webp", webp), ("b.gif", gif), ("c.bmp", bmp), ("d.pgm", pgm)):
        (tmp_path / name).write_bytes(content)
        fails(f"{name}: the file declares .* pixels, where 67,108,864 are the most", load_image, tmp_path / name)


def test_a_file_too_long_for_a_picture_is_not_read(tmp_path):
    (tmp_path / "x.webp").write_bytes(b"RIFF\xff\xff\xff\x7fWEBPVP8L")
    os.truncate(tmp_path / "x.webp", (1 << 30) + 1)
    fails("x.webp: the file has 1.0 GiB, too much for a picture", load_image, tmp_path / "x.webp")
