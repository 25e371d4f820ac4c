"""Where a published checkpoint lies: a folder, a .gguf file, or an ID whose files come through huggingface_hub and its cache."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from conca.models.tensor_files import line_of
from conca.types import BadInput, path_of

__all__ = ["is_id", "located", "reachable"]

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
FILE = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)/([\w./-]+\.gguf)")
TEXT = ["*.json", "*.jinja", "*.model", "*.txt", "tokenizer*"]
"""Configs, tokenizers, templates."""
WEIGHTS = ("model*.safetensors", "consolidated*.safetensors", "pytorch_model*.bin")
"""Kinds of weights; the first that there is is taken, the others would hold the same once more."""
PATIENCE = 5.0
"""Seconds that the hub has to open its door."""


def located(id_or_path: str | Path, revision: str | None = None) -> Path:
    """The folder of a checkpoint, or its .gguf file.

    Args:
        id_or_path: a folder, a .gguf file, an ID such as "state-spaces/mamba-130m-hf", or an ID, a slash and a .gguf file in it. What is
            there on the disk comes first. With the environment variable HF_HUB_OFFLINE=1 only the cache is looked at.
        revision: branch, tag or commit of an ID.

    Raises:
        BadInput: for a path that is not there, no ID, an ID that is not in the cache while offline, that does not exist or is gated,
            and when the network fails.
    """
    text, path = str(id_or_path), path_of(id_or_path)
    if text and (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return path
    if path.is_file():
        raise BadInput(f"{path}: name the folder of the checkpoint, or a .gguf file, not a file in it")
    file = FILE.fullmatch(text)
    if path.suffix == ".gguf" and not file:
        raise BadInput(f"{text}: there is no such file; check the path")
    if not isinstance(id_or_path, str) or not is_id(text):
        raise BadInput(f"{text}: there is no such folder, and an ID reads owner/name, as state-spaces/mamba-130m-hf")
    here = not reachable()
    try:
        if file:
            return Path(hf_hub_download(file[1], file[2], revision=revision, local_files_only=here))
        return _snapshot(text, revision, here)
    except Exception as error:  # whatever the network does; the line says it
        raise BadInput(_line(file[1] if file else text, revision, error)) from None


def is_id(text: str) -> bool:
    """Whether a text reads like an ID, owner/name, or like a .gguf file in one; whether there is one, the hub knows."""
    return ".." not in text and bool(ID.fullmatch(text) or FILE.fullmatch(text))


def reachable() -> bool:
    """Whether the hub may be asked: not offline, and its door opens, or a proxy stands before it.

    Asked first, a network that is not there is known at once; the package tries again for half a minute.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    place = urlsplit(constants.ENDPOINT)
    if getproxies():
        return True
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def _snapshot(name: str, revision: str | None, here: bool) -> Path:
    """The folder of an ID, with weights of one kind; `here`: only what the cache has."""
    failed: Exception | None = None
    folder: Path | None = None
    for kind in WEIGHTS if here else _kinds(name, revision):
        try:
            folder = Path(
                snapshot_download(name, revision=revision, allow_patterns=[*TEXT, kind], local_files_only=here)
            )
        except LocalEntryNotFoundError as error:  # the cache may hold another kind, whole
            failed = error
            continue
        if any(folder.glob(kind)):
            return folder
    if folder is None or failed is not None:
        raise failed or FileNotFoundError(name)
    return folder


def _kinds(name: str, revision: str | None) -> tuple[str, ...]:
    """The kind of weights to get; all where the hub does not say what it has."""
    try:
        files = [file for file in HfApi().list_repo_files(name, revision=revision) if "/" not in file]
    except Exception:  # the download says what is wrong, unless the cache has it
        return WEIGHTS
    return tuple(kind for kind in WEIGHTS if any(Path(file).match(kind) for file in files))[:1] or WEIGHTS[:1]


def _line(name: str, revision: str | None, error: Exception) -> str:
    """What to say about an ID that cannot be had."""
    there = name if revision is None else f"{name} at revision {revision}"
    if constants.HF_HUB_OFFLINE:
        where = "offline (HF_HUB_OFFLINE), and only what was downloaded before can be read"
        return f"{there}: is not in the cache, or not whole; this is {where}"
    if isinstance(error, GatedRepoError):
        return f"{there}: is gated; accept its terms on its page, then log in with `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"{there}: there is no such revision"
    if isinstance(error, RepositoryNotFoundError):
        return f"{there}: there is no such checkpoint, or it is private; check the name, or log in with `hf auth login`"
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return f"{there}: there is no such file in it ({line_of(error)})"
    if isinstance(error, LocalEntryNotFoundError) and not reachable():
        return f"{there}: is not in the cache, and {constants.ENDPOINT} cannot be reached; check the network, or name a folder"
    reason = f"{type(error.__cause__ or error).__name__}: {line_of(error.__cause__ or error)}"
    return f"{there}: is not in the cache and cannot be downloaded ({reason}); check the network, or name a folder"
