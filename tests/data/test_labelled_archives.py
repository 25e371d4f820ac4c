"""Folders and archives of labelled sequences, and what must not come out of an archive."""

import io
import tarfile
import tempfile
import wave
import zipfile

import pytest

from conca.data import archive
from conca.data.labelled_source import read_labelled
from conca.types import BadInput

TS = "@problemName Toy\n@classLabel true a b\n@data\n1,2:a\n3,4:b\n"


@pytest.fixture
def own_temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def pack(tmp_path, own_temporary):
    """Writes an archive of members (name, content); a content of None is a folder, a tar member stands for itself."""

    def one(name, *members):
        path = tmp_path / name
        if name.endswith(".zip"):
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                for member, content in members:
                    file.writestr(member, content)
            return path
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as file:
            for member, content in members:
                info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
                info.size = len(content) if info.isreg() else 0
                file.addfile(info, io.BytesIO(content.encode()))
        return path

    yield one
    assert not list(own_temporary.iterdir())


@pytest.mark.parametrize("name", ["Toy.zip", "Toy.tar", "Toy.tgz", "Toy.tar.gz"])
def test_the_one_set_in_an_archive_is_found(pack, name):
    noise = [("package/readme.txt", "words"), ("package/.hidden_TRAIN.ts", "x"), ("package/data/Toy.txt", "about")]
    old = [("package/data/Toy_TRAIN.txt", "1 2\n"), ("package/data/Toy_TEST.txt", "1 2\n")]
    path = pack(name, *noise, *old, ("package/data/Toy_TRAIN.ts", TS), ("package/data/Toy_TEST.ts", TS))
    data = read_labelled(path)
    assert (
        data.parts.tolist() == ["train", "train", "test", "test"] and data.values.ravel().tolist() == [1, 2, 3, 4] * 2
    )
    assert data.source.startswith(f"{name} with Toy_TRAIN.ts, Toy_TEST.ts: 4 sequences (2 train, 2 test)")


def test_several_sets_are_named_and_one_called_as_the_archive_is_taken(pack):
    files = [(f"{name}_{part}.ts", TS) for name in ("Toy", "Toy_eq") for part in ("TRAIN", "TEST")]
    assert "Toy_TRAIN.ts" in read_labelled(pack("Toy.zip", *files)).source
    with pytest.raises(BadInput, match=r"other\.zip: there are several sets in it: Toy, Toy_eq; name one of them"):
        read_labelled(pack("other.zip", *files))
    with pytest.raises(BadInput, match="several sets in it: a/Toy, b/Toy"):
        read_labelled(pack("Toy.zip", ("a/Toy_TRAIN.ts", TS), ("b/Toy_TRAIN.ts", TS)))


def link(name, kind, target="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_link(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("name", "member", "told"),
    [
        *((name, "/etc/evil.ts", "member '/etc/evil.ts' has an absolute path") for name in ("a.zip", "a.tgz")),
        *((name, "x/../../evil.ts", r"has '\.\.' in its path") for name in ("a.zip", "a.tar")),
        *((name, r"..\evil.ts", r"has '\.\.' in its path") for name in ("a.zip", "a.tgz")),
        *((name, r"C:\evil.ts", "has an absolute path") for name in ("a.zip", "a.tgz")),
        *((name, r"\\host\evil.ts", "has an absolute path") for name in ("a.zip", "a.tgz")),
        ("a.zip", zip_link("evil.ts"), "member 'evil.ts' is a link or a device"),
        *(
            ("a.tar", link("evil.ts", kind), "member 'evil.ts' is a link or a device")
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
        ),
    ],
)
def test_members_that_lead_elsewhere_are_refused_by_name(pack, tmp_path, name, member, told):
    path = pack(name, (member, TS), ("good.ts", TS))
    with pytest.raises(BadInput, match=told) as caught:
        read_labelled(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert not list(tmp_path.rglob("evil.ts"))


def test_bombs_and_broken_archives_are_refused(pack, monkeypatch):
    with monkeypatch.context() as small:
        small.setattr(archive, "HARMLESS", 10_000)
        for name in ("a.zip", "a.tgz"):
            with pytest.raises(BadInput, match=r"with member 'zeros' the archive holds .* GiB in .* MiB"):
                read_labelled(pack(name, ("zeros", "0" * 4_000_000)))
    whole = pack("a.tgz", ("a.ts", TS * 1000))
    for name, content in (("a.tgz", whole.read_bytes()[:-40]), ("a.zip", b"PK"), ("a.tar", b"text"), ("b.tgz", b"")):
        path = whole.parent / name
        path.write_bytes(content)
        with pytest.raises(BadInput, match="the archive cannot be unpacked"):
            read_labelled(path)
    data = bytearray(pack("a.zip", ("a.ts", TS)).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (whole.parent / "a.zip").write_bytes(data)
    with pytest.raises(BadInput, match=r"member 'a\.ts' is under a password"):
        read_labelled(whole.parent / "a.zip")


def test_errors_inside_name_the_archive_in_place_of_the_folder(pack, own_temporary):
    path = pack("a.zip", ("in/a.ts", TS + "1,x:a\n"))
    with pytest.raises(BadInput, match="'x' is not a number") as caught:
        read_labelled(path)
    assert str(caught.value).startswith(f"{path}/in/a.ts, line 6: ") and str(own_temporary) not in str(caught.value)
    with pytest.raises(BadInput, match=r"a\.tar: nothing in it is read as labelled sequences; it needs NAME_TRAIN\.ts"):
        read_labelled(pack("a.tar", ("readme.txt", "words")))


def test_paths_that_are_nothing_to_read(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"x")
    (tmp_path / "a.ts").mkdir()
    for path, told in {
        tmp_path / "a.ts": "a.ts: the folder is empty; it needs NAME_TRAIN.ts",
        tmp_path / "a.bin": "this kind of file is not read; name a file ending in .ts",
        tmp_path / "none.ts": "there is no such file or folder",
        tmp_path: "nothing in it is read as labelled sequences",
    }.items():
        with pytest.raises(BadInput, match=told):
            read_labelled(path)
    (tmp_path / "b.csv").write_text("id,v,label\n1,2,a\n1,3,a\n2,4,b\n")
    assert read_labelled(tmp_path / "b.csv", series="id", label="label").lengths.tolist() == [2, 1]
    assert read_labelled(tmp_path, series="id", label="label").labels.tolist() == ["a", "b"]
    with pytest.raises(BadInput, match=r"rate 8000\.5 is not a whole number"):
        read_labelled(sound(tmp_path / "b.wav"), rate=8000.5)


def sound(path):
    """A file of four samples."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(4000)
        file.writeframes(b"\0\1" * 4)
    return path


def test_recordings_in_an_archive_may_be_wrapped(pack, tmp_path):
    content = sound(tmp_path / "a.wav").read_bytes()
    data = read_labelled(pack("speech.zip", *((f"speech/words/{word}/a.wav", content) for word in ("yes", "no"))))
    assert data.labels.tolist() == ["no", "yes"] and data.rate == 4000 and data.lengths.tolist() == [4, 4]
    assert data.source.startswith("speech.zip with ") and "conca-" not in data.source
