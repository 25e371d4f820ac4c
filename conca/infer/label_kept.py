"""What streams of labels hold, on disk: one safetensors file, written whole or not at all, and read with care."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conca.infer.memory import joined, parted
from conca.infer.sealed import fingerprint, read_sealed, write_sealed
from conca.layers.states import leaves, tree_map
from conca.models.classify import ClassifyNetwork
from conca.types import BadInput

__all__ = ["Heard", "identity", "read_heard", "write_heard"]

FORMAT = 1
"""Version of the files; a program reads its own and older ones."""
KIND = "stream of labels"


@dataclass(frozen=True)
class Heard:
    """What is held of one sequence: how many steps were read, and the state after them."""

    steps: int
    state: Any


def identity(network: ClassifyNetwork, classes: Sequence[Any], symbols: Sequence[str]) -> str:
    """A hash of the weights of a network, of its time scales, and of what it reads and answers, in hexadecimal."""
    scales = [getattr(part, "step_rescale", 1.0) for part in network.modules()]
    said = asdict(network.config), [str(name) for name in classes], list(symbols), scales
    return fingerprint(said, dict(network.state_dict()))


def write_heard(path: Path, memories: Mapping[Hashable, Heard], run: str) -> None:
    """Write what was read of sequences to `path`; a symbolic link is followed.

    Raises:
        BadInput: if something that is no file has this name, or a key is neither None, a text, nor a tuple of texts.
        OSError: if it cannot be written.
    """
    tensors = {"steps": torch.tensor([one.steps for one in memories.values()], dtype=torch.int64)}
    groups: dict[Any, list[int]] = {}
    states = [one.state for one in memories.values()]
    for place, state in enumerate(states):
        groups.setdefault(tuple(leaf.shape for leaf in leaves(state)), []).append(place)
    for number, places in enumerate(groups.values()):
        tensors[f"state.{number}.places"] = torch.tensor(places, dtype=torch.int64)
        together = joined([states[place] for place in places])
        tensors |= {f"state.{number}.{leaf}": t.contiguous().clone() for leaf, t in enumerate(leaves(together))}
    keys = json.dumps([written(key) for key in memories])
    write_sealed(path, KIND, FORMAT, run, {"keys": keys}, tensors)


def written(key: Hashable) -> Any:
    """A key as JSON holds it. Raises BadInput for one that it cannot hold."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, tuple) and all(isinstance(part, str) for part in key):
        return list(key)
    raise BadInput(f"the key {key!r} cannot be saved; call sequences by texts")


def read_heard(path: Path, example: Any, run: str) -> dict[Hashable, Heard]:
    """What `write_heard` wrote; `example`: a state of the network.

    Raises:
        BadInput: one line, for a file that is missing, damaged, or of another run.
    """
    with read_sealed(path, KIND, FORMAT, run) as (about, tensors):
        keys = [tuple(key) if isinstance(key, list) else key for key in json.loads(about["keys"])]
        return dict(zip(keys, unpacked(tensors, example), strict=True))


def unpacked(tensors: Mapping[str, Tensor], example: Any) -> list[Heard]:
    """The states that were written together, each by itself."""
    steps = tensors["steps"].tolist()
    found: list[Any] = [None] * len(steps)
    for number in range(sum(name.endswith(".places") for name in tensors)):
        own = iter([tensors[f"state.{number}.{leaf}"] for leaf, _ in enumerate(leaves(example))])
        state = tree_map(lambda _, own=own: next(own), example)
        for row, place in enumerate(tensors[f"state.{number}.places"].tolist()):
            found[place] = parted(state, row)
    return [Heard(count, state) for count, state in zip(steps, found)]
