"""What writing gives: pieces as they become certain, texts, what they leave, and how fast it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from conca.infer.past import Past

__all__ = ["Generation", "Piece", "Rate", "Reason", "Written"]

Reason = Literal["length", "eos", "stop", "interrupted"]


@dataclass(frozen=True)
class Piece:
    """Something certain of one text: tokens, and characters (a character may come later than its tokens)."""

    row: int
    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Written:
    """One text.

    ids     (N,) int64, its tokens without the prompt; the token that ended it is among them
    text    without that token and without a stop string; None where no tokenizer was given
    reason  why it ended
    score   of a beam: the sum of log-likelihoods over the length to the power of the length penalty
    """

    ids: Tensor
    text: str | None
    reason: Reason
    score: float | None = None


@dataclass(frozen=True)
class Rate:
    """What was done in which time: tokens read (once for all samples of a prompt) and tokens written, seconds of both."""

    read: int
    written: int
    read_seconds: float
    write_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens written in a second."""
        return self.written / self.write_seconds if self.write_seconds else 0.0

    def line(self) -> str:
        """One line that says so.

        >>> Rate(10, 30, 0.5, 2.0).line()
        'read 10 tokens in 0.50 s (20/s), wrote 30 in 2.00 s (15/s)'
        """
        reading = self.read / self.read_seconds if self.read_seconds else 0.0
        return (
            f"read {self.read} tokens in {self.read_seconds:.2f} s ({reading:.0f}/s), "
            f"wrote {self.written} in {self.write_seconds:.2f} s ({self.tokens_per_second:.0f}/s)"
        )


@dataclass(frozen=True)
class Generation:
    """Texts, what they leave (a row for each), and the rate."""

    rows: tuple[Written, ...]
    past: Past
    rate: Rate
