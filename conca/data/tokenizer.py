"""Text becomes ids, and ids become text: bytes as they are, or the tokens of a tokenizer.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
from numpy.typing import ArrayLike, NDArray

from conca.data.decoding import ByteStream, Decoding, TokenStream, decoded, encoded, places
from conca.types import BadInput, path_of

__all__ = [
    "ByteTokenizer",
    "Decoding",
    "FileTokenizer",
    "Ids",
    "Tokenizer",
    "check_vocab",
    "read_tokenizer",
    "with_end",
]

Ids = NDArray[np.unsignedinteger[Any]]
Measured = tuple[Ids, NDArray[np.int64]]

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""What belongs to a tokenizer in a folder."""
SLOW = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
BYTES = "conca.ByteTokenizer"


class Tokenizer(Protocol):
    """Text to ids and back.

    name     what it is called in reports
    size     all ids are below it
    eos, bos, pad   ids of the end of a text, of its begin and of what fills rows; None: it has none
    opening  the ids that it puts before a prompt by itself: the begin of a text, for those that were trained with one
    chat_template   how a talk becomes text, in Jinja's language; None: it has none
    """

    name: str
    size: int
    eos: int | None
    bos: int | None
    pad: int | None
    opening: tuple[int, ...]
    chat_template: str | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned type that holds all ids."""

    def encode(self, text: str | bytes, *, special: bool = False) -> Ids:
        """The ids of a text, (n,); with `special` after the `opening`. Raises BadInput if it cannot be encoded."""

    def measured(self, text: str, lead: str = "") -> Measured | None:
        """The ids of a text that follows a `lead`, and how many bytes of UTF-8 each stands for, both (n,).

        None if the two cannot be cut there: the ids of the lead alone are not those that the whole begins with.
        """

    def decode(self, ids: ArrayLike, *, special: bool = False) -> str:
        """The text of ids; with `special` also what ids of ends and begins are written as."""

    def stream(self, *, special: bool = False) -> Decoding:
        """A new stream of ids on their way to text, the same text as `decode` gives."""

    def fingerprint(self) -> str:
        """Equal for tokenizers that make equal ids."""

    def write(self, folder: Path) -> None:
        """Write what `read_tokenizer` needs to make this tokenizer of the folder."""


class ByteTokenizer:
    """Each byte is an id: any text, any file.

    eos  the byte that ends a text, or none; rows of JSONL end by the byte 0, since text has other uses for the rest
    """

    name = "bytes"
    size = 256
    bos: int | None = None
    pad: int | None = None
    opening: tuple[int, ...] = ()
    chat_template: str | None = None

    def __init__(self, eos: int | None = None) -> None:
        if eos is not None and not 0 <= eos < 256:
            raise ValueError(f"eos must be a byte, not {eos}")
        self.eos = eos

    @property
    def dtype(self) -> np.dtype[Any]:
        """Bytes."""
        return np.dtype(np.uint8)

    def encode(self, text: str | bytes, *, special: bool = False) -> Ids:
        """The bytes of a text. Raises BadInput for half of a surrogate pair, which UTF-8 cannot write."""
        data = text if isinstance(text, bytes) else encoded(text)
        return np.frombuffer(data, np.uint8).copy()

    def measured(self, text: str, lead: str = "") -> Measured:
        """Its bytes, each of which stands for itself."""
        ids = self.encode(text)
        return ids, np.ones(len(ids), np.int64)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes themselves. Raises ValueError for what is no byte."""
        values = np.asarray(ids, dtype=np.int64).reshape(-1)
        if ((values < 0) | (values > 255)).any():
            raise ValueError(f"ids of bytes are 0 to 255, not {values[(values < 0) | (values > 255)][0]}")
        return values.astype(np.uint8).tobytes()

    def decode(self, ids: ArrayLike, *, special: bool = False) -> str:
        """Read as UTF-8; what is none becomes U+FFFD, and the byte that ends a text is left out unless `special`."""
        stream = self.stream(special=special)
        return stream.push(list(self.decode_bytes(ids))) + stream.flush()

    def stream(self, *, special: bool = False) -> Decoding:
        """See `Tokenizer`."""
        return ByteStream(None if special else self.eos)

    def fingerprint(self) -> str:
        """See `Tokenizer`."""
        return f"bytes, end {self.eos}"

    def write(self, folder: Path) -> None:
        """One small file, which says that this is about bytes, and how a text ends."""
        said = {"tokenizer_class": BYTES, "eos_token_id": self.eos}
        (folder / "tokenizer_config.json").write_text(json.dumps(said, indent=2) + "\n")


class FileTokenizer:
    """The tokenizer of a tokenizer.json, through the package `tokenizers`; for the attributes see `Tokenizer`.

    Neither cuts a long text off nor fills a short one up, whatever its file says.

    A text cut in two has other ids at the cut, often: spaces and ends of lines join what stands beside them. `measured`
    says whether it has; `conca.data.cutting` cuts long text at ends of lines where it has not.

    files  what `write` writes as it is, by name; empty: what the tokenizer says of itself
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        name: str,
        *,
        eos: int | None = None,
        bos: int | None = None,
        pad: int | None = None,
        opening: tuple[int, ...] | None = None,
        chat_template: str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        inner.no_truncation()
        inner.no_padding()
        self.inner, self.name = inner, name
        self.size = 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eos, self.bos, self.pad = (i if i is not None and 0 <= i < self.size else None for i in (eos, bos, pad))
        self.opening = put_before(inner) if opening is None else opening
        self.chat_template = chat_template
        self.files = dict(files or {})
        self.silent = {i for i, token in inner.get_added_tokens_decoder().items() if token.special}

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16, or uint32 above 65,536 ids."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.uint32)

    def encode(self, text: str | bytes, *, special: bool = False) -> Ids:
        """The ids of a text; what is written like an id of an end or a begin becomes that id.

        Raises BadInput, with the place, if bytes are not UTF-8.
        """
        said = decoded(text, "the text") if isinstance(text, bytes) else decoded(encoded(text), "the text")
        ids = self.inner.encode(said, add_special_tokens=False).ids
        return np.array([*self.opening, *ids] if special else ids, self.dtype)

    def measured(self, text: str, lead: str = "") -> Measured | None:
        """See `Tokenizer`. What the tokenizer passes over counts to the id after it, at the end to the last one."""
        known = self.inner.encode(lead, add_special_tokens=False).ids if lead else []
        whole = self.inner.encode_batch([lead + text], add_special_tokens=False)[
            0
        ]  # `encode` would keep threads waiting
        ids = whole.ids
        if ids[: len(known)] != known:
            return None
        ends = np.array([end for _, end in whole.offsets[len(known) :]], np.int64)
        ends = np.maximum.accumulate(np.clip(ends - len(lead), 0, len(text)))
        ends[-1:] = len(text)
        sizes = np.diff(places(text)[ends], prepend=0)
        return np.array(ids[len(known) :], self.dtype), sizes

    def decode(self, ids: ArrayLike, *, special: bool = False) -> str:
        """See `Tokenizer`; bytes that are no UTF-8 become U+FFFD."""
        values = np.asarray(ids, dtype=np.int64).reshape(-1).tolist()
        return self.inner.decode(values, skip_special_tokens=not special)

    def stream(self, *, special: bool = False) -> Decoding:
        """See `Tokenizer`."""
        return TokenStream(
            lambda ids: self.inner.decode(ids, skip_special_tokens=False), () if special else self.silent
        )

    def fingerprint(self) -> str:
        """See `Tokenizer`."""
        said = self.files.get("tokenizer.json") or self.inner.to_str().encode()
        return hashlib.sha256(said + repr((self.eos, self.opening)).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """The files that it was read from; its configuration names the ids that were known from elsewhere."""
        said: dict[str, Any] = json.loads(self.files.get("tokenizer_config.json", b"{}"))
        for word, value in (("eos_token", self.eos), ("bos_token", self.bos), ("pad_token", self.pad)):
            if value is not None:
                said[word] = self.inner.id_to_token(value)
        if self.bos is not None and "add_bos_token" not in said:
            said["add_bos_token"] = self.bos in self.opening
        if self.chat_template is not None and "chat_template.jinja" not in self.files:
            said["chat_template"] = self.chat_template
        written = {"tokenizer.json": self.inner.to_str().encode()} | self.files
        written["tokenizer_config.json"] = (json.dumps(said, indent=2, ensure_ascii=False) + "\n").encode()
        for name, data in written.items():
            (folder / name).write_bytes(data)


def put_before(inner: tokenizers.Tokenizer) -> tuple[int, ...]:
    """The ids that a tokenizer puts before a text by itself."""
    found = inner.encode("a", add_special_tokens=True)
    mask = [*found.special_tokens_mask, 0]
    return tuple(found.ids[: mask.index(0)])


def read_tokenizer(place: str | Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, of a folder that holds one, or "bytes".

    What it calls its ends, and its chat template, are read from the files beside it, if there are any. Raises BadInput
    if there is none, or none that can be read.
    """
    if str(place) == "bytes":
        return ByteTokenizer()
    path = path_of(place)
    if not path.exists():
        raise BadInput(f"{path}: there is no such tokenizer; name a tokenizer.json, or a folder with one")
    folder, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
    if not path.is_dir() and path.name in SLOW:
        raise BadInput(unconverted(path))
    if not file.is_file():
        said = settings(folder / "tokenizer_config.json")
        if said.get("tokenizer_class") == BYTES:
            eos = said.get("eos_token_id")
            if eos is not None and (type(eos) is not int or not 0 <= eos < 256):
                raise BadInput(f"{folder / 'tokenizer_config.json'}: eos_token_id must be a byte, not {eos!r}")
            return ByteTokenizer(eos)
        old = [folder / name for name in SLOW if (folder / name).is_file()]
        raise BadInput(unconverted(old[0]) if old else f"{folder}: holds no tokenizer.json; name a folder with one")
    return from_file(file)


def unconverted(path: Path) -> str:
    """What to do about a tokenizer in an older form."""
    todo = f"AutoTokenizer.from_pretrained('{path.parent}').save_pretrained('{path.parent}')"
    return f"{path}: only a tokenizer.json is read; write one with transformers: {todo}"


def from_file(file: Path) -> FileTokenizer:
    """The tokenizer of a tokenizer.json, with what the files beside it say."""
    try:
        beside = {name: (file.parent / name).read_bytes() for name in FILES if (file.parent / name).is_file()}
        beside["tokenizer.json"] = file.read_bytes()
        inner = tokenizers.Tokenizer.from_str(beside["tokenizer.json"].decode())
    except Exception as error:  # the package raises Exception itself
        why = " ".join(str(error).split())
        raise BadInput(f"{file}: no tokenizer can be read from it ({why}); fetch it again, or name another") from None
    said = settings(file.parent / "tokenizer_config.json")
    marks = {word: end_of(file.parent, inner, word) for word in ("eos", "bos", "pad")}
    opening, bos = put_before(inner), marks["bos"]
    if "add_bos_token" in said and bos is not None:
        rest = tuple(i for i in opening if i != bos)
        opening = (bos, *rest) if said["add_bos_token"] else rest
    template = said.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    template = template if isinstance(template, str) else None
    if "chat_template.jinja" in beside:
        template = decoded(beside["chat_template.jinja"], str(file.parent / "chat_template.jinja"))
    return FileTokenizer(inner, file.name, **marks, opening=opening, chat_template=template, files=beside)


def settings(path: Path) -> dict[str, Any]:
    """A JSON object, empty if there is no such file. Raises BadInput if it is none."""
    if not path.is_file():
        return {}
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read as JSON ({error}); fetch it again") from None
    if not isinstance(said, dict):
        raise BadInput(f"{path}: holds no JSON object; fetch it again")
    return said


def end_of(folder: Path, inner: tokenizers.Tokenizer, word: str) -> int | None:
    """The id of the `eos`, `bos` or `pad` that the files of a folder name: by its text, else by its number."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        said = settings(folder / name).get(f"{word}_token")
        found = inner.token_to_id(str(said.get("content") if isinstance(said, dict) else said)) if said else None
        if found is not None:
            return found
    for name in ("generation_config.json", "config.json"):
        number = settings(folder / name).get(f"{word}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if type(number) is int and 0 <= number < 2**31 and inner.id_to_token(number) is not None:
            return number
    return None


def with_end(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer whose texts end: bytes without an end get the byte 0. Raises BadInput for others without one."""
    if tokenizer.eos is not None:
        return tokenizer
    if isinstance(tokenizer, ByteTokenizer):
        return ByteTokenizer(eos=0)
    todo = "put a tokenizer_config.json with eos_token beside it"
    raise BadInput(f"{tokenizer.name}: the tokenizer names no end of a text, which rows need; {todo}")


def check_vocab(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise BadInput unless the ids fit a model's table of `vocab_size` tokens (which may be padded, but not by half)."""
    if vocab_size // 2 <= tokenizer.size <= vocab_size:
        return
    told = f"the tokenizer ({tokenizer.name}) has {tokenizer.size} ids, the model's table {vocab_size} tokens"
    raise BadInput(f"a tokenizer that does not match the vocabulary: {told}; name the one that the model was made with")
