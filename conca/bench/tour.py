"""The tour: every number of the theory that can be measured so far, beside the measured one, and a picture of each stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import conca
from conca.bench.boxes import boxes
from conca.bench.circulation import circulation
from conca.bench.composing import composing
from conca.bench.correction import correction
from conca.bench.discretisation import discretisation
from conca.bench.escape import escape
from conca.bench.fading import fading
from conca.bench.forms import forms
from conca.bench.minima import minima
from conca.bench.polynomials import polynomials
from conca.bench.products import products
from conca.bench.retrieval import retrieval
from conca.bench.settling import settling
from conca.bench.slopes import slopes
from conca.bench.stop import Claim, Stop
from conca.bench.tub import tub
from conca.bench.wells import wells
from conca.report.page import Chapter, Page, Table

__all__ = ["STOPS", "page", "rows", "walk"]

STOPS: Sequence[Callable[[], Stop]] = (
    tub,
    discretisation,
    forms,
    polynomials,
    slopes,
    fading,
    retrieval,
    settling,
    composing,
    wells,
    escape,
    boxes,
    correction,
    minima,
    circulation,
    products,
)
"""Each measures by itself, with seeds of its own, and leaves the user's random state alone."""
HEADINGS = ("claim", "expected", "measured", "")


def walk(stops: Sequence[Callable[[], Stop]] | None = None) -> Iterator[Stop]:
    """Measure one stop after the other; all of them where none are given."""
    for stop in STOPS if stops is None else stops:
        yield stop()


def rows(claims: Sequence[Claim]) -> list[list[str]]:
    """Claims as text: what, expected, measured, and whether they agree."""
    return [[c.text, figure(c.expected), figure(c.measured), "ok" if c.holds else "NO"] for c in claims]


def figure(value: float) -> str:
    """A number with six digits that count, as few as it needs."""
    return f"{value:.6g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.1e}"


def page(stops: Sequence[Stop]) -> Page:
    """All stops on one page."""
    claims = [claim for stop in stops for claim in stop.claims]
    held = sum(claim.holds for claim in claims)
    chapters = [Chapter(s.title, (s.reading, s.picture, Table(HEADINGS, rows(s.claims)))) for s in stops]
    return Page(
        "The tour", f"{held} of {len(claims)} claims of the theory hold here; conca {conca.__version__}", chapters
    )
