"""Which body runs an operation: a kernel that somebody registered for the device, or the plain PyTorch one.

The mathematics never asks which machine it is on. A kernel is registered by name and device together with a loader, called once
at the first use, so that nothing heavy is imported before it is needed. A loader that raises ImportError leaves the plain body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["kernel", "plain_bodies", "plain_wanted", "register", "registered", "required"]

Body = Callable[..., Any]

_loaders: dict[tuple[str, str], Callable[[], Body]] = {}
_loaded: dict[tuple[str, str], Body | None] = {}
_plain: ContextVar[bool] = ContextVar("conca_plain_bodies", default=False)
_watch: ContextVar[set[str] | None] = ContextVar("conca_watched_operations", default=None)


def register(operation: str, device: str, loader: Callable[[], Body]) -> None:
    """Offer a faster body of `operation` on `device` ("cpu", "cuda"); `loader` imports and returns it."""
    _loaders[operation, device] = loader
    _loaded.pop((operation, device), None)


def registered() -> tuple[tuple[str, str], ...]:
    """The (operation, device) pairs that have a kernel registered, whether or not it can be loaded here."""
    return tuple(sorted(_loaders))


def kernel(operation: str, device: str) -> Body | None:
    """The kernel of `operation` on `device`, or None where the plain body has to run."""
    return None if _plain.get() else _load(operation, device)


def required(operation: str, device: str) -> Body:
    """The kernel of `operation`, for an inner op whose door has already chosen it (`plain_bodies` is not asked again)."""
    body = _load(operation, device)
    if body is None:
        raise RuntimeError(f"operation {operation} has no kernel on {device}; its door should have run the plain body")
    return body


def _load(operation: str, device: str) -> Body | None:
    key = operation, device
    if key not in _loaded:
        try:
            _loaded[key] = _loaders[key]() if key in _loaders else None
        except ImportError:
            _loaded[key] = None
    body, seen = _loaded[key], _watch.get()
    if body is not None and seen is not None:
        seen.add(operation)
    return body


def plain_wanted() -> bool:
    """Whether `plain_bodies` is in force."""
    return _plain.get()


@contextmanager
def plain_bodies() -> Iterator[None]:
    """Inside this context every operation runs its plain PyTorch body (a law holds both equal)."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


@contextmanager
def watched() -> Iterator[set[str]]:
    """Inside this context the names of the operations that run on a kernel gather in the set it gives."""
    seen: set[str] = set()
    token = _watch.set(seen)
    try:
        yield seen
    finally:
        _watch.reset(token)
