"""Where a training writes: a run folder in the making, which can be taken up again, or a place that disappears."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from conca.data.labelled import Labelled
from conca.data.panel import Panel, Series
from conca.estimators.arguments import folder_of
from conca.models.run import UNFINISHED, new_folder, write_whole
from conca.train.ranks import first
from conca.types import BadInput

__all__ = ["label_stamp", "stamp", "workplace"]

FREE = ("max_minutes",)
"""Options that may change from one part of a training to the next."""


def stamp(panel: Panel, options: dict[str, Any]) -> dict[str, Any]:
    """What a training may only be taken up again with: its options, and the data by their digest."""
    parts: list[Any] = [json.dumps(panel.schema.as_dict())]
    for series in panel.series:
        values = {field.name: getattr(series, field.name) for field in fields(Series)}
        parts += [repr(value) if name == "key" else value for name, value in values.items()]
    return stamped(options, parts)


def label_stamp(data: Labelled, options: dict[str, Any]) -> dict[str, Any]:
    """The same of labelled sequences."""
    known = [repr((data.channels, data.symbols, data.rate, data.values.dtype.str)), data.values, data.lengths]
    given = [repr(part.tolist()) for part in (data.labels, data.parts) if part is not None]
    return stamped(options, [*known, *given])


def stamped(options: dict[str, Any], parts: Iterable[Any]) -> dict[str, Any]:
    """Options, and the digest of texts and arrays."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(
            part.encode() if isinstance(part, str) else np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        )
    plain: dict[str, Any] = json.loads(json.dumps({"options": options}))
    return plain | {"data": digest.hexdigest()}


@contextmanager
def workplace(out: str | Path | None, force: bool, resume: bool, needed: dict[str, Any]) -> Iterator[Path]:
    """The new run folder, or a temporary one that disappears (also in all but the first of several processes).

    With `resume` it may hold a training that was stopped. Raises BadInput if that had another stamp than `needed`.
    """
    if out is None or not first():
        temporary = Path(tempfile.mkdtemp(prefix="conca-"))
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return
    with new_folder(folder_of(out), force, resume) as folder:
        path = folder / UNFINISHED
        if path.exists():
            compare(read_stamp(path), needed, folder_of(out))
        write_whole(path, json.dumps(needed).encode())
        yield folder


def read_stamp(path: Path) -> dict[str, Any]:
    """The stamp in a training that was stopped. Raises BadInput if it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(found, dict) and isinstance(found["options"], dict) and isinstance(found["data"], str)
    except (ValueError, KeyError, RecursionError):
        whole = False
    if not whole:
        raise BadInput(f"{path}: is damaged; begin the training anew (force, --force)")
    stamp: dict[str, Any] = found
    return stamp


def compare(found: dict[str, Any], needed: dict[str, Any], out: Path) -> None:
    """Raise BadInput unless two stamps are of one training."""
    advice = "give the same, or begin anew (force, --force)"
    for name, value in needed["options"].items():
        before = found["options"].get(name)
        if before != value and name not in FREE:
            raise BadInput(f"{out}: the training was begun with {name} {before!r}, not {value!r}; {advice}")
    if found["data"] != needed["data"]:
        raise BadInput(f"{out}: the training was begun with other data, or other columns of it; {advice}")
