"""What a law may say beside "holds" and "broken"."""

from __future__ import annotations

__all__ = ["DoesNotApply"]


class DoesNotApply(Exception):
    """Raised by a law that says nothing about the thing before it; the message says why. It is not counted as passed."""
