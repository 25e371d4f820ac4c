"""SIGINT and SIGTERM, noted while something is done that should come to a good end."""

from __future__ import annotations

import signal
import threading
from typing import Any, Self

from typer import Exit

__all__ = ["Signals"]

ENDED = 128
"""Exit status of a program that a signal ended, less the signal."""


class Signals:
    """In the block of it, signals that end a program are noted, and obeyed at once only while `waiting`.

    waiting  whether nothing is being done that would be lost
    """

    def __init__(self) -> None:
        self.signal = 0
        self.waiting = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.caught)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def caught(self, number: int, _: object) -> None:
        """Note a signal; leave at once only while nothing is being done."""
        self.signal = number
        if self.waiting:
            self.obey()

    def obey(self) -> None:
        """Raise what the signal that came asks for, if one did: KeyboardInterrupt, or typer's Exit."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal:
            raise Exit(ENDED + self.signal)
