"""The sets of labelled sequences that lie in a folder, told by the names of their files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conca.data.audio_folder import is_audio_folder
from conca.data.idx_file import idx_name
from conca.data.labelled import PARTS
from conca.data.long_table import is_long_table
from conca.types import BadInput

__all__ = ["FoundSet", "find_set", "set_of"]

SPLIT = re.compile(r"(?P<set>.+)_(?P<part>train|test|validation|val)", re.I)
SPELLED = {"val": "validation"}
LINES = (".ts", ".tsv", ".txt")
"""Kinds of files with a sequence a line, the best first where a set lies there in several."""
WANTED = (
    "NAME_TRAIN.ts with NAME_TEST.ts (or .tsv, .txt), images with labels in IDX files, .npz, .wav in folders, or .csv"
)
SHOWN = 6


@dataclass(frozen=True)
class FoundSet:
    """A set of one or more files.

    name    what it is called
    folder  where it lies
    kind    ".ts", ".tsv", ".txt", ".npz", "idx", "table" or "audio"
    files   the files of every part, by its name; by "" where there are no parts. Of IDX images, the labels come second
    """

    name: str
    folder: Path
    kind: str
    files: Mapping[str, tuple[Path, ...]]


def find_set(folder: Path, name: str = "") -> FoundSet:
    """The one set that lies in a folder, at any depth; of several in one folder, that which is called as it is.

    name  what the folder is called, if not by its own name (that of the archive it comes from)

    Raises BadInput if there is none, or which ones there are.
    """
    visible = list(visible_files(folder))
    if not visible:
        raise BadInput(f"{folder}: the folder is empty; it needs {WANTED}")
    found = [*sets_of_lines(visible), *sets_of_images(visible)]
    found += [single(path, ".npz") for path in visible if path.suffix.lower() == ".npz"]
    if is_audio_folder(folder):
        root = sound_root(folder)
        found.append(FoundSet(root.name, root, "audio", {"": (root,)}))
    found = found or [single(path, "table") for path in visible if is_long_table(path)]
    if len(found) > 1 and len({each.folder for each in found}) == 1:
        own = (found[0].folder.name if found[0].folder != folder else name or folder.name).lower()
        found = [each for each in found if each.name.lower() == own] or found
    if not found:
        raise BadInput(f"{folder}: nothing in it is read as labelled sequences; it needs {WANTED}")
    if len(found) > 1:
        names = [str((each.folder / each.name).relative_to(folder)) for each in found]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise BadInput(
            f"{folder}: there are several sets in it: {', '.join(sorted(names)[:SHOWN])}{more}; name one of them"
        )
    return found[0]


def set_of(path: Path) -> FoundSet | None:
    """The set that a file of sequences belongs to: with its siblings if it is the training part, else alone.

    None if the file is of another kind (a table, an archive).
    """
    kind = path.suffix.lower()
    if (name := idx_name(path)) and name.what == "images":
        packed = path.name.lower().endswith(".gz")  # and may lie beside what it was unpacked to
        twin = path.with_name(path.name[:-3]) if packed else None
        siblings = sets_of_images(each for each in path.parent.iterdir() if each != twin)
        mine = [each for each in siblings if path in [files[0] for files in each.files.values()]]
        if mine and name.part == "train":
            return mine[0]
        labels = [files[1:] for each in mine for files in each.files.values() if files[0] == path]
        return FoundSet(path.name, path.parent, "idx", {"": (path, *(labels[0] if labels else ()))})
    if kind not in LINES:
        return single(path, ".npz") if kind == ".npz" else None
    if (split := SPLIT.fullmatch(path.stem)) and split["part"].lower() == "train":
        siblings = sets_of_lines(each for each in path.parent.iterdir() if each.suffix.lower() == kind)
        return next((each for each in siblings if (path,) in each.files.values()), single(path, kind))
    return single(path, kind)


def single(path: Path, kind: str) -> FoundSet:
    """A set of one file without parts."""
    return FoundSet(path.name, path.parent, kind, {"": (path,)})


def visible_files(folder: Path) -> Iterable[Path]:
    """The files in a folder at any depth, in order, without hidden ones."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        yield from (Path(root, name) for name in sorted(files) if not name.startswith("."))


def sets_of_lines(paths: Iterable[Path]) -> list[FoundSet]:
    """Sets with a sequence a line: NAME_TRAIN and NAME_TEST, or a single `.ts` or `.tsv` file."""
    split: dict[tuple[Path, str], dict[str, dict[str, Path]]] = {}
    found = []
    for path in paths:
        kind = path.suffix.lower()
        if kind not in LINES:
            continue
        if match := SPLIT.fullmatch(path.stem):
            part = match["part"].lower()
            kinds = split.setdefault((path.parent, match["set"]), {})
            kinds.setdefault(kind, {})[SPELLED.get(part, part)] = path
        elif kind != ".txt":
            found.append(single(path, kind))
    for (folder, name), kinds in split.items():
        kind = max(kinds, key=lambda kind: (len(kinds[kind]), -LINES.index(kind)))
        found.append(FoundSet(name, folder, kind, in_order({part: (path,) for part, path in kinds[kind].items()})))
    return found


def sets_of_images(paths: Iterable[Path]) -> list[FoundSet]:
    """Sets of images in IDX files with their labels, those of one prefix ("emnist-letters") together."""
    sets: dict[tuple[Path, str], dict[str, dict[str, Path]]] = {}
    for path in sorted(paths, reverse=True):
        if name := idx_name(path):
            sets.setdefault((path.parent, name.set), {}).setdefault(name.part, {})[name.what] = path
    found = []
    for (folder, prefix), parts in sets.items():
        files = {
            part: tuple(whats[what] for what in ("images", "labels") if what in whats)
            for part, whats in parts.items()
            if "images" in whats
        }
        if files:
            found.append(FoundSet(prefix or "images", folder, "idx", in_order(files)))
    return found


def in_order(files: dict[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
    """The files by part, in the order of the parts; by "" if there is only one."""
    ordered = {part: files[part] for part in PARTS if part in files}
    return ordered if len(ordered) > 1 else {"": next(iter(ordered.values()))}


def sound_root(folder: Path) -> Path:
    """The folder of the folders of classes: the first that is not merely a wrapper around another one of folders."""
    while True:
        inside: Sequence[Path] = [path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX"))]
        if len(inside) != 1 or not inside[0].is_dir() or not any(path.is_dir() for path in inside[0].iterdir()):
            return folder
        folder = inside[0]
