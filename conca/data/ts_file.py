"""Files in the `.ts` format of the UCR and UEA archives: a header, then one case a line.

Between ":" stand the dimensions (channels) of a case, between "," its values, after the last ":" its label. Lengths
may differ from case to case, not from dimension to dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conca.data.labelled import Labelled, counted, labels_of_text, numbered
from conca.data.number_text import read_lines, read_numbers
from conca.types import BadInput

__all__ = ["read_ts"]

UNKNOWN = ("", "?")
COMMENT = (b"#", b"%")


@dataclass(frozen=True)
class Header:
    """What the tags of a `.ts` file say. classes is None where the cases have no label."""

    classes: tuple[str, ...] | None
    dimensions: int | None
    equal: bool
    begin: int


@dataclass(frozen=True)
class Case:
    """One line of data: where it stands, the text of its values, channel by channel, and its label."""

    line: int
    values: bytes
    channels: int
    steps: int
    label: str


def read_ts(path: Path, *, labelled: bool = True) -> Labelled:
    """The cases of a `.ts` file, values (sum of lengths, C) float64, NaN where "?" stands.

    labelled  whether a file without labels is bad input; if not, labels are None where any is missing

    Raises BadInput that names the file and the line: of a header without @data or @classLabel, of time stamps, of a
    regression target, of a label that is not declared, of dimensions of unequal lengths, of what is no number.
    """
    lines = read_lines(path)
    header = read_header(path, lines, labelled)
    cases = list(read_cases(path, lines, header))
    if not cases:
        raise BadInput(f"{path}: there is no case after @data; give at least one")
    check_alike(path, header, cases)
    numbers = read_numbers([case.values for case in cases], lambda index: f"{path}, line {cases[index].line}")
    ends = np.cumsum([case.channels * case.steps for case in cases])
    arrays = [part.reshape(cases[0].channels, -1).T for part in np.split(numbers, ends[:-1])]
    labels = [case.label for case in cases]
    nameless = [case.line for case in cases if case.label in UNKNOWN]
    if labelled and nameless:
        raise BadInput(f"{path}, line {nameless[0]}: the case has no label; put one after the last ':'")
    return Labelled(
        np.concatenate(arrays),
        np.array([case.steps for case in cases], np.int64),
        None if nameless else labels_of_text(labels),
        None,
        tuple(map(str, range(len(cases)))),
        numbered(cases[0].channels),
        source=path.name,
    ).named(path.name)


def read_header(path: Path, lines: Sequence[bytes], labelled: bool) -> Header:
    """What the tags above the data say. Raises BadInput if they cannot be read, or say what is not read here."""
    classes: tuple[str, ...] | None = None
    tags: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith(COMMENT):
            continue
        where = f"{path}, line {number}"
        if not line.startswith(b"@"):
            raise BadInput(f"{where}: a line of data stands above @data; put @data before the first case")
        tag, *words = decoded(line, where).split()
        tags[tag.lower()] = words[0].lower() if words else ""
        if tag.lower() == "@data":
            if classes is None and labelled:
                raise BadInput(f"{where}: no @classLabel true stands above @data; name the classes there")
            return Header(classes, whole(tags, path), tags.get("@equallength") == "true", number)
        if tag.lower() in ("@timestamps", "@targetlabel") and tags[tag.lower()] == "true":
            refuse(tag, where)
        if tag.lower() == "@classlabel" and tags["@classlabel"] == "true":
            classes = tuple(words[1:])
            if not classes:
                raise BadInput(f"{where}: @classLabel true names no class; write them behind it")
    raise BadInput(f"{path}, line {len(lines)}: the file ends without @data; put it before the first case")


def refuse(tag: str, where: str) -> None:
    """Raise BadInput for a tag that announces what is not read."""
    if tag.lower() == "@timestamps":
        raise BadInput(f"{where}: {tag} true: values with time stamps are not read; write the values alone")
    raise BadInput(f"{where}: {tag} true: the targets are numbers to be predicted, not classes; give classes")


def whole(tags: dict[str, str], path: Path) -> int | None:
    """The number of channels that the header declares, if it does."""
    said = tags.get("@dimensions", tags.get("@dimension"))
    if said is None:
        return 1 if tags.get("@univariate") == "true" else None
    if not said.isdecimal() or not int(said):
        raise BadInput(f"{path}: @dimensions is '{said}'; write how many channels a case has")
    return int(said)


def read_cases(path: Path, lines: Sequence[bytes], header: Header) -> Iterator[Case]:
    """The cases below the header. Raises BadInput for a line that is none."""
    known = None if header.classes is None else {*header.classes, *UNKNOWN}
    for number, line in enumerate(lines[header.begin :], start=header.begin + 1):
        if not line or line.startswith(COMMENT):
            continue
        where = f"{path}, line {number}"
        if line.startswith(b"@"):
            raise BadInput(f"{where}: a tag stands below @data; put it above")
        fields = line.split(b":")
        label = ""
        if known is not None:
            label = decoded(fields.pop(), where).strip()
            if not fields:
                raise BadInput(f"{where}: the case has no ':' and so no label; put its label behind a ':'")
            if label not in known:
                raise BadInput(f"{where}: the label '{label[:40]}' is not one that @classLabel declares; name it there")
        yield case_of(fields, number, label, where)


def case_of(fields: Sequence[bytes], number: int, label: str, where: str) -> Case:
    """One case. Raises BadInput if its dimensions are of unequal lengths, or have no values."""
    steps = {field.count(b",") + 1 if field.strip() else 0 for field in fields}
    if 0 in steps:
        raise BadInput(f"{where}: a dimension has no values; give the case at least one step, or leave it out")
    if len(steps) > 1:
        found = f"from {min(steps)} to {max(steps)} values"
        raise BadInput(f"{where}: the dimensions have {found}; give all dimensions of a case the same number")
    return Case(number, b",".join(fields), len(fields), steps.pop(), label)


def check_alike(path: Path, header: Header, cases: Sequence[Case]) -> None:
    """Raise BadInput if a case has other channels than declared, or than the first, or, where declared, steps."""
    channels = header.dimensions or cases[0].channels
    origin = "the header says" if header.dimensions else "the first case has"
    for case in cases:
        where = f"{path}, line {case.line}"
        if case.channels != channels:
            raise BadInput(
                f"{where}: {counted(case.channels, 'dimension')} where {origin} {channels}; give all the same"
            )
        if header.equal and case.steps != cases[0].steps:
            told = f"the first case has {cases[0].steps} and @equalLength is true"
            raise BadInput(f"{where}: {counted(case.steps, 'value')} where {told}; mend the case or the header")


def decoded(text: bytes, where: str) -> str:
    """The text of a tag or a label. Raises BadInput if it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{where}: not UTF-8 text; save the file as UTF-8") from None
