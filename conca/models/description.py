"""Descriptions of networks: frozen dataclasses that turn to JSON and back, and know their keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from conca.types import BadInput, nearest

__all__ = ["Description"]


@dataclass(frozen=True)
class Description:
    """What a network is made of, in plain strings and numbers."""

    def as_dict(self) -> dict[str, Any]:
        """Strings and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The inverse of `as_dict`. Raises BadInput on an unknown or missing key."""
        known = [f.name for f in fields(cls)]
        for key in saved:
            if key not in known:
                raise BadInput(f"network: unknown key '{key}'; {nearest(key, known)}")
        for name in known:
            if name not in saved:
                raise BadInput(f"network: the key '{name}' is missing")
        return cls(**saved)
