"""Files that hold what a stream has read: safetensors with a seal, written whole or not at all, and read with care."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from conca.infer.links import check_regular, followed
from conca.models.run import write_whole
from conca.types import BadInput

__all__ = ["digest_of", "fingerprint", "read_sealed", "write_sealed"]

BARE = ("stream", 1)
"""The kind and version of files whose digest is that of the tensors alone."""


def fingerprint(about: Any, tensors: Mapping[str, Tensor]) -> str:
    """A hash of the weights of a run, and of what is said about them (as JSON holds it), in hexadecimal."""
    digest = sha256(json.dumps(about, sort_keys=True, default=str).encode())
    digest.update(digest_of(tensors).encode())
    return digest.hexdigest()


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors with their names, types and sizes."""
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def sealed(about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """The digest of a file: of all that is said about the tensors, and of these."""
    said = json.dumps({name: text for name, text in about.items() if name != "digest"}, sort_keys=True)
    return sha256((said + digest_of(tensors)).encode()).hexdigest()


def write_sealed(
    path: Path, kind: str, version: int, run: str, said: dict[str, str], tensors: dict[str, Tensor]
) -> None:
    """Write tensors to `path`, and what is said about them; a symbolic link is followed.

    Raises:
        BadInput: if something that is no file has this name.
        OSError: if they cannot be written.
    """
    check_regular(path)
    about = {"conca": kind, "format": str(version), "run": run, **said}
    about["digest"] = sealed(about, tensors)
    write_whole(followed(path), save(tensors, metadata=about))


@contextmanager
def read_sealed(path: Path, kind: str, newest: int, run: str) -> Iterator[tuple[dict[str, str], dict[str, Tensor]]]:
    """What `write_sealed` wrote, to be understood in the block: what was said, and the tensors.

    Raises:
        BadInput: one line, for a file that is missing, damaged, of another kind, of a newer format or of another run, and for an
            error in the block, which comes of damage.
    """
    check_regular(path)
    if not path.exists():
        raise BadInput(f"{path}: there is no such file; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise BadInput(f"{path}: is damaged, or no state of a stream ({' '.join(str(error).split())})") from None
    if about.get("conca") != kind:
        raise BadInput(f"{path}: is not the state of a {kind}; name another file")
    if not about.get("format", "").isdigit() or int(about["format"]) > newest:
        raise BadInput(f"{path}: its format is newer than this conca understands ({newest}); update conca")
    if about.get("run") != run:
        raise BadInput(f"{path}: is the state of a stream through another run; name that run, or begin with a new file")
    try:
        bare = (kind, int(about["format"])) == BARE
        if about["digest"] != (digest_of(tensors) if bare else sealed(about, tensors)):
            raise ValueError("what it holds is not what was written")
        yield about, tensors
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: is damaged ({' '.join(str(error).split())}); begin with a new file") from None
