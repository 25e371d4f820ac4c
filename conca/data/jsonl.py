"""Rows of JSON with `text`, or with `prompt` and `completion`: texts of their own, each with its end.

A row is a line. What a model is judged on is all of a `text` and its end, and of the others the completion and its end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conca.data.cutting import Progress, in_threads
from conca.data.made_once import made_once
from conca.data.text import BLOCK, Store, Text
from conca.data.text_files import BROKEN, Found, Joined, Places, TextFile, find_text, is_packed, opened, stamp_of
from conca.data.token_file import FlatFiles, TokenFile
from conca.data.tokenizer import ByteTokenizer, Tokenizer, with_end
from conca.types import BadInput, nearest

__all__ = ["Rows"]

KEYS = ("text", "prompt", "completion")
WANTED = "a row has 'text', or 'prompt' and 'completion'"
AT_ONCE = 256
"""Rows that a thread encodes at once."""
LONG = np.dtype(np.int64)


@dataclass(frozen=True)
class Row:
    """A row: its text, how much of it is the prompt (characters; None: it has none), where it stands, its line's bytes."""

    text: str
    prompt: int | None
    where: str
    n_bytes: int


class Rows(Text):
    """Rows one behind the other: each is what the tokenizer puts before a text, its ids, and the end of a text.

    Bytes, which have no end of their own, get the byte 0: `tokenizer` is the one to keep with a model. The end of a row
    stands for one byte, as the end of a line does in a file.

    rows         how many
    offsets      the ids at which rows begin, and the end: (rows + 1,)
    completions  whether any row has a prompt
    """

    def __init__(self, tokenizer: Tokenizer, ids: Store, text: Joined, source: str, stamp: str, folder: Path) -> None:
        super().__init__(tokenizer, ids, text, source, stamp)
        self.offsets: NDArray[np.int64] = np.memmap(folder / "offsets.bin", LONG, "r")
        self.rows = len(self.offsets) - 1
        self._judged: NDArray[np.int64] = np.memmap(folder / "judged.bin", LONG, "r")
        self.completions = bool((folder / "prompts.bin").stat().st_size)

    @classmethod
    def open(
        cls,
        places: Places,
        tokenizer: Tokenizer,
        cache: Path | None = None,
        *,
        progress: Progress | None = None,
    ) -> Rows:
        """The rows of files (`.gz` and `.xz` are unpacked), or of a folder of them; ids are kept as those of a `Corpus` are.

        `progress` is told the bytes of rows read, and those of all files; of packed files it tells nothing. Other keys of a
        row are passed over, and so are empty lines. Raises BadInput with file and line: no JSON, no such keys, no text, text
        that is empty; for bytes text with a byte 0 in it, and for a tokenizer without an end.
        """
        found, tokenizer = find_text(places), with_end(tokenizer)
        if cache is None:
            raise BadInput(f"{found.told()}: the ids of rows are written to a folder; name a cache")
        said = f"{stamp_of(found.files, changed=True)} {tokenizer.fingerprint()}"
        folder = made_once(
            cache,
            f"rows-{hashlib.sha256(said.encode()).hexdigest()[:16]}",
            lambda folder: write_rows(found, tokenizer, folder, progress),
        )
        path = folder / "text.bin"
        text = Joined([TextFile(path, path.name, path.stat().st_size, 0)])
        ids = TokenFile(folder, tokenizer.dtype)
        rows = (folder / "offsets.bin").stat().st_size // LONG.itemsize - 1
        source = f"{found.told()}: {rows:,} {'row' if rows == 1 else 'rows'}, {len(text):,} bytes"
        if not isinstance(tokenizer, ByteTokenizer):
            source += f", {len(ids):,} ids of {tokenizer.name}"
        return cls(tokenizer, ids, text, source, stamp_of(found.files), folder)

    def mask(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Which ids of a part a model is judged on: see the head of this file; never the first id of a row."""
        self.check(begin, end)
        first, last = self.rows_of(begin, end)
        bounds = np.clip(self._judged.reshape(-1, 2)[first:last], begin, end) - begin
        change = np.zeros(end - begin + 1, np.int64)
        np.add.at(change, bounds[:, 0], 1)
        np.subtract.at(change, bounds[:, 1], 1)
        return np.asarray(np.cumsum(change)[:-1] > 0)

    def starts(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Which ids of a part are the first of a row."""
        self.check(begin, end)
        first, last = np.searchsorted(self.offsets, (begin, end))
        found = np.zeros(end - begin, bool)
        found[self.offsets[first:last] - begin] = True
        return found

    def bytes_between(self, begin: int, end: int, *, counted: bool = False) -> int:
        """How many bytes the ids of a part stand for, together; `counted`: those alone that a model is judged on."""
        if not counted:
            return super().bytes_between(begin, end)
        blocks = ((at, min(at + BLOCK, end)) for at in range(begin, end, BLOCK))
        return sum(int(self.sizes(*block)[self.mask(*block)].sum()) for block in blocks)

    def cut_at(self, byte: int) -> int:
        """The begin of a row: the first at or behind the byte, so that at least the last row is held out, and one is not."""
        if self.rows < 2:
            raise BadInput(f"{self.source}: one row cannot be learnt from and held out; give more rows")
        row = int(np.searchsorted(self.offsets, self._ids.at_byte(byte)))
        return int(self.offsets[min(max(row, 1), self.rows - 1)])

    def rows_of(self, begin: int, end: int) -> tuple[int, int]:
        """The rows that a part touches, [first, last)."""
        first = int(np.searchsorted(self.offsets, begin, side="right")) - 1
        return first, int(np.searchsorted(self.offsets, end))


def write_rows(found: Found, tokenizer: Tokenizer, folder: Path, progress: Progress | None) -> None:
    """Write the flat files of rows. Raises BadInput as `Rows.open` says."""
    types = {"ids": tokenizer.dtype, "text": np.dtype(np.uint8), "offsets": LONG, "judged": LONG}
    plain = isinstance(tokenizer, ByteTokenizer)
    if not plain:
        types["sizes"] = np.dtype(np.uint16)
    at, done, total, prompts = 0, 0, sum(file.n_bytes for file in found.files), False
    with FlatFiles(folder, prompts=np.dtype(np.uint8), **types) as flat:
        flat.add(offsets=[0])
        for made in in_threads(lambda rows: [encoded_row(row, tokenizer) for row in rows], batches(found)):
            for row, data, ids, sizes, judged in made:
                if plain:
                    flat.add(ids=ids)
                else:
                    flat.add_ids(row.where, ids, sizes)
                flat.add(
                    text=np.frombuffer(data, np.uint8), offsets=[at + len(ids)], judged=[at + judged, at + len(ids)]
                )
                at += len(ids)
                done += row.n_bytes
                prompts = prompts or row.prompt is not None
            if progress and not any(map(is_packed, found.files)):
                progress(done, total)
        if not at:
            raise BadInput(f"{found.told()}: holds no rows; {WANTED}")
        flat.add(prompts=[1] * prompts)


def encoded_row(row: Row, tokenizer: Tokenizer) -> tuple[Row, bytes, NDArray[np.int64], NDArray[np.int64], int]:
    """A row, the bytes of its text, its ids, what each stands for, and the first id that a model is judged on."""
    try:
        data = row.text.encode()
    except UnicodeEncodeError as error:
        said = f"half of a surrogate pair at character {error.start}"
        raise BadInput(
            f"{row.where}: {said} of the text, which UTF-8 cannot write; write the character whole"
        ) from None
    if isinstance(tokenizer, ByteTokenizer) and bytes([tokenizer.eos or 0]) in data:
        raise BadInput(f"{row.where}: the byte {tokenizer.eos} in the text, which ends a text here; take it out")
    lead, rest = row.text[: row.prompt or 0], row.text[row.prompt or 0 :]
    first, more = tokenizer.measured(lead), tokenizer.measured(rest, lead) or tokenizer.measured(rest)
    assert first is not None
    assert more is not None
    n = len(tokenizer.opening)
    ids = np.concatenate((np.array(tokenizer.opening, np.int64), first[0], more[0], np.array([tokenizer.eos])))
    sizes = np.concatenate((np.zeros(n, np.int64), first[1], more[1], np.zeros(1, np.int64)))
    sizes[-1] = 1 + len(data) - sizes.sum()
    return row, data + b"\n", ids.astype(np.int64), sizes, max(1, n + len(first[0]))


def batches(found: Found) -> Iterator[list[Row]]:
    """Rows of files, some at once."""
    held: list[Row] = []
    for file in found.files:
        for row in rows_of(file):
            held.append(row)
            if len(held) == AT_ONCE:
                yield held
                held = []
    if held:
        yield held


def rows_of(file: TextFile) -> Iterator[Row]:
    """The rows of a file."""
    try:
        with opened(file.path) as lines:
            for number, line in enumerate(lines, 1):
                data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if data.strip():
                    yield row_of(data, f"{file.path}, line {number}")
    except BROKEN as error:
        raise BadInput(f"{file.path}: cannot be read ({error}); fetch it again") from None


def row_of(line: bytes, where: str) -> Row:
    """The row of a line. Raises BadInput if it is none."""
    try:
        said = json.loads(line.decode())
    except UnicodeDecodeError as error:
        at = f"byte {error.start} of the line (0x{line[error.start]:02x})"
        raise BadInput(f"{where}: not UTF-8 at {at}; JSON is written in UTF-8: convert it") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error}); each line is a JSON object of its own") from None
    if not isinstance(said, dict):
        raise BadInput(f"{where}: not a JSON object; {WANTED}")
    found = [key for key in KEYS if key in said]
    if found not in (["text"], ["prompt", "completion"]):
        raise BadInput(f"{where}: {keys_told(said, found)}; {WANTED}")
    wrong = [key for key in found if not isinstance(said[key], str)]
    if wrong:
        raise BadInput(f"{where}: '{wrong[0]}' is not a string but {json.dumps(said[wrong[0]])[:40]}; write it as one")
    if not said[found[-1]]:
        raise BadInput(f"{where}: '{found[-1]}' is empty, so there is nothing to learn; leave the row out")
    text = "".join(said[key] for key in found)
    return Row(text, None if found == ["text"] else len(said["prompt"]), where, len(line))


def keys_told(said: dict[str, object], found: list[str]) -> str:
    """What is wrong with the keys of a row."""
    if found:
        return "it has " + " and ".join(f"'{key}'" for key in found)
    if "messages" in said:
        return "'messages' are not read: write a talk as 'text', in the form of the model's chat template"
    return f"it has neither ({nearest(next(iter(said)), KEYS)})" if said else "it has no keys"
