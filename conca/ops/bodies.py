"""Which body runs an operation: a kernel that somebody registered for the device, or the plain PyTorch one.

The mathematics never asks which machine it is on. A kernel is registered by name and device together with a loader, called once
at the first use, so that nothing heavy is imported before it is needed. A loader that raises ImportError leaves the plain body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["kernel", "plain_bodies", "register", "registered"]

Body = Callable[..., Any]

_loaders: dict[tuple[str, str], Callable[[], Body]] = {}
_loaded: dict[tuple[str, str], Body | None] = {}
_plain: ContextVar[bool] = ContextVar("conca_plain_bodies", default=False)


def register(operation: str, device: str, loader: Callable[[], Body]) -> None:
    """Offer a faster body of `operation` on `device` ("cpu", "cuda"); `loader` imports and returns it."""
    _loaders[operation, device] = loader
    _loaded.pop((operation, device), None)


def registered() -> tuple[tuple[str, str], ...]:
    """The (operation, device) pairs that have a kernel registered, whether or not it can be loaded here."""
    return tuple(sorted(_loaders))


def kernel(operation: str, device: str) -> Body | None:
    """The kernel of `operation` on `device`, or None where the plain body has to run."""
    if _plain.get():
        return None
    key = operation, device
    if key not in _loaded:
        try:
            _loaded[key] = _loaders[key]() if key in _loaders else None
        except ImportError:
            _loaded[key] = None
    return _loaded[key]


@contextmanager
def plain_bodies() -> Iterator[None]:
    """Inside this context every operation runs its plain PyTorch body (a law holds both equal)."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)
