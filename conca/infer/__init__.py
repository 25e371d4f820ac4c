"""Runs fitted models: forecasts from every row of a series or from its end, streams of forecasts or labels, steps of whole models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conca.infer.decoder import Decoder
    from conca.infer.label_session import LabelSession
    from conca.infer.novelty_stream import NoveltySession
    from conca.infer.session import Session, push

__all__ = ["Decoder", "LabelSession", "NoveltySession", "Session", "push"]

_WHERE = {
    "Decoder": "decoder",
    "LabelSession": "label_session",
    "NoveltySession": "novelty_stream",
    "Session": "session",
    "push": "session",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is."""
    if name not in _WHERE:
        raise AttributeError(f"module 'conca.infer' has no attribute {name!r}")
    value = getattr(import_module(f"conca.infer.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
