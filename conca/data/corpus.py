"""A corpus: files and folders of text as one long run of bytes or of a tokenizer's ids, of which nothing is loaded whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from conca.data.cutting import Progress, encode_files
from conca.data.jsonl import Rows
from conca.data.made_once import made_once
from conca.data.text import Text
from conca.data.text_files import Found, Joined, Places, find_text, is_rows, stamp_of, unpacked_once
from conca.data.token_file import FlatFiles, TokenFile
from conca.data.tokenizer import ByteTokenizer, Tokenizer
from conca.types import BadInput

__all__ = ["Corpus", "open_text"]


class Corpus(Text):
    """Running text. Of files one byte joins every two, the end of a line; for a tokenizer with an end of text, that id.

    The id stands for that one byte, so the bytes are the same whatever the tokenizer, and bits per byte compare.
    """

    @classmethod
    def open(
        cls,
        places: Places,
        tokenizer: Tokenizer,
        cache: Path | None = None,
        *,
        progress: Progress | None = None,
    ) -> Corpus:
        """The text of a file, of several, or of a folder (`conca.data.text_files.find_text` says what counts).

        Bytes are read where they lie. A tokenizer's ids are written once into a folder within `cache`, in the smallest
        type that holds them, two more bytes each for what they stand for; a later call with the same files, sizes, times of
        change and tokenizer finds them there. `.gz` and `.xz` are unpacked into it. `progress` is told the bytes encoded,
        and those in all.

        Raises BadInput: a file is missing, empty, unreadable, for a tokenizer not UTF-8; there is no cache and need for one.
        """
        found = unpacked_once(find_text(places), cache)
        if isinstance(tokenizer, ByteTokenizer):
            joined = Joined(found.files, 10 if tokenizer.eos is None else tokenizer.eos)
            return cls(tokenizer, joined, joined, f"{found.told()}: {len(joined):,} bytes", stamp_of(found.files))
        if cache is None:
            raise BadInput(f"{found.told()}: the ids of a tokenizer are written to a folder; name a cache")
        ids = TokenFile(encoded_once(found, tokenizer, cache, progress), tokenizer.dtype)
        if not len(ids):
            raise BadInput(f"{found.told()}: {tokenizer.name} makes no ids of this text; name another")
        joined = Joined(found.files)
        source = f"{found.told()}: {len(joined):,} bytes, {len(ids):,} ids of {tokenizer.name}"
        return cls(tokenizer, ids, joined, source, stamp_of(found.files))


def encoded_once(found: Found, tokenizer: Tokenizer, cache: Path, progress: Progress | None) -> Path:
    """The folder with the ids of files."""

    def make(folder: Path) -> None:
        with FlatFiles(folder, ids=tokenizer.dtype, sizes=np.dtype(np.uint16)) as flat:
            encode_files(found.files, tokenizer, flat, progress)

    said = f"{stamp_of(found.files, changed=True)} {tokenizer.fingerprint()}"
    return made_once(cache, f"ids-{hashlib.sha256(said.encode()).hexdigest()[:16]}", make)


def open_text(
    places: Places,
    tokenizer: Tokenizer,
    cache: Path | None = None,
    *,
    progress: Progress | None = None,
) -> Corpus | Rows:
    """Rows, if the files are called `.jsonl` or `.ndjson` (packed or not), else running text.

    Raises BadInput as `Rows.open` and `Corpus.open` do, and for files of both kinds: neither can be read as the other.
    """
    found = find_text(places)
    kinds = [is_rows(file.path) for file in found.files]
    if len(set(kinds)) == 2:
        rows, text = (found.files[kinds.index(kind)].path for kind in (True, False))
        raise BadInput(f"{rows} has rows and {text} running text, which are not read as one; name what is of one kind")
    door = Rows if kinds[0] else Corpus
    return door.open(found, tokenizer, cache, progress=progress)
