"""Runs fitted models: forecasts from every row of a series or from its end, and streams of forecasts or labels, row by row."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conca.infer.label_session import LabelSession
    from conca.infer.session import Session, push

__all__ = ["LabelSession", "Session", "push"]


def __getattr__(name: str) -> Any:
    """Import what streams need when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'conca.infer' has no attribute {name!r}")
    value = getattr(import_module(f"conca.infer.{'label_session' if name == 'LabelSession' else 'session'}"), name)
    globals()[name] = value
    return value
