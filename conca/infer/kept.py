"""Memories on disk: one safetensors file, written whole or not at all, and read with care."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conca.data.encoding import Carry
from conca.infer.fitted import Fitted
from conca.infer.memory import Last, Memories, Memory, fresh, joined, parted
from conca.infer.sealed import fingerprint, read_sealed, write_sealed
from conca.layers.states import leaves, tree_map

__all__ = ["identity", "read_memories", "write_memories"]

FORMAT = 2
"""Version of the files; a program reads its own and older ones."""
KIND = "stream"


def identity(fitted: Fitted) -> str:
    """A hash of the weights of a run, and of how it reads tables, in hexadecimal."""
    parts = fitted.schema.as_dict(), fitted.encoding.as_dict(), fitted.network.config.as_dict(), fitted.context
    return fingerprint(parts, dict(fitted.network.state_dict()))


def write_memories(path: Path, memories: Memories, run: str) -> None:
    """Write memories of a run to `path`, whole or not at all; a symbolic link is followed.

    Raises:
        BadInput: if something that is no file has this name.
        OSError: if they cannot be written.
    """
    said = {"series": json.dumps(list(memories))}
    write_sealed(path, KIND, FORMAT, run, said, packed(list(memories.values())))


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
    lasts = [(place, memory.last) for place, memory in enumerate(memories) if memory.last is not None]
    if lasts:
        tensors["last.series"] = torch.tensor([place for place, _ in lasts], dtype=torch.int64)
        tensors["last.hidden"] = torch.from_numpy(np.stack([last.hidden for _, last in lasts]))
        tensors["last.anchor"] = torch.from_numpy(np.stack([last.anchor for _, last in lasts]))
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
    with read_sealed(path, KIND, FORMAT, run) as (about, tensors):
        return unpacked(tensors, [tuple(map(str, name)) for name in json.loads(about["series"])], fitted)


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
    lasts = {}
    if "last.series" in tensors:
        parts = (tensors["last.hidden"].numpy().copy(), tensors["last.anchor"].numpy().copy())
        lasts = {place: Last(*both) for place, both in zip(tensors["last.series"].tolist(), zip(*parts))}
    past = tensors["past"].numpy()
    ends = np.cumsum(tensors["lengths"].numpy())
    result = {}
    for place, name in enumerate(names):
        end = int(ends[place])
        anchor = past[end - int(tensors["lengths"][place]) : end].copy()
        carry = Carry(anchor, tensors["numeric"][place].numpy().copy(), int(tensors["times"][place]))
        own = tuple(states[place][which] for which in range(len(states[place])))
        result[name] = Memory(name, int(tensors["rows"][place]), carry, own, lasts.get(place))
    return result
