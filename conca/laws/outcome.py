"""How a law came out on a thing, and what a law may say beside "holds" and "broken"."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, TypeVar

__all__ = ["DoesNotApply", "Verdict", "judge"]

T = TypeVar("T")


class DoesNotApply(Exception):
    """Raised by a law that says nothing about the thing before it, with the reason. It is not counted as passed."""


class Verdict(NamedTuple):
    """How one law came out on one sample of one family."""

    family: str
    sample: int
    law: str
    outcome: str
    """"holds", "does not apply" or "broken"."""
    message: str
    seconds: float


def judge(family: str, sample: int, law: str, body: Callable[[T], None], thing: T) -> Verdict:
    """Run one law on one thing. A law is also broken by an error of the thing's own, whatever it is."""
    begin = time.perf_counter()
    try:
        body(thing)
        outcome, message = "holds", ""
    except DoesNotApply as reason:
        outcome, message = "does not apply", str(reason)
    except AssertionError as error:
        outcome, message = "broken", str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = "broken"
        message = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})".replace("\n", " ")
    return Verdict(family, sample, law, outcome, message, time.perf_counter() - begin)
