"""What streams of labels hold, on disk: one safetensors file, written whole or not at all, and read with care."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from conca.infer.kept import digest_of, sealed
from conca.infer.links import check_regular, followed
from conca.infer.memory import joined, parted
from conca.layers.states import leaves, tree_map
from conca.models.classify import ClassifyNetwork
from conca.models.run import write_whole
from conca.types import BadInput

__all__ = ["Heard", "fingerprint", "read_heard", "write_heard"]

FORMAT = 1
"""Version of the files; a program reads its own and older ones."""
KIND = "stream of labels"


@dataclass(frozen=True)
class Heard:
    """What is held of one sequence: how many steps were read, and the state after them."""

    steps: int
    state: Any


def fingerprint(network: ClassifyNetwork, classes: Sequence[Any], symbols: Sequence[str]) -> str:
    """A hash of the weights of a network, of its time scales, and of what it reads and answers, in hexadecimal."""
    scales = [getattr(part, "step_rescale", 1.0) for part in network.modules()]
    said = asdict(network.config), [str(name) for name in classes], list(symbols), scales
    digest = sha256(json.dumps(said, sort_keys=True, default=str).encode())
    digest.update(digest_of(dict(network.state_dict())).encode())
    return digest.hexdigest()


def write_heard(path: Path, memories: Mapping[Hashable, Heard], run: str) -> None:
    """Write what was read of sequences to `path`; a symbolic link is followed.

    Raises:
        BadInput: if something that is no file has this name, or a key is neither None, a text, nor a tuple of texts.
        OSError: if it cannot be written.
    """
    check_regular(path)
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
    about = {"conca": KIND, "format": str(FORMAT), "run": run, "keys": keys}
    about["digest"] = sealed(about, tensors)
    write_whole(followed(path), save(tensors, metadata=about))


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
    check_regular(path)
    if not path.exists():
        raise BadInput(f"{path}: there is no such file; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise BadInput(f"{path}: is damaged, or no state of a stream ({' '.join(str(error).split())})") from None
    if about.get("conca") != KIND:
        raise BadInput(f"{path}: is not the state of a stream of labels; name another file")
    if not about.get("format", "").isdigit() or int(about["format"]) > FORMAT:
        raise BadInput(f"{path}: its format is newer than this conca understands ({FORMAT}); update conca")
    if about.get("run") != run:
        raise BadInput(f"{path}: is the state of a stream through another run; name that run, or begin with a new file")
    try:
        if about["digest"] != sealed(about, tensors):
            raise ValueError("what it holds is not what was written")
        keys = [tuple(key) if isinstance(key, list) else key for key in json.loads(about["keys"])]
        return dict(zip(keys, unpacked(tensors, example), strict=True))
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: is damaged ({' '.join(str(error).split())}); begin with a new file") from None


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
