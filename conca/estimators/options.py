"""Options of an estimator, checked one by one and kept in its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from operator import index
from typing import Any, ClassVar, Self

from conca.types import BadInput, nearest

__all__ = ["PRECISIONS", "Options"]

PRECISIONS = "32-true", "bf16-mixed", "64-true", "16-mixed"


@dataclass(frozen=True)
class Options:
    """A frozen dataclass of options; its children have the fields, and check them when they are made.

    kind    the word for them in errors
    """

    kind: ClassVar[str]

    def check(self, name: str, fine: bool, needed: str) -> None:
        """Raise BadInput unless an option is fine."""
        if not fine:
            raise BadInput(f"{name} must be {needed}, not {getattr(self, name)!r}")

    def whole(self, name: str, least: int, most: int) -> None:
        """An option becomes an int. Raises BadInput unless it is a whole number (NumPy's are) within bounds; True is none."""
        value = getattr(self, name)
        fine = isinstance(value, Integral) and not isinstance(value, bool)
        self.check(name, fine and least <= value <= most, f"a whole number from {least} to {most:,}")
        object.__setattr__(self, name, index(value))

    def number(self, name: str, needed: str, fine: Callable[[float], bool]) -> None:
        """An option becomes a float. Raises BadInput unless it is a number that is fine."""
        value = getattr(self, name)
        self.check(name, not isinstance(value, bool) and isinstance(value, Real) and fine(float(value)), needed)
        object.__setattr__(self, name, float(value))

    def as_dict(self) -> dict[str, Any]:
        """Lists, strings and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The inverse of `as_dict`, also after a trip through JSON. Raises BadInput on an unknown key or an ill value."""
        known = [f.name for f in fields(cls)]
        for key in saved:
            if key not in known:
                raise BadInput(f"{cls.kind}: unknown option '{key}'; {nearest(key, known)}")
        try:
            return cls(**saved)
        except BadInput:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"{cls.kind}: an option cannot be read ({error})") from None
