"""Memories on disk: one safetensors file, written whole or not at all, and read with care."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from conca.data.encoding import Carry
from conca.infer.fitted import Fitted
from conca.infer.links import check_regular, followed
from conca.infer.memory import Memories, Memory, fresh, joined, parted
from conca.layers.states import leaves, tree_map
from conca.models.run import write_whole
from conca.types import BadInput

__all__ = ["fingerprint", "read_memories", "write_memories"]

FORMAT = 2
"""Version of the files; a program reads its own and older ones."""
BARE = 1
"""The version whose digest is that of the tensors alone."""


def fingerprint(fitted: Fitted) -> str:
    """A hash of the weights of a run, and of how it reads tables, in hexadecimal."""
    parts = fitted.schema.as_dict(), fitted.encoding.as_dict(), fitted.network.config.as_dict(), fitted.context
    digest = sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    digest.update(digest_of(dict(fitted.network.state_dict())).encode())
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


def write_memories(path: Path, memories: Memories, run: str) -> None:
    """Write memories of a run to `path`, whole or not at all; a symbolic link is followed.

    Raises:
        BadInput: if something that is no file has this name.
        OSError: if they cannot be written.
    """
    check_regular(path)
    tensors = packed(list(memories.values()))
    about = {
        "conca": "stream",
        "format": str(FORMAT),
        "run": run,
        "series": json.dumps(list(memories)),
    }
    about["digest"] = sealed(about, tensors)
    write_whole(followed(path), save(tensors, metadata=about))


def packed(memories: Sequence[Memory]) -> dict[str, Tensor]:
    """Memories as named tensors: what all have in one tensor each, states of one size together."""
    carries = [memory.carry for memory in memories if memory.carry is not None]
    nothing = np.empty((0, carries[0].anchor.shape[1] if carries else 0))
    tensors = {
        "rows": torch.tensor([memory.rows for memory in memories], dtype=torch.int64),
        "times": torch.tensor([carry.time for carry in carries], dtype=torch.int64),
        "past": torch.from_numpy(np.concatenate([nothing, *(carry.anchor for carry in carries)])),
        "lengths": torch.tensor([len(carry.anchor) for carry in carries], dtype=torch.int64),
        "numeric": torch.from_numpy(np.stack([carry.numeric for carry in carries]) if carries else nothing),
    }
    for number, (places, which, state) in enumerate(together(memories)):
        tensors[f"state.{number}.series"] = torch.tensor(places, dtype=torch.int64)
        tensors[f"state.{number}.which"] = torch.tensor(which, dtype=torch.int64)
        tensors |= {f"state.{number}.{leaf}": t.contiguous() for leaf, t in enumerate(leaves(state))}
    return tensors


def together(memories: Sequence[Memory]) -> Iterator[tuple[list[int], list[int], Any]]:
    """States of one size as one: the places of their series, which states of these they are, and the state."""
    groups: dict[Any, list[tuple[int, int, Any]]] = {}
    for place, memory in enumerate(memories):
        for which, state in enumerate(memory.states):
            groups.setdefault(tuple(leaf.shape for leaf in leaves(state)), []).append((place, which, state))
    for group in groups.values():
        yield [one[0] for one in group], [one[1] for one in group], joined([one[2] for one in group])


def read_memories(path: Path, fitted: Fitted, run: str) -> Memories:
    """The memories that `write_memories` wrote. Raises BadInput for a file that is missing, damaged or of another run."""
    check_regular(path)
    if not path.exists():
        raise BadInput(f"{path}: there is no such file; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise BadInput(f"{path}: is damaged, or no state of a stream ({' '.join(str(error).split())})") from None
    if about.get("conca") != "stream":
        raise BadInput(f"{path}: is not the state of a stream; name another file")
    if not about.get("format", "").isdigit() or int(about["format"]) > FORMAT:
        raise BadInput(f"{path}: its format is newer than this conca understands ({FORMAT}); update conca")
    if about.get("run") != run:
        raise BadInput(f"{path}: is the state of a stream through another run; name that run, or begin with a new file")
    try:
        bare = int(about["format"]) == BARE
        if about["digest"] != (digest_of(tensors) if bare else sealed(about, tensors)):
            raise ValueError("what it holds is not what was written")
        return unpacked(tensors, [tuple(map(str, name)) for name in json.loads(about["series"])], fitted)
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: is damaged ({' '.join(str(error).split())}); begin with a new file") from None


def unpacked(tensors: Mapping[str, Tensor], names: Sequence[tuple[str, ...]], fitted: Fitted) -> Memories:
    """The inverse of `packed`."""
    states: list[dict[int, Any]] = [{} for _ in names]
    example = fresh(fitted.network)
    for number in range(sum(name.endswith(".which") for name in tensors)):
        part = f"state.{number}"
        numbers = iter([tensors[f"{part}.{leaf}"] for leaf, _ in enumerate(leaves(example))])
        state = tree_map(lambda _, found=numbers: next(found), example)
        places = zip(tensors[f"{part}.series"].tolist(), tensors[f"{part}.which"].tolist())
        for row, (place, which) in enumerate(places):
            states[place][which] = parted(state, row)
    past = tensors["past"].numpy()
    ends = np.cumsum(tensors["lengths"].numpy())
    result = {}
    for place, name in enumerate(names):
        end = int(ends[place])
        anchor = past[end - int(tensors["lengths"][place]) : end].copy()
        carry = Carry(anchor, tensors["numeric"][place].numpy().copy(), int(tensors["times"][place]))
        own = tuple(states[place][which] for which in range(len(states[place])))
        result[name] = Memory(name, int(tensors["rows"][place]), carry, own)
    return result
