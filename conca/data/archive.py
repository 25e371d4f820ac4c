"""Archives (`.zip`, `.tar`, `.tgz`, `.tar.gz`), unpacked with care into a folder that does not stay.

Nothing is written outside that folder: members with an absolute path or with "..", links, devices and bombs are
refused by name.
"""

from __future__ import annotations

import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conca.types import BadInput

__all__ = ["ENDINGS", "check_name", "unpacked"]

ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz")
LARGEST = 16 << 30
HARMLESS = 1 << 30
RATIO = 100
BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The folder that holds what is in an archive; it is gone afterwards, also after an error.

    Error lines (BadInput) from inside name the archive in place of the folder. Raises BadInput, naming the member: an
    absolute path, "..", a link, a device, a password, more than 16 GiB, or over 1 GiB and 100 times the archive.
    """
    folder = Path(tempfile.mkdtemp(prefix="conca-"))
    try:
        try:
            unpack(path, folder)
            yield folder
        except BadInput as error:
            raise BadInput(str(error).replace(str(folder), str(path))) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(path: Path, folder: Path) -> None:
    """Write the members of an archive into a folder. Raises BadInput as `unpacked` says."""
    if path.is_dir():
        raise BadInput(f"{path} is a directory where an archive is wanted; name a file")
    if not path.exists():
        raise BadInput(f"{path}: there is no such file; check the path")
    try:
        if path.name.lower().endswith(".zip"):
            unpack_zip(path, folder)
        else:
            unpack_tar(path, folder)
    except BROKEN as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"{path}: the archive cannot be unpacked ({said}); fetch or pack it again") from None


def unpack_zip(path: Path, folder: Path) -> None:
    """Write the files of a zip archive into a folder."""
    with zipfile.ZipFile(path) as archive:
        total = 0
        for member in archive.infolist():
            name = check_name(path, member.orig_filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise BadInput(f"{path}: member '{name}' is a link or a device; pack files alone")
            if member.flag_bits & 1:
                raise BadInput(f"{path}: member '{name}' is under a password; unpack it and name the folder")
            total = check_size(path, name, total + member.file_size)
        for member in archive.infolist():
            target = folder.joinpath(*steps_of(member.orig_filename))
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as inside, target.open("wb") as outside:
                shutil.copyfileobj(inside, outside, 1 << 20)


def unpack_tar(path: Path, folder: Path) -> None:
    """Write the files of a tar archive into a folder, looking at each before it is written."""
    with tarfile.open(path, "r:*") as archive:
        total = 0
        for member in archive:
            name = check_name(path, member.name)
            if not (member.isreg() or member.isdir()):
                raise BadInput(f"{path}: member '{name}' is a link or a device; pack files alone")
            total = check_size(path, name, total + member.size)
            archive.extract(member, folder, filter="data")


def check_name(path: Path, name: str) -> str:
    """The name of a member of the archive at `path`. Raises BadInput if it leads out of a folder, or is no name."""
    shown = name.encode("unicode_escape").decode()[:80]
    if re.match(r"[/\\]|[A-Za-z]:", name):
        raise BadInput(f"{path}: member '{shown}' has an absolute path; pack it with paths inside a folder")
    if ".." in steps_of(name):
        raise BadInput(f"{path}: member '{shown}' has '..' in its path; pack it with paths inside a folder")
    if "\0" in name or not name:
        raise BadInput(f"{path}: member '{shown}' has no readable name; pack it again")
    return shown


def steps_of(name: str) -> list[str]:
    """The folders of a member's name and its last part, whichever slash stands between them."""
    return [step for step in re.split(r"[/\\]", name) if step not in ("", ".")]


def check_size(path: Path, name: str, total: int) -> int:
    """The bytes so far. Raises BadInput if they are too many, or far more than the archive can hold in good faith."""
    if total > LARGEST or (total > HARMLESS and total > RATIO * path.stat().st_size):
        told = f"{path}: with member '{name}' the archive holds {total / 2**30:.1f} GiB"
        raise BadInput(f"{told} in {path.stat().st_size / 2**20:.1f} MiB; unpack it yourself and name the folder")
    return total
