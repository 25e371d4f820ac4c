"""States: trees of batch-first tensors, and what is done to their rows: selected, merged, written, kept on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from conca.types import BadInput, S, State, path_of

__all__ = [
    "batch_of",
    "filled",
    "leaves",
    "load",
    "load_named",
    "named",
    "put",
    "save",
    "save_named",
    "size_in_bytes",
    "take",
    "tree_map",
    "where",
]


def leaves(state: State) -> Iterator[Tensor]:
    """The tensors of a state, in order."""
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state:
            yield from leaves(part)


def tree_map(function: Callable[..., Tensor], state: S, *others: S) -> S:
    """A state of the same tree, each leaf made by `function` from the leaves that stand at its place.

    Raises:
        ValueError: if the trees differ.
    """
    if isinstance(state, Tensor):
        return cast(S, function(state, *others))
    groups = zip(state, *cast("tuple[tuple[State, ...], ...]", others), strict=True)
    parts: list[State] = [tree_map(function, *group) for group in groups]
    if hasattr(state, "_fields"):
        return cast(S, type(state)(*cast(Any, parts)))
    return cast(S, tuple(parts))


def batch_of(state: State) -> int | None:
    """The number of rows, or None for a state without tensors.

    Raises:
        ValueError: if the leaves disagree.
    """
    sizes = {len(leaf) for leaf in leaves(state)}
    if len(sizes) > 1:
        raise ValueError(f"the tensors of a state disagree about the batch: {sorted(sizes)}")
    return sizes.pop() if sizes else None


def size_in_bytes(state: State) -> int:
    """Bytes that the tensors of a state take."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(state))


def take(state: S, rows: Tensor) -> S:
    """The rows with these indices (int64, shape (R,)), copied: a state of batch R."""
    return tree_map(lambda leaf: leaf[rows], state)


def where(rows: Tensor, a: S, b: S) -> S:
    """Row by row, the state `a` where `rows` (bool, shape (B,)) holds and `b` elsewhere, also at unequal capacity."""

    def pick(p: Tensor, q: Tensor) -> Tensor:
        p, q = _padded(p, q)
        return torch.where(rows.view(-1, *[1] * (p.dim() - 1)), p, q)

    return tree_map(pick, a, b)


def put(state: S, rows: Tensor, new: S) -> S:
    """A copy of `state` in which the rows with these indices (int64, shape (R,)) are those of `new` (batch R)."""

    def write(p: Tensor, q: Tensor) -> Tensor:
        p, q = _padded(p, q)
        return p.index_put((rows,), q.to(p.dtype))

    return tree_map(write, state, new)


def _padded(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both with zeros up to common trailing sizes: growing caches carry their fill per row."""
    if p.shape[1:] == q.shape[1:]:
        return p, q
    sizes = [max(pair) for pair in zip(p.shape[1:], q.shape[1:], strict=True)]

    def pad(leaf: Tensor) -> Tensor:
        short = [size - have for size, have in zip(sizes, leaf.shape[1:], strict=True)]
        return F.pad(leaf, [side for need in reversed(short) for side in (0, need)])

    return pad(p), pad(q)


def save(state: State, path: str | Path) -> None:
    """Write a state to `path` as safetensors, whole or not at all; a link stays one.

    Raises:
        BadInput: if the name is that of a folder, or of nothing in a folder that is there.
    """
    save_named(dict(named(state)), path)


def save_named(tensors: dict[str, Tensor], path: str | Path) -> None:
    """Write tensors by name to `path` as safetensors; as `save` does."""
    shown, path = path, path_of(path).resolve()
    if path.is_dir() or not path.parent.is_dir():
        raise BadInput(f"{shown}: cannot be written; name a file in a folder that is there")
    named = {name: leaf.detach().contiguous().clone() for name, leaf in tensors.items()}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        save_file(named, temporary)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: str | Path, like: S) -> S:
    """The state that `save` wrote, in the tree of `like` (an `init_state` of the same mixer; its sizes do not matter).

    Raises:
        BadInput: if the file is missing, broken, or of another mixer.
    """
    found = load_named(path)
    names = [name for name, _ in named(like)]
    if set(names) != set(found):
        theirs, ours = (", ".join(sorted(some)) for some in (found, names))
        raise BadInput(f"{path}: holds a state of another mixer ({theirs}; expected {ours})")
    return cast(S, filled(like, found))


def load_named(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Raises BadInput if it is missing or broken."""
    try:
        return load_file(path_of(path))
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{path}: not a readable state ({error})") from error


def named(state: State | None, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state by name, "state" where it is one alone; a part that is None has none."""
    if isinstance(state, Tensor):
        yield prefix or "state", state
    elif state is not None:
        fields = getattr(state, "_fields", range(len(state)))
        for field, part in zip(fields, state, strict=True):
            yield from named(part, f"{prefix}.{field}" if prefix else str(field))


def filled(like: Any, found: Mapping[str, Tensor], prefix: str = "") -> Any:
    """A state of the tree of `like` with the tensors of these names (`named`), on its device."""
    if like is None:
        return None
    if isinstance(like, Tensor):
        return found[prefix or "state"].to(like.device)
    fields = getattr(like, "_fields", range(len(like)))
    parts = [filled(part, found, f"{prefix}.{field}" if prefix else str(field)) for field, part in zip(fields, like)]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
